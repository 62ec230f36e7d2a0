"""Link and route notifications of one namespace.

The socket is subscribed before the first event is asked for, so a caller that subscribes and then
reads everything misses nothing. When the kernel had to drop notifications, `Overrun` says so.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator

from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_LINK,
)

from libtortie.errors import KernelError
from libtortie.linux.channel import messages
from libtortie.linux.port import (
    LinkChanged,
    LinkGone,
    NetworkEvent,
    Overrun,
    RouteAdded,
    RouteGone,
)
from libtortie.linux.routes import parse_route
from libtortie.linux.wire import parse_link

_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_SO_RCVBUFFORCE = 33
_GROUPS = (RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE)
_BUFFER = 1 << 16


class Monitor(Iterator[NetworkEvent]):
    """An iterator of events for one consumer; `close` from any thread ends it at once.

    `ifname` looks a link's name up by index. Names seen in events win over it: a deleted link
    can't be looked up any more.
    """

    def __init__(self, sock: socket.socket, ifname: Callable[[int], str]) -> None:
        self._sock = sock
        self._ifname = ifname
        self._names: dict[int, str] = {}
        self._ready: deque[NetworkEvent] = deque()
        self._lock = threading.Lock()
        self._reading = False
        self._closing = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    @staticmethod
    def open_socket(buffer: int) -> socket.socket:
        """A subscribed socket in the calling thread's namespace, with `buffer` bytes of backlog."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_NETLINK, kind, 0)
        try:
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.bind((0, 0))
            for group in _GROUPS:
                sock.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        except BaseException:
            sock.close()
            raise
        return sock

    @property
    def closed(self) -> bool:
        """Has `close` been called?"""
        return self._closing

    def __next__(self) -> NetworkEvent:
        while not self.closed:
            if self._ready:
                return self._ready.popleft()
            self._fill()
        raise StopIteration

    def _fill(self) -> None:
        """Read once; the reader itself releases the sockets when `close` came in between."""
        with self._lock:
            if self._closing:
                return
            if self._reading:
                raise KernelError("the events of one monitor have one consumer")
            self._reading = True
        try:
            self._read()
        except KernelError:
            if not self.closed:
                raise
        finally:
            with self._lock:
                self._reading = False
                if self.closed:
                    self._release()

    def close(self) -> None:
        """End the iteration. A second time does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self._reading:
                self._wake_write.send(b"\0")
            else:
                self._release()

    def _release(self) -> None:
        self._sock.close()
        self._wake_read.close()
        self._wake_write.close()

    def _read(self) -> None:
        """Wait for a datagram or for `close`, and take in what it says."""
        self._poll.poll()
        try:
            data = self._sock.recv(_BUFFER)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise KernelError(f"events: {os.strerror(error.errno or 0)}") from error
            self._discard_backlog()
            self._names.clear()
            self._ready.append(Overrun())
            return
        for kind, _, body in messages(data):
            event = self._event(kind, body)
            if event is not None:
                self._ready.append(event)

    def _discard_backlog(self) -> None:
        """Empty the socket after an overrun, before telling of it.

        Until the backlog has been read to its end the kernel goes on dropping *without another
        ENOBUFS*. Told earlier, a reader would read everything again and then miss what changed
        while the old backlog was still there.
        """
        while not self.closed:
            try:
                self._sock.recv(_BUFFER)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelError(f"events: {os.strerror(error.errno or 0)}") from error

    def _event(self, kind: int, body: memoryview) -> NetworkEvent | None:
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            return self._link_event(kind, body)
        if kind in (RTM_NEWROUTE, RTM_DELROUTE):
            route = parse_route(body, self._name_of)
            if route is not None:
                return RouteAdded(route) if kind == RTM_NEWROUTE else RouteGone(route)
        return None

    def _link_event(self, kind: int, body: memoryview) -> NetworkEvent | None:
        """Bridges announce a port that leaves as RTM_DELLINK of family AF_BRIDGE: not a link."""
        answer = parse_link(body)
        if answer is None:
            return None
        link = answer.link
        if kind == RTM_NEWLINK:
            self._names[link.ifindex] = link.name
            return LinkChanged(link)
        self._names.pop(link.ifindex, None)
        return LinkGone(link.name, link.ifindex)

    def _name_of(self, ifindex: int) -> str:
        if ifindex not in self._names:
            name = self._ifname(ifindex)
            if not name:
                return ""
            self._names[ifindex] = name
        return self._names[ifindex]
