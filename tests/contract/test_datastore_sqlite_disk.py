"""SQLite: disks that are full or read-only."""

from __future__ import annotations

import contextlib
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from libtortie.datastore.port import Put
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Unavailable
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.datastore_race import race
from tests.fakes.sqlite_files import (
    DEADLINE,
    check_integrity,
    first_event,
    handle,
    heard,
    tmpfs,
    worker,
)


@pytest.mark.root
def test_a_full_disk_is_told_and_survived(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "512k") as disk:
        path = disk / "tortie.db"
        with closing(SqliteDatastore(path)) as store:
            start = store.list(Handles()).revision
            stored = [store.create(HandleKey("first"), handle())]
            with pytest.raises(Unavailable, match=r"tortie\.db: .*(no space left|disk)"):
                for i in range(10_000):
                    stored.append(store.create(HandleKey(f"h{i:05}"), handle()))
            assert len(stored) > 10
            assert [r.revision for r in store.list(Handles()).records] == [
                r.revision for r in stored
            ]
            subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
            stored.append(store.create(HandleKey("zz-after"), handle()))
            assert list(store.list(Handles()).records) == stored
            assert first_event(store, start) == Put(stored[0])
        check_integrity(path)
        with closing(SqliteDatastore(path)) as store:
            assert list(store.list(Handles()).records) == stored


@pytest.mark.root
def test_a_disk_too_full_to_begin(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "64k") as disk:
        (disk / "ballast").write_bytes(b"x" * 48 * 1024)
        path = disk / "tortie.db"
        with pytest.raises(Unavailable, match=r"tortie\.db"):
            SqliteDatastore(path)
        assert [entry.name for entry in disk.iterdir()] == ["ballast"]
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        SqliteDatastore(path).close()


@pytest.mark.root
def test_a_read_only_disk_is_told(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "8m") as disk:
        path = disk / "tortie.db"
        with closing(SqliteDatastore(path)) as store:
            store.create(HandleKey("h"), handle())
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with (
            pytest.raises(Unavailable, match=r"tortie\.db: .*may write"),
            closing(SqliteDatastore(path)) as store,
        ):
            store.create(HandleKey("i"), handle())
        with pytest.raises(Unavailable, match=r"new\.db: .*may write"):
            SqliteDatastore(disk / "new.db")


@pytest.mark.root
def test_a_disk_that_fills_up_under_writers_and_is_freed(tmp_path: Path) -> None:
    """One of them is killed meanwhile. What was acknowledged stays, and all go on afterwards."""
    with tmpfs(tmp_path / "disk", "24m") as disk:
        path, ballast = disk / "tortie.db", disk / "ballast"
        with (
            closing(SqliteDatastore(path, timeout=DEADLINE)) as judge,
            race(lambda: SqliteDatastore(path, timeout=DEADLINE), judge) as running,
            worker("churn", path) as other,
        ):
            running.progress(20)
            assert all(heard(other) for _ in range(20))
            fill(ballast)
            running.refused()
            other.kill()
            other.wait()
            check_integrity(path)
            found = judge.snapshot([HandleKey("left"), HandleKey("right")]).records
            assert len({str(record.value) for record in found.values()}) == 1
            ballast.unlink()
            running.progress(20)
        check_integrity(path)


def fill(ballast: Path) -> None:
    """Leave not a byte."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)
