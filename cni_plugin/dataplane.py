"""A pod's veth and everything on it: sysctls, addresses, routes. Calico's layout.

The pod has its address as /32 and one neighbour, 169.254.1.1, which the host answers for by
proxy ARP; the host has one /32 route per address. Three kernel facts shape this file:

- Proxy ARP answers only for what the host itself can route to (arp_process, net/ipv4/arp.c), and
  not over the same link. On a host without a default route nobody would answer for the gateway,
  so 169.254.1.1 gets a route of its own, on `lo`.
- rp_filter in force is the larger of `all` and the link's; with 1 or 2 the ARP request of a
  migration target, whose address is not routed here yet, goes unanswered.
- A link's routes, addresses and sysctls go with the link: undoing means deleting it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Interface, IPv6Network, ip_interface, ip_network

from cni_plugin.errors import AttachmentConflict
from cni_plugin.undo import Log, Undo
from libtortie.errors import KernelError, NotFound, first_line
from libtortie.linux.port import (
    IPInterface,
    IPNetwork,
    Kernel,
    Link,
    Namespaces,
    Route,
    RouteProto,
    RouteType,
    VethPair,
)
from libtortie.model.ipam import IPAddress
from libtortie.model.names import HOST_SIDE_MAC, INTERFACE_PREFIX

ROUTE_PRIORITY = 1024
"""Metric of a local workload's route; an elevated one (512) beats it, BIRD's (768) too."""

GATEWAY = ip_interface("169.254.1.1/32")
HOST_LINK_LOCAL = IPv6Interface("fe80::ecee:eeff:feee:eeee/64")
"""EUI-64 of the host side's MAC: the IPv6 gateway, equal on every node like the MAC."""

_GATEWAY_NET = IPv4Network("169.254.1.1/32")
_DEFAULT_4 = IPv4Network("0.0.0.0/0")
_DEFAULT_6 = IPv6Network("::/0")
_HELPER = Route(_GATEWAY_NET, 2**32 - 2, "lo", proto=RouteProto.KERNEL, link_scope=True)
"""Worst of metrics, and a protocol that BIRD never learns."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What to wire. `host_routes` is False for a migration target; `takes_over` lets the routes
    of an earlier sandbox of the same VM be replaced; `mac` empty lets the kernel choose.
    `alias` says on the link whose it is. `destinations` are what the pod reaches by its gateway;
    `forwarding` lets it forward packets; `queues` are the veth's, in each direction. An interface
    that is not the pod's `way_out` has no gateway, and its destinations on the link."""

    host_name: str
    ifname: str
    netns: str
    mtu: int
    mac: str
    addresses: tuple[IPAddress, ...]
    host_routes: bool = True
    takes_over: bool = False
    alias: str = ""
    destinations: tuple[IPNetwork, ...] = (_DEFAULT_4, _DEFAULT_6)
    forwarding: bool = False
    queues: int = 1
    way_out: bool = True

    @property
    def versions(self) -> set[int]:
        """The families of the addresses."""
        return {address.version for address in self.addresses}

    @property
    def has_ipv6(self) -> bool:
        """Whether an IPv6 address was assigned."""
        return 6 in self.versions


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A value to set. One that is not `needed` only warns when it cannot be set."""

    name: str
    value: str
    needed: bool = True


def host_sysctls(name: str, *, ipv6: bool) -> tuple[Sysctl, ...]:
    """Settings of the host side of a veth."""
    v4 = f"net/ipv4/conf/{name}"
    v6 = f"net/ipv6/conf/{name}"
    plan = [
        Sysctl("net/ipv4/conf/all/rp_filter", "0"),
        Sysctl(f"{v4}/rp_filter", "0"),
        Sysctl(f"{v4}/route_localnet", "1"),
        Sysctl(f"net/ipv4/neigh/{name}/proxy_delay", "0", needed=False),
        Sysctl(f"{v4}/forwarding", "1"),
        Sysctl(f"{v4}/proxy_arp", "1"),
        Sysctl(f"{v6}/accept_ra", "0", needed=False),
    ]
    if ipv6:
        plan += [
            Sysctl(f"{v6}/proxy_ndp", "1"),
            Sysctl(f"{v6}/forwarding", "1"),
        ]
    return tuple(plan)


def pod_sysctls(ifname: str, *, ipv6: bool, forwarding: bool = False) -> tuple[Sysctl, ...]:
    """Settings inside the pod's namespace.

    A new namespace has the node's `ip_forward`, so what a pod may not do is written, too.
    """
    v6, on = "net/ipv6/conf", "1" if forwarding else "0"
    out = [Sysctl("net/ipv4/ip_forward", on, needed=forwarding)]
    if ipv6:
        out += [Sysctl(f"{v6}/{where}/disable_ipv6", "0") for where in ("all", "default", "lo")]
        out.append(Sysctl(f"{v6}/all/forwarding", on, needed=forwarding))
    return (*out, Sysctl(f"{v6}/{ifname}/accept_ra", "0", needed=ipv6))


def pod_routes(
    ifname: str,
    versions: set[int],
    destinations: tuple[IPNetwork, ...] = (_DEFAULT_4, _DEFAULT_6),
    *,
    way_out: bool = True,
) -> tuple[Route, ...]:
    """Routes inside the pod: the gateway on the link, and the destinations by the gateway.

    The IPv4 gateway is on the link of the pod's way out; another interface's destinations are
    neighbours, for whom the node answers by proxy ARP. IPv6's gateway is each link's own.
    """
    out: list[Route] = []
    if 4 in versions and way_out:
        out.append(Route(_GATEWAY_NET, 0, ifname, link_scope=True))
    for dst in destinations:
        if dst.version not in versions:
            continue
        if dst.version == 4 and not way_out:
            out.append(Route(dst, 0, ifname, link_scope=True))
            continue
        metric, gateway = (0, GATEWAY) if dst.version == 4 else (ROUTE_PRIORITY, HOST_LINK_LOCAL)
        out.append(Route(dst, metric, ifname, gateway=gateway.ip))
    return tuple(out)


def host_route(address: IPAddress, host_name: str) -> Route:
    """The host's route to a local workload (BIRD learns protocol boot)."""
    return Route(single(address), ROUTE_PRIORITY, host_name, link_scope=True)


