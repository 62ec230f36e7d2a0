"""One opened network namespace: its descriptor, its request socket, its links.

Keeps the namespace alive until closed. What runs in it (opening sockets, sysctls) runs where the
caller is when that already is this namespace, else on a short-lived thread inside it.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from libtortie.errors import InvalidInput, KernelError, NotFound, Unavailable
from libtortie.linux import wire
from libtortie.linux.channel import IFNAME_MAX, Channel, Refused, open_socket
from libtortie.linux.netns import (
    DEADLINE,
    enter_open,
    identity,
    inside,
    on_thread,
    open_namespace,
    own_identity,
)
from libtortie.linux.rtnetlink import (
    RTM_DELLINK,
    RTM_GETLINK,
    RTM_GETNSID,
    RTM_NEWLINK,
    RTM_NEWNSID,
)

T = TypeVar("T")

NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
FIRST_LOOK, LONGEST_LOOK = 0.0005, 0.005
"""Seconds between looks whether a link is gone."""
DELETION_SECONDS = 20.0
"""How long a link may take to go."""
MOST_IDLE = 4
"""Sockets that are kept for the next who asks beside others."""


class Space:
    """A namespace by path (`""`: the calling thread's own). `deadline` is in seconds.

    Raises NotFound when the path is no network namespace.
    """

    def __init__(self, path: str = "", *, deadline: float = DEADLINE) -> None:
        self.name = path or "our namespace"
        self._deadline = deadline
        if path:
            what = f"opening {path}"
            self.namespace, sock = on_thread(lambda: _open(path, enter=True), deadline, what)
        else:
            self.namespace, sock = _open("", enter=False)
        self.inode = identity(self.namespace)
        self.channel = Channel(sock, lambda: self.run(open_socket))
        # In our own namespace, where many ask, names are told whatever else is being asked; another
        # one is opened for one caller, who has a socket there already.
        self.names = self.channel if path else Channel(None, lambda: self.run(open_socket))
        self._idle: list[Channel] = []
        self._closed = False
        self._lock = threading.Lock()
        self._here = threading.local()
        """Has an attribute `visiting` while its thread is known to be inside."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the namespace. A second time does nothing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in (self.channel, self.names, *idle):
            channel.close()
        self.namespace.close()

    @contextmanager
    def slow_channel(self) -> Iterator[Channel]:
        """A channel that nobody else uses meanwhile, for what takes the kernel milliseconds."""
        with self._lock:
            if self._closed:
                raise KernelError("the kernel adapter is closed")
            idle = self._idle.pop() if self._idle else None
        channel = idle or Channel(None, lambda: self.run(open_socket))
        try:
            yield channel
        finally:
            with self._lock:
                kept = not self._closed and len(self._idle) < MOST_IDLE
                if kept:
                    self._idle.append(channel)
            if not kept:
                channel.close()

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` inside the namespace."""
        if hasattr(self._here, "visiting") or own_identity() == self.inode:
            return work()
        return inside(self.namespace, work, self._deadline, f"work in {self.name}")

    def visit(self, work: Callable[[], T]) -> T:
        """As `run`, for work that runs more in here: it is not looked each time where it is."""

        if hasattr(self._here, "visiting"):
            return work()

        def visiting() -> T:
            self._here.visiting = True
            try:
                return work()
            finally:
                del self._here.visiting

        return self.run(visiting)

    def ifindex(self, name: str) -> int:
        """The index of a link. Raises NotFound."""
        ifindex = self.names.ifindex(name)
        if not ifindex:
            raise NotFound(f"no link {name} in {self.name}")
        return ifindex

    def links(self) -> list[wire.LinkAnswer]:
        """All links."""
        answers = self.channel.dump(RTM_GETLINK, wire.link_query(), f"links of {self.name}")
        found = [wire.parse_link(body) for kind, body in answers if kind == RTM_NEWLINK]
        return [answer for answer in found if answer is not None]

    def find(self, name: str) -> wire.LinkAnswer | None:
        """A link by name, or None."""
        body = self.link_body(name)
        return None if body is None else wire.parse_link(body)

    def link_body(self, name: str) -> memoryview | None:
        """What the kernel says of a link by name, or None."""
        if not name or len(name.encode()) > IFNAME_MAX:
            return None
        try:
            answer = self.channel.get(RTM_GETLINK, wire.link_query(name=name), f"link {name}")
        except Refused as error:
            if error.code == errno.ENODEV:
                return None
            raise
        return None if answer is None else answer[1]

    def create_link(self, name: str, body: bytes) -> bool:
        """Make a link; False when the name is taken, here or where its peer goes."""
        if not 0 < len(name.encode()) <= IFNAME_MAX:
            raise InvalidInput(f"a link name has 1 to {IFNAME_MAX} characters, {name!r} does not")
        try:
            what = f"create link {name} in {self.name}"
            with self.slow_channel() as channel:
                channel.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, what)
        except Refused as error:
            if error.code == errno.EEXIST:
                return False
            raise
        return True

    def change_link(self, ifname: str, /, **changes: Any) -> None:
        """Change what `wire.link_change` takes. Raises NotFound for no such link."""
        body = wire.link_change(self.ifindex(ifname), **changes)
        shown = ", ".join(f"{key}={value}" for key, value in changes.items() if value is not None)
        try:
            self.channel.request(RTM_NEWLINK, 0, body, f"set {shown} on link {ifname}")
        except Refused as error:
            if error.code == errno.ENODEV:
                raise NotFound(str(error)) from error
            raise

    def delete_link(self, name: str) -> bool:
        """Delete a link; False when there was none. Returns once it is gone for everybody.

        Within a millisecond the kernel shuts a link and its peer down, drops their routes and
        takes both out of sight, so that their names are free; then it waits some 15 ms for readers
        of its tables before it lets go of the rest, for which nobody here has to wait. Raises
        `Unavailable` when it is still there after `DELETION_SECONDS`, which are counted in steps,
        so that a machine that stood still has lost one of them.
        """
        ifindex = self.names.ifindex(name)
        if not ifindex:
            return False
        ended = threading.Event()
        refusals: list[BaseException] = []

        def run() -> None:
            try:
                self._delete(ifindex, f"delete link {name} in {self.name}")
            except BaseException as error:
                refusals.append(error)
            finally:
                ended.set()

        try:
            threading.Thread(target=run, name="delete-link", daemon=True).start()
        except RuntimeError:  # no threads left: it takes as long as it takes
            run()
        pause, left = FIRST_LOOK, DELETION_SECONDS
        while not ended.wait(pause):
            if not self.names.ifname(ifindex):
                return True
            left -= pause
            if left <= 0:
                raise Unavailable(f"deleting link {name} takes longer than {DELETION_SECONDS:g} s")
            pause = min(2 * pause, LONGEST_LOOK)
        if not refusals:
            return True
        error = refusals[0]
        if isinstance(error, Refused) and error.code == errno.ENODEV:
            return False
        raise error

    def _delete(self, ifindex: int, what: str) -> None:
        with self.slow_channel() as channel:
            channel.request(RTM_DELLINK, 0, wire.link_deletion(ifindex), what)

    def nsid_of(self, other: Space) -> int:
        """The number by which messages of this namespace name another; negative for none."""
        body = wire.nsid_query(other.namespace.fileno())
        answer = self.channel.get(RTM_GETNSID, body, f"number of {other.name} in {self.name}")
        return -1 if answer is None or answer[0] != RTM_NEWNSID else wire.parse_nsid(answer[1])


def _open(path: str, *, enter: bool) -> tuple[io.FileIO, socket.socket]:
    namespace = open_namespace(path)
    try:
        if enter:
            enter_open(namespace)
        return namespace, open_socket()
    except BaseException:
        namespace.close()
        raise
