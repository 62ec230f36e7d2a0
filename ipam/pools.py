"""Which pools may give an address, and whose a block is: pure decisions over IPPools.

A pool gives addresses while it is *enabled*: not disabled, not being deleted, not marked
`Allocatable: False`, and not overlapping an older enabled pool. A block is a pool's only if it lies
in it and has its block size, so that no address is ever in two blocks that are both in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network

from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import IPNetwork, Kind, ResourceKey
from libtortie.model.resources import IPPool

WORKLOAD = "Workload"
TUNNEL = "Tunnel"

EVERY_NODE = ("", "all()")
"""Node selectors that select whatever a node's labels are."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What allocation needs to know of an IPPool. `unusable` says why it is not enabled, or "".

    `ipip` and `vxlan`: whether it has that encapsulation, for all or only across subnets.
    """

    name: str
    cidr: IPNetwork
    block_prefixlen: int
    unusable: str
    automatic: bool
    allowed_uses: frozenset[str]
    node_selector: str
    namespace_selector: str
    created: str = ""
    ipip: bool = False
    vxlan: bool = False

    @property
    def enabled(self) -> bool:
        """Whether it gives addresses at all."""
        return not self.unusable

    @property
    def for_some_namespaces(self) -> bool:
        """Whether pods of some namespaces may not use it."""
        return self.namespace_selector not in ("", "all()")

    @property
    def key(self) -> ResourceKey:
        """Where the IPPool is stored."""
        return ResourceKey(Kind.IP_POOL, self.name)

    def block_of(self, address: IPAddress) -> IPNetwork:
        """The CIDR of the pool's block around one of its addresses."""
        return ip_network(f"{address}/{self.block_prefixlen}", strict=False)

    def has(self, cidr: IPNetwork) -> bool:
        """Whether a block is one of the pool's: inside it, and of its block size."""
        return cidr.prefixlen == self.block_prefixlen and inside(cidr, self.cidr)


@dataclass(frozen=True, slots=True)
class Lan:
    """One link on which all addresses of a block, or of a pool, are neighbours.

    Its network address, its IPv4 broadcast address and its router's are no host's. Without a
    `router` of a family that is the first host address: who has to choose one takes it.
    """

    whole_pool: bool = False
    routers: frozenset[IPAddress] = frozenset()

    def spares(self, address: IPAddress, block: IPNetwork, pool: IPNetwork) -> bool:
        """Whether an address is given only to who asks for it, or to nobody."""
        link = pool if self.whole_pool else block
        if self.keeps(address, link):
            return True
        chosen = all(one.version != link.version for one in self.routers)
        return chosen and not _is_pair(link) and address == link.network_address + 1

    def keeps(self, address: IPAddress, link: IPNetwork) -> bool:
        """Whether an address is the link's own: nobody's, not even for asking."""
        if address in self.routers:
            return True
        if _is_pair(link):
            return False
        last = link.broadcast_address if link.version == 4 else None
        return address in (link.network_address, last)