def single(address: IPAddress) -> IPNetwork:
    """The /32 or /128 of an address."""
    return ip_network(address)


def as_interface(address: IPAddress) -> IPInterface:
    """An address with its full-length prefix."""
    return ip_interface(address)


def wire(
    kernel: Kernel, namespaces: Namespaces, plan: Attachment, undo: Undo, log: Log
) -> tuple[Link, Link]:
    """Make the attachment; (host, pod) ends. Idempotent; undone by deleting the link.

    Raises `AttachmentConflict` when another workload's route is in the way, `KernelError`.
    """
    in_the_way = _routes_in_the_way(kernel, plan)
    inside = namespaces.open(plan.netns)
    try:
        ends = _wire_ends(kernel, inside, plan, undo, log)
    finally:
        inside.close()
    if plan.host_routes:
        for address in plan.addresses:
            kernel.ensure_route(host_route(address, plan.host_name))
        for route in in_the_way:
            kernel.delete_route(route)
            log("route_replaced", dst=str(route.dst), was=route.ifname, now=plan.host_name)
    return ends


def _wire_ends(
    kernel: Kernel, inside: Kernel, plan: Attachment, undo: Undo, log: Log
) -> tuple[Link, Link]:
    """The pair and what is on either end of it, but for the host's routes."""
    before = kernel.link(plan.host_name)
    undo.push("delete veth", lambda: _delete_if_new(kernel, plan.host_name, before))
    ends = kernel.ensure_veth(
        VethPair(
            host_name=plan.host_name,
            host_mac=HOST_SIDE_MAC,
            pod_name=plan.ifname,
            pod_netns=plan.netns,
            mtu=plan.mtu,
            pod_mac=plan.mac,
            queues=plan.queues,
            alias=plan.alias,
        ),
        inside,
    )
    kernel.visit(lambda: _set_up_host(kernel, plan, log))
    if plan.has_ipv6:
        kernel.ensure_address(plan.host_name, HOST_LINK_LOCAL)
    _ensure_gateway_is_routable(kernel)
    _wire_pod(inside, plan, log)
    return ends


