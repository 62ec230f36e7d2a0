"""The port's semantics over any transactional table of paths plus a change log.

Memory and SQLite differ only in what a transaction is (`Rows`); what get, list, commit and
watch mean is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from libtortie.datastore.codec import decode, encode
from libtortie.datastore.port import (
    Check,
    Create,
    Delete,
    Listing,
    Op,
    Record,
    Update,
    Value,
)
from libtortie.datastore.records import Stored, listing_of
from libtortie.datastore.stamps import Stamps, is_marked
from libtortie.datastore.watching import History, LogWatch, Signal
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, Malformed, NotFound
from libtortie.model.keys import Key, Scope, path_of, scope_bounds


class Rows(Protocol):
    """The table and its log as one transaction sees them."""

    def read(self, path: str) -> Stored | None:
        """One row."""
        ...

    def scan(self, low: str, high: str) -> list[Stored]:
        """The rows of a half-open range, in path order."""
        ...

    def revision(self) -> int:
        """The newest revision."""
        ...

    def history(self, low: str, high: str, after: int) -> History:
        """Some changes of a range after a revision, oldest first. Raises `Compacted`."""
        ...

    def put(self, path: str, data: bytes) -> int:
        """Write a row and log it; the revision of the change."""
        ...

    def remove(self, path: str) -> int:
        """Remove a row and log it; the revision of the change."""
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
    def _signal(self) -> Signal:
        """What a new watch waits on; it must notice every commit made after this call."""

    @abstractmethod
    def _committed(self) -> None:
        """Wake this process' watches."""

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        path = path_of(key)
        with self._reading() as rows:
            stored = rows.read(path)
        if stored is None:
            raise NotFound(f"{path} does not exist")
        return Record(key, decode(key, stored.data), str(stored.revision))

    def list(self, scope: Scope) -> Listing:
        """All values of a scope, in path order."""
        low, high = scope_bounds(scope)
        with self._reading() as rows:
            found = rows.scan(low, high)
            revision = rows.revision()
        return listing_of(found, revision)

    def create(self, key: Key, value: Value) -> Record:
        """Store a new value. Raises `AlreadyExists`."""
        return _only(self._apply([Create(key, value)]))

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """Replace a value. Raises `Conflict`, or `NotFound` when it is gone."""
        return _only(self._apply([Update(key, value, revision)]))

    def delete(self, key: Key, revision: str | None = None) -> None:
        """Remove a value, only at `revision` when given. Raises `NotFound`, `Conflict`."""
        path = path_of(key)
        with self._writing() as rows:
            stored = rows.read(path)
            at = str(stored.revision) if revision is None and stored else revision
            _verify(Delete(key, at or ""), stored)
            rows.remove(path)
        self._committed()

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """Apply all operations or none. Raises `Conflict`."""
        try:
            return self._apply(ops)
        except (AlreadyExists, NotFound) as error:
            raise Conflict(str(error)) from error

    def watch(self, scope: Scope, revision: str) -> LogWatch:
        """Events of a scope after `revision` (a `Listing.revision`)."""
        return LogWatch(scope, revision, self._signal(), self._history)

    def _history(self, low: str, high: str, after: int) -> History:
        with self._reading() as rows:
            return rows.history(low, high, after)

    def _apply(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        if len({path_of(op.key) for op in ops}) < len(ops):
            raise InvalidInput("a commit may name each key only once")
        payloads = [self._payload(op) for op in ops]
        with self._writing() as rows:
            for place, op in enumerate(ops):
                stored = rows.read(path_of(op.key))
                _verify(op, stored)
                if isinstance(op, Update) and payloads[place] is None:
                    value = self._stamps.replacing(op.value, _readable(op.key, stored))
                    payloads[place] = encode(op.key, value)
            # From here on nothing is refused.
            written = [_write(rows, op, payload) for op, payload in zip(ops, payloads, strict=True)]
        if any(not isinstance(op, Check) for op in ops):
            self._committed()
        return tuple(
            None
            if data is None or revision is None
            else Record(op.key, decode(op.key, data), str(revision))
            for op, data, revision in zip(ops, payloads, written, strict=True)
        )

    def _payload(self, op: Op) -> bytes | None:
        """The bytes to write, where they do not depend on what is stored."""
        match op:
            case Create(key, value):
                return encode(key, self._stamps.born(value))
            case Update(key, value):
                data = encode(key, value)
                return data if is_marked(value) else None
            case _:
                return None


def _write(rows: Rows, op: Op, payload: bytes | None) -> int | None:
    """Put or remove one row; the revision of a put."""
    if payload is not None:
        return rows.put(path_of(op.key), payload)
    if isinstance(op, Delete):
        rows.remove(path_of(op.key))
    return None


def _verify(op: Op, stored: Stored | None) -> None:
    """Raise unless the stored state is what the operation expects."""
    path = path_of(op.key)
    actual = None if stored is None else str(stored.revision)
    match op:
        case Create() if actual is not None:
            raise AlreadyExists(f"{path} already exists, at revision {actual}")
        case Update() | Delete() if actual is None:
            raise NotFound(f"{path} does not exist")
        case Update(_, _, expected) | Delete(_, expected) | Check(_, expected) if (
            actual != expected
        ):
            raise Conflict(f"{path} changed: expected revision {expected}, found {actual}")
        case _:
            return


def _readable(key: Key, stored: Stored | None) -> Value | None:
    """The stored value, or None where it cannot be read: an update may mend it."""
    if stored is None:
        return None
    try:
        return decode(key, stored.data)
    except Malformed:
        return None


def _only(records: tuple[Record | None, ...]) -> Record:
    (record,) = records
    if record is None:
        raise AssertionError("a write always makes a record")
    return record
