"""Migrations through their phases, to each of their ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab import names
from lab import objects as kv
from lab import world as w
from lab.objects import LabMigration, LabPod, LabVMI
from tests.fakes.lab_world import (
    GUEST,
    NODES,
    REPORT,
    ago,
    created,
    deleting,
    job,
    launcher,
    node,
    phase_set,
    plan,
    reason,
    running,
    statuses,
    vm,
    vmi,
    world,
)

TARGET = launcher("pod-2", "node2", job=job())
WAITING = launcher("pod-2", "node2", "Pending", job())
PLUMBED = replace(GUEST, targets=frozenset({"pod-2"}))


def handed(**state: Any) -> LabVMI:
    """The instance after the hand-off of job-1."""
    both = {"pod-1": "node1", "pod-2": "node2"}
    base = {
        "migrationUid": "job-1",
        "sourceNode": "node1",
        "targetNode": "node2",
        "sourcePod": launcher("pod-1", "node1").metadata.name,
        "targetPod": TARGET.metadata.name,
    }
    return vmi(activePods=both, migrationState={**base, **state})


def guests(**changes: Any) -> dict[str, w.GuestView]:
    return {"vmi-uid": replace(PLUMBED, **changes)}


def test_a_migration_walks_through_its_phases() -> None:
    assert phase_set(plan(running(job()))) == "Pending"

    (body,) = created(plan(running(job("Pending"))), LabPod)
    assert "nodeName" not in body["spec"]
    assert body["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == "job-1"
    assert body["metadata"]["annotations"]["kubevirt.io/migrationJobName"] == "migration-job-1"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "vmi-uid"
    (term,) = body["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"] == {"kubevirt.io/created-by": "vmi-uid"}

    assert phase_set(plan(running(job("Pending"), WAITING))) == "Scheduling"
    assert plan(running(job("Scheduling"), WAITING)) == []
    assert phase_set(plan(running(job("Scheduling"), TARGET))) == "Scheduled"

    actions = plan(running(job("Scheduled"), TARGET))
    assert phase_set(actions) == "PreparingTarget"
    (status,) = statuses(actions, LabVMI)
    state = status["migrationState"]
    assert (state["sourceNode"], state["targetNode"]) == ("node1", "node2")
    assert state["targetPod"] == TARGET.metadata.name
    assert state["completed"] is None
    assert state["abortRequested"] is None

    preparing = running(job("PreparingTarget"), TARGET, handed())
    assert plan(preparing) == [w.PrepareTarget(handed(), TARGET)]
    ready = plan(replace(preparing, guests=guests()))
    assert phase_set(ready) == "TargetReady"
    told = statuses(ready, LabVMI)[0]["migrationState"]
    assert told["targetNodeAddress"] == "172.31.0.12"
    assert told["targetDirectMigrationNodePorts"] == {"49152": 49152}
    assert (
        phase_set(plan(running(job("TargetReady"), TARGET, handed(), guests=guests()))) == "Running"
    )
    assert plan(running(job("Running"), TARGET, handed(), guests=guests())) == [
        w.CutOver(handed(), job("Running"), TARGET)
    ]


def test_a_guest_that_has_moved_completes_its_migration() -> None:
    marked = handed().model_copy(deep=True)
    moved = guests(pod_uid="pod-2", moved={"job-1": REPORT})
    actions = plan(running(job("Running"), TARGET, marked, guests=moved))
    assert phase_set(actions) == "Succeeded"
    flipped = statuses(actions, LabVMI)[-1]
    assert flipped["nodeName"] == "node2"
    assert flipped["evacuationNodeName"] is None
    assert flipped["migrationState"]["completed"] is True
    final = statuses(actions, LabMigration)[-1]["migrationState"]
    assert (final["sourceNode"], final["targetNode"]) == ("node1", "node2")


def test_a_guest_whose_migration_is_seen_to_end_before_its_instance_is_changed_stays() -> None:
    """Each kind has a watch of its own: the migration's end may come first."""
    over = running(handed(), job("Succeeded"), TARGET, guests=guests(pod_uid="pod-2"))
    assert [one for one in plan(over) if isinstance(one, w.Remove)] == []

    failed = running(handed(), job("Failed"), TARGET, guests=guests())
    assert [one.object for one in plan(failed) if isinstance(one, w.Remove)] == [TARGET]


