"""A process that imports everything once and forks a child for each request, to be killed.

`MortalParent` is the test's side of it, `serve` the other: requests and exit statuses are lines of
JSON. What the children say of themselves goes to a log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

KILLED = -9


class MortalParent:
    """Runs a module whose main program is `serve`."""

    def __init__(self, directory: Path, module: str) -> None:
        self._directory = directory
        self._log = (directory / "mortal.log").open("ab")
        self._parent = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def ask(self, request: Mapping[str, Any]) -> int:
        """The exit status of the child that did it; below zero: the signal that killed it."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request).encode() + b"\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def log(self) -> str:
        """What the processes said of themselves."""
        return (self._directory / "mortal.log").read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.kill()
        self._parent.communicate()
        self._log.close()


def serve(run: Callable[[Mapping[str, Any]], NoReturn]) -> None:
    """Fork for each request; the child does `run`."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)
