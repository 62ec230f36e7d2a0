"""The rights in `conf/rbac/controllers.yaml` are enough, and none of them is for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ipam.gc import Outcome
from lab.apiserver.auth import SERVICE_ACCOUNT
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import TortieError
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Meta, VirtualMachine, VirtualMachineInstance
from tests.fakes.gc_world import BOTH, V4, Town, flaws, mess
from tests.fakes.guarded_node import Json, Witness, install, names, rights, role_of, shipped
from tests.fakes.ipam_world import World, vm_pod
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

TOKEN = "0123456789"
ACCOUNT = "tortie-controllers"
ROLES = (ACCOUNT, f"{ACCOUNT}-datastore")
VM = "k8s-pod-network.vmi.shop.db"


def rules(*roles: str) -> list[Json]:
    """The rules of some roles, as they are shipped."""
    return [rule for name in roles for rule in role_of(shipped("controllers"), name)["rules"]]


@pytest.fixture
def open_api() -> Iterator[ApiServer]:
    """The cluster's API as the administrator has it."""
    with kubernetes_api() as server:
        yield server


@pytest.fixture
def guarded(open_api: ApiServer) -> Iterator[ApiServer]:
    """The same API for somebody with a token and a role."""
    tokens = {TOKEN: f"{SERVICE_ACCOUNT}kube-system:{ACCOUNT}"}
    with ApiServer(tokens=tokens, authorization="RBAC", api=open_api.api) as server:
        server.authorizer = Witness(server.authorizer)
        yield server


def grant(server: ApiServer, given: list[Json]) -> Witness:
    """What is bound to the account; who notes what it asks."""
    (binding, *_) = (one for one in shipped("controllers") if one["kind"] == "ClusterRoleBinding")
    install(
        server, ({"kind": "ClusterRole", "metadata": {"name": ACCOUNT}, "rules": given}, binding)
    )
    assert isinstance(server.authorizer, Witness)
    return server.authorizer


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
    witness = grant(guarded, rules(ROLES[0]))
    town = furnish(open_api, MemoryDatastore(), stores_nodes=True)
    with closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client:
        town.reader = client
        town.settle(5)
    assert unknowns(town) == []
    assert flaws(town) == set()
    assert town.world.allocated()[VM] == 0
    assert witness.seen(ACCOUNT, allowed=False) == set()
    assert rights(rules(ROLES[0])) <= witness.seen(ACCOUNT, allowed=True)


@pytest.mark.parametrize("group", [Group.V1, Group.V3])
def test_they_are_enough_for_the_kubernetes_datastore(
    open_api: ApiServer, guarded: ApiServer, group: Group
) -> None:
    witness = grant(guarded, rules(*ROLES))
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
    assert witness.seen(ACCOUNT, allowed=False) == set()
    served = {(kind.group, kind.plural) for kind in open_api.api.catalogue.served()}
    for right in rights(rules(ROLES[1])) - witness.seen(ACCOUNT, allowed=True):
        other = right.group != group.partition("/")[0]
        assert other or (right.group, right.resource) not in served, right


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("verb", ["get", "list"])
def test_without_one_of_them_something_is_kept(
    open_api: ApiServer, guarded: ApiServer, index: int, verb: str
) -> None:
    given = rules(ROLES[0])
    given[index]["verbs"].remove(verb)
    grant(guarded, given)
    town = furnish(open_api, MemoryDatastore(), stores_nodes=True)
    town.start("gone", want=BOTH)
    town.remove_pod("gone")
    with closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client:
        town.reader = client
        town.settle(2)
    assert any("tortie-controllers" in reason and "cannot" in reason for reason in unknowns(town))
    assert town.last is not None
    assert Outcome.KEEP in {one.outcome for one in town.last.verdicts}


@pytest.mark.parametrize("index", range(len(rules(ROLES[1]))))
def test_without_a_rule_of_its_datastore_nothing_is_freed_and_the_rule_is_named(
    open_api: ApiServer, guarded: ApiServer, index: int
) -> None:
    given = rules(ROLES[1])
    taken = given.pop(index)
    witness = grant(guarded, [*rules(ROLES[0]), *given])
    with (
        stores_of(open_api, Group.V3) as (store,),
        closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client,
    ):
        town = furnish(open_api, store, stores_nodes=False)
        town.reader = client
        narrow = KubernetesDatastore(client, group=Group.V3, close=client.close)
        before = town.world.allocated()
        said = ""
        for _ in range(3):
            try:
                town.sweep(narrow)
            except TortieError as error:
                said += str(error)
            said += " ".join(unknowns(town) if town.last else ())
        assert names(taken, said), said
        assert witness.seen(ACCOUNT, allowed=False) <= rights([taken])
        assert town.world.allocated() == before, "nothing was freed"
