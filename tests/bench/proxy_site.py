"""Two network namespaces with a veth between them, and the processes that run in them.

All of it ends with the site, however that is left: processes are killed, namespaces deleted. A
process that fails, or says nothing for long, ends the benchmark.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from tests.bench.gc_run import term_held
from tests.fakes.fresh_names import fresh_name

SOURCE, TARGET = "192.0.2.1", "192.0.2.2"
PATIENCE = 300.0
"""Seconds in which anything here is over, many times."""


class Site:
    """The two nodes, by their addresses; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._names = {SOURCE: fresh_name("s"), TARGET: fresh_name("t")}
        self._stack = ExitStack()

    def __enter__(self) -> Site:
        with ExitStack() as undo:
            for name in self._names.values():
                undo.callback(_ip, "netns", "delete", name, check=False)
                _ip("netns", "add", name)
            source, target = self._names.values()
            peer = ("type", "veth", "peer", "m0", "netns", target)
            _ip("link", "add", "m0", "netns", source, *peer)
            for address, name in self._names.items():
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "m0")
                for link in ("m0", "lo"):
                    _ip("-n", name, "link", "set", link, "up")
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def running(self, node: str, *command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
        """A process on a node, for as long as this is entered; its pid is the command's own."""
        whole = ("ip", "netns", "exec", self._names[node], *command)
        with ExitStack() as stack:
            with term_held():
                process = subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, **more)
                stack.callback(_end, process)
            yield process

    @contextmanager
    def end(self, node: str, verb: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """One end of a path on a node."""
        words = [verb, *map(str, arguments)]
        command = (sys.executable, "-m", "tests.bench.proxy_load", *words)
        with self.running(node, *command) as process:
            yield process


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a process, as JSON. Raises `ClickException` when there is none."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        raise click.ClickException(f"{process.args!r} says nothing for {PATIENCE:g} s")
    line = process.stdout.readline()
    if not line:
        raise click.ClickException(f"{process.args!r} ended with {process.wait()}")
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def awaited(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something to be so. Raises `ClickException`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise click.ClickException(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise click.ClickException(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
