"""A node starts under another name than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from felix_shim.node import AddressTakenError, RenamedError
from libtortie.datastore.memory import MemoryDatastore
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.agent_world import endpoint_record
from tests.fakes.starting_node import Machine, everything, memory


@pytest.fixture
def store() -> MemoryDatastore:
    return memory()


def test_a_node_that_is_called_otherwise_keeps_its_name_while_anything_runs(
    tmp_path: Path, store: MemoryDatastore
) -> None:
    Machine(tmp_path, store, "old").boot()
    pod = endpoint_record("web", node="old")
    other = endpoint_record("web2", node="other", address="10.65.0.9")
    for record in (pod, other):
        store.create(record.key, record.value)
    before = everything(store)
    renamed = Machine(tmp_path, store, "new")
    name = tmp_path / "new" / "nodename"  # the one file of this machine
    name.parent.mkdir()
    name.write_text("old\n")
    with pytest.raises(
        RenamedError, match=r"is called new and was old .*: default/web; call it old"
    ):
        renamed.start().begin()
    assert everything(store) == before
    assert name.read_text() == "old\n", "the plugin goes on under the old name"
    store.delete(pod.key)
    with pytest.raises(AddressTakenError, match="or delete Node old if it is no more"):
        renamed.start().begin()
    store.delete(ResourceKey(Kind.NODE, "old"))
    renamed.boot()
    assert name.read_text() == "new"
    renamed.boot()
