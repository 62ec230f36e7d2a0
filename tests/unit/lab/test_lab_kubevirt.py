"""Instances through their life, on worlds made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab import names
from lab import objects as kv
from lab import world as w
from lab.controller import number
from lab.kubevirt import NOT_BRIDGE
from lab.objects import LabPod, LabVMI
from lab.tools import LabError
from tests.fakes.lab_world import (
    GUEST,
    ago,
    created,
    deleting,
    job,
    launcher,
    phase_set,
    plan,
    running,
    statuses,
    vm,
    vmi,
    world,
)


def test_an_instance_gets_its_launcher_and_the_scheduler_the_choice_of_node() -> None:
    (body,) = created(plan(world(vm(), vmi(""))), LabPod)
    assert "nodeName" not in body["spec"]
    assert body["spec"]["affinity"]["nodeAffinity"]
    labels = body["metadata"]["labels"]
    assert labels["kubevirt.io"] == "virt-launcher"
    assert labels["kubevirt.io/created-by"] == "vmi-uid"
    assert labels["app"] == "vm"
    assert "kubevirt.io/migrationJobUID" not in labels
    assert body["metadata"]["ownerReferences"][0]["uid"] == "vmi-uid"


def test_planning_twice_names_the_same_launcher() -> None:
    first, second = (plan(world(vm(), vmi(""))) for _ in range(2))
    assert first == second


def test_an_instance_boots_step_by_step() -> None:
    here = launcher("pod-1", "node2")
    waiting = world(vm(), vmi("Scheduling"), launcher("pod-1", "node2", "Pending"))
    assert phase_set(plan(waiting), LabVMI) == ""

    actions = plan(world(vm(), vmi("Scheduling"), here))
    assert phase_set(actions, LabVMI) == "Scheduled"
    (status,) = statuses(actions, LabVMI)
    assert (status["nodeName"], status["activePods"]) == ("node2", {"pod-1": "node2"})

    scheduled = vmi("Scheduled", nodeName="node2", activePods={"pod-1": "node2"})
    assert w.StartGuest(scheduled, here) in plan(world(vm(), scheduled, here))

    (status,) = statuses(plan(world(vm(), scheduled, here, guests={"vmi-uid": GUEST})), LabVMI)
    assert status["phase"] == "Running"
    assert status["interfaces"][0]["ipAddress"] == "10.65.0.2"
    assert status["interfaces"][0]["ipAddresses"] == ["10.65.0.2", "fd00:10:65::2"]
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions == {
        "Ready": "True",
        "LiveMigratable": "True",
        "StorageLiveMigratable": "True",
    }


def test_a_guest_that_is_not_on_a_bridge_is_not_started_and_is_told_why() -> None:
    devices = {"domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}}}
    masked = vmi("Scheduled", spec=devices, nodeName="node2")
    actions = plan(world(vm(), masked, launcher("pod-1", "node2")))
    assert not [one for one in actions if isinstance(one, w.StartGuest)]
    (status,) = statuses(actions, LabVMI)
    assert NOT_BRIDGE in str(status["conditions"])


def test_a_settled_world_wants_nothing() -> None:
    assert plan(running()) == []


@pytest.mark.parametrize("pods", [(), (launcher("pod-1", "node1", "Failed"),)])
def test_an_instance_without_its_launcher_has_failed(pods: tuple[LabPod, ...]) -> None:
    actions = plan(world(vm(), vmi(), *pods, guests={"vmi-uid": GUEST}))
    assert phase_set(actions, LabVMI) == "Failed"


def test_an_instance_without_its_guest_has_failed() -> None:
    assert phase_set(plan(running(guests={})), LabVMI) == "Failed"


def test_the_end_of_the_pod_that_a_guest_has_left_is_no_loss() -> None:
    """The source dies after the cut-over and before anybody reported it."""
    target = launcher("pod-2", "node2", job=job("Running"))
    moved = {"vmi-uid": replace(GUEST, pod_uid="pod-2")}
    gone = launcher("pod-1", "node1", "Failed")
    actions = plan(world(vm(), vmi(), gone, target, job("Running"), guests=moved))
    assert phase_set(actions, LabVMI) == ""
    before = plan(world(vm(), vmi(), gone, target, job("Running"), guests={"vmi-uid": GUEST}))
    assert phase_set(before, LabVMI) == "Failed"


def test_a_guest_without_an_instance_is_stopped() -> None:
    assert plan(world(guests={"lost": GUEST})) == [w.StopGuest("lost")]


def test_conditions_follow_the_instance() -> None:
    plain = vmi()
    fixed = plain.model_copy(
        update={"metadata": plain.metadata.model_copy(update={"annotations": {}})}
    )
    (status,) = statuses(plan(running(fixed)), LabVMI)
    found = {one["type"]: one for one in status["conditions"]}
    assert found["LiveMigratable"]["reason"] == "InterfaceNotLiveMigratable"
    assert found["Ready"]["status"] == "True"


def source_done(**state: Any) -> LabVMI:
    old = launcher("pod-1", "node1").metadata.name
    both = {"pod-1": "node1", "pod-2": "node2"}
    done = {"completed": True, "sourcePod": old, "endTimestamp": ago(5), **state}
    return vmi(nodeName="node2", activePods=both, migrationState=done)


def test_afterwards_the_source_is_finished_and_forgotten() -> None:
    after, done = source_done(), job("Succeeded")
    target = launcher("pod-2", "node2", job=job())
    moved = {"vmi-uid": replace(GUEST, pod_uid="pod-2")}
    source = launcher("pod-1", "node1")
    actions = plan(world(vm(), after, source, target, done, guests=moved))
    assert actions == [w.Patch(source, {"status": {"phase": "Succeeded"}}, status=True)]
    source = launcher("pod-1", "node1", "Succeeded")
    actions = plan(world(vm(), after, source, target, done, guests=moved))
    assert actions == [w.Patch(after, {"status": {"activePods": {"pod-1": None}}}, status=True)]


def test_a_source_whose_containers_take_long_to_end_stays_so_long() -> None:
    target = launcher("pod-2", "node2", job=job())
    moved = {"vmi-uid": replace(GUEST, pod_uid="pod-2")}
    source = launcher("pod-1", "node1")
    slow = source.model_copy(
        update={
            "metadata": source.metadata.model_copy(
                update={"annotations": {names.ANNOTATION_LINGER: "10"}}
            )
        }
    )
    objects = (vm(), slow, target, job("Succeeded"))
    assert plan(world(*objects, source_done(), guests=moved)) == []
    late = source_done(endTimestamp=ago(11))
    assert len(plan(world(*objects, late, guests=moved))) == 1


def test_a_source_that_nobody_says_was_left_stays() -> None:
    target = launcher("pod-2", "node2", job=job())
    moved = {"vmi-uid": replace(GUEST, pod_uid="pod-2")}
    objects = (vm(), launcher("pod-1", "node1"), target, job("Succeeded"))
    assert plan(world(*objects, source_done(endTimestamp=None), guests=moved)) == []


def test_the_source_of_an_earlier_migration_is_finished_too() -> None:
    """The instance's state names the later migration only."""
    first = launcher("pod-0", "node3", name="virt-launcher-vm-first")
    state = {"completed": True, "sourcePod": first.metadata.name, "endTimestamp": ago(60)}
    status = {"phase": "Succeeded", "migrationState": state}
    record = job("Succeeded").model_copy(
        update={"status": kv.LabMigrationStatus.model_validate(status)}
    )
    finished = w.Patch(first, {"status": {"phase": "Succeeded"}}, status=True)
    assert plan(running(first, record)) == [finished]
    assert plan(running(first)) == []


