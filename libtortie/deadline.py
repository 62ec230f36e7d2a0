"""Deadlines that count the time in which this process ran.

A paused VM or a starved process finds its deadline passed though nobody had the time to answer.
So waiting goes in steps, and one that ends much later than it was to end does not count.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STEP = 1.0
"""Seconds of one wait."""
STANDSTILL = 0.5
"""Seconds: a wait that ends so late tells that this process was not running."""
MOST_FORGIVEN = 60.0
"""Seconds of standing still by which a deadline may be outlived."""


class Standstill:
    """Tells of waits one after another for how long this process stood still; in seconds."""

    def __init__(self, now: float, due: float) -> None:
        self._began, self._due = now, due
        self._mercy = MOST_FORGIVEN

    def expect(self, now: float, due: float) -> None:
        """A wait begins now and is to end when it is due."""
        self._began, self._due = now, due

    def forgiven(self, now: float) -> float:
        """What does not count of the last wait, which ends now."""
        if now - self._due <= STANDSTILL:
            return 0.0
        stood = min(now - self._began, self._mercy)
        self._mercy -= stood
        return stood


class Deadline:
    """When something must be over that is waited for in steps."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        now = clock()
        self._end = now + seconds
        self._standstill = Standstill(now, self._end)

    def step(self, most: float = STEP) -> float:
        """For how long to wait now, at most; 0 when time is over."""
        now = self._clock()
        self._end += self._standstill.forgiven(now)
        wait = min(max(self._end - now, 0.0), most)
        self._standstill.expect(now, now + wait)
        return wait


def run(
    command: Sequence[str | Path],
    deadline: Deadline,
    text: str = "",
    *,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with `text` to read; what it prints that is not UTF-8 is replaced.

    Raises OSError when it cannot be started, `TimeoutExpired` when it was late and is killed.
    """
    with given(text) as file:
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=env,
            start_new_session=start_new_session,
        )
    stdout, stderr = communicate(process, deadline)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def communicate(process: subprocess.Popen[str], deadline: Deadline) -> tuple[str, str]:
    """What a process prints to its two pipes. Raises `TimeoutExpired`, when it is killed.

    It must not have a pipe to be written to: see `given`.
    """
    with process:
        try:
            while wait := deadline.step():
                try:
                    return process.communicate(timeout=wait)
                except subprocess.TimeoutExpired:
                    continue
            raise subprocess.TimeoutExpired(process.args, deadline.seconds)
        except BaseException:
            process.kill()
            raise


@contextmanager
def given(text: str) -> Iterator[int]:
    """A file in memory with this text, to be a process's input.

    A pipe would have to be written while the output is read: what `Popen.communicate` has not
    written when its time is over, it never writes.
    """
    handle = os.memfd_create("input", os.MFD_CLOEXEC)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        data = memoryview(text.encode())
        while data:
            data = data[file.write(data) :]
        file.seek(0)
        yield handle
