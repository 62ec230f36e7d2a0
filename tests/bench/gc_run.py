"""One measured command: what the kernel counts for its process, and what it says at its end.

It never outlives its measurement: it is killed when it takes too long, and when who measures is
stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

TAIL = 1 << 16
"""Bytes of the output that are kept: its end."""


class Failed(Exception):
    """A command that cannot be measured: it failed, took too long, or said something else."""


@dataclass(frozen=True, slots=True)
class Used:
    """What one command took; `last` is the end of its last line."""

    seconds: float
    processor_s: float
    peak_mib: float
    last: str


@contextmanager
def term_held() -> Iterator[None]:
    """A SIGTERM meanwhile is told at the end: whoever leaves within `Popen`, where the child is
    there and its number not yet known, leaves the child."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if heard:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def _started(
    command: Sequence[str], environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that has ended when this is left."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    try:
        yield process
    except BaseException:
        process.kill()
        process.wait()
        raise


def run(
    command: Sequence[str], environ: Mapping[str, str], *, most_seconds: float, says: str = ""
) -> Used:
    """Run a command to its end. Raises `Failed`."""
    name = " ".join(command)
    late = threading.Event()
    start = time.perf_counter()
    with ExitStack() as stack:
        with term_held():
            process = stack.enter_context(_started(command, environ))
        handle = os.pidfd_open(process.pid)
        stack.callback(os.close, handle)

        def end() -> None:
            late.set()
            with suppress(ProcessLookupError):  # it has ended just now
                signal.pidfd_send_signal(handle, signal.SIGKILL)

        clock = threading.Timer(most_seconds, end)
        clock.start()
        stack.callback(clock.join)
        stack.callback(clock.cancel)
        assert process.stdout is not None
        tail = _tail(process.stdout)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    last = (tail.strip().splitlines() or [""])[-1][-200:]
    if late.is_set():
        raise Failed(f"{name} was ended after {most_seconds:g} s")
    if process.returncode:
        raise Failed(f"{name} ended with {process.returncode}: {last}")
    if says not in tail:
        raise Failed(f"{name} did not say {says!r}: {last}")
    return Used(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, last)


def _tail(output: IO[bytes]) -> str:
    """The end of an output, which may be larger than the memory."""
    tail = b""
    while part := output.read(TAIL):
        tail = (tail + part)[-TAIL:]
    return tail.decode(errors="replace")
