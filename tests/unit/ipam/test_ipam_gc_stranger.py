"""Another cluster's API, and answers that are none: nothing is freed for them."""

from __future__ import annotations

from typing import Any

import pytest

from ipam.client import AddressRequest
from ipam.gc import Outcome
from ipam.gc_stranger import MANY, SHOWN
from libtortie.kube.objects import KubeNode, KubeObject, Meta, Pod, VirtualMachine
from libtortie.kube.port import NotServed
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import vm_pod
from tests.fakes.kube import FakeKube

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE
VM = "k8s-pod-network.vmi.shop.db"


@pytest.fixture
def town() -> Town:
    return Town()


def elsewhere(*nodes: str, pods: tuple[str, ...] = ("coredns-1",)) -> FakeKube:
    """Another cluster."""
    kube = FakeKube(*(KubeNode(metadata=Meta(name=name)) for name in nodes))
    for pod in pods:
        kube.put(Pod(metadata=Meta(namespace="shop", name=pod)))
    return kube


def stopped_vm(town: Town) -> None:
    client = town.world.client()
    client.claim_vm(VM, vm_pod("virt-launcher-db"), AddressRequest())
    client.disown_vm(VM, vm_pod("virt-launcher-db"), vm_deleting=False)


def test_a_cluster_of_other_nodes_frees_nothing(town: Town) -> None:
    (address,) = town.start("web")
    tunnel = town.tunnel("n1")
    stopped_vm(town)
    held = town.held
    town.reader = elsewhere("alien-1", "alien-2")
    town.settle()
    assert town.held == held
    why = "the API has none of the nodes that IPAM knows (n0, n1, n2): is it another cluster's?"
    assert why in town.why(address)
    assert why in town.why(tunnel[0])
    assert why in town.reason(f"vm {VM}")
    town.settle(2, trust_empty=True)
    assert town.held == set(tunnel), "those whose Node is stored"


def test_one_node_in_common_is_enough(town: Town) -> None:
    town.start("web")
    town.reader = elsewhere("alien-1", "n2")
    town.settle()
    assert town.held == set()


def test_a_node_is_known_by_its_name_in_kubernetes(town: Town) -> None:
    town.start("web")
    reference = {"nodeName": "n2.example.com", "orchestrator": "k8s"}
    town.node("n2", api=False, orchRefs=[reference])
    town.reader = elsewhere("n2.example.com")
    town.settle()
    assert town.held == set()


def test_a_node_is_known_by_what_it_claims_where_none_is_stored() -> None:
    town = Town(stores_nodes=False)
    town.start("web")
    town.reader = elsewhere("alien")
    town.settle()
    assert len(town.held) == 1
    assert "IPAM knows (n1)" in town.why(*town.held)
    town.reader = elsewhere("n1")
    town.settle()
    assert town.held == set()


def test_of_many_nodes_a_few_are_named(town: Town) -> None:
    (address,) = town.start("web")
    for number in range(SHOWN):
        town.node(f"x{number}")
    town.reader = elsewhere("alien")
    town.sweep()
    assert "(n0, n1, n2, …)" in town.why(address)


@pytest.mark.parametrize(("pods", "left"), [(MANY, MANY), (MANY - 1, 0)])
def test_many_pods_do_not_all_go_at_once(town: Town, pods: int, left: int) -> None:
    """Nodes have the same names in many a cluster, and so have pods of StatefulSets."""
    for number in range(pods):
        town.start(f"web-{number}")
    town.reader = elsewhere("n0", "n1", "n2", pods=("web-0",))
    town.settle()
    assert len(town.held) == left
    if left:
        why = f"the API has none of the {MANY} pods that have addresses"
        assert why in town.why(next(iter(town.held)))
        town.settle(trust_empty=True)
        assert town.held == set()


def test_many_may_go_when_one_stays(town: Town) -> None:
    for number in range(MANY):
        town.start(f"web-{number}")
    for number in range(1, MANY):
        town.remove_pod(f"web-{number}")
    town.settle()
    assert len(town.held) == 1


def test_where_no_uid_is_recorded_the_name_decides(town: Town) -> None:
    for number in range(MANY):
        (address,) = town.start(f"web-{number}")
        town.rewrite(address, {"namespace": "shop", "pod": f"web-{number}"})
    town.reader = elsewhere("n0", pods=("web-0",))
    town.settle()
    assert len(town.held) == 1


@pytest.mark.parametrize("plural", ["pods", "nodes", "virtualmachines"])
def test_a_kind_that_is_not_served_at_the_last_question_is_not_gone(
    town: Town, plural: str
) -> None:
    """Behind a load balancer one server may not have the kind yet, or be a proxy's error page."""
    town.run("web", "n3")
    stopped_vm(town)
    town.sweep()
    held = town.held
    town.kube.fail(NotServed(f"get {plural}: HTTP 404"), verb="get", plural=plural, times=100)
    town.settle()
    assert town.last is not None
    kept = [one for one in town.last.verdicts if "the kind is not served" in one.reason]
    assert kept
    assert all(one.outcome is KEEP and one.unknown for one in kept)
    if plural != "nodes":
        assert held & town.held
    town.kube.heal()
    town.settle()
    assert town.held == set()


@pytest.mark.parametrize("kind", [Pod, VirtualMachine])
def test_another_object_than_was_asked_for_is_no_answer(town: Town, kind: type[KubeObject]) -> None:
    town.run("web")
    stopped_vm(town)
    gets = town.kube.get

    def other(model: Any, *args: Any) -> Any:
        if model is kind:
            return kind(metadata=Meta(namespace="shop", name="other", uid="u"))
        return gets(model, *args)

    town.kube.get = other  # type: ignore[method-assign, assignment]  # such a proxy
    town.settle()
    assert len(town.held) == 1
    assert town.last is not None
    assert any("the API shows something else" in one.reason for one in town.last.verdicts)


@pytest.mark.parametrize("kind", [Pod, VirtualMachine])
def test_objects_without_a_uid_are_no_answer(town: Town, kind: type[KubeObject]) -> None:
    town.run("web")
    stopped_vm(town)
    town.pod("web", uid="u-web")
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    lists, gets = town.kube.list, town.kube.get

    def nameless(found: Any) -> Any:
        if not isinstance(found, kind):
            return found
        return found.model_copy(update={"metadata": found.metadata.model_copy(update={"uid": ""})})

    def listed(*args: Any, **options: Any) -> Any:
        objects, version = lists(*args, **options)
        return tuple(map(nameless, objects)), version

    town.kube.list = listed  # type: ignore[method-assign]  # such a server
    town.settle()
    assert len(town.held) == 2
    assert any("an object without a UID" in one.reason for one in town.last.verdicts)  # type: ignore[union-attr]  # it was made
    town.kube.list = lambda *a, **o: (  # type: ignore[method-assign]  # and one that lacks them
        tuple(one for one in lists(*a, **o)[0] if one.metadata.name not in ("web", "db")),
        lists(*a, **o)[1],
    )
    town.kube.get = lambda *a, **o: nameless(gets(*a, **o))  # type: ignore[method-assign]  # as its lists
    town.settle()
    assert len(town.held) == 2
