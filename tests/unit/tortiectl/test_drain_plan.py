"""What a drain does to each VM, in which order; and a drain as it goes."""

from __future__ import annotations

from typing import Any

import pytest

from libtortie.kube.migrations import Migration
from tests.fakes.vm_cluster import ALLOW, Site, healthy
from tortiectl.drain.plan import Plan, Step, document, lines, plan_drain
from tortiectl.drain.progress import Look, Progress
from tortiectl.kubevirt.eviction import Fate, fate
from tortiectl.kubevirt.objects import VMI, Node, Pod

MIGRATES, RESTARTS, ENDS, WAITS, BLOCKS = (
    Fate.MIGRATES, Fate.RESTARTS, Fate.ENDS, Fate.WAITS, Fate.BLOCKS,
)  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "migratable", "becomes"),
    [
        ("None", True, RESTARTS),
        ("None", False, RESTARTS),
        ("LiveMigrate", True, MIGRATES),
        ("LiveMigrate", False, BLOCKS),
        ("LiveMigrateIfPossible", True, MIGRATES),
        ("LiveMigrateIfPossible", False, RESTARTS),
        ("External", True, WAITS),
        ("External", False, WAITS),
    ],
)
@pytest.mark.parametrize("default", [False, True], ids=["own", "cluster's"])
def test_every_strategy(strategy: str, migratable: bool, becomes: Fate, default: bool) -> None:
    assert fate(strategy, migratable, owned=True) is becomes
    site = small()
    instance = site.vmis[0]
    if default:
        del instance["spec"]["evictionStrategy"]
        site.config()["evictionStrategy"] = strategy
    else:
        instance["spec"]["evictionStrategy"] = strategy
    condition = {"type": "LiveMigratable", "status": str(migratable)}
    instance["status"]["conditions"] = [condition]
    step = step_of(plan_drain(site.cluster(), "n2"), "shop/vm1")
    assert step.fate is becomes
    assert step.strategy == strategy
    assert ("the cluster's default" in step.why) is default


def small() -> Site:
    """vm1 and vm4 are on n2 of three nodes; every VM has its VM."""
    site = healthy(vms=6, nodes=3)
    for one in site.vmis:
        owner = {"kind": "VirtualMachine", "name": one["metadata"]["name"], "controller": True}
        one["metadata"]["ownerReferences"] = [owner]
    return site


def step_of(plan: Plan, vm: str) -> Step:
    return next(step for step in plan.steps if step.vm == vm)


def test_who_restarts_goes_first_then_turns_then_who_stays() -> None:
    site = healthy(vms=50, nodes=10)
    here = [one for one in site.vmis if one["status"]["nodeName"] == "n2"]
    assert len(here) == 5
    here[1]["spec"]["evictionStrategy"] = "None"
    del here[2]["metadata"]["annotations"][ALLOW]
    here[2]["status"]["conditions"] = []
    plan = plan_drain(site.cluster(), "n2")
    assert [(step.vm, step.fate, step.turn) for step in plan.steps] == [
        ("shop/vm11", ENDS, 0),
        ("shop/vm1", MIGRATES, 1),
        ("shop/vm31", MIGRATES, 1),
        ("shop/vm41", MIGRATES, 2),
        ("shop/vm21", BLOCKS, 0),
    ]
    assert plan.blocked
    assert "but it cannot migrate: cannot migrate VMI which does not use masq" in plan.steps[4].why
    assert plan.steps[0].why.endswith("nothing starts it again: it has no VM")
    assert len(plan.steps[1].targets) == 9
    shown = "\n".join(lines(plan))
    assert "5 VMs: 3 migrates, 1 ends, 1 blocks the drain" in shown
    assert "--pod-selector=kubevirt.io=virt-launcher" in shown
    assert document(plan)["blocked"] is True


def test_a_vm_that_no_other_node_can_take_blocks() -> None:
    site = small()
    for node in (site.nodes[0], site.nodes[2]):
        node["spec"] = {"unschedulable": True}
    step = step_of(plan_drain(site.cluster(), "n2"), "shop/vm1")
    assert (step.fate, step.why) == (BLOCKS, "no other node can take it (n1, n3: cordoned)")


