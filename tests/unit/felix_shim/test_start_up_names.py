"""A node's start does not take another node's address or name."""

from __future__ import annotations

from pathlib import Path

import pytest

from felix_shim.node import AddressTakenError, RenamedError
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.kube.objects import KubeNode
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.agent_world import endpoint_record
from tests.fakes.kube import FakeKube
from tests.fakes.starting_node import Machine, everything, memory


@pytest.fixture
def store() -> MemoryDatastore:
    return memory()


def test_an_address_that_is_taken_ends_the_start(tmp_path: Path, store: Datastore) -> None:
    Machine(tmp_path, store, "node-1", "10.0.2.2/24").boot()
    before = everything(store)
    second = Machine(tmp_path, store, "node-2", "10.0.2.2/24")
    with pytest.raises(AddressTakenError, match=r"10\.0\.2\.2.*node node-1"):
        second.start().begin()
    assert everything(store) == before
    assert not (tmp_path / "node-2").exists(), "without a name the plugin refuses to add pods"
    Machine(tmp_path, store, "node-2", "10.0.2.2/24", "ip_check: false").boot()


def test_a_node_that_is_called_otherwise_keeps_its_name_while_anything_runs(
    tmp_path: Path, store: Datastore
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
        RenamedError,
        match=r"is called new and was old .*: default/web; call it old.* copy of another",
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


def test_no_address_at_all_ends_the_start(tmp_path: Path, store: Datastore) -> None:
    with pytest.raises(InvalidInput, match="finds no IPv4 address"):
        Machine(tmp_path, store, options="ip: interface=wlan0").start().begin()
    assert everything(store) == {}


def test_the_apis_address_is_waited_for(tmp_path: Path, store: Datastore) -> None:
    kube = FakeKube()
    machine = Machine(tmp_path, store, kube=kube, options="ip: kubernetes-internal-ip")

    def kubelet_registers(timeout: float | None = None) -> bool:
        status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}
        kube.put({"metadata": {"name": "node-1"}, "status": status}, KubeNode)
        return False

    machine.over.wait = kubelet_registers  # type: ignore[method-assign]  # instead of waiting
    assert machine.boot().uplinks() == ("eth0",)