def _set_up_host(kernel: Kernel, plan: Attachment, log: Log) -> None:
    _apply(kernel, host_sysctls(plan.host_name, ipv6=plan.has_ipv6), log)
    if plan.has_ipv6:
        _enable_ipv6(kernel, plan.host_name)


def _ensure_gateway_is_routable(kernel: Kernel) -> None:
    if kernel.routes(dst=_GATEWAY_NET, ifname=_HELPER.ifname):
        return
    loopback = kernel.link(_HELPER.ifname)
    if loopback is not None and not loopback.up:  # a bare namespace is a node without it
        kernel.set_link(_HELPER.ifname, up=True)
    kernel.ensure_route(_HELPER)


def _delete_if_new(kernel: Kernel, name: str, before: Link | None) -> None:
    """Delete our link; one that was there before this ADD, and still is, stays."""
    now = kernel.link(name)
    if now is not None and (before is None or now.ifindex != before.ifindex):
        kernel.delete_link(name)


def _wire_pod(inside: Kernel, plan: Attachment, log: Log) -> None:
    inside.visit(lambda: _set_up_pod(inside, plan, log))
    routes = pod_routes(plan.ifname, plan.versions, plan.destinations, way_out=plan.way_out)
    for route in routes:
        inside.ensure_route(route)
    for address in plan.addresses:
        inside.ensure_address(plan.ifname, as_interface(address))


def _set_up_pod(inside: Kernel, plan: Attachment, log: Log) -> None:
    sysctls = pod_sysctls(plan.ifname, ipv6=plan.has_ipv6, forwarding=plan.forwarding)
    _apply(inside, sysctls, log)
    if plan.has_ipv6:
        _enable_ipv6(inside, plan.ifname)


def _enable_ipv6(kernel: Kernel, ifname: str) -> None:
    """IPv6 without duplicate address detection, which a link that is up has begun already: for
    two seconds its link-local address, our gateway, would answer nobody. Off and on ends that."""
    base = f"net/ipv6/conf/{ifname}"
    steps = [("disable_ipv6", "0")]
    try:
        if kernel.read_sysctl(f"{base}/accept_dad") != "0":
            steps = [("disable_ipv6", "1"), ("accept_dad", "0"), *steps]
        for key, value in steps:
            kernel.write_sysctl(f"{base}/{key}", value)
    except (KernelError, NotFound) as error:
        raise KernelError(f"an IPv6 address needs IPv6 on {ifname}: {error}") from error


def _apply(kernel: Kernel, plan: tuple[Sysctl, ...], log: Log) -> None:
    for item in plan:
        try:
            kernel.write_sysctl(item.name, item.value)
        except (KernelError, NotFound) as error:
            if item.needed:
                raise KernelError(f"sysctl {item.name} = {item.value}: {error}") from error
            log("sysctl_skipped", name=item.name, error=first_line(error))


def _routes_in_the_way(kernel: Kernel, plan: Attachment) -> tuple[Route, ...]:
    """Routes of our addresses that lead to other workloads' links of this node.

    An address is one workload's, so such a route is stale when the address is a VM's that moved
    to a new sandbox here; for an ordinary pod it means that somebody uses the address.
    """
    if not plan.host_routes:
        return ()
    found = tuple(
        route
        for address in plan.addresses
        for route in kernel.routes(version=address.version, dst=single(address))
        if route.ifname.startswith(INTERFACE_PREFIX) and route.ifname != plan.host_name
    )
    if found and not plan.takes_over:
        first = found[0]
        raise AttachmentConflict(
            f"route {first.dst} dev {first.ifname} metric {first.priority} exists already: "
            f"another workload of this node uses the address of {plan.host_name}"
        )
    return found


def default_route_mtu(kernel: Kernel) -> int:
    """MTU of the link that carries the host's best default route; 0 when there is none."""
    candidates = [
        route
        for route in kernel.routes(dst=_DEFAULT_4)
        if route.type is RouteType.UNICAST and route.ifname
    ]
    for route in sorted(candidates, key=lambda item: item.priority):
        with suppress(NotFound):
            link = kernel.link(route.ifname)
            if link is not None:
                return link.mtu
    return 0
