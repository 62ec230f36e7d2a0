"""The demo's measuring processes: they say `ready`, answer in JSON lines, and end with stdin."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from lab.nodes import in_netns
from lab.processes import Ledger
from lab.tools import LabError

ANSWER_DEADLINE_S = 90.0


class Child:
    """`python -m MODULE …`, in a network namespace when one is named.

    `tell` receives every line after `ready` on a thread; without it, `ask` returns them.
    """

    def __init__(
        self,
        ledger: Ledger,
        arguments: Sequence[str],
        *,
        netns: str = "",
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._what = " ".join(arguments[:1])
        command = [sys.executable, "-m", *arguments]
        self._process = subprocess.Popen(
            in_netns(netns, command) if netns else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        ledger.add(self._process.pid, self._what)
        self._read()
        self._reader: threading.Thread | None = None
        if tell is not None:
            self._reader = threading.Thread(target=self._pump, args=(tell,), daemon=True)
            self._reader.start()

    def ask(self) -> dict[str, Any]:
        """Send a line and return the answer. Raises `LabError` when the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LabError(f"{self._what}: {error}") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        """One line, by a deadline: a process that hangs must not hang the demo."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_DEADLINE_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise LabError(f"{self._what}: ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _pump(self, tell: Callable[[dict[str, Any]], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tell(json.loads(line))

    def close(self) -> None:
        """End it: close its stdin, wait, kill if need be."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
