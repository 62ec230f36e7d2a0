"""Kernel settings, and the one address, that workload interfaces need.

* The guest's gateway 169.254.1.1 is answered by proxy ARP, at once (`proxy_delay` 0: the default
  holds the first answer back for up to 0.8 s).
* `rp_filter` is 0 on the veth and for `all` (the kernel takes the larger of the two): while a
  migration target has no route, strict or loose reverse-path filtering would leave the gateway's
  ARP unanswered. Spoofed packets are dropped by nftables, by interface, MAC and address.
* The guest's IPv6 gateway is the veth's link-local address, which is the same on every node: the
  kernel answers for it by itself. (`proxy_ndp` answers only for addresses that somebody has added
  one by one, so nothing depends on it.)
* A kernel that forwards IPv6 takes itself for a router and forgets the default route it learnt
  from advertisements, unless `accept_ra` is 2. So the node begins to forward IPv6 with its first
  IPv6 workload, and its uplinks go on listening.
* Writing an IPv6 `forwarding` or `proxy_ndp` takes the lock of all of the kernel's network
  configuration, and spins until it has it: an interface without IPv6 addresses goes without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cni_plugin.dataplane import HOST_LINK_LOCAL
from libtortie.errors import KernelError, NotFound, first_line
from libtortie.linux.port import Kernel

NODE = (
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),
)
NODE_IPV6 = "net/ipv6/conf/all/forwarding"
WORKLOAD = (
    ("net/ipv4/conf/{}/rp_filter", "0"),
    ("net/ipv4/conf/{}/route_localnet", "1"),
    ("net/ipv4/conf/{}/forwarding", "1"),
    ("net/ipv4/neigh/{}/proxy_delay", "0"),
    ("net/ipv4/conf/{}/proxy_arp", "1"),
)
NO_ROUTER = (("net/ipv6/conf/{}/accept_ra", "0"),)
WORKLOAD_IPV6 = (
    ("net/ipv6/conf/{}/forwarding", "1"),
    ("net/ipv6/neigh/{}/proxy_delay", "0"),
    ("net/ipv6/conf/{}/proxy_ndp", "1"),
)


def ensure_node(kernel: Kernel) -> None:
    """Make the node forward IPv4. Raises `KernelError`."""
    for name, value in NODE:
        kernel.write_sysctl(name, value)


def ensure_ipv6(kernel: Kernel, uplinks: Iterable[str]) -> None:
    """Make the node forward IPv6. Raises `KernelError`; a kernel without IPv6 is fine."""
    for uplink in uplinks:
        name = f"net/ipv6/conf/{uplink}/accept_ra"
        try:
            if kernel.read_sysctl(name) == "1":
                kernel.write_sysctl(name, "2")
        except NotFound:
            continue  # a link that is away, or without IPv6, learns nothing anyway
    try:
        kernel.write_sysctl(NODE_IPV6, "1")
    except NotFound:
        return  # IPv6 is not there: nothing to forward


def ensure_workloads(
    kernel: Kernel, interfaces: Iterable[str], ipv6: Collection[str] = ()
) -> frozenset[str]:
    """Set up these interfaces, those of `ipv6` for IPv6, too; returns those that could not be (not
    there yet, or refused)."""
    return kernel.visit(
        lambda: frozenset(name for name in interfaces if not _ensure(kernel, name, name in ipv6))
    )


@dataclass(frozen=True, slots=True)
class Wires:
    """The interfaces to be set up, each with what stands for its link and endpoint: made anew or
    changed, it is another object. In another `round` all are to be looked at again."""

    by_interface: Mapping[str, object]
    round: int = 0


@dataclass(slots=True)
class NodeSettings:
    """Sets up the node and each wire once, and all of them anew in each round.

    For one lane. `uplinks` are the links that shall go on listening to IPv6 routers.
    """

    kernel: Kernel
    uplinks: tuple[str, ...] = ()
    _round: int = -1
    _ipv6: bool = False
    _done: dict[str, object] = field(default_factory=dict)

    def ensure(self, wanted: Wires, ipv6: frozenset[str]) -> frozenset[str]:
        """Bring them about; the interfaces that could not be set up. Raises `KernelError`."""
        if self._round != wanted.round:
            ensure_node(self.kernel)
            self._ipv6, self._done, self._round = False, {}, wanted.round
        if ipv6 and not self._ipv6:
            ensure_ipv6(self.kernel, self.uplinks)
            self._ipv6 = True
        wires = wanted.by_interface
        done = {name: wire for name, wire in self._done.items() if wires.get(name) is wire}
        failed = ensure_workloads(self.kernel, wires.keys() - done.keys(), ipv6)
        self._done = {name: wire for name, wire in wires.items() if name not in failed}
        return failed


def ensure_gateways(kernel: Kernel, interfaces: Iterable[str]) -> str:
    """Give these interfaces their IPv6 gateway's address back where it is gone.

    An interface has it when it has the route that the kernel adds with it: one reading for all.
    Returns why one cannot have it, or nothing; a link that is not there needs none.
    """
    wanted = frozenset(interfaces)
    if not wanted:
        return ""
    have = {route.ifname for route in kernel.routes(dst=HOST_LINK_LOCAL.network)}
    trouble = ""
    for name in sorted(wanted - have):
        try:
            kernel.ensure_address(name, HOST_LINK_LOCAL)
        except NotFound:
            continue
        except KernelError as error:
            trouble = trouble or f"{name}: {first_line(error)}"
    return trouble


def _ensure(kernel: Kernel, interface: str, ipv6: bool) -> bool:
    try:
        for name, value in WORKLOAD:
            kernel.write_sysctl(name.format(interface), value)
    except (NotFound, KernelError):
        return False
    try:
        for name, value in NO_ROUTER + (WORKLOAD_IPV6 if ipv6 else ()):
            kernel.write_sysctl(name.format(interface), value)
    except NotFound:
        return True  # IPv6 is off on this interface or in this kernel
    except KernelError:
        return False
    return True
