"""Wake up when a file is written to, by anyone: Linux inotify through ctypes.

The kernel queues an event for each write(2) to the file. An event says only "look": it can
come before the writer has published what it wrote, and is lost when the file is replaced, so
whoever waits here also looks now and then by itself (`wait` has a timeout).
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from pathlib import Path

_IN_MODIFY = 0x002
_IN_GONE = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_IN_IGNORED = 0x8000
_EVENT_SIZE = 16  # struct inotify_event without its name: i32 wd, u32 mask, cookie, len

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """One watched file, and a way to interrupt the one thread that waits for it."""

    def __init__(self, path: Path) -> None:
        """OSError when the process or the user has no inotify instances left."""
        self._path = path
        self._watching = False
        self._inotify = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            os.close(self._inotify)
            raise
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._add()

    @property
    def watching(self) -> bool:
        """Whether the file was there to be watched, the last time it was looked for."""
        return self._watching

    def wait(self, seconds: float) -> bool:
        """Whether the file was touched, or `interrupt` called, within a time."""
        if not self._watching:
            self._add()
        ready = dict(self._poll.poll(seconds * 1000))
        if self._inotify in ready:
            self._drain()
        return bool(ready)

    def interrupt(self) -> None:
        """End this and every later `wait` at once; from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Release both descriptors; nobody may be waiting."""
        os.close(self._inotify)
        os.close(self._wake)

    def _add(self) -> None:
        path = os.fsencode(self._path)
        try:
            _check(_libc.inotify_add_watch(self._inotify, path, _IN_MODIFY | _IN_GONE))
        except OSError:
            self._watching = False  # not there yet, or no watches left: the timeout serves
        else:
            self._watching = True

    def _drain(self) -> None:
        try:
            data = os.read(self._inotify, 4096)
        except BlockingIOError:
            return
        while data:
            mask = int.from_bytes(data[4:8], sys.byteorder)
            length = int.from_bytes(data[12:16], sys.byteorder)
            if mask & (_IN_GONE | _IN_IGNORED):
                self._watching = False
            data = data[_EVENT_SIZE + length :]


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
