"""CNI calls as a runtime makes them, timed from outside: from before the spawn to the wait.

`posix_spawn` with files for stdin and stdout is the least a caller can cost, and the same for
every plugin. A call that fails ends the benchmark: a time without a result says nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Program:
    """What to run, with which environment and file on standard input."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = os.devnull


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A network namespace and what a runtime calls its container and pod."""

    netns: str
    container: str
    pod: str


def timed(programs: Sequence[Program]) -> list[tuple[float, bytes]]:
    """Run programs, all begun at once; each one's seconds and output, in order.

    Raises `ClickException` for one that fails.
    """
    outputs = [os.memfd_create("output") for _ in programs]
    complaints = os.memfd_create("complaints")
    began: dict[int, float] = {}
    order: dict[int, int] = {}
    for number, program in enumerate(programs):
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, program.stdin, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, outputs[number], 1),
            (os.POSIX_SPAWN_DUP2, complaints, 2),
        ]
        start = time.monotonic()
        pid = os.posix_spawn(
            program.command[0], list(program.command), dict(program.env), file_actions=actions
        )
        began[pid], order[pid] = start, number
    took, failed = [0.0] * len(programs), ""
    while began:
        pid, status = _next_of(set(began))
        number = order[pid]
        took[number] = time.monotonic() - began.pop(pid)
        if status:
            code, text = os.waitstatus_to_exitcode(status), _read(outputs[number])
            text += _read(complaints)[-1000:]
            failed = f"{' '.join(programs[number].command)} ended with {code}: {text!r}"
    texts = [_read(output) for output in outputs]
    for output in (*outputs, complaints):
        os.close(output)
    if failed:
        raise click.ClickException(failed)
    return list(zip(took, texts, strict=True))


def _next_of(pids: set[int]) -> tuple[int, int]:
    """The next of these children that ends."""
    if len(pids) == 1:
        return os.waitpid(min(pids), 0)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid in pids:
            return os.waitpid(ended.si_pid, 0)
        raise click.ClickException(f"an agent or server of the benchmark ended: {ended}")


def _read(output: int) -> bytes:
    return os.pread(output, os.fstat(output).st_size, 0)


@dataclass(slots=True)
class Caller:
    """Calls one plugin with one configuration. A DEL gets its ADD's result, as libcni passes it."""

    name: str
    command: Sequence[str]
    conf: Mapping[str, Any]
    directory: Path
    cni_path: str = "/usr/lib/cni"
    _results: dict[str, Any] = field(default_factory=dict)

    def call(self, verb: str, sandboxes: Sequence[Sandbox]) -> list[float]:
        """One call for each sandbox, all begun at once; the seconds of each."""
        done = timed([self._program(verb, each) for each in sandboxes])
        if verb == "ADD":
            for sandbox, (_, output) in zip(sandboxes, done, strict=True):
                self._results[sandbox.container] = json.loads(output)
        return [seconds for seconds, _ in done]

    def _program(self, verb: str, sandbox: Sandbox) -> Program:
        conf = dict(self.conf)
        if verb == "DEL":
            conf["prevResult"] = self._results.pop(sandbox.container)
        stdin = self.directory / f"{self.name}-{sandbox.container}.json"
        stdin.write_text(json.dumps(conf))
        env = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": sandbox.container,
            "CNI_NETNS": sandbox.netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": self.cni_path,
            "CNI_ARGS": (
                f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={sandbox.pod};"
                f"K8S_POD_UID=uid-of-{sandbox.pod}"
            ),
        }
        return Program(self.command, env, str(stdin))
