"""The embedded datastore: one SQLite file, shared by the processes of one host.

WAL mode; every write is one `BEGIN IMMEDIATE` transaction (a transaction that reads first and
writes later fails at once when another wrote meanwhile, whatever the busy timeout).
`synchronous=NORMAL`: a killed process loses nothing and a full disk corrupts nothing; a power
loss or kernel crash may undo the last commits before it (those since the last checkpoint, never
part of one). What can be lost so is an address handed out in the final moments: its pod died
with the host, but a VM first started then may come back with another address.

The file remembers the first node that opened it and refuses another unless `shared`: two hosts
that each believe in a file of their own would hand out the same addresses. Each file has an id
(a UUID), by which a node that remembers it notices that its file was lost or exchanged.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from libtortie.datastore.feed import BATCH, Feed, History
from libtortie.datastore.logged import LoggedStore
from libtortie.datastore.records import Change, Stored
from libtortie.datastore.sqlite_file import NEWEST, SqliteFile
from libtortie.datastore.stamps import Stamps, random_uid, utc_now
from libtortie.datastore.watching import require_history
from libtortie.deadline import Deadline
from libtortie.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from libtortie.datastore.follower import Follower

HISTORY = 4096
"""Changes kept for watches; one that lags further behind must list again."""

PRUNE_EVERY = 64
"""Changes between two prunings of the log."""


class SqliteDatastore(LoggedStore):
    """Safe among threads and among processes of one host."""

    def __init__(
        self,
        path: Path,
        *,
        node: str = "",
        shared: bool = False,
        create: bool = True,
        known_id: str = "",
        timeout: float = 5.0,
        history: int = HISTORY,
        now: Callable[[], datetime] = utc_now,
        new_uid: Callable[[], str] = random_uid,
    ) -> None:
        """Open the file; make it if it never existed and `create` says so.

        `node` "" reads and writes without being anyone (command line). `known_id` "" takes any
        file, else only the one with this id. `timeout` seconds is how long a write waits for
        others. Raises `InvalidInput` for a second node or an unsuitable file system, `Malformed`
        for a file that is not ours, is another or was lost, `Unavailable` for one that cannot be
        opened.
        """
        super().__init__(Stamps(now, new_uid))
        self._timeout = timeout
        self._history_kept = history
        self._write_lock = threading.Lock()
        self._follower: Follower | None = None
        self._follower_lock = threading.Lock()
        self._file = SqliteFile(path, timeout, create=create, known_id=known_id)
        self.id = self._file.id
        """The file's id; "" for one older than ids that no node has opened since."""
        try:
            if node:
                self._remember_node(node, shared)
                self._give_id()
        except BaseException:
            self._file.close()
            raise

    def compact(self) -> None:
        """Forget all history: a watch from an older revision is `Compacted`."""
        with self._writing() as rows:
            rows.forget(rows.revision())
        if self._follower is not None:
            self._follower.feed.look()

    def close(self) -> None:
        """Every open watch ends; every later call is `Closed`."""
        with self._follower_lock:
            if self._follower is not None:
                self._follower.stop()
                self._follower = None
            self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[_SqliteRows]:
        with self._file.translated(), self._file.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield _SqliteRows(connection)
            finally:
                _roll_back(connection)

    @contextmanager
    def _writing(self) -> Iterator[_SqliteRows]:
        deadline = Deadline(self._timeout)
        while not self._write_lock.acquire(timeout=(wait := deadline.step())):
            if not wait:
                raise Unavailable(f"{self._file.path}: other threads wrote for {self._timeout:g} s")
        try:
            with self._file.translated(), self._file.connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    rows = _SqliteRows(connection)
                    yield rows
                    rows.prune(self._history_kept)
                    connection.execute("COMMIT")
                finally:
                    _roll_back(connection)
        finally:
            self._write_lock.release()

    def _feed(self) -> Feed:
        from libtortie.datastore.follower import Follower  # ctypes, for those who watch

        with self._follower_lock:
            with self._file.connection():
                pass  # raises when closed or replaced
            if self._follower is not None and self._follower.feed.failed:
                self._follower.stop()
                self._follower = None
            if self._follower is None:
                self._follower = Follower(self._file, Feed(self._history))
            return self._follower.feed

    def _committed(self, changes: Sequence[Change]) -> None:
        follower = self._follower
        if follower is not None:
            follower.feed.committed(changes)

    def _give_id(self) -> None:
        """A file from before files had ids gets one."""
        if not self.id:
            with self._writing() as rows:
                self.id = rows.remember("id", str(uuid.uuid4()))

    def _remember_node(self, node: str, shared: bool) -> None:
        with self._reading() as rows:
            first = rows.meta("node")
        if first is None:
            with self._writing() as rows:
                first = rows.remember("node", node)
        if first != node and not shared:
            raise InvalidInput(
                f"{self._file.path} belongs to node {first!r}, this is node {node!r}: nodes on "
                "different hosts need the etcd or Kubernetes datastore; nodes that share this "
                "very file say so (sqlite_shared: true)"
            )


