"""The unix sockets of both sides: listeners whose files appear whole, and dialling a file.

A listener is bound under a name of its own with its owner and mode, and renamed to its place once
all of a migration's are there: nobody finds a socket that is not yet theirs, and a restart swaps
the old for the new without a gap. What a kill left under such a name goes with the next one. A dead
socket of ours is replaced; anything else is refused.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from libtortie.errors import InvalidInput, Unavailable
from migration_proxy.places import directory_of, ensure_directory

BACKLOG = 256
BREATH_SECONDS = 0.02
MOST_LISTED = 4096
"""Of a directory that a guest's launcher may fill."""
MODE = 0o600
SEND_BUFFER_BYTES = 1 << 20
"""What may wait for a target's program; the kernel's default is a fifth, its most without root."""
_SO_SNDBUFFORCE = 32
"""Linux's number; `socket` has no name for it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may connect: a process of this user."""

    uid: int
    gid: int

    @classmethod
    def named(cls, user: str) -> Owner:
        """A user of this system, by name or `uid:gid`; empty: we. Raises `InvalidInput`."""
        if not user:
            return cls(os.geteuid(), os.getegid())
        uid, _, gid = user.partition(":")
        if uid.isdecimal() and gid.isdecimal():
            return cls(int(uid), int(gid))
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise InvalidInput(
                f"socket_user {user!r}: no such user; name one, or uid:gid"
            ) from None
        return cls(entry.pw_uid, entry.pw_gid)


class UnixListener:
    """A listening socket and its file; `publish` puts the file in its place."""

    def __init__(self, path: str, owner: Owner, *, ours: bool = False) -> None:
        """Bind beside the place, where one of ours may listen.

        Raises `InvalidInput`, OSError; nothing is left then.
        """
        self.path = path
        self._published = False
        self._inode = (0, 0)
        parent, _, name = path.rpartition("/")
        with _held(parent) as directory:
            if not ours:
                check_place(directory, name, path, owner)
            unborn = _unborn(name)
            _sweep(directory, unborn, owner)
            self._name = f"{unborn}{os.urandom(4).hex()}"
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                os.fchmod(self.socket.fileno(), MODE)
                self.socket.bind(_at(directory, self._name))
                self._take(directory, owner)
                self.socket.listen(BACKLOG)
                self._directory = os.dup(directory)
            except BaseException:
                self._remove(directory)
                self.socket.close()
                raise

    def publish(self) -> None:
        """Put the file in its place. Raises OSError."""
        name = self.path.rpartition("/")[2]
        os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name, self._published = name, True

    def withdraw(self) -> None:
        """The file goes, if it is still ours; the socket is its listener's to close."""
        if self._directory >= 0:
            self._remove(self._directory)
            os.close(self._directory)
            self._directory = -1

    def present(self) -> bool:
        """Whether the file is in its place."""
        return self._published and self._is_ours(self._directory)

    def _take(self, directory: int, owner: Owner) -> None:
        self._inode = _inode(directory, self._name)
        if (owner.uid, owner.gid) != (os.geteuid(), os.getegid()):
            os.chown(self._name, owner.uid, owner.gid, dir_fd=directory, follow_symlinks=False)

    def _is_ours(self, directory: int) -> bool:
        with suppress(OSError):
            return _inode(directory, self._name) == self._inode
        return False

    def _remove(self, directory: int) -> None:
        with suppress(OSError):  # it was not bound, or is gone
            if _inode(directory, self._name) == self._inode:
                os.unlink(self._name, dir_fd=directory)


def _unborn(name: str) -> str:
    """How names begin under which a socket of this name waits for its place; never two alike."""
    return f".{hashlib.sha256(name.encode()).hexdigest()[:16]}."


def _sweep(directory: int, unborn: str, owner: Owner) -> None:
    """Remove what killed daemons of ours left on the way to this place, of the first files seen."""
    with suppress(OSError):  # a listing that cannot be had, or another was quicker
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(readable) as entries:
                there = [one.name for one in islice(entries, MOST_LISTED)]
        finally:
            os.close(readable)
        for name in there:
            if name.startswith(unborn):
                _sweep_one(directory, name, owner)