def test_the_target_of_a_dead_job_is_removed() -> None:
    target = launcher("pod-2", "node2", job=job())
    assert plan(running(job("Failed"), target)) == [w.Remove(target)]
    assert plan(running(target)) == [w.Remove(target)]


def test_a_pod_of_another_instance_is_nobodys_launcher() -> None:
    stranger = launcher("pod-9", "node3", name="stranger")
    meta = stranger.metadata
    owner = meta.owner_references[0].model_copy(update={"uid": "other"})
    stranger = stranger.model_copy(
        update={"metadata": meta.model_copy(update={"owner_references": (owner,)})}
    )
    assert plan(running(stranger)) == []


def test_a_deleted_instance_goes_after_its_guest_and_pods_and_keeps_others_finalizers() -> None:
    mine = (kv.VMI_FINALIZER, "foregroundDeletion")
    gone = deleting(vmi(), finalizers=mine)
    pod = launcher("pod-1", "node1")
    assert plan(world(gone, pod, guests={"vmi-uid": GUEST})) == [
        w.StopGuest("vmi-uid"),
        w.Remove(pod),
    ]
    assert plan(world(gone)) == [
        w.Patch(gone, {"metadata": {"finalizers": ["foregroundDeletion"]}})
    ]


def test_finished_pods_stay_with_the_migrations_that_name_them() -> None:
    finished = launcher("pod-0", "node3", "Succeeded", name="virt-launcher-vm-first")
    kept = job("Succeeded").model_copy(
        update={
            "status": kv.LabMigrationStatus.model_validate(
                {"phase": "Succeeded", "migrationState": {"sourcePod": finished.metadata.name}}
            )
        }
    )
    assert plan(running(finished, kept)) == []
    assert plan(running(finished)) == [w.Remove(finished)]


def test_five_final_migrations_are_kept() -> None:
    finals = [job("Succeeded", uid=f"job-{n}", created=ago(100 - n)) for n in range(7)]
    assert plan(running(*finals[2:])) == []
    removed = [one for one in plan(running(*finals)) if isinstance(one, w.Remove)]
    assert [one.object.metadata.uid for one in removed] == ["job-0", "job-1"]


@pytest.mark.parametrize(("text", "value"), [("", 50.0), ("10", 10.0), ("0", 0.0)])
def test_blackout_annotation(text: str, value: float) -> None:
    annotations = {names.ANNOTATION_BLACKOUT: text} if text else {}
    assert number(annotations, names.ANNOTATION_BLACKOUT, 50.0) == value


def test_a_blackout_that_is_no_number_is_an_error() -> None:
    with pytest.raises(LabError, match="is no number"):
        number({names.ANNOTATION_BLACKOUT: "soon"}, names.ANNOTATION_BLACKOUT, 50.0)