def test_a_move_without_a_report_is_as_good() -> None:
    moved = guests(pod_uid="pod-2", moved={"job-1": None})
    actions = plan(running(job("Running"), TARGET, handed(), guests=moved))
    assert phase_set(actions) == "Succeeded"
    assert names.ANNOTATION_CUTOVER not in str(actions)


@pytest.mark.parametrize("phase", ["Pending", "Scheduling", "Scheduled"])
def test_cancelled_before_the_hand_off_the_target_goes(phase: str) -> None:
    actions = plan(running(job(phase, deleted=True), TARGET))
    assert w.Remove(TARGET) in actions
    assert phase_set(actions) == "Failed"
    assert reason(actions) == "the migration was cancelled"
    assert statuses(actions, LabVMI) == []


@pytest.mark.parametrize("phase", ["PreparingTarget", "TargetReady"])
def test_cancelled_after_the_hand_off_it_goes_on_until_it_runs(phase: str) -> None:
    gone = job(phase, deleted=True, annotations={names.ANNOTATION_HOLD: phase})
    actions = plan(running(gone, TARGET, handed(), guests=guests()))
    assert phase_set(actions) == {"PreparingTarget": "TargetReady", "TargetReady": "Running"}[phase]
    assert not [one for one in actions if isinstance(one, w.Remove | w.AbortMove)]


def test_cancelled_while_it_runs_it_is_aborted() -> None:
    gone = job("Running", deleted=True)
    actions = plan(running(gone, TARGET, handed(), guests=guests(moving=frozenset({"job-1"}))))
    assert w.AbortMove("vmi-uid", "job-1", "Live migration aborted") in actions
    assert statuses(actions, LabVMI) == [
        {"migrationState": {"abortRequested": True, "abortStatus": "Aborting"}}
    ]
    assert "migrationAbortRequested" in str(statuses(actions, LabMigration))

    asked = handed(abortRequested=True, abortStatus="Aborting")
    failed = guests(failed={"job-1": "Live migration aborted"})
    actions = plan(running(gone, TARGET, asked, guests=failed))
    assert phase_set(actions) == "Failed"
    (status,) = statuses(actions, LabVMI)
    assert status["migrationState"]["abortStatus"] == "Succeeded"
    assert status["activePods"] == {"pod-2": None}


def test_an_abort_that_comes_too_late_changes_nothing() -> None:
    asked = handed(abortRequested=True, abortStatus="Aborting")
    moved = guests(pod_uid="pod-2", moved={"job-1": REPORT})
    actions = plan(running(job("Running", deleted=True), TARGET, asked, guests=moved))
    assert phase_set(actions) == "Succeeded"
    assert statuses(actions, LabVMI)[-1]["migrationState"]["abortStatus"] == "Failed"


def test_a_final_migration_that_is_deleted_gives_up_its_finalizer() -> None:
    gone = job("Failed", deleted=True)
    assert plan(running(gone)) == [w.Patch(gone, {"metadata": {"finalizers": []}})]


def test_a_migration_without_its_instance_is_deleted() -> None:
    assert plan(world(job("Pending"))) == [w.Remove(job("Pending"))]
    gone = job("Pending", deleted=True)
    assert plan(world(gone)) == [w.Patch(gone, {"metadata": {"finalizers": []}})]


@pytest.mark.parametrize("phase", ["Scheduling", "Scheduled", "PreparingTarget", "Running"])
def test_a_migration_whose_target_is_gone_has_failed(phase: str) -> None:
    assert "is gone" in reason(plan(running(job(phase))))
    assert "is gone" in reason(plan(running(job(phase), deleting(TARGET))))


def test_a_target_that_dies_under_a_move_calls_it_off_first() -> None:
    moving = guests(moving=frozenset({"job-1"}))
    actions = plan(running(job("Running"), handed(), deleting(TARGET), guests=moving))
    assert [one for one in actions if isinstance(one, w.AbortMove)]
    assert phase_set(actions) == ""


def test_a_failure_after_the_hand_off_is_told_to_the_instance() -> None:
    actions = plan(running(job("Running"), handed()))
    (told,) = statuses(actions, LabVMI)
    assert told["migrationState"]["failed"] is True
    assert "is gone" in told["migrationState"]["failureReason"]
    assert phase_set(actions) == "Failed"


