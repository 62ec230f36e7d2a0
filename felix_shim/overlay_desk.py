"""What the agent knows of the overlay, kept from events. No I/O; the reconciler's thread alone.

Two witnesses say where an address is. The stored IPAM record decides. A node that has just heard
a VM says so by the agents' own channel, which is quicker, and says it again until the record has
followed: its word counts as long as the record names it as where the address is about to go, and
for no longer than the convergence time after it was last heard. It may even outrun the record that
does, and is kept for as long. So an early, late, repeated, lost or false notice costs speed at
most, and a node that falls silent holds no way open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from felix_shim.cluster import Cluster
from felix_shim.events import CutOver, Listed, Stored, Unstored
from felix_shim.migration import has_claimed
from felix_shim.model import EndpointId
from felix_shim.overlay import Composer, Ground, Overlay, Whereabouts, uplink_of
from felix_shim.overlay_places import Place, Placement, Pool, overlay_pools, place, placement
from felix_shim.overlay_settings import TunnelSettings
from felix_shim.roster import Local, Roster
from felix_shim.settings import Settings
from felix_shim.tunnel_rules import OpenTunnel
from libtortie.datastore.port import Record
from libtortie.model.ipam import Block, IPAddress
from libtortie.model.keys import BlockKey, Blocks, IPNetwork
from libtortie.model.resources import Node

LEAST_CLAIM_SECONDS = 10.0
"""A claim lasts so long however short the convergence time is: its node repeats it every three
seconds (`herald.REPEAT_SECONDS`), and may be busy."""
MOST_EARLY = 1024
"""Addresses of which a notice is kept that no record agrees with: anything may be said of any."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A node's word that a migration brought it an address, good until `deadline` (monotonic
    seconds)."""

    node: str
    migration_uid: str
    deadline: float


@dataclass(frozen=True, slots=True)
class OverlayPlan:
    """What both families' overlays are made of: immutable, for a lane to work out."""

    grounds: tuple[Ground, ...]
    where: Whereabouts

    def overlays(self, composer: Composer) -> tuple[Overlay, ...]:
        """What shall be."""
        return tuple(composer.compose(ground, self.where) for ground in self.grounds)


