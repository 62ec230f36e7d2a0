"""The rights in `conf/tortie-controllers-rbac.yaml` are enough, and none of them is for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from typing import Any

import pytest
import yaml

from ipam.gc import Outcome
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.memory import MemoryDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Meta, VirtualMachine, VirtualMachineInstance
from tests.fakes.gc_world import BOTH, V4, Town, flaws, mess
from tests.fakes.ipam_world import World, vm_pod
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

TOKEN = "0123456789"
SUBJECT = {"kind": "User", "name": "tortie-controllers"}
VM = "k8s-pod-network.vmi.shop.db"


def role() -> dict[str, Any]:
    """The role as it is shipped."""
    text = files("conf").joinpath("tortie-controllers-rbac.yaml").read_text()
    (found,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "ClusterRole"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def open_api() -> Iterator[ApiServer]:
    """The cluster's API as the administrator has it."""
    with kubernetes_api() as server:
        yield server


@pytest.fixture
def guarded(open_api: ApiServer) -> Iterator[ApiServer]:
    """The same API for somebody with a token and a role."""
    tokens = {TOKEN: SUBJECT["name"]}
    with ApiServer(tokens=tokens, authorization="RBAC", api=open_api.api) as server:
        yield server


def grant(server: ApiServer, rules: list[dict[str, Any]]) -> None:
    group = "rbac.authorization.k8s.io"
    made = {"metadata": {"name": "gc"}, "rules": rules}
    server.api.create(server.api.kind(group, "v1", "clusterroles"), "", made)
    binding = {
        "metadata": {"name": "gc"},
        "roleRef": {"kind": "ClusterRole", "name": "gc"},
        "subjects": [SUBJECT],
    }
    server.api.create(server.api.kind(group, "v1", "clusterrolebindings"), "", binding)


def deleted_vms(town: Town) -> None:
    """Addresses of a VM, and of a VMI without one, that are both gone."""
    for name, uid in (("db", "vm-1"), ("bare", "")):
        owner = vm_pod(f"p-{name}", vm=name, vm_uid=uid)
        handle = f"k8s-pod-network.vmi.shop.{name}"
        town.world.client().claim_vm(handle, owner, V4)
        town.world.client().disown_vm(handle, owner, vm_deleting=False)


def furnish(server: ApiServer, store: Any, *, stores_nodes: bool) -> Town:
    fake = FakeKube()
    fake.api = server.api
    town = Town(World(store), fake, stores_nodes=stores_nodes)
    mess(town)
    deleted_vms(town)
    meta = Meta(namespace="shop", name="other", uid="x")
    fake.put(VirtualMachine(metadata=meta))
    fake.put(VirtualMachineInstance(metadata=meta))
    return town


def unknowns(town: Town) -> list[str]:
    assert town.last is not None
    return [one.reason for one in town.last.verdicts if one.unknown]


def test_they_are_enough_for_a_datastore_of_its_own(
    open_api: ApiServer, guarded: ApiServer
) -> None:
    grant(guarded, role()["rules"][:2])
    town = furnish(open_api, MemoryDatastore(), stores_nodes=True)
    with closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client:
        town.reader = client
        town.settle(5)
    assert unknowns(town) == []
    assert flaws(town) == set()
    assert town.world.allocated()[VM] == 0


@pytest.mark.parametrize("group", [Group.V1, Group.V3])
def test_they_are_enough_for_the_kubernetes_datastore(
    open_api: ApiServer, guarded: ApiServer, group: Group
) -> None:
    grant(guarded, role()["rules"])
    with (
        stores_of(open_api, group) as (store,),
        closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client,
    ):
        town = furnish(open_api, store, stores_nodes=False)
        town.reader = client
        narrow = KubernetesDatastore(client, group=group, close=client.close)
        for _ in range(5):
            town.sweep(narrow)
        assert unknowns(town) == []
        assert flaws(town) == set()
        assert town.world.allocated()[VM] == 0
        town.world.audit()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("verb", ["get", "list"])
def test_without_one_of_them_something_is_kept(
    open_api: ApiServer, guarded: ApiServer, index: int, verb: str
) -> None:
    rules = role()["rules"]
    rules[index]["verbs"].remove(verb)
    grant(guarded, rules)
    town = furnish(open_api, MemoryDatastore(), stores_nodes=True)
    town.start("gone", want=BOTH)
    town.remove_pod("gone")
    with closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client:
        town.reader = client
        town.settle(2)
    assert any("tortie-controllers" in reason and "cannot" in reason for reason in unknowns(town))
    assert town.last is not None
    assert Outcome.KEEP in {one.outcome for one in town.last.verdicts}
