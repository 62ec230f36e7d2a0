"""The agent remembers its SQLite file: a lost or exchanged one is an error, never a new start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from click.testing import CliRunner

from felix_shim.agent import main
from felix_shim.datastore_id import init_datastore, open_remembered, read_id
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import InvalidInput, Malformed, NotFound, Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey

KEY = HandleKey("k8s-pod-network.vmi.shop.db")


@pytest.fixture
def wanted(tmp_path: Path) -> DatastoreConfig:
    """The agent's datastore."""
    return DatastoreConfig(sqlite_path=tmp_path / "db" / "tortie.db", node="n1", shared=True)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """Where the id is remembered; its directory does not exist yet."""
    return tmp_path / "state" / "datastore-id"


def start(wanted: DatastoreConfig, memory: Path) -> str:
    """Open as the agent does, write something, close; the id."""
    with closing(open_remembered(wanted, memory)) as store:
        assert isinstance(store, SqliteDatastore)
        try:
            store.get(KEY)
        except NotFound:
            store.create(KEY, Handle({}))
        return store.id


def lose(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def test_the_first_open_makes_the_file_and_remembers_it(
    wanted: DatastoreConfig, memory: Path
) -> None:
    made = start(wanted, memory)
    assert str(UUID(made)) == made == read_id(memory)
    before = memory.stat().st_ino
    assert start(wanted, memory) == made
    assert memory.stat().st_ino == before, "written although nothing was new"


def test_a_lost_file_is_refused_and_not_made(wanted: DatastoreConfig, memory: Path) -> None:
    made = start(wanted, memory)
    lose(wanted.sqlite_path)
    with pytest.raises(Malformed) as refused:
        open_remembered(wanted, memory)
    for part in (str(wanted.sqlite_path), "missing", made, "backup", "--init-datastore"):
        assert part in str(refused.value)
    assert not wanted.sqlite_path.exists()
    assert read_id(memory) == made


def test_a_restored_file_is_taken(wanted: DatastoreConfig, memory: Path) -> None:
    made = start(wanted, memory)
    backup = wanted.sqlite_path.read_bytes()
    lose(wanted.sqlite_path)
    with pytest.raises(Malformed):
        open_remembered(wanted, memory)
    wanted.sqlite_path.write_bytes(backup)
    assert start(wanted, memory) == made


def test_another_file_is_refused_and_left_alone(wanted: DatastoreConfig, memory: Path) -> None:
    made = start(wanted, memory)
    lose(wanted.sqlite_path)
    with closing(SqliteDatastore(wanted.sqlite_path)) as other:
        assert other.id != made
    with pytest.raises(Malformed, match=r"put that one back.*--init-datastore") as refused:
        open_remembered(wanted, memory)
    assert made in str(refused.value)
    assert other.id in str(refused.value)
    assert read_id(memory) == made


def test_a_file_from_before_ids_gets_one_from_the_first_node(
    wanted: DatastoreConfig, memory: Path
) -> None:
    made = start(wanted, memory)
    with closing(sqlite3.connect(wanted.sqlite_path)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'id'")
        connection.commit()
    with pytest.raises(Malformed, match="without an id"):
        open_remembered(wanted, memory)
    memory.unlink()
    with closing(open_datastore(replace(wanted, node=""))) as tool:
        assert isinstance(tool, SqliteDatastore)
        assert tool.id == "", "a tool that is no node changes nothing"
    again = start(wanted, memory)
    assert str(UUID(again)) == again != made
    assert start(replace(wanted, node="n2"), memory.with_name("n2")) == again


def test_several_nodes_share_a_file_each_with_its_own_memory(
    wanted: DatastoreConfig, memory: Path
) -> None:
    second = memory.parent.parent / "state2" / "datastore-id"
    assert start(wanted, memory) == start(replace(wanted, node="n2"), second)
    lose(wanted.sqlite_path)
    for one in (memory, second):
        with pytest.raises(Malformed, match="missing"):
            open_remembered(wanted, one)


@pytest.mark.parametrize("text", ["", "nonsense", "\u00e9"])
def test_an_unreadable_memory_is_no_new_start(
    wanted: DatastoreConfig, memory: Path, text: str
) -> None:
    start(wanted, memory)
    lose(wanted.sqlite_path)
    memory.write_text(text)
    with pytest.raises(Malformed, match="datastore-id"):
        open_remembered(wanted, memory)
    assert not wanted.sqlite_path.exists()


def test_what_cannot_be_remembered_is_not_used(wanted: DatastoreConfig, memory: Path) -> None:
    memory.parent.write_text("a file where the directory should be")
    with pytest.raises(Unavailable):
        open_remembered(wanted, memory)


def test_only_who_says_so_makes_a_file(wanted: DatastoreConfig) -> None:
    with pytest.raises(Unavailable, match=r"tortie\.db does not exist: only tortie-node makes it"):
        open_datastore(wanted)
    assert not wanted.sqlite_path.exists()


def test_other_datastores_have_no_id(memory: Path) -> None:
    wanted = DatastoreConfig(type="memory")
    assert isinstance(open_remembered(wanted, memory), MemoryDatastore)
    assert not memory.exists()
    with pytest.raises(InvalidInput, match="memory"):
        init_datastore(wanted, memory)


def test_a_new_one_that_is_meant(wanted: DatastoreConfig, memory: Path) -> None:
    made = start(wanted, memory)
    lose(wanted.sqlite_path)
    said = init_datastore(wanted, memory)
    assert "made, empty" in said
    assert read_id(memory) != made
    assert read_id(memory) in said
    start(wanted, memory)


def test_one_that_is_there_is_accepted_whole(wanted: DatastoreConfig, memory: Path) -> None:
    start(wanted, memory)
    memory.write_text("6a1f0d9e-7c54-4b6f-9d53-0d6a8f3f2d11")
    assert "accepted as it is" in init_datastore(wanted, memory)
    with closing(open_remembered(wanted, memory)) as store:
        assert store.get(KEY).value == Handle({})


def test_the_option_makes_it_and_exits(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    config = {
        "nodename": "n1",
        "sqlite_path": str(tmp_path / "tortie.db"),
        "run_dir": str(tmp_path / "run"),
        "state_dir": str(tmp_path / "state"),
    }
    path.write_text(yaml.safe_dump(config))
    said = CliRunner().invoke(main, ["--config", str(path), "--init-datastore"])
    assert said.exit_code == 0, said.output
    assert read_id(tmp_path / "state" / "datastore-id") in said.output
    path.write_text(yaml.safe_dump({**config, "sqlite_path": "", "datastore_type": "memory"}))
    said = CliRunner().invoke(main, ["--config", str(path), "--init-datastore"])
    assert said.exit_code == 1
    assert "only a SQLite datastore" in said.output
