"""What a process and those it runs use: memory at most, and the processors."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_EVERY = 0.005
"""Seconds from one look to the next."""


class PeakMemory:
    """`mib` is the most resident memory (MiB) of the whole tree at one time; shared pages count
    for each process. A process's own peak is the kernel's word, so none of it is missed."""

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)  # however we are ended

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._over.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        mine = _command(self._pid)
        others = [one for one in _children(self._pid) if _command(one) != mine]
        now = _kib(self._pid, "VmRSS") + sum(_kib(one, "VmHWM") for one in others)
        self.mib = max(self.mib, now / 1024, _kib(self._pid, "VmHWM") / 1024)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(one) for one in entry.read_text().split()]
    return found + [one for child in found for one in _children(child)]


def _command(pid: int) -> bytes:
    """What it runs; a child that has not begun another program has its parent's memory, too."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def processor_seconds(pid: int) -> float:
    """What a process and its ended children have used of the processors. Raises `OSError`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _kib(pid: int, what: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1])
    return 0
