"""The scheduler: where pods go, and what it says of those that go nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from lab import rendering, seed
from lab import world as w
from lab.objects import LabPod
from lab.scheduler import plan_scheduling
from tests.fakes.lab_world import NODES, job, launcher, node, vmi, world


def pod(name: str, where: str = "", **spec: Any) -> LabPod:
    body = seed.pod_body(name, "default", where)
    body["metadata"]["uid"] = name
    body["spec"] |= spec
    return LabPod.model_validate(body)


def bound(where: w.World) -> dict[str, str]:
    """Which pod was bound to which node."""
    return {
        one.object.metadata.name: one.body["spec"]["nodeName"]
        for one in plan_scheduling(where)
        if "spec" in one.body
    }


def test_pods_without_a_node_are_spread() -> None:
    here = world(pod("a", "node1"), pod("b"), pod("c"))
    assert bound(here) == {"b": "node2", "c": "node3"}


@pytest.mark.parametrize("trouble", [{"unschedulable": True}, {"ready": False}])
def test_a_cordoned_or_dead_node_gets_nothing(trouble: dict[str, bool]) -> None:
    nodes = {**NODES, "node1": node("node1", **trouble)}
    assert bound(world(pod("a"), pod("b"), nodes=nodes)) == {"a": "node2", "b": "node3"}


def test_a_selector_is_obeyed() -> None:
    hostname = {"kubernetes.io/hostname": "node3"}
    assert bound(world(pod("a", nodeSelector=hostname))) == {"a": "node3"}


def test_a_required_affinity_is_obeyed_and_a_preferred_one_if_possible() -> None:
    def term(name: str) -> dict[str, Any]:
        match = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
        return {"matchExpressions": [match]}

    during = "DuringSchedulingIgnoredDuringExecution"
    required = {"nodeAffinity": {f"required{during}": {"nodeSelectorTerms": [term("node2")]}}}
    preferred = {"nodeAffinity": {f"preferred{during}": [{"preference": term("node3")}]}}
    here = world(pod("a", affinity=required), pod("b", affinity=preferred))
    assert bound(here) == {"a": "node2", "b": "node3"}
    cordoned = {**NODES, "node3": node("node3", unschedulable=True)}
    assert bound(world(pod("b", affinity=preferred), nodes=cordoned)) == {"b": "node1"}


def test_a_target_never_goes_where_a_launcher_of_its_vm_is() -> None:
    body = rendering.launcher_body(vmi(), job())
    body["metadata"]["uid"] = "target"
    target = LabPod.model_validate(body)
    source = launcher("pod-1", "node2")
    assert bound(world(source, target)) == {target.metadata.name: "node1"}
    only = {"node2": NODES["node2"]}
    (told,) = plan_scheduling(world(source, target, nodes=only))
    assert "didn't match pod anti-affinity rules" in str(told.body)
    gone = launcher("pod-1", "node2", "Succeeded")
    assert bound(world(gone, target, nodes=only)) == {target.metadata.name: "node2"}


def test_a_pod_that_fits_nowhere_is_told_once_and_in_kubernetes_words() -> None:
    nodes = {"node1": node("node1", unschedulable=True), "node2": node("node2", ready=False)}
    homeless = pod("a")
    (told,) = plan_scheduling(world(homeless, nodes=nodes))
    assert told.status
    (condition,) = told.body["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["message"] == (
        "0/2 nodes are available: 1 node(s) had untolerated taint"
        " {node.kubernetes.io/not-ready: }, 1 node(s) were unschedulable."
    )
    knows = LabPod.model_validate(
        seed.pod_body("a", "default", "") | {"status": {"conditions": [condition]}}
    )
    assert list(plan_scheduling(world(knows, nodes=nodes))) == []
