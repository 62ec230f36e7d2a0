"""What a transaction reads: every key at most once, with its revision, from a store or a cache.

What was *recalled* from the cache, or assumed, may be outdated; `transaction` says what that
means. Whatever needs to see what nobody remembers (which blocks there are) raises `NeedsFresh`
when anything was recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, Literal, TypeVar, cast

from libtortie.datastore.port import Datastore, Listing, Record, Value
from libtortie.errors import Malformed, NotFound
from libtortie.model.ipam import Block
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, Blocks, IPNetwork, Key, Scope

from .cache import UNKNOWN, Cache

T = TypeVar("T")

CHUNK = 64
"""Blocks read at once where all of them have to be looked at."""


class NeedsFresh(Exception):
    """The decision needs what is not remembered: decide on fresh reads. It never leaves `ipam`."""


class Unstaged(Enum):
    """Neither a value nor a deletion is staged."""

    UNSTAGED = 0


UNSTAGED: Final = Unstaged.UNSTAGED


@dataclass(slots=True, eq=False)
class Entry:
    """All that a transaction knows of one key."""

    key: Key
    record: Record | None
    recalled: bool = False
    broken: str = ""
    guarded: bool = False
    staged: Value | Literal[Unstaged.UNSTAGED] | None = UNSTAGED

    @property
    def now(self) -> Value | None:
        """The value as the transaction would leave it. Raises `Malformed`."""
        if self.staged is not UNSTAGED:
            return self.staged
        if self.broken:
            raise Malformed(self.broken)
        return self.record.value if self.record else None


class Reading:
    """Reads with memory over one store.

    `cache` is told of what `prefetch` reads; with `recall` it is also asked.
    """

    def __init__(
        self, store: Datastore, cache: Cache | None = None, *, recall: bool = False
    ) -> None:
        self._store = store
        self._era = store.rewinds
        if cache is not None:
            cache.enter(self._era)
        self._cache = cache
        self._recall = cache if recall else None
        self._entries: dict[Key, Entry] = {}
        self._lists: dict[Scope, Listing] = {}
        self._recalled_lists: set[Scope] = set()
        self._names: dict[int, dict[IPNetwork, None]] = {}
        self._notes: dict[object, object] = {}
        self._staged: list[Entry] = []
        self.claims = 0
        """Differs whenever other affinities are staged than before."""
        self.fresh = True
        """Whether nothing was recalled: then what is decided counts without a commit, too."""

    @property
    def atomic(self) -> bool:
        """Whether all of a commit happens or nothing."""
        return self._store.atomic

    def remembers(self, keys: Iterable[Key], scopes: Iterable[Scope]) -> bool:
        """Whether `prefetch` would not have to ask the store."""
        return all(map(self._known, keys)) and all(map(self._known_listing, scopes))

    def prefetch(self, keys: Iterable[Key], scopes: Iterable[Scope] = ()) -> None:
        """Have these at hand, in at most one round trip (where the store can)."""
        wanted = [key for key in dict.fromkeys(keys) if not self._known(key)]
        ranges = [scope for scope in dict.fromkeys(scopes) if not self._known_listing(scope)]
        if not wanted and not ranges:
            return
        found = self._store.snapshot(wanted, ranges)
        for scope, listing in found.listings.items():
            self._keep_listing(scope, listing)
            if self._cache is not None:
                self._cache.learn_listing(scope, listing, self._era)
        for key in wanted:
            record, broken = found.records.get(key), found.broken.get(key, "")
            self._entries[key] = Entry(key, record, broken=broken)
            if self._cache is not None and not broken:
                self._cache.learn(key, record, self._era)

    def assume_absent(self, key: Key) -> None:
        """Take a key for absent that is not at hand; counts as recalled."""
        if not self._known(key):
            self._entries[key] = Entry(key, None, recalled=True)
            self.fresh = False

    def at_hand(self, key: Key) -> Value | None:
        """The value that was read of a key; None also for what was not, or cannot be read."""
        entry = self._entries.get(key)
        return None if entry is None or entry.record is None else entry.record.value

    def listing(self, scope: Scope) -> Listing:
        """All of a scope, what cannot be read by name; what was read before keeps its older
        revision."""
        if not self._known_listing(scope):
            self._require_fresh()
            self._keep_listing(scope, self._store.list(scope))
        return self._lists[scope]

    def records(self, scope: Scope) -> tuple[Record, ...]:
        """All records of a scope. Raises `Malformed` naming one that cannot be read."""
        listing = self.listing(scope)
        if listing.malformed:
            raise Malformed(listing.malformed[0])
        return listing.records

    def noted(self, what: object, make: Callable[[], T]) -> T:
        """What was made of what was read, made once; nothing that is staged may go into it."""
        if what not in self._notes:
            self._notes[what] = make()
        return cast(T, self._notes[what])

    def made_of(self, scope: Scope, make: Callable[[Listing], T]) -> T:
        """What a listing alone decides; a cache keeps it for whoever has the same listing."""
        listing = self.listing(scope)
        if self._cache is not None:
            return self._cache.made(make, listing)
        return self.noted(make, lambda: make(listing))

    def affinities(self, node: str) -> tuple[AffinityKey, ...]:
        """The affinities of a node that there may be, as the transaction would leave them."""
        listed = (record.key for record in self.listing(Affinities(node)).records)
        keys = dict.fromkeys([*listed, *self.staged_affinities()])
        return tuple(
            key
            for key in keys
            if isinstance(key, AffinityKey)
            and key.node == node
            and self._entry(key).staged is not None
        )

    def staged_affinities(self) -> tuple[AffinityKey, ...]:
        """The affinities that are to be written or removed."""
        keys = (entry.key for entry in self._staged)
        return tuple(key for key in keys if isinstance(key, AffinityKey))

    def staged_blocks(self) -> tuple[IPNetwork, ...]:
        """The blocks that are to be written or removed."""
        keys = (entry.key for entry in self._staged)
        return tuple(key.cidr for key in keys if isinstance(key, BlockKey))

    def block_names(self, version: int) -> tuple[IPNetwork, ...]:
        """All blocks of a family, in path order, then those that are staged."""
        if version not in self._names:
            self._require_fresh()
            names = self._store.names(Blocks(version))
            self._names[version] = {key.cidr: None for key in names if isinstance(key, BlockKey)}
        staged = (entry.key.cidr for entry in self._staged if isinstance(entry.key, BlockKey))
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
            found = self._store.snapshot([key for key in keys if key not in self._entries])
            for key in keys:
                entry, record = self._entries.get(key), found.records.get(key)
                broken = entry.broken if entry else found.broken.get(key, "")
                if broken:
                    yield Malformed(broken)
                    continue
                value = entry.now if entry else record.value if record else None
                if isinstance(value, Block):
                    yield value

    def _listed(self, cidrs: Sequence[IPNetwork]) -> Iterator[Block | Malformed]:
        for version in dict.fromkeys(cidr.version for cidr in cidrs):
            yield from map(Malformed, self.listing(Blocks(version)).malformed)
        for cidr in cidrs:
            entry = self._entries.get(BlockKey(cidr))
            if entry is not None and isinstance(entry.now, Block):
                yield entry.now

    def _entry(self, key: Key) -> Entry:
        """What is known of a key, read if nothing is. Raises what the store raises."""
        entry = self._entries.get(key)
        if entry is None and self._known(key):
            entry = self._entries[key]
        if entry is None:
            entry = Entry(key, None if self._is_missing(key) else self._get(key))
            entry.recalled = Affinities(getattr(key, "node", "")) in self._recalled_lists
            self._entries[key] = entry
        return entry

    def _get(self, key: Key) -> Record | None:
        try:
            return self._store.get(key)
        except NotFound:
            return None

    def _known(self, key: Key) -> bool:
        """Whether a key is at hand; with `recall` that takes it from the cache."""
        if key in self._entries:
            return True
        record = self._recall.record(key) if self._recall is not None else UNKNOWN
        if record is UNKNOWN:
            return False
        self._entries[key] = Entry(key, record, recalled=True)
        self.fresh = False
        return True

    def _known_listing(self, scope: Scope) -> bool:
        if scope in self._lists:
            return True
        listing = self._recall.listing(scope) if self._recall is not None else None
        if listing is None:
            return False
        self._recalled_lists.add(scope)
        self.fresh = False
        self._keep_listing(scope, listing, recalled=True)
        return True

    def _keep_listing(self, scope: Scope, listing: Listing, *, recalled: bool = False) -> None:
        for record in listing.records:
            if record.key not in self._entries:
                self._entries[record.key] = Entry(record.key, record, recalled)
        self._lists[scope] = listing

    def _is_missing(self, key: Key) -> bool:
        """Whether a key is absent from the listing, or the names, that hold all of its kind."""
        match key:
            case BlockKey(cidr):
                names = self._names.get(cidr.version)
                return names is not None and cidr not in names
            case AffinityKey(node, _, "host"):
                listing = self._lists.get(Affinities(node))
                return listing is not None and not listing.malformed
            case _:
                return False

    def _require_fresh(self) -> None:
        if not self.fresh:
            raise NeedsFresh
