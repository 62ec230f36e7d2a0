"""What a node's IPAM client remembers of the store between its operations.

It promises nothing about freshness: whoever decides on something remembered must have the commit
validate it (`transaction`), so a stale entry costs a round trip and never an address. Therefore
nothing has to be watched, and no thread, stream or silence of a peer is part of it. It is filled
by fresh reads and by the client's own commits, and emptied by a commit that failed. All of it is
void once the store may have been put back to a backup.

It is bounded, whatever the cluster's size: the settings, this node's own affinities, and the
blocks and handles used last. It never remembers all blocks or all handles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, Generic, Literal, TypeVar, cast

from libtortie.datastore.port import Listing, Record
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, HandleKey, Key, Scope

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

BLOCKS = 256
"""Most blocks remembered; a node owns at most 20 of a family unless it is told otherwise."""
HANDLES = 4096
"""Most handles remembered: several times the pods of a node."""
SETTINGS = 64
"""Most other keys: configuration, readiness, the node."""


class Unknown(Enum):
    """Nothing is remembered, neither a value nor its absence."""

    UNKNOWN = 0


UNKNOWN: Final = Unknown.UNKNOWN
Remembered = Record | None | Literal[Unknown.UNKNOWN]


class Cache:
    """Thread-safe memory of one node's client."""

    def __init__(self, node: str) -> None:
        self._own = Affinities(node)
        self._lock = threading.Lock()
        self._era = 0
        self._blocks: _Recent[Key, Record | None] = _Recent(BLOCKS)
        self._handles: _Recent[Key, Record | None] = _Recent(HANDLES)
        self._others: _Recent[Key, Record | None] = _Recent(SETTINGS)
        self._listings: dict[Scope, Listing] = {}
        self._made: dict[object, tuple[Listing, object]] = {}

    def record(self, key: Key) -> Remembered:
        """What is remembered of a key; None: that it is absent."""
        with self._lock:
            return self._shelf(key).get(key)

    def listing(self, scope: Scope) -> Listing | None:
        """What is remembered of a scope as a whole."""
        with self._lock:
            return self._listings.get(scope)

    def made(self, make: Callable[[Listing], T], listing: Listing) -> T:
        """`make(listing)`, not made again until it is another listing."""
        with self._lock:
            last = self._made.get(make)
        if last is None or last[0] is not listing:
            last = (listing, make(listing))
            with self._lock:
                self._made[make] = last
        return cast(T, last[1])

    def enter(self, era: int) -> None:
        """Forget everything if the store was put back since: in an era, `Datastore.rewinds`."""
        if era != self._era:
            with self._lock:
                self._era = era
                self._blocks, self._handles = _Recent(BLOCKS), _Recent(HANDLES)
                self._others, self._listings = _Recent(SETTINGS), {}

    def learn(self, key: Key, record: Record | None, era: int = 0) -> None:
        """A key was read, in an era; None: it is absent."""
        self.learn_all([(key, record)], era)

    def learn_all(self, found: Iterable[tuple[Key, Record | None]], era: int = 0) -> None:
        """Keys were read, or written by a commit of ours, in an era."""
        with self._lock:
            if era != self._era:
                return
            for key, record in found:
                if isinstance(key, AffinityKey):
                    self._amend(key, record)
                else:
                    self._shelf(key).put(key, record)

    def learn_listing(self, scope: Scope, listing: Listing, era: int = 0) -> None:
        """A scope was read, in an era: only small ones may be."""
        with self._lock:
            if era == self._era:
                self._listings[scope] = listing

    def forget(self, keys: Iterable[Key], scopes: Iterable[Scope]) -> None:
        """These may have changed."""
        with self._lock:
            for key in keys:
                if isinstance(key, AffinityKey):
                    self._listings.pop(self._own, None)
                self._shelf(key).drop(key)
            for scope in scopes:
                self._listings.pop(scope, None)

    def _shelf(self, key: Key) -> _Recent[Key, Record | None]:
        if isinstance(key, HandleKey):
            return self._handles
        return self._blocks if isinstance(key, BlockKey) else self._others

    def _amend(self, key: AffinityKey, record: Record | None) -> None:
        """One of this node's affinities in their listing, whose revision stays: nobody uses it."""
        known = self._listings.get(self._own)
        if known is None or key.node != self._own.node:
            return
        others = tuple(one for one in known.records if one.key != key)
        self._listings[self._own] = replace(
            known, records=others if record is None else (*others, record)
        )


class _Recent(Generic[K, V]):
    """The entries used last, up to a number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | Literal[Unknown.UNKNOWN]:
        try:
            value = self._entries.pop(key)
        except KeyError:
            return UNKNOWN
        self._entries[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)
