"""SQLite: which file it is, and where: the one that was there, ours, whole, on a local disk."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from libtortie.datastore import sqlite_file
from libtortie.datastore.port import Put, Removed
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.datastore.sqlite_file import file_system_of
from libtortie.errors import InvalidInput, Malformed, Unavailable
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.sqlite_files import (
    DEADLINE,
    first_event,
    handle,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tortie.db"


def test_the_file_remembers_its_node(path: Path) -> None:
    SqliteDatastore(path, node="node-1").close()
    SqliteDatastore(path, node="node-1").close()
    SqliteDatastore(path).close()  # a tool that is no node
    with pytest.raises(InvalidInput, match=r"tortie\.db belongs to node 'node-1'.*'node-2'"):
        SqliteDatastore(path, node="node-2")
    SqliteDatastore(path, node="node-2", shared=True).close()
    with pytest.raises(InvalidInput, match="sqlite_shared"):
        SqliteDatastore(path, node="node-2")


def test_a_tool_does_not_take_the_file_for_a_node(path: Path) -> None:
    SqliteDatastore(path).close()
    SqliteDatastore(path, node="node-1").close()
    with pytest.raises(InvalidInput):
        SqliteDatastore(path, node="node-2")


def test_an_empty_file_is_not_taken_for_a_new_store(path: Path) -> None:
    path.touch()
    with pytest.raises(Malformed, match=r"tortie\.db is empty.*restore"):
        SqliteDatastore(path)
    assert path.stat().st_size == 0


def test_a_lone_wal_is_not_replayed_into_a_new_store(path: Path) -> None:
    wal = path.with_name("tortie.db-wal")
    wal.write_bytes(b"x" * 4096)
    with pytest.raises(Malformed, match=r"is missing but tortie\.db-wal is there"):
        SqliteDatastore(path)
    assert not path.exists()
    wal.unlink()
    SqliteDatastore(path).close()


@pytest.mark.parametrize("size", [64, 100, 20_000])
def test_a_file_that_is_no_database(path: Path, size: int) -> None:
    path.write_bytes(b"not sqlite! " * (size // 12 + 1))
    with pytest.raises(Malformed, match=r"tortie\.db: file is not a database.*restore"):
        SqliteDatastore(path)


def test_a_database_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE t (x)")
    with pytest.raises(Malformed, match=r"tortie\.db belongs to another program"):
        SqliteDatastore(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    SqliteDatastore(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 2")
    with pytest.raises(Malformed, match="schema version 2, this program knows 1: upgrade"):
        SqliteDatastore(path)


def test_damage_inside_the_file(path: Path) -> None:
    with closing(SqliteDatastore(path)) as store:
        for i in range(500):
            store.create(HandleKey(f"h{i}"), handle())
    size = path.stat().st_size
    with path.open("r+b") as file:  # nobody has it open
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with (
        pytest.raises(Malformed, match=r"tortie\.db: .*restore"),
        closing(SqliteDatastore(path)) as store,
    ):
        for i in range(500):
            store.get(HandleKey(f"h{i}"))


def test_another_journal_mode_is_put_right(path: Path) -> None:
    SqliteDatastore(path).close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        assert path.with_name("tortie.db-wal").exists()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_taken_away_while_in_use_is_noticed(path: Path, how: str) -> None:
    other = path.with_name("other.db")
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        watch = store.watch(Handles(), store.list(Handles()).revision)
        if how == "removed":
            path.rename(path.with_name("gone.db"))
        else:
            SqliteDatastore(other).close()
            other.rename(path)
        with pytest.raises(Unavailable, match="removed or replaced"):
            store.get(HandleKey("h"))
        with pytest.raises(Unavailable, match="removed or replaced"):
            store.create(HandleKey("i"), handle())
        timer = threading.Timer(DEADLINE, watch.close)
        timer.start()
        with pytest.raises(Unavailable, match="removed or replaced"):
            next(iter(watch))
        timer.cancel()


def test_a_watch_works_again_after_the_file_came_back(path: Path) -> None:
    away = path.with_name("away.db")
    with closing(SqliteDatastore(path)) as store:
        start = store.list(Handles()).revision
        path.rename(away)
        with pytest.raises(Unavailable):
            store.watch(Handles(), start)
        away.rename(path)
        store.create(HandleKey("h"), handle())
        assert isinstance(first_event(store, start), Put)
        store.delete(HandleKey("h"))
        assert isinstance(first_event(store, store_revision_before_last(store)), Removed)


def store_revision_before_last(store: SqliteDatastore) -> str:
    return str(int(store.list(Handles()).revision) - 1)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#%41" / "tortie.db"
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
    assert path.stat().st_size > 0
    with closing(SqliteDatastore(path)) as store:
        assert store.get(HandleKey("h")).value == handle()


def test_the_file_is_its_owners_alone(path: Path) -> None:
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        for suffix in ("", "-wal", "-shm"):
            assert path.with_name(path.name + suffix).stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file/tortie\.db: .*check that the directory"):
        SqliteDatastore(tmp_path / "file" / "tortie.db")


MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:51 / /mnt/share rw shared:1 master:2 - nfs4 server:/x rw,vers=4.2
41 22 0:7 / /mnt/odd\\040name rw - fuse.sshfs a@b: rw
"""


def test_file_system_of_a_device() -> None:
    assert file_system_of(os.makedev(254, 0), MOUNTINFO) == "ext4"
    assert file_system_of(os.makedev(0, 51), MOUNTINFO) == "nfs4"
    assert file_system_of(os.makedev(0, 7), MOUNTINFO) == "fuse.sshfs"
    assert file_system_of(os.makedev(9, 9), MOUNTINFO) == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "file_system_of", lambda *_: kind)
    with pytest.raises(InvalidInput, match=f"is on {kind}.*local disk"):
        SqliteDatastore(path)
    assert not path.exists()
