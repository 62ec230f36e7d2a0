"""Network namespaces: entering them, naming them, telling them apart.

A namespace belongs to a *thread*. Work inside one therefore runs on a short-lived thread that
enters it with setns(2) and dies; the caller's own thread never moves, so an exception cannot
strand it somewhere else. (Python 3.11 has no `os.setns`, hence ctypes.) A socket keeps the
namespace it was opened in, whichever thread uses it later.

Nothing here makes a namespace except `create`, which only the lab and tests call. A path that is
missing, or is no network namespace, is `NotFound`. An open descriptor of a namespace keeps the
namespace alive, so none is kept longer than the call that needs it.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import io
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from libtortie.errors import InvalidInput, KernelError, NotFound, Unavailable

if TYPE_CHECKING:
    from libtortie.linux.netlink import NetlinkKernel

T = TypeVar("T")

RUN_DIR = Path("/run/netns")
DEADLINE = 10.0
"""Seconds that work inside a namespace may take before its caller gives up."""

_STEP = 1.0

_ABSENT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ESRCH,
    errno.ENXIO,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
_OWN = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703
_MS_BIND = 4096
_MS_REC = 16384
_MS_SHARED = 1 << 20
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Netns:
    """The `Namespaces` port over real namespaces. `deadline` is in seconds."""

    def __init__(self, *, deadline: float = DEADLINE) -> None:
        self._deadline = deadline

    def open(self, path: str) -> NetlinkKernel:
        """The kernel adapter of a namespace; close it. Raises NotFound, Unavailable."""
        # Here, because pyroute2 takes 0.1 s to import and many users only `call` or `inode`.
        from libtortie.linux.netlink import NetlinkKernel

        return NetlinkKernel(path, deadline=self._deadline)

    def call(self, path: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread inside the namespace; its result or its exception is ours.

        Raises NotFound for no namespace, Unavailable when `work` outlives the deadline (its
        thread is then left behind, and cannot hold up the end of the process).
        """
        return on_thread(lambda: _entered(path, work), self._deadline, f"work in {path or 'ours'}")

    def inode(self, path: str) -> int | None:
        """Identity of a namespace; None when the path is none. `""` is our own."""
        try:
            with open_namespace(path) as namespace:
                return identity(namespace)
        except NotFound:
            return None


def open_namespace(path: str) -> io.FileIO:
    """A descriptor of the namespace at a path (`""`: the calling thread's own)."""
    if "\0" in path:
        raise NotFound(f"no network namespace at {path!r}")
    try:
        # A FIFO would block an ordinary open for ever.
        descriptor = os.open(path or _OWN, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotFound(f"no network namespace at {path}") from error
        raise KernelError(f"cannot open the network namespace {path}: {error}") from error
    try:
        kind = fcntl.ioctl(descriptor, _NS_GET_NSTYPE)
    except OSError:
        kind = 0
    if kind != _CLONE_NEWNET:
        os.close(descriptor)
        raise NotFound(f"{path} is not a network namespace")
    return io.FileIO(descriptor)


def identity(namespace: io.FileIO) -> int:
    """The inode number that names a namespace as long as it lives."""
    return os.fstat(namespace.fileno()).st_ino


def own_identity() -> int:
    """The identity of the calling thread's namespace."""
    return os.stat(_OWN).st_ino  # noqa: PTH116  # at every system control, and Path is slow


def enter(path: str) -> None:
    """Move the calling thread into a namespace, for good.

    For a process that wants all of itself inside: call it first in `main`, before there are
    other threads; those started later inherit it.
    """
    with open_namespace(path) as namespace:
        enter_open(namespace)


def enter_open(namespace: io.FileIO) -> None:
    """Move the calling thread into an opened namespace, for good."""
    _libc_call("setns", namespace.fileno(), _CLONE_NEWNET)


def on_thread(work: Callable[[], T], deadline: float, what: str) -> T:
    """Run `work` on a new thread and hand back its result or raise its exception.

    Raises Unavailable, naming `what`, after `deadline` seconds. They are counted in steps, so that
    a machine that stood still has lost one of them.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    running = threading.Lock()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            running.release()

    # Not a `Thread`, whose start and join pass the interpreter's lock to and fro three times more.
    running.acquire()
    _thread.start_new_thread(run, ())
    left = deadline
    while left > 0 and not running.acquire(timeout=min(left, _STEP)):
        left -= _STEP
    if errors:
        raise errors.pop()
    if not results:
        raise Unavailable(f"{what} did not end within {deadline:g} s")
    return results.pop()


def inside(namespace: io.FileIO, work: Callable[[], T], deadline: float, what: str) -> T:
    """Run `work` on a new thread that has entered an opened namespace."""

    def run() -> T:
        enter_open(namespace)
        return work()

    return on_thread(run, deadline, what)


def create(name_or_path: str) -> str:
    """Make a named namespace as `ip netns add` does, unless it is there; returns its path."""
    path = _path_of(name_or_path)
    with _named_namespaces(path.parent):
        with suppress(NotFound), open_namespace(str(path)):
            return str(path)
        fresh = not _leftover(path)
        path.touch(mode=0o444)

        def bind_new() -> None:
            _libc_call("unshare", _CLONE_NEWNET)
            _mount(_OWN, path, _MS_BIND)

        try:
            on_thread(bind_new, DEADLINE, f"making {path}")
        except BaseException:
            if fresh:
                path.unlink(missing_ok=True)
            raise
    return str(path)


def delete(name_or_path: str) -> bool:
    """Unmount and remove a named namespace; False when there was none.

    The namespace itself lives on while a process, a socket or a descriptor is in it. Raises
    InvalidInput for anything else that is found at the path.
    """
    path = _path_of(name_or_path)
    with _named_namespaces(path.parent):
        while _is_namespace(path):  # mounts can be stacked
            _libc_call("umount2", os.fsencode(path), _MNT_DETACH)
        if not _leftover(path):
            return False
        path.unlink()
    return True


def _leftover(path: Path) -> bool:
    """Is there the empty file that a mounted namespace covers? Raises InvalidInput for others."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        raise InvalidInput(f"{path} is no mount point of a network namespace")
    return True


def _is_namespace(path: Path) -> bool:
    with suppress(NotFound), open_namespace(str(path)):
        return not path.is_symlink()
    return False


def _entered(path: str, work: Callable[[], T]) -> T:
    if path:
        enter(path)
    return work()


def _path_of(name_or_path: str) -> Path:
    if not name_or_path or "\0" in name_or_path or Path(name_or_path).name in ("", ".", ".."):
        raise InvalidInput(f"{name_or_path!r} names no network namespace")
    return Path(name_or_path) if "/" in name_or_path else RUN_DIR / name_or_path


@contextmanager
def _named_namespaces(folder: Path) -> Iterator[None]:
    """Hold the lock that `ip netns` takes too, with the folder made a shared mount.

    Shared, so that other mount namespaces see a deletion. `ip netns` binds the folder onto
    itself when it is not shared yet, which would hide namespaces mounted before.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder == RUN_DIR:
            try:
                _mount("", folder, _MS_SHARED | _MS_REC)
            except KernelError:
                _mount(str(folder), folder, _MS_BIND | _MS_REC)
                _mount("", folder, _MS_SHARED | _MS_REC)
        yield
    finally:
        os.close(descriptor)


def _mount(source: str, target: Path, flags: int) -> None:
    _libc_call("mount", source.encode(), os.fsencode(target), b"none", flags, None)


def _libc_call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise KernelError(f"{name}: {os.strerror(code)}") from OSError(code, os.strerror(code))