class _SqliteRows:
    """`Rows` of one open transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection
        self._wrote = 0

    def read(self, path: str) -> Stored | None:
        row = self._sql.execute("SELECT revision, data FROM kv WHERE path = ?", (path,)).fetchone()
        return None if row is None else Stored(path, row[0], row[1])

    def scan(self, low: str, high: str) -> list[Stored]:
        found = self._sql.execute(
            "SELECT path, revision, data FROM kv WHERE path >= ? AND path < ? ORDER BY path",
            (low, high),
        )
        return [Stored(*row) for row in found]

    def paths(self, low: str, high: str) -> list[str]:
        found = self._sql.execute(
            "SELECT path FROM kv WHERE path >= ? AND path < ? ORDER BY path", (low, high)
        )
        return [path for (path,) in found]

    def newer(self, low: str, high: str, after: int) -> Stored | None:
        row = self._sql.execute(
            "SELECT path, revision, data FROM kv"
            " WHERE path >= ? AND path < ? AND revision > ? LIMIT 1",
            (low, high, after),
        ).fetchone()
        return None if row is None else Stored(*row)

    def revision(self) -> int:
        (revision,) = self._sql.execute(NEWEST).fetchone()
        return int(revision)

    def history(self, low: str, high: str, after: int) -> History:
        newest = self.revision()
        require_history(after, int(self.meta("compacted") or 0), newest)
        found = self._sql.execute(
            "SELECT revision, path, data FROM log WHERE revision > ? AND path >= ? AND path < ?"
            " ORDER BY revision LIMIT ?",
            (after, low, high, BATCH),
        )
        changes = tuple(Change(*row) for row in found)
        return History(changes, changes[-1].revision if len(changes) == BATCH else newest)

    def put(self, path: str, data: bytes) -> Change:
        change = self._append(path, data)
        self._sql.execute(
            "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT (path)"
            " DO UPDATE SET revision = excluded.revision, data = excluded.data",
            (path, change.revision, data),
        )
        return change

    def remove(self, path: str) -> Change:
        self._sql.execute("DELETE FROM kv WHERE path = ?", (path,))
        return self._append(path, None)

    def meta(self, name: str) -> str | None:
        """A fact about the file."""
        row = self._sql.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def remember(self, name: str, value: str) -> str:
        """Record a fact unless it is known; the known one."""
        self._sql.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, value))
        return self.meta(name) or value

    def prune(self, kept: int) -> None:
        """Now and then forget what is older than the last `kept` changes."""
        if self._wrote and self.revision() % PRUNE_EVERY < self._wrote:
            self.forget(self.revision() - kept)

    def forget(self, revision: int) -> None:
        """Drop the log up to and including a revision."""
        if revision > int(self.meta("compacted") or 0):
            self._sql.execute("DELETE FROM log WHERE revision <= ?", (revision,))
            self._sql.execute(
                "UPDATE meta SET value = ? WHERE name = 'compacted'", (str(revision),)
            )

    def _append(self, path: str, data: bytes | None) -> Change:
        self._wrote += 1
        found = self._sql.execute("INSERT INTO log (path, data) VALUES (?, ?)", (path, data))
        return Change(int(found.lastrowid or 0), path, data)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Leave any open transaction; after a failed write SQLite may already have left it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
