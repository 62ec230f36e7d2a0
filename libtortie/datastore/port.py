"""The datastore port: what every backend promises, checked by one contract suite.

Values are immutable model objects; a backend encodes them to Calico's bytes. A *revision* is an
opaque token of one stored value (etcd's ModRevision, Kubernetes' resourceVersion): it may be
compared for equality and handed back, nothing else. Every method may raise `Unavailable`
(no answer within the backend's deadline) and `Unauthorized`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from libtortie.model.history import Facts
from libtortie.model.ipam import Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import Key, Scope
from libtortie.model.resources import Resource

Value = Resource | Block | BlockAffinity | Handle | IPAMConfig | Facts


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value with the revision it was read at."""

    key: Key
    value: Value
    revision: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list; `revision` is where a watch that misses nothing starts.

    `malformed` names stored values that could not be read: they are skipped, never fatal. `newest`
    is the revision of the value written last, "" where the store does not tell: a guard
    (`Unchanged`) by it holds also when the store is put back to a backup and `revision` is of a
    future that never was.
    """

    records: tuple[Record, ...]
    revision: str
    malformed: tuple[str, ...] = ()
    newest: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was stored under several keys and scopes, read together.

    An absent key is in neither `records` nor `broken`; `broken` says, by key, why a stored value
    could not be read.
    """

    records: Mapping[Key, Record]
    listings: Mapping[Scope, Listing]
    broken: Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class Create:
    """Store a value whose key must not exist yet."""

    key: Key
    value: Value


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the value that has exactly this revision."""

    key: Key
    value: Value
    revision: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the value that has exactly this revision."""

    key: Key
    revision: str


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a value read earlier is still at this revision (None: still absent)."""

    key: Key
    revision: str | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Require that no value of a scope was created or replaced after a `Listing.revision`, or
    `Listing.newest`.

    Deletions don't count: what was listed may be gone, but nothing is there that was not listed.
    It costs the store a look at every value of the scope, so it is meant for small ones.
    """

    scope: Scope
    revision: str


KeyOp = Create | Update | Delete | Check
Op = KeyOp | Unchanged


@dataclass(frozen=True, slots=True)
class Put:
    """A watched value was created or replaced."""

    record: Record


@dataclass(frozen=True, slots=True)
class Removed:
    """A watched value was deleted."""

    key: Key


Event = Put | Removed


class Watch(Protocol):
    """A stream of events in commit order. Iterating blocks; `close` ends it from any thread.

    Iteration raises `Compacted` when history is gone and `Unavailable` when the stream broke:
    in both cases list again. An ended stream never means that anything was deleted. A malformed
    value breaks the stream; the next listing names it.
    """

    def __iter__(self) -> Iterator[Event]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Datastore(Protocol):
    """Compare-and-swap storage with atomic multi-key commits and watches.

    A resource that is created without `uid` or `creationTimestamp` is given them, and one that
    is updated without them keeps those that are stored. A write returns what `get` would.
    """

    @property
    def atomic(self) -> bool:
        """Whether `commit` is one transaction: all of it is seen and stays, or nothing."""
        ...

    @property
    def rewinds(self) -> int:
        """How often this store may have been put back to an earlier state (a backup): what is
        remembered from before is void. Always 0 where that is never noticed."""
        ...

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        ...

    def list(self, scope: Scope) -> Listing:
        """All values of a scope, in path order."""
        ...

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """All values of a scope in path order, part by part, for what is too much to have at once.

        What is there throughout is in one part, exactly; parts may be of different revisions.
        """
        ...

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """The keys of a scope, in path order, without their values; foreign paths are left out."""
        ...

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several keys and scopes: in one round trip and at one revision where the store can."""
        ...

    def create(self, key: Key, value: Value) -> Record:
        """Store a new value. Raises `AlreadyExists`."""
        ...

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """Replace a value. Raises `Conflict`, or `NotFound` when it is gone."""
        ...

    def delete(self, key: Key, revision: str | None = None) -> None:
        """Remove a value, only at `revision` when given. Raises `NotFound`, `Conflict`."""
        ...

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """Apply all operations, or (where the store has transactions) none of them.

        Returns a record for each Create and Update, None for every other. Raises `Conflict`
        (also for a Create that met an existing key), or `PartialCommit` on a store without
        transactions. Each key, and each scope of an `Unchanged`, appears at most once.
        """
        ...

    def watch(self, scope: Scope, revision: str) -> Watch:
        """Events of a scope after `revision` (a `Listing.revision`)."""
        ...

    def close(self) -> None:
        """Release connections; every open watch ends."""
        ...