def _sweep_one(directory: int, name: str, owner: Owner) -> None:
    state = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISSOCK(state.st_mode) and state.st_uid in (owner.uid, os.geteuid()):
        os.unlink(name, dir_fd=directory)


def check_place(directory: int, name: str, path: str, owner: Owner) -> None:
    """Raises `InvalidInput` unless the place is free, or holds a dead socket of ours."""
    try:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return
    try:
        state = os.fstat(found)
        if not stat.S_ISSOCK(state.st_mode):
            raise InvalidInput(f"{path} is {_kind(state.st_mode)}, not a socket: remove it")
        if state.st_uid not in (owner.uid, os.geteuid()):
            raise InvalidInput(
                f"{path} is a socket of uid {state.st_uid}, not of {owner.uid}: remove it"
            )
        if _answers(found):
            raise InvalidInput(f"{path}: another program listens there: stop it")
    finally:
        os.close(found)


def dial(
    path: str,
    seconds: float,
    note: Callable[[socket.socket], None],
    pause: Callable[[float], object],
) -> socket.socket:
    """Connect to a socket's file, not following it; `note` gets the socket before.

    A program whose queue is full is given `seconds` to take somebody out of it: the kernel does
    not wait for it by itself. `pause` waits so many, and is true once nobody wants the stream.

    Raises `Unavailable` that says why, `InvalidInput` for a link on the way.
    """
    try:
        with directory_of(path) as (directory, name):
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}: {hint(error)}") from error
    try:
        mode = os.fstat(found).st_mode
        if not stat.S_ISSOCK(mode):
            raise Unavailable(f"{path} is {_kind(mode)}, not a socket")
        return _connect(found, path, seconds, note, pause)
    finally:
        os.close(found)


def _connect(
    found: int,
    path: str,
    seconds: float,
    note: Callable[[socket.socket], None],
    pause: Callable[[float], object],
) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    note(sock)
    end = time.monotonic() + seconds
    try:
        sock.setblocking(False)
        while not _queued(sock, found):
            if time.monotonic() >= end or pause(BREATH_SECONDS):
                raise TimeoutError(errno.ETIMEDOUT, f"its queue was full for {seconds:g} s")
        sock.setblocking(True)
        _hold_more(sock)
    except OSError as error:
        sock.close()
        raise Unavailable(f"{path}: {error.strerror or error}: {hint(error)}") from error
    return sock


def _queued(sock: socket.socket, found: int) -> bool:
    """Whether there was room for us in a program's queue. Raises OSError."""
    try:
        sock.connect(f"/proc/self/fd/{found}")
    except BlockingIOError:
        return False
    return True


def _hold_more(sock: socket.socket) -> None:
    """Let more wait for the program: it is woken less often, and each time has more to do."""
    with suppress(PermissionError):  # not root: the kernel's default will do
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BUFFER_BYTES)


def hint(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "the proxy has too many: raise its limit (systemd: LimitNOFILE=)"
    if error.errno == errno.ENOENT:
        return "the target's libvirt or QEMU has not made it, or is gone"
    if error.errno == errno.ECONNREFUSED:
        return "who made it has ended"
    return "the target's libvirt or QEMU does not take connections"


@contextmanager
def _held(path: str) -> Iterator[int]:
    """The open directory of sockets, made if its parent is there."""
    directory = ensure_directory(path)
    try:
        yield directory
    finally:
        os.close(directory)


def _answers(found: int) -> bool:
    """Whether somebody listens behind a socket's file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(f"/proc/self/fd/{found}")
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # its queue is full, or it is no stream socket
    return True


def _at(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


def _inode(directory: int, name: str) -> tuple[int, int]:
    state = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return state.st_dev, state.st_ino


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "a directory" if stat.S_ISDIR(mode) else "a file"
