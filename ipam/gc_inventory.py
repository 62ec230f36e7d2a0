"""What IPAM has stored, read in the order that is safe to judge from. Read only.

Claims, blocks and handles come first, what may speak for them (Nodes, endpoints, and after this
the API's pods) comes later: what is born in between is then known, and never looks dead. What
cannot be read is named and left out; whoever judges asks `blind` before taking it for absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from libtortie.datastore.port import Datastore, Record
from libtortie.errors import Malformed
from libtortie.model.ipam import Attribute, Block, BlockAffinity, Handle
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    Blocks,
    HandleKey,
    Handles,
    IPNetwork,
    Kind,
    ResourceKey,
    Resources,
    Scope,
)
from libtortie.model.resources import Node, WorkloadEndpoint

from .affinity import Reservations
from .block import expire_cooldown
from .gc_endpoints import Endpoint, endpoint_of
from .gc_sharing import Texts
from .ownership import Owners
from .pools import Pool
from .settings import read_config, read_pools, read_reservations
from .transaction import Transaction
from .vm_handles import Piece, piece_of

T = TypeVar("T")

Counts = tuple[tuple[IPNetwork, int], ...]
"""How many addresses of each block, in the blocks' order."""

NODES = Resources(Kind.NODE)
ENDPOINTS = Resources(Kind.WORKLOAD_ENDPOINT)


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A record with the revision it was read at."""

    value: T
    revision: str


@dataclass(frozen=True, slots=True)
class Counted:
    """What a handle's record counts, and the revision it was read at."""

    counts: Counts
    revision: str


@dataclass(frozen=True, slots=True)
class Allocated:
    """One address that a handle holds."""

    handle_id: str
    piece: Piece
    nobodys: bool = False
    """Allocated under nothing by which anybody could be found (`is_nobodys`)."""

    @property
    def key(self) -> str:
        """Unique among all that is judged."""
        return f"address {self.piece.address}"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.piece.address} of handle {self.handle_id or '(none)'}"

    @property
    def action(self) -> str:
        """What is done with it if it is nobody's."""
        return "free"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything IPAM has stored, as it was at `now` (wall clock).

    `allocated` is every address that is held, by block; those that cool down are not in it.
    `reservations`, `pools` and `cooldown` (seconds) are None when they cannot be read whole.
    """

    now: datetime
    affinities: Mapping[AffinityKey, Stored[BlockAffinity]]
    blocks: Mapping[IPNetwork, Block]
    allocated: tuple[Allocated, ...]
    handles: Mapping[str, Counted]
    nodes: Mapping[str, Node]
    endpoints: tuple[Endpoint, ...]
    reservations: Reservations | None = None
    pools: tuple[Pool, ...] | None = None
    cooldown: int | None = None
    unreadable: tuple[str, ...] = ()
    blind: frozenset[Scope] = field(default=frozenset())
    """Scopes of which something could not be read."""

    def rested(self, block: Block) -> Block:
        """A block with what has cooled down free, where the cooldown is known."""
        if self.cooldown is None:
            return block
        return expire_cooldown(block, now=self.now, cooldown=self.cooldown)


def is_nobodys(attribute: Attribute) -> bool:
    """Whether an attribute of an allocated ordinal says nothing at all."""
    said = attribute.handle_id or attribute.active or attribute.alternate
    return not (said or attribute.released_at or attribute.extra)


def held_in(block: Block) -> Iterator[tuple[int, Attribute]]:
    """The ordinals of a block that are allocated and not cooling down, with whose they are."""
    for ordinal, index in enumerate(block.allocations):
        if index is not None and block.attributes[index].released_at is None:
            yield ordinal, block.attributes[index]


def allocated_in(blocks: Iterable[Block]) -> Iterator[Allocated]:
    """Every address that blocks say is held."""
    for block in blocks:
        for ordinal, attribute in held_in(block):
            owners = Owners(attribute.active, attribute.alternate)
            piece = piece_of(block, ordinal, owners)
            yield Allocated(attribute.handle_id or "", piece, is_nobodys(attribute))


def counts_of(counts: Mapping[IPNetwork, int]) -> Counts:
    """Counts in the blocks' order; what counts nothing is left out."""
    found = [(cidr, count) for cidr, count in counts.items() if count > 0]
    if len(found) > 1:
        found.sort(key=lambda one: place_of(one[0]))
    return tuple(found)


def place_of(cidr: IPNetwork) -> tuple[int, int, int]:
    """What blocks are put in order by."""
    return cidr.version, int(cidr.network_address), cidr.prefixlen


def read_inventory(store: Datastore, now: datetime) -> Inventory:
    """Read everything. Raises what the store raises when it does not answer."""
    texts = Texts()
    affinities = store.list(Affinities())
    unread: dict[Scope, list[str]] = {Affinities(): [*affinities.malformed]}
    blocks = {
        record.value.cidr: texts.block(record.value)
        for scope in (Blocks(4), Blocks(6))
        for record in _each(store, scope, unread)
        if isinstance(record.value, Block)
    }
    handles = _handles(store, unread, texts)
    nodes = {
        record.key.name: record.value
        for record in _each(store, NODES, unread)
        if isinstance(record.key, ResourceKey) and isinstance(record.value, Node)
    }
    endpoints = tuple(
        endpoint_of(record.value, texts)
        for record in _each(store, ENDPOINTS, unread)
        if isinstance(record.value, WorkloadEndpoint)
    )
    complaints = [text for found in unread.values() for text in found]
    cooldown = _read(complaints, lambda: read_config(Transaction(store)).cooldown_seconds)
    reservations = _read(complaints, lambda: read_reservations(Transaction(store)))
    pools, broken = read_pools(Transaction(store))
    return Inventory(
        now=now,
        affinities={
            record.key: Stored(record.value, record.revision)
            for record in affinities.records
            if isinstance(record.key, AffinityKey) and isinstance(record.value, BlockAffinity)
        },
        blocks=blocks,
        allocated=tuple(allocated_in(blocks.values())),
        handles=handles,
        nodes=nodes,
        endpoints=endpoints,
        reservations=reservations,
        pools=None if broken else pools,
        cooldown=cooldown,
        unreadable=tuple(dict.fromkeys([*complaints, *broken])),
        blind=frozenset(scope for scope, found in unread.items() if found),
    )


def _handles(store: Datastore, unread: dict[Scope, list[str]], texts: Texts) -> dict[str, Counted]:
    """What each handle's record counts: most of a block's count the same, and share it."""
    same: dict[Counts, Counts] = {}
    found: dict[str, Counted] = {}
    for record in _each(store, Handles(), unread):
        if isinstance(record.key, HandleKey) and isinstance(record.value, Handle):
            counts = counts_of(record.value.blocks)
            counted = Counted(same.setdefault(counts, counts), record.revision)
            found[texts.one(record.key.handle_id)] = counted
    return found


def _each(store: Datastore, scope: Scope, unread: dict[Scope, list[str]]) -> Iterator[Record]:
    """Every record of a scope, never all of them in memory; what cannot be read is noted."""
    unread[scope] = []
    for part in store.parts(scope):
        yield from part.records
        unread[scope] += part.malformed


def _read(complaints: list[str], read: Callable[[], T]) -> T | None:
    """What is read; None, and the complaint noted, when it cannot be."""
    try:
        return read()
    except Malformed as error:
        complaints.append(str(error))
        return None
