"""What was read before a write may be older than what is stored when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cni_plugin import endpoint
from cni_plugin.undo import silent
from libtortie.datastore.memory import MemoryDatastore
from libtortie.model.keys import ResourceKey, path_of
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import endpoint_record

RECORD = endpoint_record("web", vm=False)
assert isinstance(RECORD.key, ResourceKey)
KEY: ResourceKey = RECORD.key


@pytest.fixture
def store() -> Iterator[MemoryDatastore]:
    with closing(MemoryDatastore()) as made:
        yield made


def wanted() -> WorkloadEndpoint:
    assert isinstance(RECORD.value, WorkloadEndpoint)
    return RECORD.value


def complaints_of_writing(store: MemoryDatastore, before: object) -> list[str]:
    complaints: list[str] = []

    def log(event: str, /, **_: object) -> None:
        complaints.append(event)

    said = endpoint.read(store, KEY) if before == "stored" else None
    if before == "since replaced":
        said = endpoint.read(store, KEY)
        store.update(KEY, wanted(), store.get(KEY).revision)
    if before == "since removed":
        said = endpoint.read(store, KEY)
        store.delete(KEY)
    if before == "unreadable":
        store.put_raw(path_of(KEY), b"{not json")
    endpoint.write(store, KEY, wanted(), log, said)
    assert endpoint.endpoint_of(store.get(KEY)).spec == wanted().spec
    return complaints


@pytest.mark.parametrize(
    "before", ["stored", "not read", "since replaced", "since removed", "unreadable"]
)
def test_it_is_written_whatever_was_read(store: MemoryDatastore, before: str) -> None:
    store.create(KEY, wanted())
    told = complaints_of_writing(store, before)
    assert told == (["unreadable_endpoint_replaced"] if before == "unreadable" else [])


def test_nothing_there_takes_no_reading(
    store: MemoryDatastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "get", None)
    endpoint.write(store, KEY, wanted(), silent)
