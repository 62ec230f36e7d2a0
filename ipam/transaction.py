"""One compare-and-swap: what was read, what shall change, and the commit of both.

A transaction reads every key at most once, remembers its revision, and commits all changes at
once: each against the revision that was read. Keys a decision rested on without changing them
are *guarded*: the commit requires that they are still the same. Nothing is written before
`commit`. Changes are committed in the order in which they were staged, because a store without
transactions can stop between any two.

A transaction may *recall*: take from a `Cache` what it would else have to read. THE RULE: what
comes of recalled reads counts only if it ends in a commit, and that commit validates them. So each
recalled key that a decision looked at is guarded by itself, or it was changed against its
revision. Whatever needs to see what nobody remembers (which blocks there are) ends the decision
with `NeedsFresh`; so should, one layer up, every answer that is no commit.

Several decisions may share a transaction, each seeing what the ones before it staged; one that
fails is taken back to its `mark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    Listing,
    Op,
    Record,
    Unchanged,
    Update,
    Value,
)
from libtortie.errors import Malformed, NotFound
from libtortie.model.ipam import Block, BlockAffinity, Handle
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    IPNetwork,
    Key,
    Scope,
    path_of,
)

from .cache import UNKNOWN, Cache

T = TypeVar("T")
V = TypeVar("V", bound=Value)

CHUNK = 64
"""Blocks read at once where all of them have to be looked at."""


class NeedsFresh(Exception):
    """The decision needs what is not remembered: decide on fresh reads. It never leaves `ipam`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to which a transaction can be taken back."""

    staged: dict[Key, Value | None]
    guards: dict[Key, None]
    scopes: dict[Scope, None]
    changes: int


class Transaction:
    """Reads with memory and staged writes over one store. Use once.

    `cache` is told of what is read by `prefetch` and of what is committed; with `recall` it is
    also asked.
    """

    def __init__(
        self, store: Datastore, cache: Cache | None = None, *, recall: bool = False
    ) -> None:
        self._store = store
        self._cache = cache
        self._recall = cache if recall else None
        self._read: dict[Key, Record | None] = {}
        self._broken: dict[Key, str] = {}
        self._lists: dict[Scope, Listing] = {}
        self._names: dict[int, dict[IPNetwork, None]] = {}
        self._recalled: set[Key] = set()
        self._recalled_lists: set[Scope] = set()
        self._staged: dict[Key, Value | None] = {}
        self._guards: dict[Key, None] = {}
        self._scopes: dict[Scope, None] = {}
        self._notes: dict[str, object] = {}
        self.changes = 0
        """How often something was staged."""

    # -- reading -------------------------------------------------------------------------------

    @property
    def atomic(self) -> bool:
        """Whether all of the commit happens or nothing."""
        return self._store.atomic

    @property
    def fresh(self) -> bool:
        """Whether nothing was recalled: then what is decided counts without a commit, too."""
        return not self._recalled and not self._recalled_lists

    def remembers(self, keys: Iterable[Key], scopes: Iterable[Scope]) -> bool:
        """Whether `prefetch` would not have to ask the store."""
        cache = self._recall
        return (
            cache is not None
            and all(cache.record(key) is not UNKNOWN for key in keys)
            and all(cache.listing(scope) is not None for scope in scopes)
        )

    def prefetch(self, keys: Iterable[Key], scopes: Iterable[Scope] = ()) -> None:
        """Have these at hand, in at most one round trip (where the store can)."""
        wanted = [key for key in dict.fromkeys(keys) if not self._known(key)]
        ranges = [scope for scope in dict.fromkeys(scopes) if not self._known_listing(scope)]
        if not wanted and not ranges:
            return
        found = self._store.snapshot(wanted, ranges)
        self._broken |= found.broken
        for scope, listing in found.listings.items():
            self._keep_listing(scope, listing)
            if self._cache is not None:
                self._cache.learn_listing(scope, listing)
        for key in wanted:
            if key not in found.broken:
                record = self._read[key] = found.records.get(key)
                if self._cache is not None:
                    self._cache.learn(key, record)

    def assume_absent(self, key: Key) -> None:
        """Take a key for absent that was not read; counts as recalled."""
        if key not in self._read:
            self._read[key] = None
            self._recalled.add(key)

    def record(self, key: Key) -> Record | None:
        """The stored record of a key, None when it is absent. Raises `Malformed`."""
        if not self._known(key):
            self._read[key] = None if self._is_missing(key) else self._get(key)
        if key in self._broken:
            raise Malformed(self._broken[key])
        return self._read[key]

    def at_hand(self, key: Key) -> Record | None:
        """What was read of a key; None also for what was not, or cannot be read."""
        return self._read.get(key)

    def value(self, key: Key, kind: type[V]) -> V | None:
        """The value of a key as this transaction would leave it. Raises `Malformed`."""
        value = self.glance(key, kind)
        self._rest_on(key)
        return value

    def glance(self, key: Key, kind: type[V]) -> V | None:
        """As `value`, for what may as well be outdated: nothing rests on it until it is staged."""
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

    def affinities(self, node: str) -> tuple[AffinityKey, ...]:
        """The affinities of a node that there may be, as this transaction would leave them."""
        listed = [record.key for record in self.listing(Affinities(node)).records]
        staged = [key for key in self._staged if isinstance(key, AffinityKey)]
        return tuple(
            key
            for key in dict.fromkeys([*listed, *staged])
            if isinstance(key, AffinityKey)
            and key.node == node
            and self._staged.get(key, BlockAffinity()) is not None
        )

    def listing(self, scope: Scope) -> Listing:
        """All of a scope, what cannot be read by name; what was read before keeps its older
        revision."""
        if scope not in self._lists and not self._known_listing(scope):
            self._require_fresh()
            self._keep_listing(scope, self._store.list(scope))
        return self._lists[scope]

    def records(self, scope: Scope) -> tuple[Record, ...]:
        """All records of a scope. Raises `Malformed` naming one that cannot be read."""
        listing = self.listing(scope)
        if listing.malformed:
            raise Malformed(listing.malformed[0])
        return listing.records

    def noted(self, what: str, make: Callable[[], T]) -> T:
        """What was made of something listed, made once."""
        if what not in self._notes:
            self._notes[what] = make()
        return cast(T, self._notes[what])

    def block_names(self, version: int) -> tuple[IPNetwork, ...]:
        """All blocks of a family, in path order, then those that are staged."""
        if version not in self._names:
            self._require_fresh()
            names = self._store.names(Blocks(version))
            self._names[version] = {key.cidr: None for key in names if isinstance(key, BlockKey)}
        staged = (key.cidr for key in self._staged if isinstance(key, BlockKey))
        new = (cidr for cidr in staged if cidr.version == version)
        return tuple(dict.fromkeys([*self._names[version], *new]))

    def scan(self, cidrs: Sequence[IPNetwork]) -> Iterator[Block | Malformed]:
        """Blocks one after another, never all of them in memory; those that are gone are left out.

        Nothing rests on them: what is used is read again, by its key.
        """
        self._require_fresh()
        if not self.atomic:  # there one list is cheaper than a request for each
            yield from self._listed(cidrs)
            return
        rest = iter(cidrs)
        while keys := [BlockKey(cidr) for cidr in islice(rest, CHUNK)]:
            found = self._store.snapshot([key for key in keys if key not in self._read])
            for key in keys:
                if key in found.broken:
                    yield Malformed(found.broken[key])
                    continue
                record = found.records.get(key) or self._read.get(key)
                value = self._staged.get(key, record.value if record else None)
                if isinstance(value, Block):
                    yield value

    def _listed(self, cidrs: Sequence[IPNetwork]) -> Iterator[Block | Malformed]:
        for version in dict.fromkeys(cidr.version for cidr in cidrs):
            yield from map(Malformed, self.listing(Blocks(version)).malformed)
        for cidr in cidrs:
            value = self._staged.get(BlockKey(cidr), self._value_read(BlockKey(cidr)))
            if isinstance(value, Block):
                yield value

    def _value_read(self, key: Key) -> Value | None:
        record = self._read.get(key)
        return record.value if record else None

    def _get(self, key: Key) -> Record | None:
        try:
            return self._store.get(key)
        except NotFound:
            return None

    def _rest_on(self, key: Key) -> None:
        """What was recalled must still be so at the commit."""
        if key in self._recalled:
            self._guards[key] = None

    def _known(self, key: Key) -> bool:
        """Whether a key is at hand; with `recall` that takes it from the cache."""
        if key in self._read or key in self._broken:
            return True
        if self._recall is None:
            return False
        record = self._recall.record(key)
        if record is UNKNOWN:
            return False
        self._read[key] = record
        self._recalled.add(key)
        return True

    def _known_listing(self, scope: Scope) -> bool:
        if scope in self._lists:
            return True
        listing = self._recall.listing(scope) if self._recall is not None else None
        if listing is None:
            return False
        self._recalled_lists.add(scope)
        self._recalled.update(r.key for r in listing.records if r.key not in self._read)
        self._keep_listing(scope, listing)
        return True

    def _keep_listing(self, scope: Scope, listing: Listing) -> None:
        for record in listing.records:
            self._read.setdefault(record.key, record)
        self._lists[scope] = listing

    def _is_missing(self, key: Key) -> bool:
        """Whether a key is absent from what was listed, or from the names, that hold all of it."""
        match key:
            case BlockKey(cidr):
                known = self._names.get(cidr.version)
                return known is not None and cidr not in known
            case AffinityKey(node, _, "host"):
                listing = self._lists.get(Affinities(node))
                if listing is None or listing.malformed:
                    return False
                if Affinities(node) in self._recalled_lists:
                    self._recalled.add(key)
                return True
            case _:
                return False

    def _require_fresh(self) -> None:
        if not self.fresh:
            raise NeedsFresh

    # -- staging -------------------------------------------------------------------------------

    def guard(self, key: Key) -> None:
        """Require at commit that a key is as it was read."""
        self.record(key)
        self._guards[key] = None

    def guard_listing(self, scope: Scope) -> None:
        """Require at commit that nothing came to a scope, or was changed, since it was listed."""
        self.listing(scope)
        self._scopes[scope] = None

    def guard_recalled_listing(self, scope: Scope) -> None:
        """The same, if the listing was recalled: what was just read may be used as it is."""
        self.listing(scope)
        if scope in self._recalled_lists:
            self._scopes[scope] = None

    def put(self, key: Key, value: Value) -> None:
        """Stage a new value; the first staging of a key gives its place in the order."""
        self.record(key)
        self._staged[key] = value
        self.changes += 1

    def remove(self, key: Key) -> None:
        """Stage a deletion."""
        self.record(key)
        self._staged[key] = None
        self.changes += 1

    def mark(self) -> Mark:
        """Where `rollback` can come back to."""
        return Mark(dict(self._staged), dict(self._guards), dict(self._scopes), self.changes)

    def rollback(self, mark: Mark) -> None:
        """Forget what was staged and guarded since; what was read is kept."""
        self._staged, self._guards = mark.staged, mark.guards
        self._scopes, self.changes = mark.scopes, mark.changes

    @property
    def dirty(self) -> bool:
        """Whether anything is staged."""
        return bool(self._staged)

    @property
    def size(self) -> int:
        """The number of operations of the commit."""
        return len(self._staged.keys() | self._guards.keys()) + len(self._scopes)

    def ops(self) -> list[Op]:
        """Guards first, then the changes in order."""
        guards = [self._check(key) for key in self._guards if key not in self._staged]
        scopes = [Unchanged(scope, self._lists[scope].revision) for scope in self._scopes]
        changes = [self._change(key, value) for key, value in self._staged.items()]
        return [*guards, *scopes, *changes]

    def _check(self, key: Key) -> Check:
        record = self._read[key]
        return Check(key, record.revision if record else None)

    def _change(self, key: Key, value: Value | None) -> Op:
        """The operation that leaves a key so; what is made and removed at once must be absent."""
        record = self._read[key]
        if record is None:
            return Check(key, None) if value is None else Create(key, value)
        if value is None:
            return Delete(key, record.revision)
        return Update(key, value, record.revision)

    def commit(self) -> None:
        """Write everything staged. Raises `Conflict`, `PartialCommit`, `Unavailable`.

        The cache forgets what a failed commit rested on, and learns what was written.
        """
        if not self.dirty:
            return
        ops = self.ops()
        try:
            written = self._store.commit(ops)
        except BaseException:
            if self._cache is not None:
                self._cache.forget(self._read, self._lists)
            raise
        if self._cache is not None:
            for op, record in zip(ops, written, strict=True):
                if not isinstance(op, Check | Unchanged):
                    self._cache.learn(op.key, record)
