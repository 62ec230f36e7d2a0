"""The port's semantics over any transactional table of paths plus a change log.

Memory and SQLite differ only in what a transaction is (`Rows`); what get, list, commit and
watch mean is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from libtortie.datastore.codec import as_read, decode, name_of
from libtortie.datastore.feed import Feed, History
from libtortie.datastore.operations import (
    only,
    payload_of,
    position_of,
    replacement,
    require_distinct,
    verify,
    verify_scope,
)
from libtortie.datastore.port import (
    Create,
    Delete,
    Listing,
    Op,
    Record,
    Snapshot,
    Unchanged,
    Update,
    Value,
)
from libtortie.datastore.records import Change, Stored, listing_of, names_of, snapshot_of
from libtortie.datastore.stamps import Stamps
from libtortie.datastore.watching import LogWatch
from libtortie.errors import AlreadyExists, Conflict, NotFound
from libtortie.model.keys import Key, Scope, path_of, scope_bounds


class Rows(Protocol):
    """The table and its log as one transaction sees them."""

    def read(self, path: str) -> Stored | None:
        """One row."""
        ...

    def scan(self, low: str, high: str) -> list[Stored]:
        """The rows of a half-open range, in path order."""
        ...

    def paths(self, low: str, high: str) -> list[str]:
        """The paths of a half-open range, in order."""
        ...

    def newer(self, low: str, high: str, after: int) -> Stored | None:
        """Some row of a half-open range that was written after a revision."""
        ...

    def revision(self) -> int:
        """The newest revision."""
        ...

    def history(self, low: str, high: str, after: int) -> History:
        """Some changes of a range after a revision, oldest first. Raises `Compacted`."""
        ...

    def put(self, path: str, data: bytes) -> Change:
        """Write a row and log it."""
        ...

    def remove(self, path: str) -> Change:
        """Remove a row and log it."""
        ...


class LoggedStore(ABC):
    """A `Datastore` on top of `Rows`."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Rows]:
        """A consistent view."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Rows]:
        """An exclusive transaction: committed when the block ends, undone when it raises."""

    @abstractmethod
    def _feed(self) -> Feed:
        """What a new watch waits on; it must notice every commit made after this call."""

    @abstractmethod
    def _committed(self, changes: Sequence[Change]) -> None:
        """Tell this process' watches of a commit of its own."""

    @property
    def atomic(self) -> bool:
        """A commit is one transaction."""
        return True

    @property
    def rewinds(self) -> int:
        """Nobody puts a backup in the place of an open file, or of memory."""
        return 0

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        path = _path(key)
        with self._reading() as rows:
            stored = rows.read(path)
        if stored is None:
            raise NotFound(f"{path} does not exist")
        return Record(key, decode(key, stored.data), str(stored.revision))

    def list(self, scope: Scope) -> Listing:
        """All values of a scope, in path order."""
        low, high = _bounds(scope)
        with self._reading() as rows:
            found = rows.scan(low, high)
            revision = rows.revision()
        return listing_of(found, revision)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """As `list`, in one part."""
        yield self.list(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """The keys of a scope, in path order."""
        with self._reading() as rows:
            paths = rows.paths(*_bounds(scope))
        return names_of(paths)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several keys and scopes at one revision."""
        with self._reading() as rows:
            found = {key: rows.read(_path(key)) for key in keys}
            ranges = {scope: rows.scan(*_bounds(scope)) for scope in scopes}
            revision = rows.revision()
        listings = {scope: listing_of(held, revision) for scope, held in ranges.items()}
        return snapshot_of(found, listings)

    def create(self, key: Key, value: Value) -> Record:
        """Store a new value. Raises `AlreadyExists`."""
        return only(self._apply([Create(key, value)]))

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """Replace a value. Raises `Conflict`, or `NotFound` when it is gone."""
        return only(self._apply([Update(key, value, revision)]))

    def delete(self, key: Key, revision: str | None = None) -> None:
        """Remove a value, only at `revision` when given. Raises `NotFound`, `Conflict`."""
        path = _path(key)
        with self._writing() as rows:
            stored = rows.read(path)
            at = str(stored.revision) if revision is None and stored else revision
            verify(Delete(key, at or ""), stored)
            change = rows.remove(path)
        self._committed((change,))

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """Apply all operations or none. Raises `Conflict`."""
        try:
            return self._apply(ops)
        except (AlreadyExists, NotFound) as error:
            raise Conflict(str(error)) from error

    def watch(self, scope: Scope, revision: str) -> LogWatch:
        """Events of a scope after `revision` (a `Listing.revision`)."""
        _bounds(scope)  # raises for what could not be stored
        return LogWatch(scope, revision, self._feed())

    def _history(self, low: str, high: str, after: int) -> History:
        with self._reading() as rows:
            return rows.history(low, high, after)

    def _apply(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        require_distinct(ops)
        payloads = [payload_of(op, self._stamps) for op in ops]
        with self._writing() as rows:
            for place, op in enumerate(ops):
                if isinstance(op, Unchanged):
                    verify_scope(op, rows.newer(*_bounds(op.scope), position_of(op)))
                    continue
                stored = rows.read(_path(op.key))
                verify(op, stored)
                if isinstance(op, Update) and payloads[place] is None:
                    payloads[place] = replacement(op, stored, self._stamps)
            # From here on nothing is refused.
            written = [_write(rows, op, payload) for op, payload in zip(ops, payloads, strict=True)]
        if changes := [change for change in written if change is not None]:
            self._committed(changes)
        return tuple(
            Record(op.key, as_read(op.key, op.value, change.data), str(change.revision))
            if isinstance(op, Create | Update) and change is not None and change.data is not None
            else None
            for op, change in zip(ops, written, strict=True)
        )


def _write(rows: Rows, op: Op, payload: bytes | None) -> Change | None:
    """Put or remove one row."""
    if isinstance(op, Create | Update) and payload is not None:
        return rows.put(_path(op.key), payload)
    if isinstance(op, Delete):
        return rows.remove(_path(op.key))
    return None


def _path(key: Key) -> str:
    """Where a value is. Raises `InvalidInput` for a path that cannot be stored."""
    path = path_of(key)
    name_of(path)
    return path


def _bounds(scope: Scope) -> tuple[str, str]:
    low, high = scope_bounds(scope)
    name_of(low)
    return low, high
