"""The kernel port: one network namespace's links, addresses, routes and sysctls.

Every `ensure_*` is idempotent and returns only when the kernel has the state asked for; every
`delete_*` treats absence as success and says whether there was something to delete. Anything the
kernel refuses is a `KernelError` naming request and object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Protocol, TypeVar

from libtortie.errors import TortieError
from libtortie.model.ipam import IPAddress

IPNetwork = IPv4Network | IPv6Network
IPInterface = IPv4Interface | IPv6Interface
T = TypeVar("T")

MAIN_TABLE = 254


class RouteProto(IntEnum):
    """`rtm_protocol`: who owns a route. BIRD learns BOOT, STATIC and 80, not KERNEL nor BIRD."""

    KERNEL = 2
    BOOT = 3
    STATIC = 4
    BIRD = 12
    TORTIE = 80


class RouteType(StrEnum):
    """`rtm_type`, as far as we use it."""

    UNICAST = "unicast"
    BLACKHOLE = "blackhole"


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface. `kind` is e.g. `veth`, `bridge`, or empty for physical ones.

    `alias` is its owner's note on it (IFLA_IFALIAS; `ip link` shows it), or empty.
    """

    ifindex: int
    name: str
    mac: str
    mtu: int
    up: bool
    kind: str = ""
    master: int = 0
    peer_ifindex: int = 0
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A route. The kernel's key is (table, dst, priority): two metrics are two routes.

    `priority` is the metric (lower wins). 0 is what the kernel uses for an unset IPv4 metric;
    on IPv6 it stands for 1024, as which it is read back. Several next hops read as the first.
    """

    dst: IPNetwork
    priority: int
    ifname: str = ""
    gateway: IPAddress | None = None
    proto: int = RouteProto.BOOT
    type: RouteType = RouteType.UNICAST
    link_scope: bool = False
    onlink: bool = False
    table: int = MAIN_TABLE


@dataclass(frozen=True, slots=True)
class VethPair:
    """A pod's veth, each end created in its final namespace.

    `pod_netns` is a path; `pod_mac` empty lets the kernel choose. MACs are lower-case.
    `alias` is for the host end, at most 254 bytes; empty leaves what is there.
    """

    host_name: str
    host_mac: str
    pod_name: str
    pod_netns: str
    mtu: int
    pod_mac: str = ""
    queues: int = 1
    alias: str = ""


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """A link appeared or changed (`up`, MAC, master ...)."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkGone:
    """A link disappeared (deleted or moved to another namespace)."""

    name: str
    ifindex: int


@dataclass(frozen=True, slots=True)
class RouteAdded:
    """A route appeared or was replaced."""

    route: Route


@dataclass(frozen=True, slots=True)
class RouteGone:
    """A route disappeared."""

    route: Route


@dataclass(frozen=True, slots=True)
class Overrun:
    """The kernel dropped notifications: read everything again."""


NetworkEvent = LinkChanged | LinkGone | RouteAdded | RouteGone | Overrun


class Kernel(Protocol):
    """The namespace this object was opened in."""

    def links(self) -> tuple[Link, ...]:
        """All links."""
        ...

    def link(self, name: str) -> Link | None:
        """One link by name."""
        ...

    def ensure_veth(self, pair: VethPair, inside: Kernel | None = None) -> tuple[Link, Link]:
        """Create the pair (or find exactly this pair in place); returns (host, pod) ends, up.

        `inside` is the pod's namespace where it is open already.

        A host-side link of that name that is not this pair's is deleted first when it is a
        veth whose peer is gone or in another namespace; any other kind is a `KernelError`,
        as is a pod namespace that is the host's. Raises NotFound for no pod namespace.
        """
        ...

    def delete_link(self, name: str) -> bool:
        """Delete a link; False when there was none. Raises Unavailable when it does not go."""
        ...

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        mac: str | None = None,
        master: str | None = None,
    ) -> None:
        """Change attributes of a link; `master=""` releases it from its bridge.

        Raises NotFound for no such link or bridge.
        """
        ...

    def addresses(self, ifname: str) -> tuple[IPInterface, ...]:
        """Addresses of a link, link-local ones too. Raises NotFound for no such link."""
        ...

    def ensure_address(self, ifname: str, address: IPInterface) -> None:
        """Give a link an address, IPv6 without duplicate address detection: IPAM's are unique.

        Raises NotFound for no such link.
        """
        ...

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link; False when it has none such, or there is no such link."""
        ...

    def routes(
        self,
        *,
        table: int = MAIN_TABLE,
        version: int = 4,
        dst: IPNetwork | None = None,
        ifname: str = "",
    ) -> tuple[Route, ...]:
        """Routes of a table and family; only those to exactly `dst`, only those of one link.

        `dst` decides the family. A link that does not exist has no routes. Types other than
        `RouteType`'s are left out. `ifname` is much the cheaper filter in a large table.
        """
        ...

    def ensure_route(self, route: Route) -> None:
        """Add a route, or replace the one with its key (table, dst, priority).

        Raises NotFound for no such link, KernelError for one that is down.
        """
        ...

    def ensure_routes(self, routes: Sequence[Route]) -> tuple[TortieError | None, ...]:
        """`ensure_route` for several, one right after the other; what is wrong with each.

        One that is refused keeps no other from being made. Raises Unavailable.
        """
        ...

    def delete_route(self, route: Route) -> bool:
        """Delete the route with this key; with an ifname only if it points there.

        Its type, protocol and gateway don't matter. False when there was none, or no such link.
        """
        ...

    def read_sysctl(self, name: str) -> str:
        """A value under /proc/sys by path, e.g. `net/ipv4/conf/all/rp_filter`, stripped.

        Raises NotFound for no such value, InvalidInput for no such path.
        """
        ...

    def write_sysctl(self, name: str, value: str) -> None:
        """Set a value under /proc/sys; no write when it has that value already.

        Raises as `read_sysctl`, and KernelError for a value the kernel refuses.
        """
        ...

    def visit(self, work: Callable[[], T]) -> T:
        """Do something with several of this namespace's sysctls, which takes one visit to it."""
        ...

    def events(self) -> Iterator[NetworkEvent]:
        """Link and route changes from this call on; blocks; ends when `close` is called.

        The kernel does not announce IPv4 routes that go because their link goes down or away:
        after `LinkGone`, or `LinkChanged` to down, read the routes again.
        """
        ...

    def close(self) -> None:
        """Release sockets; ends `events`."""
        ...


class Namespaces(Protocol):
    """Access to other network namespaces, by path. Never creates one."""

    def open(self, path: str) -> Kernel:
        """The kernel adapter of a namespace. Raises `NotFound` when the path is none."""
        ...

    def call(self, path: str, work: Callable[[], T]) -> T:
        """Run `work` on a short-lived thread that has entered the namespace."""
        ...

    def inode(self, path: str) -> int | None:
        """Identity of a namespace; None when the path is none. `""` is our own."""
        ...
