"""Directories and sockets by path, in trees that a guest's launcher may write to.

A path is walked from its root, one name at a time, holding each directory open. Links are followed
only where root made them in a directory that only root can change (`/var/run` → `/run`), and never
out of the root of a `/proc/<pid>/root`. The last name is never followed: what is created, dialled
or removed is where the path says, whoever swaps what meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from libtortie.errors import InvalidInput
from migration_proxy.model import split_root

_MOST_LINKS = 20
_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def directory_of(path: str) -> Iterator[tuple[int, str]]:
    """The open directory a path's last name is in, and that name. Raises as `open_directory`."""
    pure = PurePosixPath(path)
    directory = open_directory(str(pure.parent))
    try:
        yield directory, pure.name
    finally:
        os.close(directory)


def open_directory(path: str) -> int:
    """A descriptor (O_PATH) of a directory. Raises `InvalidInput` for links, OSError."""
    root, inside = split_root(path)
    walk = _Walk(path, root)
    try:
        for name in PurePosixPath(inside).parts[1:]:
            walk.enter(name)
        return walk.done()
    except BaseException:
        walk.drop()
        raise


def ensure_directory(path: str, mode: int = 0o755) -> int:
    """The same, made if its parent is there. Raises `InvalidInput` for links, OSError."""
    with directory_of(path) as (parent, name):
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
        return _open_plain(parent, name, path)


def _open_plain(parent: int, name: str, path: str) -> int:
    """A directory in an open one; a link is refused, whoever made it."""
    descriptor = os.open(name, _WALK, dir_fd=parent)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISLNK(mode):
        raise InvalidInput(f"{path} is a link: it is not followed; remove it")
    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


class _Walk:
    """A stack of open directories, from a root downwards."""

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._links = 0
        self._stack = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def enter(self, name: str) -> None:
        """Go one name further down, or up for `..` as a link may say."""
        if name == "..":
            if len(self._stack) > 1:
                os.close(self._stack.pop())
            return
        descriptor = self._open(name)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            self._stack.append(descriptor)
            return
        try:
            if not stat.S_ISLNK(mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
            self._follow(name, descriptor)
        finally:
            os.close(descriptor)

    def done(self) -> int:
        """The directory arrived at; the others are closed."""
        last = self._stack.pop()
        self.drop()
        return last

    def drop(self) -> None:
        """Close all."""
        while self._stack:
            os.close(self._stack.pop())

    def _open(self, name: str) -> int:
        try:
            return os.open(name, _WALK, dir_fd=self._stack[-1])
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def _follow(self, name: str, link: int) -> None:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        above = os.fstat(self._stack[-1])
        if os.fstat(link).st_uid or above.st_uid or above.st_mode & _OTHERS_WRITE:
            raise InvalidInput(
                f"{self._path}: {name} is a link that others than root can change: not followed"
            )
        target = PurePosixPath(os.readlink("", dir_fd=link))
        if target.is_absolute():
            while len(self._stack) > 1:
                os.close(self._stack.pop())
        for part in target.parts:
            if part != "/":
                self.enter(part)
