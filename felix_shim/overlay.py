"""What the VXLAN overlay shall be on this node: device, far ends, routes. Pure.

Each node has one tunnel device for each family, made only while a pool wants it. A far node is a
*vtep*: a neighbour entry (tunnel address → MAC) and a forwarding entry (MAC → the node's own
address), both permanent and the same wherever VMs go. What moves with a VM is its host route.

Routes, all of one metric between BIRD's and a local workload's ordinary one:

* a block: towards its node, and on that node itself a blackhole, so that packets to a free
  address do not leave by the default route and come back;
* an address that is not where its block is: towards its node;
* an address that a workload of *this* node has, too, but that is elsewhere: towards that node,
  even if its block's route leads there. That is how the source of a migration sends on what still
  arrives, and how its state machine learns that the VM was raised elsewhere.

Across subnets only (`CrossSubnet`): a node in our own subnet is reached directly.

A host route to an address whose local workload has spoken is never made by what is stored, unless
the store has shown that workload as the owner since: older news must not take the VM away again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network

from felix_shim.overlay_places import Place, Placement, Pool
from felix_shim.overlay_settings import TunnelSettings
from libtortie.linux.port import IPInterface, IPNetwork, Route, RouteProto, RouteType
from libtortie.model.ipam import IPAddress
from libtortie.model.names import INTERFACE_PREFIX

DEVICES = {4: "vxlan.calico", 6: "vxlan-v6.calico"}
"""Calico's names, so that a node that changes over keeps its device."""


@dataclass(frozen=True, slots=True)
class Device:
    """A tunnel device. `local` is the outer source address, `address` the tunnel's own."""

    name: str
    vni: int
    port: int
    local: IPAddress
    address: IPAddress
    mac: str


@dataclass(frozen=True, slots=True)
class Vtep:
    """A far end: packets for `mac` go to `underlay`, and `address` has that MAC."""

    address: IPAddress
    mac: str
    underlay: IPAddress


@dataclass(frozen=True, slots=True)
class Overlay:
    """One family's overlay. `uplink` has our own address; routes without a link leave by it.

    `wanted`: there is to be one, whether or not it can be made yet. `problems`: what cannot be
    reached and why, in words.
    """

    version: int
    device: Device | None = None
    uplink: str = ""
    settings: TunnelSettings = field(default_factory=TunnelSettings)
    vteps: frozenset[Vtep] = frozenset()
    blocks: frozenset[Route] = frozenset()
    hosts: frozenset[Route] = frozenset()
    wanted: bool = False
    problems: tuple[str, ...] = ()

    @property
    def routes(self) -> frozenset[Route]:
        """All of them: to blocks, and to single addresses."""
        return self.blocks | self.hosts


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where addresses are: by the store, and by what nodes themselves say of VMs they have heard.

    `heard` is newer than the store. `local` are the addresses of this node's workloads, and of
    each whether the store's word for its being elsewhere counts. `near` are the placements that
    single addresses can depend on (None: any of them); `version` is another number for other
    blocks or owners of blocks (negative: unknown).
    """

    placements: tuple[Placement, ...] = ()
    near: tuple[Placement, ...] | None = None
    version: int = -1
    heard: Mapping[IPAddress, str] = field(default_factory=dict)
    local: Mapping[IPAddress, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a family's overlay stands on beside the whereabouts."""

    version: int
    node: str
    pools: tuple[Pool, ...]
    places: Mapping[str, Place]
    settings: TunnelSettings
    metric: int
    uplink: str = ""


@dataclass(frozen=True, slots=True)
class Base:
    """What of a family's overlay no VM's move changes."""

    vteps: frozenset[Vtep]
    blocks: frozenset[Route]
    problems: frozenset[str]


def overlay(ground: Ground, where: Whereabouts, base: Base | None = None) -> Overlay:
    """What shall be; nothing while no pool wants it, or while this node has no end of its own.

    `base` is `lay_base` of the same, where that is known already.
    """
    nothing = Overlay(ground.version, settings=ground.settings)
    if not ground.settings.wanted(ground.version, bool(ground.pools)):
        return nothing
    own = ground.places.get(ground.node)
    if own is None or own.tunnel is None:
        lacks = "an address" if own is None else "a tunnel address"
        problem = f"Node {ground.node} has not got {lacks} of IPv{ground.version} yet"
        return replace(nothing, wanted=True, problems=(problem,))
    settings, name = ground.settings, DEVICES[ground.version]
    device = Device(name, settings.vni, settings.port, own.underlay.ip, own.tunnel, own.mac)
    base = base or lay_base(ground, where.placements)
    router = _Router(ground, own)
    hosts = frozenset(router.to_addresses(elsewhere(where, ground.node)))
    problems = tuple(sorted(base.problems | router.problems))
    return Overlay(
        ground.version,
        device,
        ground.uplink,
        settings,
        base.vteps,
        base.blocks,
        hosts,
        True,
        problems,
    )


