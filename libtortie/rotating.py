"""A log file that is set aside when it is full, whoever writes to it.

Several processes may append to one file: each write is one write(2) at the end, and the file is
renamed under its own flock(2), by the first that finds it full. Whoever has a renamed or deleted
file open notices before the next write and opens the path again, so an outside logrotate works too.
A line that was cut short, by a kill or a full disk, is ended before the next one: it spoils no
other. (Where another's line is seen half written, an empty line may come of it.)

Whatever is at the path, nobody is kept waiting: a pipe that nobody reads is a failure. Nor does a
disk that is full or broken keep a daemon from its start: the file is opened at a later write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_NONE = -1
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
"""What a path may suffer from that was well chosen."""

_STAMP = re.compile(r"\.\d{8}T\d{6}\.\d{6}Z")


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a file may get, and how many full ones are kept for how long (seconds)."""

    size: int = 100 << 20
    age: float = 30 * 86400.0
    count: int = 10


class RotatingFile:
    """Appends text; raises OSError where that fails. One thread at a time."""

    def __init__(
        self, path: Path, limits: Limits | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        """Raises OSError for a path that cannot be a log."""
        self._path = path
        self._limits = limits or Limits()
        self._now = now
        self._file = _NONE
        try:
            self._file = self._open()
        except OSError as error:
            if error.errno not in _DISK:
                raise

    def write(self, text: str) -> None:
        """Append a text; first set the file aside if it would get too large."""
        data = text.encode(errors="replace")
        self._follow()
        size = os.fstat(self._file).st_size
        if size and size + len(data) > self._limits.size:
            self._set_aside(len(data))
        os.write(self._file, self._line_end() + data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Let go of the file."""
        if self._file != _NONE:
            os.close(self._file)

    def _line_end(self) -> bytes:
        """What ends the last line in the file, where nothing does."""
        size = os.fstat(self._file).st_size
        return b"\n" if size and os.pread(self._file, 1, size - 1) != b"\n" else b""

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, flags, 0o644)

    def _follow(self) -> None:
        """Open the path again if another file is there now, or none."""
        if self._file == _NONE:
            self._file = self._open()
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return
        fresh = self._open()
        os.close(self._file)
        self._file = fresh

    def _set_aside(self, more: int) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            here = os.fstat(self._file)
            try:
                full = os.path.samestat(here, self._path.stat())
            except FileNotFoundError:
                full = False
            if full and here.st_size + more > self._limits.size:  # nobody was quicker
                stamp = datetime.fromtimestamp(self._now(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
                self._path.rename(f"{self._path}.{stamp}")
                self._prune()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._follow()

    def _prune(self) -> None:
        """Delete full files that are too old or too many."""
        name = self._path.name
        old = sorted(
            (
                path
                for path in self._path.parent.iterdir()
                if path.name.startswith(name) and _STAMP.fullmatch(path.name[len(name) :])
            ),
            reverse=True,
        )
        for number, path in enumerate(old):
            with suppress(FileNotFoundError):
                expired = self._now() - path.stat().st_mtime > self._limits.age
                if number >= self._limits.count or expired:
                    path.unlink()
