"""Files that somebody else wrote: read whole, whatever stands at their path, and never waited for.

Only a regular file is read: a pipe or a device keeps its reader waiting, perhaps for ever. All that
can be wrong with one is an OSError whose `strerror` can be shown to people.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

MOST_BYTES = 64 << 20
"""Of one file: more is a mistake, and would take the memory of who reads it."""

_NOT_REGULAR = "not a regular file"

Name = str | os.PathLike[str]
Stamp = tuple[int, int, int]


class NotRegular(OSError):
    """A directory, a pipe, a socket or a device."""


@contextmanager
def open_regular(path: Name) -> Iterator[BinaryIO]:
    """A regular file, to be read. Raises OSError, of which `NotRegular` is one."""
    name = os.fspath(path)
    descriptor = _opened(name)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegular(errno.EINVAL, _NOT_REGULAR, name)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bytes(path: Name, most: int | None = MOST_BYTES) -> bytes:
    """A regular file's content. Raises OSError, of which `NotRegular` is one; also for one of more
    than `most` bytes (None: of any size)."""
    with open_regular(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
        return file.read()


def read_text(path: Name, most: int | None = MOST_BYTES) -> str:
    """Its text, which is UTF-8; the mark (BOM) that some editors begin it with is not of it.

    Raises OSError.
    """
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        said = f"not UTF-8 (byte {error.start})"
        raise OSError(errno.EILSEQ, said, os.fspath(path)) from error


def stamp(path: Name) -> Stamp | None:
    """What changes when a file is replaced or written to; None while there is none to be seen."""
    try:
        state = os.stat(path)  # noqa: PTH116 - the path may be text
    except (OSError, ValueError):
        return None
    return stamped(state)


def stamped(state: os.stat_result) -> Stamp:
    """The same, of a state that was read already."""
    return state.st_mtime_ns, state.st_ino, state.st_size


def _opened(name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # NUL, or what the file system's encoding does not have
        raise OSError(errno.EINVAL, "this cannot be a file's name", name) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegular(errno.EINVAL, _NOT_REGULAR, name) from error
        raise
