"""Small parts of the datastore: times, birth marks, and the choice of a backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.records import counted
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Compacted, InvalidInput
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey, Handles, Kind, ResourceKey
from libtortie.model.resources import IPPool, Node
from libtortie.model.times import parse_rfc3339, rfc3339


@pytest.mark.parametrize(
    "text",
    ["2026-08-22T13:30:00Z", "2026-08-22T15:30:00+02:00", "2026-08-22T13:30:00.999999999Z"],
)
def test_times_are_read_in_every_zone(text: str) -> None:
    assert rfc3339(parse_rfc3339(text)) == "2026-08-22T13:30:00Z"


@pytest.mark.parametrize("text", ["", "2026-08-22", "2026-08-22T13:30:00", "now", "20260822T13Z"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_rfc3339(text)


def test_times_are_written_in_utc() -> None:
    there = datetime(2026, 8, 22, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(there) == "2026-08-21T23:00:00Z"
    with pytest.raises(ValueError, match="no time zone"):
        rfc3339(datetime(2026, 8, 22))


def test_birth_marks_come_from_the_clock_and_source_that_were_given() -> None:
    uids = iter(["u-1", "u-2"])
    store = MemoryDatastore(
        now=lambda: datetime(2026, 8, 22, 13, 30, 0, 5, UTC), new_uid=lambda: next(uids)
    )
    key = ResourceKey(Kind.NODE, "n1")
    born = store.create(key, Node.model_validate({"metadata": {"name": "n1"}}))
    assert isinstance(born.value, Node)
    assert born.value.metadata.uid == "u-1"
    assert born.value.metadata.creation_timestamp == "2026-08-22T13:30:00Z"


def test_an_update_may_mend_a_malformed_value() -> None:
    store = MemoryDatastore()
    key = ResourceKey(Kind.IP_POOL, "p")
    store.put_raw("/calico/resources/v3/projectcalico.org/ippools/p", b"{")
    pool = IPPool.model_validate({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16"}})
    mended = store.update(key, pool, "1")
    assert isinstance(mended.value, IPPool)
    assert mended.value.metadata.uid
    assert store.get(key) == mended


@pytest.mark.parametrize("revision", ["1", "999999", "-1", "x", ""])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_watch_from_a_revision_of_another_store_is_compacted(
    tmp_path: Path, kind: str, revision: str
) -> None:
    store = open_datastore(DatastoreConfig(type=kind, sqlite_path=tmp_path / "t.db", create=True))
    with store.watch(Handles(), revision) as watch, pytest.raises(Compacted):
        next(iter(watch))
    store.close()


def test_open_datastore_by_type(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = open_datastore(DatastoreConfig(type="sqlite", sqlite_path=path, node="n1", create=True))
    assert isinstance(store, SqliteDatastore)
    store.create(HandleKey("h"), Handle({}))
    store.close()
    with pytest.raises(InvalidInput, match="n1"):
        open_datastore(DatastoreConfig(sqlite_path=path, node="n2"))
    shared = open_datastore(DatastoreConfig(sqlite_path=path, node="n2", shared=True))
    assert shared.get(HandleKey("h")).value == Handle({})
    shared.close()
    assert isinstance(open_datastore(DatastoreConfig(type="memory")), MemoryDatastore)


def test_an_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"unknown datastore type 'mysql': known are sqlite, "):
        open_datastore(DatastoreConfig(type="mysql"))


@pytest.mark.parametrize("text", ["", "-1", "x", "1.0", "\u0663", str(2**63), "9" * 5000])
def test_what_no_store_ever_said_is_no_revision(text: str) -> None:
    assert counted(text) == -1
    assert counted(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(Compacted), MemoryDatastore().watch(Handles(), text) as watch:
        next(iter(watch))
