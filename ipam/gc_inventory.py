"""What IPAM has stored, read in the order that is safe to judge from. Read only.

Claims, blocks and handles come first, what may speak for them (Nodes, endpoints, and after this
the API's pods) comes later: what is born in between is then known, and never looks dead. What
cannot be read is named and left out; whoever judges asks `blind` before taking it for absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from .ownership import Owners
from .pools import Pool
from .settings import read_config, read_pools, read_reservations
from .transaction import Transaction
from .vm_handles import Piece, piece_of

T = TypeVar("T")

NODES = Resources(Kind.NODE)
ENDPOINTS = Resources(Kind.WORKLOAD_ENDPOINT)


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A record with the revision it was read at."""

    value: T
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

    `reservations`, `pools` and `cooldown` (seconds) are None when they cannot be read whole.
    """

    now: datetime
    affinities: Mapping[AffinityKey, Stored[BlockAffinity]]
    blocks: Mapping[IPNetwork, Block]
    handles: Mapping[str, Stored[Handle]]
    nodes: Mapping[str, Node]
    endpoints: tuple[Endpoint, ...]
    reservations: Reservations | None = None
    pools: tuple[Pool, ...] | None = None
    cooldown: int | None = None
    unreadable: tuple[str, ...] = ()
    blind: frozenset[Scope] = field(default=frozenset())
    """Scopes of which something could not be read."""

    def allocated(self) -> Iterator[Allocated]:
        """Every address that is held, by block; those that cool down are not."""
        for block in self.blocks.values():
            for ordinal, attribute in held_in(block):
                owners = Owners(attribute.active, attribute.alternate)
                piece = piece_of(block, ordinal, owners)
                yield Allocated(attribute.handle_id or "", piece, is_nobodys(attribute))

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


def read_inventory(store: Datastore, now: datetime) -> Inventory:
    """Read everything. Raises what the store raises when it does not answer."""
    affinities = store.list(Affinities())
    unread: dict[Scope, list[str]] = {Affinities(): [*affinities.malformed]}
    blocks = {
        record.value.cidr: record.value
        for scope in (Blocks(4), Blocks(6))
        for record in _each(store, scope, unread)
        if isinstance(record.value, Block)
    }
    handles = {
        record.key.handle_id: Stored(record.value, record.revision)
        for record in _each(store, Handles(), unread)
        if isinstance(record.key, HandleKey) and isinstance(record.value, Handle)
    }
    nodes = {
        record.key.name: record.value
        for record in _each(store, NODES, unread)
        if isinstance(record.key, ResourceKey) and isinstance(record.value, Node)
    }
    endpoints = tuple(
        endpoint_of(record.value)
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
        handles=handles,
        nodes=nodes,
        endpoints=endpoints,
        reservations=reservations,
        pools=None if broken else pools,
        cooldown=cooldown,
        unreadable=tuple(dict.fromkeys([*complaints, *broken])),
        blind=frozenset(scope for scope, found in unread.items() if found),
    )


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
