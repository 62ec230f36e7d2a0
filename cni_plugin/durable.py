"""Files that others read at any moment: replaced whole, kept through a power cut, one writer.

A file is written beside its place under a name that container runtimes ignore, flushed to disk
and renamed over the old one: who reads, or executes, sees the old file or the new one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from libtortie.errors import InvalidInput
from libtortie.files import NotRegular, read_bytes

UNFINISHED = ".tortie-tmp"
"""How the name of a file ends that is being written: runtimes go by the end of a name."""

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""How file systems and kernels say that they do not know O_TMPFILE, which tries without a trace."""


def read_file(path: Path) -> bytes | None:
    """A file's content, None where there is none; empty for a directory, or a pipe or device, which
    would keep its reader waiting. Raises OSError."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except NotRegular:
        return b""


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically and durably; its directory is made if there is none.

    Raises OSError; the old file is there then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    flush_directory(path.parent)


def ensure_file(path: Path, content: bytes, mode: int) -> bool:
    """Replace a file unless it is that already, which costs no disk a flush; whether it was
    replaced. Raises as `replace_file`."""
    with suppress(OSError):
        found = path.lstat()
        if found.st_mode == stat.S_IFREG | mode and read_file(path) == content:
            return False
    replace_file(path, content, mode)
    return True


def remove_file(path: Path) -> None:
    """Remove a file, durably; one that is gone is none. Raises OSError."""
    path.unlink(missing_ok=True)
    flush_directory(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed `replace_file` left; nobody may be writing. Raises OSError."""
    for path in directory.iterdir():
        if path.name.endswith(UNFINISHED):
            path.unlink(missing_ok=True)


def move_file(path: Path, to: Path) -> None:
    """Rename a file within its directory, durably. Raises OSError."""
    path.rename(to)
    flush_directory(path.parent)


def make_directory(directory: Path, option: str) -> None:
    """A directory that can be written to. Raises `InvalidInput` naming it and `option`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno in _NO_TMPFILE and directory.is_dir():
            return
        raise InvalidInput(
            f"cannot write to {directory}: {error.strerror}: name another directory with {option}"
        ) from error


@contextmanager
def only_writer(directories: Iterable[Path], *, wait: bool = True) -> Iterator[None]:
    """While no other process of ours writes to these directories, which exist.

    Raises OSError, with `wait` false also `BlockingIOError` at once.
    """
    with ExitStack() as stack:
        for directory in sorted({one.resolve() for one in directories}):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def flush_directory(directory: Path) -> None:
    """Have the names in a directory on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_filesystem(directory: Path) -> None:
    """Have everything of this directory's file system on the disk, and no other's, which may be a
    server that is away. Raises OSError."""
    import ctypes

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
    finally:
        os.close(descriptor)
