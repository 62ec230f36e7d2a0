"""Which block: pure decisions over a pool's range, reservations and affinities.

An affinity is a node's claim on a block. It is only an index: the block's own `affinity` field
decides who may allocate from it as its owner.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from ipaddress import ip_network

from libtortie.model.fields import reserved_of
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, IPAddress, IPAMConfig
from libtortie.model.keys import IPNetwork
from libtortie.model.resources import IPReservation

from .block import Reserved, is_empty, nothing_reserved
from .pools import Pool, inside

DEFAULT_MAX_BLOCKS = 20
"""Blocks of a family a node may own when `maxBlocksPerHost` is 0, as in Calico."""
RECLAIM_AGE = timedelta(minutes=1)
"""An empty block of another node may be taken over when it was claimed longer ago than this."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """Addresses that are never assigned automatically."""

    networks: tuple[IPNetwork, ...] = ()

    @property
    def rule(self) -> Reserved:
        """What says whether an address is reserved."""
        return self.covers if self.networks else nothing_reserved

    def covers(self, address: IPAddress) -> bool:
        """Whether an address is reserved."""
        return any(address in network for network in self.networks)

    def enclosing(self, cidr: IPNetwork) -> IPNetwork | None:
        """A reservation that contains the whole CIDR."""
        return next((n for n in self.networks if inside(cidr, n)), None)

    def exhausts(self, cidr: IPNetwork) -> bool:
        """Whether nothing in a CIDR is left, by one reservation or by several together."""
        inside = [n for n in self.networks if n.version == cidr.version and n.overlaps(cidr)]
        return bool(inside) and all(any(a in n for n in inside) for a in cidr)


def parse_reservations(resources: Iterable[IPReservation]) -> Reservations:
    """What some IPReservations keep out of automatic assignment."""
    texts = (text for resource in resources for text in resource.spec.reserved_cidrs)
    return Reservations(tuple(reserved_of(text) for text in texts))


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
    that a node that is about to allocate its first address keeps it. A claim of the future is no
    younger: the clock was set back since.
    """
    if block.affinity is None:
        return bool(block.unallocated)
    if not block.node or block.node == node or not is_empty(block):
        return False
    claimed = block.affinity_claim_time
    return claimed is not None and abs(now - claimed) >= RECLAIM_AGE
