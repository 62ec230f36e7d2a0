"""SQLite: many processes on one file, kill -9 among them, and its lock."""

from __future__ import annotations

import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Unavailable
from libtortie.model.ipam import Block
from libtortie.model.keys import BlockKey, HandleKey, Handles
from tests.fakes.sqlite_files import (
    CIDR,
    DEADLINE,
    ROOT,
    check_integrity,
    command,
    handle,
    heard,
    herd,
    worker,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tortie.db"


def test_many_processes_add_and_delete_on_one_file(path: Path) -> None:
    block = Block(CIDR, "host:n1", (None,) * 64, tuple(range(64)))
    with closing(SqliteDatastore(path, node="n1")) as store:
        store.create(BlockKey(CIDR), block)
        herd("add-delete", path, 50, 20)
        after = store.get(BlockKey(CIDR)).value
        assert isinstance(after, Block)
        assert after.sequence_number == 50 * 20 * 2
        assert after.allocations == (None,) * 64
        assert after.attributes == ()
        assert sorted(after.unallocated) == list(range(64))
        assert store.list(Handles()).records == ()
    check_integrity(path)


def test_processes_that_create_the_file_at_once_share_one(path: Path) -> None:
    herd("create", path, 16, 3)
    with closing(SqliteDatastore(path, node="n1")) as store:
        assert len(store.list(Handles()).records) == 48
    assert [entry.name for entry in path.parent.iterdir()] == ["tortie.db"]


def test_killed_writers_lose_nothing_that_was_committed(path: Path) -> None:
    store = SqliteDatastore(path)
    committed = 0
    with closing(store):
        for _ in range(6):
            with worker("churn", path) as process:
                for _ in range(20):
                    committed = int(heard(process))
                process.kill()
                assert process.stdout is not None
                rest = process.stdout.read().split("\n")
                committed = max([committed, *(int(line) for line in rest[:-1])])
            check_integrity(path)
            left, right = store.list(Handles()).records
            assert left.value == right.value
            assert int(left.revision) >= committed
            assert int(right.revision) == int(left.revision) + 1
            store.create(HandleKey("mine"), handle())
            store.delete(HandleKey("mine"))
    with closing(SqliteDatastore(path)) as again:
        assert len(again.list(Handles()).records) == 2


def test_a_writer_dies_at_every_step_of_a_commit(path: Path) -> None:
    """Between two statements, within one, within a write: all of the commit is there or none."""
    with closing(SqliteDatastore(path)):  # somebody else has the file open, so its log stays
        ran = subprocess.run(
            command("die", path), cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    deaths = {way: int(number) for way, number in map(str.split, ran.stdout.splitlines())}
    assert deaths["at_statement"] > 10
    assert deaths["at_instruction"] > 30
    assert deaths["at_byte"] > 30


def test_killing_the_holder_of_the_lock_frees_it_and_undoes_its_work(path: Path) -> None:
    with closing(SqliteDatastore(path, timeout=0.05)) as store:
        kept = store.create(HandleKey("kept"), handle())
        with worker("hold", path) as process:
            assert heard(process) == "held"
            with pytest.raises(Unavailable, match="locked by another process"):
                store.create(HandleKey("blocked"), handle())
            assert store.get(HandleKey("kept")) == kept
            process.kill()
            process.wait()
            store.create(HandleKey("next"), handle())
        assert [r.key for r in store.list(Handles()).records] == [
            HandleKey("kept"),
            HandleKey("next"),
        ]
    check_integrity(path)


def test_a_write_waits_for_a_short_lock(path: Path) -> None:
    with closing(SqliteDatastore(path, timeout=DEADLINE)) as store:
        with worker("hold", path) as process:
            assert heard(process) == "held"
            timer = threading.Timer(0.2, process.kill)
            timer.start()
            store.create(HandleKey("patient"), handle())
            timer.join()
        assert store.get(HandleKey("patient")).value == handle()