def _is_pair(link: IPNetwork) -> bool:
    """Whether a link is point to point: both of its addresses are hosts' (RFC 3021, RFC 6164)."""
    return link.max_prefixlen - link.prefixlen < 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions under which a pool is eligible, and an address in it."""

    version: int
    requested: Sequence[str]
    node_labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]
    use: str = WORKLOAD
    lan: Lan | None = None


def parse_pool(resource: IPPool) -> Pool:
    """What allocation needs to know of a valid IPPool."""
    spec = resource.spec
    return Pool(
        name=resource.metadata.name,
        cidr=ip_network(spec.cidr),
        block_prefixlen=spec.block_size,
        unusable=_unusable(resource),
        automatic=spec.assignment_mode == "Automatic",
        allowed_uses=frozenset(spec.allowed_uses),
        node_selector=spec.node_selector,
        namespace_selector=spec.namespace_selector,
        created=resource.metadata.creation_timestamp or "",
        ipip=spec.ipip_mode != "Never",
        vxlan=spec.vxlan_mode != "Never",
    )


def _unusable(pool: IPPool) -> str:
    if pool.spec.disabled:
        return "disabled"
    if pool.metadata.deletion_timestamp:
        return "being deleted"
    status = (pool.model_extra or {}).get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        said = condition if isinstance(condition, Mapping) else {}
        if (said.get("type"), said.get("status")) == ("Allocatable", "False"):
            return f"not allocatable: {said.get('reason') or 'no reason given'}"
    return ""


def settled(pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """The pools, of those that overlap only the oldest (else the first by name) enabled.

    A function of the pools alone, so that every node settles it the same way.
    """
    found: list[Pool] = []
    for pool in sorted(pools, key=lambda one: (one.created, one.name)):
        rival = next((p for p in found if p.enabled and p.cidr.overlaps(pool.cidr)), None)
        beaten = pool.enabled and rival is not None
        why = f"overlaps older pool {rival.name}, {rival.cidr}" if beaten and rival else ""
        found.append(replace(pool, unusable=why) if beaten else pool)
    return tuple(sorted(found, key=lambda one: one.name))


def eligible(pools: Iterable[Pool], wanted: Wanted) -> tuple[Pool, ...]:
    """Pools to allocate from, in order of preference.

    Requested pools (names or CIDRs) come in the order asked for and need only be enabled, of
    the family and of the use; otherwise every pool in name order whose selectors match, except
    those for manual assignment. Raises `InvalidInput` for a requested pool that can't be used.
    """
    if wanted.requested:
        chosen = [_requested(pools := tuple(pools), text, wanted) for text in wanted.requested]
    else:
        chosen = [pool for pool in sorted(pools, key=lambda p: p.name) if _selected(pool, wanted)]
    return tuple(pool for pool in chosen if wanted.use in pool.allowed_uses)


def choosy(pools: Iterable[Pool], wanted: Wanted) -> tuple[Pool, ...]:
    """Pools of which only the node's labels can tell whether they are eligible."""
    if wanted.requested:
        return ()
    found = (pool for pool in pools if wanted.use in pool.allowed_uses and _may(pool, wanted))
    return tuple(pool for pool in found if pool.node_selector not in EVERY_NODE)


def _requested(pools: Iterable[Pool], text: str, wanted: Wanted) -> Pool:
    named = [pool for pool in pools if text in (pool.name, str(pool.cidr))]
    for pool in named:
        if not pool.enabled:
            continue
        if pool.cidr.version != wanted.version:
            raise InvalidInput(f"the given pool ({text}) is not an IPv{wanted.version} pool")
        return pool
    why = "".join(f": {pool.name}: {pool.unusable}" for pool in named[:1])
    raise InvalidInput(f"the given pool ({text}) does not exist, or is not enabled{why}")


def _selected(pool: Pool, wanted: Wanted) -> bool:
    return _may(pool, wanted) and selects(pool, wanted.node_labels)


def _may(pool: Pool, wanted: Wanted) -> bool:
    """Whether a pool gives such an address, on some node."""
    return (
        pool.enabled
        and pool.automatic
        and pool.cidr.version == wanted.version
        and _matches(pool.namespace_selector, wanted.namespace_labels)
    )


def selects(pool: Pool, node_labels: Mapping[str, str]) -> bool:
    """Whether a node may use the pool; a selector that can't be read selects nothing."""
    return _matches(pool.node_selector, node_labels)


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    try:
        return selectors.parse(selector).matches(labels)
    except InvalidInput:
        return False


def pool_of(pools: Iterable[Pool], cidr: IPNetwork) -> Pool | None:
    """The pool whose block this is."""
    return next((pool for pool in pools if pool.has(cidr)), None)


def serves(cidr: IPNetwork, pools: Iterable[Pool], node_labels: Mapping[str, str]) -> bool:
    """Whether a node may ever allocate from a block: some pool has it, and selects the node.

    Not when the pool was deleted, replaced by one of another block size, or chooses other nodes
    now. One that is only disabled may come back.
    """
    return any(pool.has(cidr) and selects(pool, node_labels) for pool in pools)


def described(pools: Iterable[Pool]) -> str:
    """The pools' names for an error, with what keeps each from being used."""
    return ", ".join(f"{p.name} ({p.unusable})" if p.unusable else p.name for p in pools)


def inside(inner: IPNetwork, outer: IPNetwork) -> bool:
    """Whether all of one network is in another."""
    return (
        inner.version == outer.version
        and inner.prefixlen >= outer.prefixlen
        and inner.network_address in outer
    )
