"""Which pool, which block: pure decisions over pools, reservations and affinities.

An affinity is a node's claim on a block. It is only an index: the block's own `affinity` field
decides who may allocate from it as its owner.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from ipaddress import ip_network

from libtortie.errors import InvalidInput, Malformed
from libtortie.model import selectors
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, IPAddress, IPAMConfig
from libtortie.model.keys import IPNetwork, Kind, ResourceKey
from libtortie.model.resources import IPPool, Resource

from .block import is_empty

WORKLOAD = "Workload"
DEFAULT_BLOCK_PREFIXLEN = {4: 26, 6: 122}
BLOCK_PREFIXLENS = {4: range(20, 33), 6: range(116, 129)}
DEFAULT_MAX_BLOCKS = 20
"""Blocks of a family a node may own when `maxBlocksPerHost` is 0, as in Calico."""
RECLAIM_AGE = timedelta(minutes=1)
"""An empty block of another node may be taken over when it was claimed longer ago than this."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What allocation needs to know of an IPPool."""

    name: str
    cidr: IPNetwork
    block_prefixlen: int
    enabled: bool
    automatic: bool
    allowed_uses: frozenset[str]
    node_selector: str
    namespace_selector: str

    @property
    def key(self) -> ResourceKey:
        """Where the IPPool is stored."""
        return ResourceKey(Kind.IP_POOL, self.name)

    def block_of(self, address: IPAddress) -> IPNetwork:
        """The CIDR of the pool's block around one of its addresses."""
        return ip_network(f"{address}/{self.block_prefixlen}", strict=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions under which a pool is eligible."""

    version: int
    requested: Sequence[str]
    node_labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]
    use: str = WORKLOAD


def parse_pool(resource: IPPool) -> Pool:
    """Read an IPPool. Raises `Malformed` for a CIDR or block size that can't be used."""
    name, spec = resource.metadata.name, resource.spec
    try:
        cidr = ip_network(spec.cidr, strict=False)
    except ValueError as error:
        raise Malformed(f"IPPool {name!r}: cidr: {error}") from error
    prefixlen = spec.block_size or DEFAULT_BLOCK_PREFIXLEN[cidr.version]
    if prefixlen not in BLOCK_PREFIXLENS[cidr.version] or prefixlen < cidr.prefixlen:
        raise Malformed(f"IPPool {name!r}: block size {prefixlen} does not fit {cidr}")
    return Pool(
        name=name,
        cidr=cidr,
        block_prefixlen=prefixlen,
        enabled=not spec.disabled
        and not resource.metadata.deletion_timestamp
        and _allocatable(resource),
        automatic=spec.assignment_mode == "Automatic",
        allowed_uses=frozenset(spec.allowed_uses),
        node_selector=spec.node_selector,
        namespace_selector=spec.namespace_selector,
    )


def _allocatable(pool: IPPool) -> bool:
    """Whether no controller marked the pool as not to be used."""
    status = (pool.model_extra or {}).get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    return not any(
        isinstance(condition, Mapping)
        and condition.get("type") == "Allocatable"
        and condition.get("status") == "False"
        for condition in conditions or ()
    )


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


def _requested(pools: Iterable[Pool], text: str, wanted: Wanted) -> Pool:
    for pool in pools:
        if text not in (pool.name, str(pool.cidr)) or not pool.enabled:
            continue
        if pool.cidr.version != wanted.version:
            raise InvalidInput(f"the given pool ({text}) is not an IPv{wanted.version} pool")
        return pool
    raise InvalidInput(f"the given pool ({text}) does not exist, or is not enabled")


def _selected(pool: Pool, wanted: Wanted) -> bool:
    return (
        pool.enabled
        and pool.automatic
        and pool.cidr.version == wanted.version
        and _matches(pool.node_selector, wanted.node_labels)
        and _matches(pool.namespace_selector, wanted.namespace_labels)
    )


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Evaluate a selector; one that can't be read selects nothing."""
    try:
        return selectors.parse(selector).matches(labels)
    except InvalidInput:
        return False


@dataclass(frozen=True, slots=True)
class Reservations:
    """Addresses that are never assigned automatically."""

    networks: tuple[IPNetwork, ...] = ()

    def covers(self, address: IPAddress) -> bool:
        """Whether an address is reserved."""
        return any(address in network for network in self.networks)

    def enclosing(self, cidr: IPNetwork) -> IPNetwork | None:
        """A reservation that contains the whole CIDR."""
        return next((n for n in self.networks if _inside(cidr, n)), None)

    def exhausts(self, cidr: IPNetwork) -> bool:
        """Whether nothing in a CIDR is left, by one reservation or by several together."""
        inside = [n for n in self.networks if n.version == cidr.version and n.overlaps(cidr)]
        return bool(inside) and all(any(a in n for n in inside) for a in cidr)


def parse_reservations(resources: Iterable[Resource]) -> Reservations:
    """Read IPReservations. Raises `Malformed`: an unread reservation must not be given away."""
    networks: list[IPNetwork] = []
    for resource in resources:
        spec = resource.to_wire().get("spec") or {}
        try:
            networks += [ip_network(text, strict=False) for text in spec.get("reservedCIDRs") or ()]
        except (ValueError, TypeError) as error:
            name = resource.metadata.name
            raise Malformed(f"IPReservation {name!r}: reservedCIDRs: {error}") from error
    return Reservations(tuple(networks))


def candidates(
    pool: Pool,
    *,
    node: str,
    taken: Collection[IPNetwork],
    reservations: Reservations,
    now: datetime,
) -> Iterator[IPNetwork]:
    """Unclaimed blocks of a pool: once round, from a start that depends on the node's name.

    Nodes that start at different places seldom meet. Blocks of one address would pile up on
    their start, so there the time moves it. Blocks that overlap a taken block of another size,
    or that are wholly reserved, are passed over; a large reservation is stepped over at once.
    """
    size = 1 << (pool.cidr.max_prefixlen - pool.block_prefixlen)
    count = pool.cidr.num_addresses // size
    seed = int(now.timestamp() * 1_000_000) if size == 1 else fnv1(node)
    start = random.Random(seed).randrange(count)
    odd = [n for n in taken if n.prefixlen != pool.block_prefixlen and n.overlaps(pool.cidr)]
    walked = 0
    while walked < count:
        index = (start + walked) % count
        cidr = _block_at(pool, index)
        obstacle = reservations.enclosing(cidr) or next((n for n in odd if n.overlaps(cidr)), None)
        if obstacle is not None:
            walked += _steps_past(obstacle, pool, index, count, size)
            continue
        if cidr not in taken and not reservations.exhausts(cidr):
            yield cidr
        walked += 1


def _block_at(pool: Pool, index: int) -> IPNetwork:
    first = pool.cidr.network_address + index * (
        1 << (pool.cidr.max_prefixlen - pool.block_prefixlen)
    )
    return ip_network(f"{first}/{pool.block_prefixlen}")


def _steps_past(obstacle: IPNetwork, pool: Pool, index: int, count: int, size: int) -> int:
    """How many blocks from `index` to the first behind an obstacle, at most to the pool's end."""
    behind = int(obstacle.broadcast_address) + 1 - int(pool.cidr.network_address)
    return max(1, min(-(-behind // size), count) - index)


def fnv1(text: str) -> int:
    """FNV-1 hash, 32 bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value * 0x01000193) & 0xFFFFFFFF
        value ^= byte
    return value


def block_limit(config: IPAMConfig) -> int:
    """How many blocks of a family a node may own."""
    return config.max_blocks_per_host or DEFAULT_MAX_BLOCKS


class Standing(Enum):
    """What a node's affinity is worth, judged by the block it names."""

    OWNED = auto()
    """The block is the node's: allocate, and confirm the affinity if it isn't."""
    UNFINISHED = auto()
    """There is no block: the claim may be resumed."""
    LEAVING = auto()
    """There is no block and the affinity is being deleted: finish that."""
    FALSE = auto()
    """The block is another's: never allocate by this affinity."""


def standing(affinity: BlockAffinity, block: Block | None, node: str) -> Standing:
    """Judge one of a node's affinities."""
    if block is None:
        leaving = affinity.state is AffinityState.PENDING_DELETION
        return Standing.LEAVING if leaving else Standing.UNFINISHED
    return Standing.OWNED if block.node == node else Standing.FALSE


def is_void(affinity: BlockAffinity, block: Block | None, node: str) -> bool:
    """Whether one of a node's affinities stands for nothing and should be deleted."""
    return standing(affinity, block, node) in (Standing.FALSE, Standing.LEAVING)


def reclaimable(block: Block, node: str, now: datetime) -> bool:
    """Whether a node may take over a block that has nothing allocated.

    A block without a node is anyone's; one of another node only some time after its claim, so
    that a node that is about to allocate its first address keeps it.
    """
    if block.affinity is None:
        return bool(block.unallocated)
    if not block.node or block.node == node or not is_empty(block):
        return False
    claimed = block.affinity_claim_time
    return claimed is not None and now - claimed >= RECLAIM_AGE


def pool_of(pools: Iterable[Pool], cidr: IPNetwork) -> Pool | None:
    """The pool a block lies in."""
    return next((pool for pool in pools if _inside(cidr, pool.cidr)), None)


def _inside(inner: IPNetwork, outer: IPNetwork) -> bool:
    return (
        inner.version == outer.version
        and inner.prefixlen >= outer.prefixlen
        and inner.network_address in outer
    )
