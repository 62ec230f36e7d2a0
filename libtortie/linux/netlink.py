"""The kernel port over rtnetlink, for one namespace; any thread may call.

Works in the namespace it was opened in whichever thread uses it, and keeps that namespace alive
until `close`. No fork, no thread of its own. No look-up before a change where the kernel can
decide: adding or deleting a route is one request however large the table.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from libtortie.errors import KernelError, NotFound, TortieError
from libtortie.linux import routes as route_wire
from libtortie.linux import sysctl, veth, wire
from libtortie.linux.channel import NLM_F_ACK, Change, Refused
from libtortie.linux.netns import DEADLINE
from libtortie.linux.port import (
    MAIN_TABLE,
    IPInterface,
    IPNetwork,
    Kernel,
    Link,
    Route,
    VethPair,
)
from libtortie.linux.rtnetlink import (
    RTM_DELADDR,
    RTM_DELROUTE,
    RTM_GETADDR,
    RTM_GETROUTE,
    RTM_NEWADDR,
    RTM_NEWROUTE,
)
from libtortie.linux.space import NLM_F_CREATE, NLM_F_REPLACE, Space

if TYPE_CHECKING:
    from libtortie.linux.monitor import Monitor

T = TypeVar("T")

EVENT_BUFFER = 4 << 20
"""Bytes of unread notifications before the kernel drops some: about 10,000 route changes."""


class NetlinkKernel:
    """Implements `port.Kernel`; `netns` is a path, `""` the calling thread's own namespace.

    `deadline` bounds, in seconds, work that has to enter the namespace. Raises NotFound.
    """

    def __init__(
        self, netns: str = "", *, deadline: float = DEADLINE, event_buffer: int = EVENT_BUFFER
    ) -> None:
        self._deadline = deadline
        self._event_buffer = event_buffer
        self._space = Space(netns, deadline=deadline)
        self._monitors: list[Monitor] = []
        self._lock = threading.Lock()
        self._closed = False

    def links(self) -> tuple[Link, ...]:
        """All links."""
        return tuple(answer.link for answer in self._space.links())

    def link(self, name: str) -> Link | None:
        """One link by name."""
        answer = self._space.find(name)
        return None if answer is None else answer.link

    def ensure_veth(self, pair: VethPair, inside: Kernel | None = None) -> tuple[Link, Link]:
        """Create the pair or find it in place; (host, pod) ends, up. See `veth.ensure_veth`."""
        if isinstance(inside, NetlinkKernel):
            return veth.ensure_veth(self._space, inside._space, pair)
        with Space(pair.pod_netns, deadline=self._deadline) as pod:
            return veth.ensure_veth(self._space, pod, pair)

    def delete_link(self, name: str) -> bool:
        """Delete a link; False when there was none."""
        return self._space.delete_link(name)

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        mac: str | None = None,
        master: str | None = None,
    ) -> None:
        """Change attributes of a link; `master=""` releases it. Raises NotFound for either."""
        bridge = self._space.ifindex(master) if master else (None if master is None else 0)
        self._space.change_link(name, up=up, mtu=mtu, mac=mac, master=bridge)

    def addresses(self, ifname: str) -> tuple[IPInterface, ...]:
        """Addresses of a link. Raises NotFound for no such link."""
        ifindex = self._space.ifindex(ifname)
        what = f"addresses of {ifname}"
        try:
            answers = self._space.channel.dump(RTM_GETADDR, wire.address_query(ifindex), what)
        except Refused as error:
            raise _link_or_kernel_error(error) from error
        found = [wire.parse_address(body) for kind, body in answers if kind == RTM_NEWADDR]
        return tuple(each[1] for each in found if each is not None and each[0] == ifindex)

    def ensure_address(self, ifname: str, address: IPInterface) -> None:
        """Give a link an address. Raises NotFound for no such link."""
        body = wire.address_change(self._space.ifindex(ifname), address)
        flags = NLM_F_CREATE | NLM_F_REPLACE
        try:
            self._space.channel.request(
                RTM_NEWADDR, flags, body, f"add address {address} to {ifname}"
            )
        except Refused as error:
            raise _link_or_kernel_error(error) from error

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link; False when it has none such, or there is no such link."""
        ifindex = self._space.names.ifindex(ifname)
        if not ifindex:
            return False
        body = wire.address_change(ifindex, address)
        try:
            self._space.channel.request(RTM_DELADDR, 0, body, f"delete {address} of {ifname}")
        except Refused as error:
            if error.code in (errno.EADDRNOTAVAIL, errno.ENODEV):
                return False
            raise
        return True

    def routes(
        self,
        *,
        table: int = MAIN_TABLE,
        version: int = 4,
        dst: IPNetwork | None = None,
        ifname: str = "",
    ) -> tuple[Route, ...]:
        """Routes of a table and family; only those to exactly `dst`, only those of one link.

        The kernel selects table and link itself. It cannot select a destination: `dst` costs a
        memory search over its dump (1 ms per 2,000 routes), not a reading of each route.
        """
        ifindex = self._space.names.ifindex(ifname) if ifname else 0
        if ifname and not ifindex:
            return ()
        if dst is not None:
            version = dst.version
        body = route_wire.route_query(version, table, ifindex=ifindex)
        mark = None if dst is None else route_wire.route_mark(dst)
        try:
            answers = self._space.channel.dump(
                RTM_GETROUTE,
                body,
                f"IPv{version} routes of table {table}",
                wanted=() if mark is None else (mark,),
            )
        except Refused as error:
            if error.code in (errno.ENOENT, errno.ENODEV):  # no such table; the link just went
                return ()
            raise
        names: dict[int, str] = {}

        def name_of(index: int) -> str:
            if index not in names:
                names[index] = self._space.names.ifname(index)
            return names[index]

        found = []
        for kind, content in answers:
            if kind != RTM_NEWROUTE or (mark is not None and mark not in bytes(content)):
                continue
            route = route_wire.parse_route(content, name_of)
            if route is not None and route.table == table and dst in (None, route.dst):
                found.append(route)
        return tuple(found)

    def ensure_route(self, route: Route) -> None:
        """Add a route, or replace the one with its key. Raises NotFound for no such link."""
        (error,) = self.ensure_routes((route,))
        if error is not None:
            raise error

    def ensure_routes(self, routes: Sequence[Route]) -> tuple[TortieError | None, ...]:
        """Add or replace routes, one right after the other; what is wrong with each."""
        wrong: dict[int, TortieError] = {}
        changes: dict[int, Change] = {}
        for number, route in enumerate(routes):
            try:
                ifindex = self._space.ifindex(route.ifname) if route.ifname else 0
            except NotFound as error:
                wrong[number] = error
                continue
            flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK
            body = route_wire.route_addition(route, ifindex)
            changes[number] = Change(RTM_NEWROUTE, flags, body, f"add {_shown(route)}")
        refused = self._space.channel.together(tuple(changes.values())) if changes else []
        for number, verdict in zip(changes, refused, strict=True):
            if verdict is not None:
                wrong[number] = _link_or_kernel_error(verdict)
        return tuple(wrong.get(number) for number in range(len(routes)))

    def delete_route(self, route: Route) -> bool:
        """Delete the route with this key; with an ifname only if it points there."""
        ifindex = self._space.names.ifindex(route.ifname) if route.ifname else 0
        if route.ifname and not ifindex:
            return False
        if route_wire.effective_priority(route) == 0 and not self._holds_metric_zero(route):
            return False  # to the kernel, metric 0 would mean any metric
        try:
            body = route_wire.route_deletion(route, ifindex)
            self._space.channel.request(RTM_DELROUTE, 0, body, f"delete {_shown(route)}")
        except Refused as error:
            if error.code in (errno.ESRCH, errno.ENOENT, errno.ENODEV):
                return False
            raise
        return True

    def read_sysctl(self, name: str) -> str:
        """A value under /proc/sys by path, stripped. Raises NotFound, InvalidInput."""
        return self._space.run(lambda: sysctl.read_sysctl(name))

    def write_sysctl(self, name: str, value: str) -> None:
        """Set a value under /proc/sys; no write when it has that value already."""
        self._space.run(lambda: sysctl.write_sysctl(name, value))

    def visit(self, work: Callable[[], T]) -> T:
        """Do something inside the namespace: what it asks of us there takes no further visit."""
        return self._space.visit(work)

    def events(self) -> Monitor:
        """Link and route changes from this call on; ends when `close` is called.

        IPv4 routes that go because their link goes down or away are *not* announced one by one:
        the kernel only sends the link's change.
        """
        from libtortie.linux.monitor import Monitor  # pyroute2 takes 0.1 s, and ADD needs no events

        with self._lock:
            if self._closed:
                raise KernelError("the kernel adapter is closed")
            sock = self._space.run(lambda: Monitor.open_socket(self._event_buffer))
            monitor = Monitor(sock, self._space.names.ifname)
            self._monitors = [each for each in self._monitors if not each.closed]
            self._monitors.append(monitor)
            return monitor

    def close(self) -> None:
        """Release sockets and namespace; ends `events`."""
        with self._lock:
            self._closed = True
            for monitor in self._monitors:
                monitor.close()
            self._monitors.clear()
        self._space.close()

    def _holds_metric_zero(self, route: Route) -> bool:
        same = self.routes(table=route.table, dst=route.dst, ifname=route.ifname)
        return any(each.priority == 0 for each in same)


def _link_or_kernel_error(error: Refused) -> NotFound | KernelError:
    return NotFound(str(error)) if error.code == errno.ENODEV else error


def _shown(route: Route) -> str:
    where = f" dev {route.ifname}" if route.ifname else ""
    via = f" via {route.gateway}" if route.gateway is not None else ""
    return f"route {route.dst}{via}{where} metric {route.priority} table {route.table}"