def lay_base(ground: Ground, placements: Iterable[Placement]) -> Base:
    """Far ends, and routes to blocks."""
    own = ground.places.get(ground.node)
    if own is None:
        return Base(frozenset(), frozenset(), frozenset())
    vteps = frozenset(
        Vtep(there.tunnel, there.mac, there.underlay.ip)
        for there in ground.places.values()
        if there.tunnel is not None and there.node != ground.node
    )
    router = _Router(ground, own)
    blocks = frozenset(router.to_blocks(placements))
    return Base(vteps, blocks, frozenset(router.problems))


@dataclass(slots=True)
class Composer:
    """Overlays as `overlay` has them, without working out again what cannot have changed."""

    _bases: dict[int, tuple[Ground, int, Base]] = field(default_factory=dict)

    def compose(self, ground: Ground, where: Whereabouts) -> Overlay:
        """A family's overlay; the same objects for what is the same as last time."""
        known = self._bases.get(ground.version)
        if known is None or where.version < 0 or known[:2] != (ground, where.version):
            known = (ground, where.version, lay_base(ground, where.placements))
            self._bases[ground.version] = known
        return overlay(ground, where, known[2])


def elsewhere(where: Whereabouts, node: str) -> dict[IPAddress, str]:
    """Which addresses need a host route, and to which node: none that is on `node` itself."""
    found: dict[IPAddress, str] = {}
    by_store: dict[IPAddress, str] = {}
    blocks: dict[IPAddress, str] = {}
    for one in where.placements if where.near is None else where.near:
        if one.single and one.node:
            found[one.cidr.network_address] = one.node
        found.update(one.strays)
        for address in where.local.keys() & one.nodes.keys():
            by_store[address] = one.nodes[address]
        for address in where.heard:
            if address in one.cidr and not one.single:
                blocks[address] = one.node
    for address, there in where.heard.items():
        found[address] = there
        if there == blocks.get(address, ""):
            del found[address]  # its block's route leads there
    for address, credible in where.local.items():
        there = where.heard.get(address) or (by_store.get(address, "") if credible else "")
        found.pop(address, None)
        if there:
            found[address] = there
    return {address: there for address, there in found.items() if there != node}


@dataclass(slots=True)
class _Router:
    """Makes routes, and remembers why one could not be made."""

    ground: Ground
    own: Place
    problems: set[str] = field(default_factory=set)

    def to_blocks(self, placements: Iterable[Placement]) -> Iterator[Route]:
        """But for blocks of a single address, whose routes are host routes."""
        for one in placements:
            pool = self._pool(one.cidr)
            if pool is None or not one.node or one.single:
                continue
            if one.node != self.ground.node:
                yield from self._towards(one.cidr, one.node, pool)
            else:
                yield self._route(one.cidr, type=RouteType.BLACKHOLE)

    def to_addresses(self, elsewhere: Mapping[IPAddress, str]) -> Iterator[Route]:
        for address, node in elsewhere.items():
            dst = ip_network(address)
            pool = self._pool(dst)
            if pool is not None:
                yield from self._towards(dst, node, pool)

    def _pool(self, cidr: IPNetwork) -> Pool | None:
        if cidr.version != self.ground.version:
            return None
        return next((pool for pool in self.ground.pools if _within(cidr, pool.cidr)), None)

    def _towards(self, dst: IPNetwork, node: str, pool: Pool) -> Iterable[Route]:
        """A route to a node, none while the node cannot be reached."""
        there = self.ground.places.get(node)
        if there is None:
            self.problems.add(f"Node {node} has no address of IPv{self.ground.version}")
            return ()
        if pool.across and there.underlay.ip in self.own.underlay.network:
            return (self._route(dst, gateway=there.underlay.ip, onlink=True),)
        if there.tunnel is None:
            self.problems.add(f"Node {node} has no tunnel address of IPv{self.ground.version}")
            return ()
        device = DEVICES[self.ground.version]
        return (self._route(dst, ifname=device, gateway=there.tunnel, onlink=True),)

    def _route(
        self,
        dst: IPNetwork,
        *,
        ifname: str = "",
        gateway: IPAddress | None = None,
        onlink: bool = False,
        type: RouteType = RouteType.UNICAST,
    ) -> Route:
        link = ifname or ("" if gateway is None else self.ground.uplink)
        return Route(
            dst=dst,
            priority=self.ground.metric,
            ifname=link,
            gateway=gateway,
            proto=RouteProto.TORTIE,
            type=type,
            onlink=onlink,
        )


def uplink_of(address: IPInterface, links: Mapping[str, frozenset[IPAddress]]) -> str:
    """The link that has an address, "" for none."""
    return next((name for name in sorted(links) if address.ip in links[name]), "")


def is_overlay(route: Route) -> bool:
    """Whether a kernel route is one that this agent makes for the overlay."""
    if route.proto != RouteProto.TORTIE or route.ifname.startswith(INTERFACE_PREFIX):
        return False
    if route.type is RouteType.BLACKHOLE:
        return True
    return route.gateway is not None and route.onlink


def _within(inner: IPNetwork, outer: IPNetwork) -> bool:
    if inner.version != outer.version or inner.prefixlen < outer.prefixlen:
        return False
    return inner.network_address in outer