def test_a_source_that_dies_early_ends_the_migration_with_the_guest() -> None:
    dead = launcher("pod-1", "node1", "Failed")
    actions = plan(world(vm(), handed(), dead, TARGET, job("PreparingTarget"), guests=guests()))
    assert phase_set(actions, LabVMI) == "Failed"
    after = world(vm(), vmi("Failed"), dead, TARGET, job("PreparingTarget"))
    assert phase_set(plan(after)) == "Failed"


def test_a_wished_node_is_asked_for_and_the_vms_own_wish_wins() -> None:
    (body,) = created(plan(running(job("Pending", to="node3"))), LabPod)
    assert body["spec"]["nodeSelector"]["kubernetes.io/hostname"] == "node3"
    picky = vmi(spec={"nodeSelector": {"kubernetes.io/hostname": "node2"}})
    (body,) = created(plan(running(job("Pending", to="node3"), picky)), LabPod)
    assert body["spec"]["nodeSelector"]["kubernetes.io/hostname"] == "node2"


def test_a_second_job_for_the_same_vm_is_refused() -> None:
    busy = running(job("Running", uid="job-0"), job())
    failing = [
        one for one in plan(busy) if isinstance(one, w.Patch) and one.object.metadata.uid == "job-1"
    ]
    assert "in-flight migration detected. Active migration job (job-0)" in str(failing[0].body)


def test_a_vm_that_may_not_move_is_refused_in_kubevirts_words() -> None:
    plain = vmi()
    fixed = plain.model_copy(
        update={"metadata": plain.metadata.model_copy(update={"annotations": {}})}
    )
    assert reason(plan(running(fixed, job()))).startswith(
        "Cannot migrate VMI, Reason: InterfaceNotLiveMigratable, Message: cannot migrate VMI"
    )


@pytest.mark.parametrize(("waited", "gone"), [(299, False), (301, True)])
def test_an_unschedulable_target_is_given_up_after_five_minutes(waited: float, gone: bool) -> None:
    nodes = {name: node(name, unschedulable=True) for name in NODES}
    stuck = _unplaced(ago(waited))
    actions = plan(running(job("Scheduling"), stuck, nodes=nodes))
    assert (phase_set(actions) == "Failed") is gone
    assert (w.Remove(stuck) in actions) is gone


def test_time_outs_are_annotations() -> None:
    quick = job("Scheduling", annotations={kv.ANNOTATION_PENDING_S: "5"})
    assert "was pending for 5 s" in reason(plan(running(quick, WAITING)))
    assert plan(running(job("Scheduling"), WAITING)) == []
    brief = job("Scheduling", annotations={kv.ANNOTATION_UNSCHEDULABLE_S: "5"})
    nodes = {name: node(name, unschedulable=True) for name in NODES}
    assert "unschedulable for 5 s" in reason(plan(running(brief, _unplaced(ago(6)), nodes=nodes)))


def _unplaced(since: str) -> LabPod:
    """A target pod that the scheduler has refused."""
    words = "0/3 nodes are available: 3 node(s) were unschedulable."
    told = kv.Condition(type="PodScheduled", status="False", reason="Unschedulable", message=words)
    pod = launcher("pod-2", "", "Pending", job())
    return pod.model_copy(
        update={
            "status": pod.status.model_copy(update={"conditions": (told,)}),
            "metadata": pod.metadata.model_copy(update={"creation_timestamp": since}),
        }
    )


def test_a_held_migration_stays_in_its_phase() -> None:
    held = job("TargetReady", annotations={names.ANNOTATION_HOLD: "TargetReady"})
    assert plan(running(held, TARGET, handed(), guests=guests())) == []
    assert "is gone" in reason(plan(running(held, handed(), guests=guests())))


def test_a_block_migration_opens_two_ports() -> None:
    block = handed()
    block = block.model_copy(
        update={"status": block.status.model_copy(update={"migration_method": "BlockMigration"})}
    )
    actions = plan(running(job("PreparingTarget"), TARGET, block, guests=guests()))
    (told, *_) = statuses(actions, LabVMI)
    assert set(told["migrationState"]["targetDirectMigrationNodePorts"]) == {"49152", "49153"}
