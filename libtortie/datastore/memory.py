"""A datastore in this process' memory: for tests, and the contract's plainest reading.

It keeps bytes, through the codec, so that a value which would not survive storage does not
survive here either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from libtortie.datastore.feed import BATCH, Feed, History
from libtortie.datastore.logged import LoggedStore
from libtortie.datastore.records import Change, Stored
from libtortie.datastore.stamps import Stamps, random_uid, utc_now
from libtortie.datastore.watching import require_history
from libtortie.errors import Closed


class MemoryDatastore(LoggedStore):
    """Thread-safe; each instance is a store of its own."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = utc_now,
        new_uid: Callable[[], str] = random_uid,
    ) -> None:
        super().__init__(Stamps(now, new_uid))
        self._lock = threading.RLock()
        self._table = _Table()
        self._watchers = Feed(self._history)

    @contextmanager
    def _reading(self) -> Iterator[_Table]:
        if self._watchers.closed:
            raise Closed("the datastore is closed")
        with self._lock:
            yield self._table

    @contextmanager
    def _writing(self) -> Iterator[_Table]:
        with self._reading() as table:
            yield table  # nothing to undo: whoever writes has done all refusing before

    def _feed(self) -> Feed:
        with self._reading():
            pass  # raises when closed
        return self._watchers

    def _committed(self, changes: Sequence[Change]) -> None:
        self._watchers.committed(changes)

    def put_raw(self, path: str, data: bytes) -> None:
        """Store bytes that did not come from the codec, as a foreign writer would."""
        with self._writing() as table:
            change = table.put(path, data)
        self._committed((change,))

    def compact(self) -> None:
        """Forget all history: a watch from an older revision is `Compacted`."""
        with self._writing() as table:
            table.compact()
        self._watchers.look()

    def close(self) -> None:
        """Every open watch ends; every later call is `Closed`."""
        self._watchers.close()


class _Table:
    """`Rows` in a dictionary; the lock is held by whoever uses it."""

    def __init__(self) -> None:
        self._rows: dict[str, Stored] = {}
        self._log: list[Change] = []
        self._compacted = 0

    def read(self, path: str) -> Stored | None:
        return self._rows.get(path)

    def scan(self, low: str, high: str) -> list[Stored]:
        return [self._rows[path] for path in self.paths(low, high)]

    def paths(self, low: str, high: str) -> list[str]:
        return sorted(path for path in self._rows if low <= path < high)

    def newer(self, low: str, high: str, after: int) -> Stored | None:
        return next((row for row in self.scan(low, high) if row.revision > after), None)

    def revision(self) -> int:
        return self._compacted + len(self._log)

    def history(self, low: str, high: str, after: int) -> History:
        require_history(after, self._compacted, self.revision())
        changes = [c for c in self._log[after - self._compacted :] if low <= c.path < high]
        if len(changes) > BATCH:
            changes = changes[:BATCH]
            return History(tuple(changes), changes[-1].revision)
        return History(tuple(changes), self.revision())

    def put(self, path: str, data: bytes) -> Change:
        change = self._append(path, data)
        self._rows[path] = Stored(path, change.revision, data)
        return change

    def remove(self, path: str) -> Change:
        del self._rows[path]
        return self._append(path, None)

    def compact(self) -> None:
        self._compacted = self.revision()
        self._log.clear()

    def _append(self, path: str, data: bytes | None) -> Change:
        change = Change(self.revision() + 1, path, data)
        self._log.append(change)
        return change
