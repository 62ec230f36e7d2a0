"""Wake up when a file of a directory is there, whole: Linux inotify through ctypes.

A file counts when its writer has closed it or renamed it into place. An event says only "look":
whoever waits here looks for what it wants after each, and once before the first.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from pathlib import Path

_IN_CLOSE_WRITE = 0x008
_IN_MOVED_TO = 0x080
_IN_GONE = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_IN_ONLYDIR = 0x0100_0000
_MASK = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_GONE | _IN_ONLYDIR

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """One watched directory, for one thread that waits."""

    def __init__(self, directory: Path) -> None:
        """OSError for no such directory, or when the kernel has no inotify instances left."""
        self._inotify = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        try:
            _check(_libc.inotify_add_watch(self._inotify, os.fsencode(directory), _MASK))
        except OSError:
            os.close(self._inotify)
            raise
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Return at the next event, or when `seconds` are over."""
        if self._poll.poll(seconds * 1000):
            os.read(self._inotify, 1 << 16)

    def close(self) -> None:
        """Release the descriptor, on a thread: the kernel takes 10 to 20 ms for it, until nobody
        can be looking at the watch any more (SRCU), and what was waited for is there now."""
        give_up = threading.Thread(target=os.close, args=(self._inotify,), name="unwatch")
        give_up.daemon = True
        try:
            give_up.start()
        except RuntimeError:  # no threads left, or the interpreter ends
            os.close(self._inotify)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