@dataclass(slots=True)
class OverlayDesk:
    """Placements of blocks, claims of nodes, and which local owners the store has confirmed."""

    node: str
    roster: Roster
    _placements: dict[IPNetwork, Placement] = field(default_factory=dict)
    _lengths: set[int] = field(default_factory=set)
    _claims: dict[IPAddress, Claim] = field(default_factory=dict)
    _early: dict[IPAddress, Claim] = field(default_factory=dict)
    """What no record agrees with yet; one that names no migration does not do for these."""
    _confirmed: dict[EndpointId, set[IPAddress]] = field(default_factory=dict)
    """Addresses of VMs that were heard here, and that the store has had here since. Those of one
    VM may be in blocks of their own, which are told of one after the other."""
    _pools: tuple[Pool, ...] = ()
    _version: int = 0
    _strays: set[IPNetwork] = field(default_factory=set)
    """Blocks with addresses that have routes of their own."""
    _grounds: dict[int, Ground] = field(default_factory=dict)
    _places: dict[str, tuple[Node, dict[int, Place | None]]] = field(default_factory=dict)

    # -- what is heard -----------------------------------------------------------------------

    def feed(self, event: Stored | Unstored | Listed) -> bool:
        """Blocks were stored, deleted or listed; True when that may change a route.

        One that could not be read stays as it was known.
        """
        match event:
            case Stored(record=Record(value=Block() as block)):
                return self.put(block)
            case Unstored(key=BlockKey(cidr)):
                return self.drop(cidr)
            case Listed(scope=Blocks(version), records=records, unreadable=unreadable):
                blocks = [one.value for one in records if isinstance(one.value, Block)]
                if unreadable:
                    return max(map(self.put, blocks), default=False)  # each of them
                return self.replace(version, blocks)
            case _:
                return False

    def put(self, block: Block) -> bool:
        """A block is stored in this form; True when that may change a route."""
        before = self._placements.get(block.cidr, Placement(block.cidr))
        now = placement(block)
        self._placements[block.cidr] = now
        self._lengths.add(block.cidr.prefixlen)
        self._version += before.node != now.node
        own_way = now.strays or now.single
        (self._strays.add if own_way else self._strays.discard)(block.cidr)
        self._confirm(now)
        self._judge_claims()
        self._hear_early(now)
        if (before.node, before.strays, before.targets) != (now.node, now.strays, now.targets):
            return True
        moved = {address for address, _ in before.nodes.items() ^ now.nodes.items()}
        return any(self.roster.with_address(address) for address in moved)

    def drop(self, cidr: IPNetwork) -> bool:
        """A block was deleted; True when it was known."""
        known = self._placements.pop(cidr, None) is not None
        self._version += known
        self._strays.discard(cidr)
        self._judge_claims()
        return known

    def replace(self, version: int, blocks: Iterable[Block]) -> bool:
        """These are a family's blocks, and there are no others."""
        fresh = {block.cidr: block for block in blocks}
        gone = [one for one in self._placements if one.version == version and one not in fresh]
        changed = [self.drop(cidr) for cidr in gone]
        changed += [self.put(block) for block in fresh.values()]
        return any(changed)

    def claim(self, event: CutOver, now: float, convergence: float) -> bool:
        """A node has heard a VM; True when its word counts for any of the addresses.

        `convergence` is the convergence time in seconds.
        """
        lasts = max(convergence, LEAST_CLAIM_SECONDS)
        claim = Claim(event.node, event.migration_uid, now + lasts)
        counts = False
        for address in event.addresses if event.node != self.node else ():
            target, migration = self._target(address)
            if target == event.node and migration in ("", event.migration_uid):
                self._claims[address] = claim
                self._early.pop(address, None)
                counts = True
            elif event.migration_uid and (address in self._early or len(self._early) < MOST_EARLY):
                self._early[address] = claim
        return counts

    def expire(self, now: float) -> None:
        """Forget claims whose time is over."""
        self._claims = {one: claim for one, claim in self._claims.items() if claim.deadline > now}
        self._early = {one: claim for one, claim in self._early.items() if claim.deadline > now}

    def first_end(self) -> float | None:
        """When the first of the claims will end (monotonic seconds), None without any."""
        return min((claim.deadline for claim in self._claims.values()), default=None)

    # -- what follows ------------------------------------------------------------------------

    def covers(self, address: IPAddress) -> bool:
        """Whether an address is in the overlay, by the pools of the last plan."""
        return any(
            address in pool.cidr for pool in self._pools if pool.cidr.version == address.version
        )

    def owner_elsewhere(self, address: IPAddress) -> str:
        """The other node whose block an address of the overlay is from, or ""."""
        found = self._block_of(address) if self.covers(address) else None
        return found.node if found is not None and found.node != self.node else ""

    def is_recorded(self, local: Local) -> bool:
        """Whether the store has named this node for a VM since that was heard here. It may have
        moved on by now: from then on the store says where it is, and this node no more."""
        stored = [one for one in local.endpoint.addresses if self._is_stored(one)]
        return bool(stored) and all(self.counts(local, one) for one in stored)

    def counts(self, local: Local, address: IPAddress) -> bool:
        """Whether the store's word that a local address is elsewhere counts.

        Of a VM that was heard here it counts once the store has named this node: until then what
        it says is older than that.
        """
        if local.endpoint.vm is None:
            return False
        if not has_claimed(local.machine):
            self._confirmed.pop(local.id, None)
            return True
        confirmed = self._confirmed.setdefault(local.id, set())
        if address not in confirmed:  # looking is dear, and each cut-over asks of each VM
            if self._stored(address) != self.node:
                return False
            confirmed.add(address)
        return True

    def believes(self, local: Local, address: IPAddress) -> bool:
        """Whether a route that leads an address of a local workload elsewhere says anything: not
        while the store has the address here, for then it is what is left of an older way."""
        if address in self._claims:
            return True
        return self.counts(local, address) and self._stored(address) != self.node

    def plan(
        self, cluster: Cluster, settings: Settings, links: Mapping[str, frozenset[IPAddress]]
    ) -> OverlayPlan | None:
        """What shall be made; None while it is not known."""
        if not cluster.knows_overlay():
            return None
        nodes, stored = cluster.nodes(), cluster.pools()
        pools = {version: overlay_pools(stored, version) for version in (4, 6)}
        self._pools = pools[4] + pools[6]
        self._read_places(nodes)
        for version, priorities in ((4, settings.ipv4), (6, settings.ipv6)):
            found = ((name, held[1][version]) for name, held in self._places.items())
            places = {name: one for name, one in found if one is not None}
            own = places.get(self.node)
            uplink = uplink_of(own.underlay, links) if own else ""
            metric, tunnel = priorities.overlay, settings.tunnel
            ground = Ground(version, self.node, pools[version], places, tunnel, metric, uplink)
            if self._grounds.get(version) != ground:
                self._grounds[version] = ground
        return OverlayPlan((self._grounds[4], self._grounds[6]), self._whereabouts())

    def _read_places(self, nodes: Mapping[str, Node]) -> None:
        """The ends of each node, made anew only for a Node that changed."""
        fresh = {}
        for name, node in nodes.items():
            held = self._places.get(name)
            if held is None or held[0] is not node:
                held = (node, {version: place(name, node, version) for version in (4, 6)})
            fresh[name] = held
        self._places = fresh

    def open_tunnel(self, cluster: Cluster, settings: TunnelSettings) -> OpenTunnel | None:
        """The port that other nodes' tunnels lead to, if this node has one."""
        stored = cluster.pools()
        versions = tuple(
            version
            for version in (4, 6)
            if settings.wanted(version, bool(overlay_pools(stored, version)))
        )
        return OpenTunnel(settings.port, versions) if versions else None

    def _whereabouts(self) -> Whereabouts:
        local: dict[IPAddress, bool] = {}
        ids = {one.id for one in self.roster}
        self._confirmed = {one: what for one, what in self._confirmed.items() if one in ids}
        for one in self.roster:
            for address in one.endpoint.addresses:
                local[address] = self.counts(one, address) and local.get(address, True)
        concerned = (self._block_of(address) for address in (*local, *self._claims))
        near = {one.cidr: one for one in concerned if one is not None}
        near |= {cidr: self._placements[cidr] for cidr in self._strays}
        return Whereabouts(
            tuple(self._placements.values()),
            tuple(near.values()),
            self._version,
            {address: claim.node for address, claim in self._claims.items()},
            local,
        )

    def _block_of(self, address: IPAddress) -> Placement | None:
        for length in self._lengths:
            if length <= address.max_prefixlen:
                found = self._placements.get(ip_network((address, length), strict=False))
                if found is not None:
                    return found
        return None

    def _stored(self, address: IPAddress) -> str:
        """The node that the store has for an address, or ""."""
        found = self._block_of(address)
        return "" if found is None else found.nodes.get(address, "")

    def _is_stored(self, address: IPAddress) -> bool:
        return self.covers(address) and bool(self._stored(address))

    def _target(self, address: IPAddress) -> tuple[str, str]:
        """The node that an address may be about to move to, and the migration."""
        found = self._block_of(address)
        return ("", "") if found is None else found.targets.get(address, ("", ""))

    def _judge_claims(self) -> None:
        """A claim ends when the store no longer names its node as the next."""
        for address, claim in tuple(self._claims.items()):
            if self._target(address)[0] != claim.node:
                del self._claims[address]

    def _hear_early(self, now: Placement) -> None:
        """A notice counts once the store agrees that its node is the next, by that migration."""
        for address in self._early.keys() & now.targets.keys():
            claim = self._early[address]
            if now.targets[address] == (claim.node, claim.migration_uid):
                self._claims[address] = self._early.pop(address)

    def _confirm(self, one: Placement) -> None:
        """The store names this node: from now on its word counts."""
        for address, node in one.nodes.items():
            if node == self.node:
                for local in self.roster.with_address(address):
                    if has_claimed(local.machine):
                        self._confirmed.setdefault(local.id, set()).add(address)
