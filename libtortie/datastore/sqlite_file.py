"""One SQLite file and the connections to it: created whole, recognised, guarded, translated.

What it promises: the file is never created where one may have been lost (a stray `-wal`, an
empty file, an id that somebody remembers), nor by a caller who may not; a file of another
program, a newer schema, or on a network file system is refused; a file replaced beneath an open
store is noticed before anything is read or written; every `sqlite3` error becomes one of ours
that names the file and the fix.

Never open the file other than through SQLite in a process that uses it: closing any descriptor
of it drops all of the process' POSIX locks, SQLite's among them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from libtortie.errors import Closed, InvalidInput, Malformed, TortieError, Unavailable

APPLICATION_ID = 0x54727469  # "Trti", as file(1) shows it
SCHEMA_VERSION = 1

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE kv (path TEXT PRIMARY KEY, revision INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE log (revision INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, data BLOB);
INSERT INTO meta VALUES ('compacted', '0');
INSERT INTO sqlite_sequence VALUES ('log', 0);
"""
NEWEST = "SELECT seq FROM sqlite_sequence WHERE name = 'log'"
"""The newest revision, also when all of the log was forgotten."""

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs2"}
    | {"ocfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.s3fs", "virtiofs"}
)
"""Where WAL's shared memory or POSIX locks do not reach across machines."""


class SqliteFile:
    """A pool of connections to one file; each connection serves one thread at a time."""

    def __init__(
        self, path: Path, timeout: float, *, create: bool = True, known_id: str = ""
    ) -> None:
        """`timeout` seconds is how long to wait for another writer.

        A file that is missing is made if `create` says so, unless `known_id`, the id of the one
        that was there, is known.
        """
        self.path = path
        self._timeout = timeout
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        with self.translated():
            _refuse_network(path)
            if not _present(path):
                _require_new(path, create, known_id)
                _create(path)
            self._identity = _identity(path)
            with self.connection() as connection:
                _recognise(path, connection)
                self.id = _read_id(connection)
            _require_id(path, self.id, known_id)

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile, outside any transaction."""
        connection = self._take()
        try:
            yield connection
        except sqlite3.Error:
            connection.close()  # whatever state it is in, nobody meets it again
            raise
        finally:
            self._give_back(connection)

    def open(self) -> sqlite3.Connection:
        """A connection of the caller's own."""
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def check_identity(self) -> None:
        """Raise `Unavailable` if the path no longer names the file that was opened."""
        if _identity(self.path) != self._identity:
            raise Unavailable(
                f"{self.path} was removed or replaced while it was in use: put it back, "
                "or restart every process that uses it"
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what `sqlite3` and the file system raise into our errors."""
        try:
            yield
        except sqlite3.Error as error:
            raise translate(self.path, error, self._timeout) from error
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}: {_PERMISSIONS}") from error

    def close(self) -> None:
        """Close what is idle now and the rest when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        self.check_identity()
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path}: the datastore is closed")
            if self._idle:
                return self._idle.pop()
        return self.open()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        try:
            usable = not connection.in_transaction
        except sqlite3.ProgrammingError:
            return  # closed above
        with self._lock:
            if usable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


_PERMISSIONS = "check that the directory exists and that this user may write the file"


def translate(path: Path, error: sqlite3.Error, timeout: float) -> TortieError:
    """Our error for one of SQLite's, with the file and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(
                f"{path}: locked by another process for more than {timeout:g} s: "
                f"`fuser -v {path}` shows who has it open"
            )
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"{path}: no space left: free some on its file system")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Unavailable(f"{path}: {error}: {_PERMISSIONS}, its -wal and its -shm")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return Malformed(f"{path}: {error}: stop every user of it and restore it from a backup")
        case sqlite3.SQLITE_TOOBIG:
            return InvalidInput(f"{path}: {error}")
        case _:
            return Unavailable(f"{path}: {error}: check the disk and the kernel's log")


def file_system_of(device: int, mountinfo: str) -> str:
    """The type of the file system on a device (`st_dev`), "" when /proc/self/mountinfo has none."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        fields, _, after = line.partition(" - ")
        if fields.split()[2] == number:
            return after.split()[0]
    return ""


def _refuse_network(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    kind = file_system_of(path.parent.stat().st_dev, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidInput(
            f"{path} is on {kind}, where SQLite's locks cannot be relied on: use a local disk, "
            "or the etcd or Kubernetes datastore"
        )


def _present(path: Path) -> bool:
    """Whether there is a file to open; raises when one seems to have been lost."""
    if path.exists():
        if path.stat().st_size == 0:
            raise Malformed(
                f"{path} is empty, and was never left so by us: restore it from a backup, "
                "or remove it if nothing is to be kept"
            )
        return True
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and not path.exists():
        raise Malformed(
            f"{path} is missing but {wal.name} is there: restore both from a backup, "
            "or remove both if nothing is to be kept"
        )
    return path.exists()


def _require_new(path: Path, create: bool, known_id: str) -> None:
    """Raise unless a missing file may be made: an empty datastore frees every address in use."""
    if known_id:
        raise Malformed(
            f"{path} is missing, and this node's datastore was {known_id}: restore it from a "
            f"backup; {_NEW_MEANT}"
        )
    if not create:
        raise Unavailable(f"{path} does not exist: only tortie-node makes it, has it run here?")


def _require_id(path: Path, found: str, known_id: str) -> None:
    if known_id and found != known_id:
        raise Malformed(
            f"{path} is datastore {found or 'without an id'}, and this node's was {known_id}: put "
            f"that one back; {_NEW_MEANT}"
        )


_NEW_MEANT = (
    "if another is meant, and no address in use shall be kept, say so once with "
    "`tortie-node --init-datastore`"
)


def _read_id(connection: sqlite3.Connection) -> str:
    """What tells this file from all others; "" in one that is older than ids."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
    return "" if row is None else str(row[0])


def _create(path: Path) -> None:
    """Make the file complete under another name, then give it its own, unless someone just did."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('id', ?)", (str(uuid.uuid4()),))
            connection.execute("PRAGMA journal_mode = WAL")
        _sync(draft, os.O_RDWR)
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    """Have a file nobody else uses, or a directory, on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _recognise(path: Path, connection: sqlite3.Connection) -> None:
    """Raise `Malformed` unless the file is ours and of a schema we know."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise Malformed(f"{path} belongs to another program (application id {application:#x})")
    if version != SCHEMA_VERSION:
        raise Malformed(
            f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: "
            "upgrade this program"
        )
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode = WAL")


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino
