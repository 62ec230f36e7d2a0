"""One attempt of a compare-and-swap: what was read, what shall change, and the commit of both.

A transaction reads every key at most once, remembers its revision, and commits all changes at
once: each against the revision that was read. Keys a decision rested on without changing them
are *guarded*: the commit requires that they are still the same. Nothing is written before
`commit`. Changes are committed in the order in which they were staged, because a store without
transactions can stop between any two.
"""

from __future__ import annotations

from typing import TypeVar

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    Listing,
    Op,
    Record,
    Update,
    Value,
)
from libtortie.errors import Malformed, NotFound
from libtortie.model.ipam import Block, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, IPNetwork, Key, Scope, path_of

V = TypeVar("V", bound=Value)


class Transaction:
    """Reads with memory and staged writes over one store. Use once."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._read: dict[Key, Record | None] = {}
        self._lists: dict[Scope, Listing] = {}
        self._staged: dict[Key, Value | None] = {}
        self._guards: dict[Key, None] = {}

    def record(self, key: Key) -> Record | None:
        """The stored record of a key, None when it is absent."""
        if key not in self._read:
            try:
                self._read[key] = self._store.get(key)
            except NotFound:
                self._read[key] = None
        return self._read[key]

    def value(self, key: Key, kind: type[V]) -> V | None:
        """The value of a key as this transaction would leave it. Raises `Malformed`."""
        if key in self._staged:
            value = self._staged[key]
        else:
            record = self.record(key)
            value = record.value if record else None
        if value is not None and not isinstance(value, kind):
            raise Malformed(f"{path_of(key)} holds a {type(value).__name__}")
        return value

    def block(self, cidr: IPNetwork) -> Block | None:
        """A block, as this transaction would leave it."""
        return self.value(BlockKey(cidr), Block)

    def handle(self, handle_id: str) -> Handle | None:
        """A handle, as this transaction would leave it."""
        return self.value(HandleKey(handle_id), Handle)

    def affinity(self, key: AffinityKey) -> BlockAffinity | None:
        """An affinity, as this transaction would leave it."""
        return self.value(key, BlockAffinity)

    def listing(self, scope: Scope) -> Listing:
        """All of a scope, what cannot be read by name; what was read before keeps its older
        revision."""
        if scope not in self._lists:
            listing = self._store.list(scope)
            for record in listing.records:
                self._read.setdefault(record.key, record)
            self._lists[scope] = listing
        return self._lists[scope]

    def records(self, scope: Scope) -> tuple[Record, ...]:
        """All records of a scope. Raises `Malformed` naming one that cannot be read."""
        listing = self.listing(scope)
        if listing.malformed:
            raise Malformed(listing.malformed[0])
        return listing.records

    def guard(self, key: Key) -> None:
        """Require at commit that a key is as it was read."""
        self.record(key)
        self._guards[key] = None

    def put(self, key: Key, value: Value) -> None:
        """Stage a new value; the first staging of a key gives its place in the order."""
        self.record(key)
        self._staged[key] = value

    def remove(self, key: Key) -> None:
        """Stage a deletion."""
        self.record(key)
        self._staged[key] = None

    @property
    def dirty(self) -> bool:
        """Whether anything is staged."""
        return bool(self._staged)

    def ops(self) -> list[Op]:
        """Guards first, then the changes in order."""
        guards = [
            Check(key, record.revision if record else None)
            for key in self._guards
            if key not in self._staged
            for record in [self.record(key)]
        ]
        changes = [op for key, value in self._staged.items() if (op := self._op(key, value))]
        return [*guards, *changes]

    def _op(self, key: Key, value: Value | None) -> Op | None:
        record = self._read[key]
        if record is None:
            return None if value is None else Create(key, value)
        if value is None:
            return Delete(key, record.revision)
        return Update(key, value, record.revision)

    def commit(self) -> None:
        """Write everything staged. Raises `Conflict`, `PartialCommit`, `Unavailable`."""
        if self.dirty:
            self._store.commit(self.ops())
