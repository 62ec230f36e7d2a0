"""One operation at a time per attachment, across threads and processes.

The agent and the fallback executable may both serve the same pod, so the lock is an flock(2) on
a file of the run directory; the kernel lets go of it when its holder dies. Threads of one
process queue on a condition first. A file is removed by its last holder while locked; whoever
then locks a removed file notices by its inode and opens the path again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from libtortie.errors import Unavailable

_POLL = 0.005


class AttachmentLocks(Protocol):
    """Mutual exclusion by key."""

    def hold(self, key: str, timeout: float) -> AbstractContextManager[None]:
        """Hold a key's lock; `Unavailable` when it is not free within `timeout` seconds."""
        ...

    def busy(self, key: str) -> bool:
        """Whether an operation on a key is running now."""
        ...


class FileLocks:
    """`AttachmentLocks` over files in a directory, which is made when first needed."""

    def __init__(
        self,
        directory: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory = directory
        self._monotonic = monotonic
        self._sleep = sleep
        self._held: set[Path] = set()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, key: str, timeout: float) -> Iterator[None]:
        """Hold the lock of a key; `Unavailable` when it is not free within `timeout` seconds."""
        path = self._path(key)
        end = self._monotonic() + timeout
        with self._changed:
            if not self._changed.wait_for(lambda: path not in self._held, timeout):
                raise Unavailable(f"another operation on {key} is still running")
            self._held.add(path)
        try:
            descriptor = self._lock(path, key, end)
            try:
                yield
            finally:
                with suppress(FileNotFoundError):  # somebody emptied the run directory
                    path.unlink()
                os.close(descriptor)
        finally:
            with self._changed:
                self._held.discard(path)
                self._changed.notify_all()

    def busy(self, key: str) -> bool:
        """Whether an operation on a key is running now, in this process or another."""
        path = self._path(key)
        with self._changed:
            if path in self._held:
                return True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, key: str) -> Path:
        return self._directory / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".lock")

    def _lock(self, path: Path, key: str, end: float) -> int:
        while True:
            try:
                descriptor = _open(path)
            except OSError as error:
                raise Unavailable(f"lock file {path}: {error.strerror}") from error
            if _try_lock(descriptor) and _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
            if self._monotonic() >= end:
                raise Unavailable(f"another process is still working on {key}")
            self._sleep(_POLL)


def _open(path: Path) -> int:
    """Open a lock file, which is made where it is missing, and its directory if need be."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
