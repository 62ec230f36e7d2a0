"""VMs: when they have an instance, and what their status says."""

from __future__ import annotations

from typing import Any

import pytest

from lab import objects as kv
from lab import world as w
from lab.objects import LabVM, LabVMI
from tests.fakes.lab_world import (
    created,
    deleting,
    job,
    launcher,
    plan,
    running,
    statuses,
    vm,
    vmi,
    world,
)
from tortiectl.kubevirt.objects import ANNOTATION_BRIDGE


def removes_instance(actions: list[w.Action]) -> bool:
    return any(isinstance(one, w.Remove) and isinstance(one.object, LabVMI) for one in actions)


def test_a_vm_that_should_run_gets_an_instance_it_controls() -> None:
    (body,) = created(plan(world(vm())), LabVMI)
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("VirtualMachine", "vm-uid", True)
    assert ANNOTATION_BRIDGE in body["metadata"]["annotations"]


def test_a_vm_gets_its_finalizer_before_anything_else() -> None:
    fresh = vm()
    fresh = fresh.model_copy(
        update={"metadata": fresh.metadata.model_copy(update={"finalizers": ()})}
    )
    actions = plan(world(fresh))
    assert created(actions, LabVMI) == []
    assert w.Patch(fresh, {"metadata": {"finalizers": [kv.VM_FINALIZER]}}) in actions


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"runStrategy": "Always"}, True),
        ({"runStrategy": "RerunOnFailure"}, True),
        ({"runStrategy": "Once"}, True),
        ({"runStrategy": "Manual"}, False),
        ({"runStrategy": "Halted"}, False),
        ({"runStrategy": "", "running": True}, True),
        ({"runStrategy": "", "running": False}, False),
    ],
)
def test_a_run_strategy_says_whether_there_should_be_an_instance(
    spec: dict[str, Any], wanted: bool
) -> None:
    assert bool(created(plan(world(vm(**spec))), LabVMI)) is wanted


@pytest.mark.parametrize(
    ("strategy", "phase", "again"),
    [
        ("Always", "Succeeded", True),
        ("Always", "Failed", True),
        ("RerunOnFailure", "Succeeded", False),
        ("RerunOnFailure", "Failed", True),
        ("Once", "Failed", False),
        ("Manual", "Failed", False),
        ("Halted", "Running", True),
        ("Manual", "Running", False),
    ],
)
def test_a_run_strategy_says_which_instance_goes(strategy: str, phase: str, again: bool) -> None:
    here = world(vm(runStrategy=strategy), vmi(phase), launcher("pod-1", "node1"))
    assert removes_instance(plan(here)) is again


def requests(*changes: dict[str, str]) -> dict[str, Any]:
    return {"created": True, "stateChangeRequests": list(changes)}


STOP, START = {"action": "Stop", "uid": "vmi-uid"}, {"action": "Start"}


def test_a_restart_is_a_stop_of_this_instance_and_a_start() -> None:
    asked = vm(status=requests(STOP, START))
    assert removes_instance(plan(world(asked, vmi(), launcher("pod-1", "node1"))))
    actions = plan(world(asked))
    assert created(actions, LabVMI)
    assert {"stateChangeRequests": [START]} in statuses(actions, LabVM)


def test_a_stop_of_an_earlier_instance_means_nothing() -> None:
    asked = vm(status=requests({"action": "Stop", "uid": "earlier"}))
    actions = plan(world(asked, vmi(), launcher("pod-1", "node1")))
    assert not removes_instance(actions)
    assert {"stateChangeRequests": None} in statuses(actions, LabVM)


def test_a_manual_vm_starts_and_stops_on_request() -> None:
    start = vm(runStrategy="Manual", status=requests(START))
    actions = plan(world(start))
    assert created(actions, LabVMI)
    assert {"stateChangeRequests": None} in statuses(actions, LabVM)
    stop = vm(runStrategy="Manual", status=requests(STOP))
    assert removes_instance(plan(world(stop, vmi(), launcher("pod-1", "node1"))))


def test_a_deleted_vm_takes_its_instance_with_it_and_goes_last() -> None:
    gone = deleting(vm())
    assert removes_instance(plan(world(gone, vmi(), launcher("pod-1", "node1"))))
    assert w.Patch(gone, {"metadata": {"finalizers": []}}) in plan(world(gone))


def test_a_vm_deleted_with_orphans_leaves_its_instance() -> None:
    gone = deleting(vm(), finalizers=(kv.VM_FINALIZER, "orphan"))
    actions = plan(world(gone, vmi(), launcher("pod-1", "node1")))
    assert not removes_instance(actions)
    assert w.Patch(gone, {"metadata": {"finalizers": ["orphan"]}}) in actions


def test_an_instance_of_that_name_which_is_not_its_own_is_left_alone() -> None:
    alone = vmi()
    alone = alone.model_copy(
        update={"metadata": alone.metadata.model_copy(update={"owner_references": ()})}
    )
    actions = plan(world(vm(runStrategy="Halted"), alone, launcher("pod-1", "node1")))
    assert not removes_instance(actions)
    assert created(plan(world(vm(), alone, launcher("pod-1", "node1"))), LabVMI) == []


def printable(where: w.World) -> str:
    found = [one["printableStatus"] for one in statuses(plan(where), LabVM) if "ready" in one]
    return found[0] if found else ""


def test_a_vm_says_how_it_is() -> None:
    def untold(**spec: Any) -> LabVM:
        return vm(status={"stateChangeRequests": None}, **spec)

    here = launcher("pod-1", "node1")
    assert printable(world(untold(runStrategy="Halted"))) == "Stopped"
    assert printable(world(untold(), vmi("Scheduling"))) == "Starting"
    assert printable(world(untold(), vmi(), here)) == "Running"
    assert printable(world(untold(), vmi(), here, job("Running"))) == "Migrating"
    assert printable(world(untold(), deleting(vmi()), here)) == "Stopping"
    assert printable(world(deleting(untold()))) == "Terminating"
    assert printable(running()) == ""