def test_a_vm_that_is_coming_has_to_leave_again() -> None:
    site = small()
    state = {"targetNode": "n2", "migrationUid": "job"}
    site.vmis[1]["status"]["migrationState"] = state
    site.migrations = [move("vm2", "Running", "job")]
    step = step_of(plan_drain(site.cluster(), "n2"), "shop/vm2")
    assert step.arriving
    site.migrations[0]["status"]["phase"] = "Succeeded"
    assert all(step.vm != "shop/vm2" for step in plan_drain(site.cluster(), "n2").steps)


def test_an_empty_node() -> None:
    site = small()
    site.vmis = []
    plan = plan_drain(site.cluster(), "n2")
    assert not plan.blocked
    assert list(lines(plan)) == ["node n2 runs no VMs"]


def move(vm: str, phase: str, uid: str, name: str = "") -> dict[str, Any]:
    meta = {"name": name or f"kubevirt-evacuation-{vm}", "namespace": "shop", "uid": uid}
    return {"metadata": meta, "spec": {"vmiName": vm}, "status": {"phase": phase}}


class Watched:
    """A site that is looked at again and again."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.progress = Progress("n2", plan_drain(site.cluster(), "n2"))

    def look(self) -> list[str]:
        return list(self.progress.look(self.now()))

    def now(self) -> Look:
        site = self.site
        nodes = [Node.model_validate(one) for one in site.nodes]
        return Look(
            next((node for node in nodes if node.metadata.name == "n2"), None),
            {one.id: one for one in map(VMI.model_validate, site.vmis)},
            {one.id: one for one in map(Migration.model_validate, site.migrations)},
            {one.id: one for one in map(Pod.model_validate, site.pods)},
        )


def test_a_drain_as_it_goes() -> None:
    site = small()
    site.vmis[3]["spec"]["evictionStrategy"] = "None"
    site.migrations = [move("vm1", "Succeeded", "old", "earlier")]
    seen = Watched(site)
    assert seen.look() == ["node n2 is schedulable"]
    assert seen.look() == []
    site.nodes[1]["spec"] = {"unschedulable": True}
    site.vmis[0]["status"]["evacuationNodeName"] = "n2"
    site.migrations.append(move("vm1", "Scheduling", "new"))
    assert seen.look() == [
        "node n2 is cordoned",
        "shop/vm1: eviction triggered",
        "shop/vm1: migration kubevirt-evacuation-vm1: Scheduling",
    ]
    site.migrations[1]["status"]["phase"] = "Succeeded"
    site.vmis[0]["status"].update(nodeName="n1", evacuationNodeName="")
    gone = site.vmis.pop(3)
    assert seen.look() == [
        "shop/vm1: migration kubevirt-evacuation-vm1: Succeeded",
        "shop/vm1: moved to n1",
        "shop/vm4: its instance has ended",
    ]
    assert seen.progress.left(seen.now()) == (
        "virt-launcher-vm1-a1b2c", "virt-launcher-vm4-a1b2c",
    )  # fmt: skip
    gone["metadata"]["uid"] = "another"
    gone["status"]["nodeName"] = "n3"
    site.vmis.append(gone)
    for pod in site.pods:
        pod["status"]["phase"] = "Succeeded"
    assert seen.look() == ["shop/vm4: runs again, on n3"]
    assert seen.progress.left(seen.now()) == ()
    assert list(seen.progress.outcome()) == [
        ("shop/vm1", "migrated to n1", True),
        ("shop/vm4", "ended, and runs on n3", True),
    ]


def test_what_happens_after_a_vm_has_left_is_another_story() -> None:
    site = small()
    seen = Watched(site)
    seen.look()
    site.vmis[0]["status"]["nodeName"] = "n1"
    seen.look()
    site.migrations = [move("vm1", "Running", "again")]
    site.vmis[0]["status"]["evacuationNodeName"] = "n2"
    site.vmis[0]["status"]["nodeName"] = "n3"
    assert seen.look() == []


def test_a_vm_that_went_another_way_is_told() -> None:
    site = small()
    seen = Watched(site)
    seen.look()
    site.vmis.pop(0)
    seen.look()
    assert next(iter(seen.progress.outcome())) == ("shop/vm1", "ended", False)


def test_a_node_that_vanishes() -> None:
    site = small()
    seen = Watched(site)
    seen.look()
    site.nodes.pop(1)
    assert seen.look() == ["node n2 is gone"]
    assert seen.progress.left(seen.now()) == ("shop/vm1", "shop/vm4")
