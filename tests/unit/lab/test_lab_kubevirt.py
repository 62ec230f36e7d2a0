"""KubeVirt's controllers and a kubelet's decisions, on worlds made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lab import kubevirt, names, rendering, seed
from lab import objects as kv
from lab import world as w
from lab.cni_runtime import CniError
from lab.controller import blackout_ms
from lab.cutover import Report
from lab.kubelet import Sandbox, Step, decide, refused_status, running_status
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from lab.tools import LabError

EMPTY = w.World(
    vms={},
    vmis={},
    migrations={},
    pods={},
    guests={},
    nodes=("node1", "node2", "node3"),
    node_addresses={"node2": "172.31.0.12"},
    now=datetime(2026, 1, 1, tzinfo=UTC),
)
KEY = ("default", "vm")
GUEST = w.GuestView("pod-1", "02:00:00:00:00:01", "10.65.0.2")
REPORT = Report(1, 2, (3,))


def vm(**spec: Any) -> LabVM:
    body = seed.vm_body("vm", "default", "node2", {"app": "vm"})
    body["metadata"]["uid"] = "vm-uid"
    body["spec"] |= spec
    return LabVM.model_validate(body)


def vmi(phase: str = "Running", **status: Any) -> LabVMI:
    body = rendering.vmi_body(vm())
    body["metadata"]["uid"] = "vmi-uid"
    body["status"] = {"phase": phase}
    if phase == "Running":
        body["status"] |= {"nodeName": "node1", "activePods": {"pod-1": "node1"}}
    body["status"] |= status
    return LabVMI.model_validate(body)


def launcher(
    uid: str, node: str, phase: str = "Running", job: LabMigration | None = None, name: str = ""
) -> LabPod:
    identity = (job.metadata.uid,) if job else ()
    name = name or rendering.launcher_name("vm", "vmi-uid", *identity)
    body = rendering.launcher_body(vmi(), name, node, job)
    body["metadata"]["uid"] = uid
    body["status"] = {"phase": phase}
    return LabPod.model_validate(body)


def job(phase: str = "", node: str = "", uid: str = "job-1", name: str = "job") -> LabMigration:
    body = seed.migration_body(name, "default", "vm", node=node, annotations={})
    body["metadata"]["uid"] = uid
    body["status"] = {"phase": phase}
    return LabMigration.model_validate(body)


def world(*objects: LabVM | LabVMI | LabMigration | LabPod, **changes: Any) -> w.World:
    found: dict[type, dict[w.Name, Any]] = {
        LabVM: {},
        LabVMI: {},
        LabMigration: {},
        LabPod: {},
    }
    for one in objects:
        found[type(one)][(one.metadata.namespace, one.metadata.name)] = one
    base = replace(
        EMPTY,
        vms=found[LabVM],
        vmis=found[LabVMI],
        migrations=found[LabMigration],
        pods=found[LabPod],
    )
    return replace(base, **changes)


def running(*more: LabVMI | LabMigration | LabPod, **changes: Any) -> w.World:
    changes.setdefault("guests", {"vmi-uid": GUEST})
    return world(vm(), vmi(), launcher("pod-1", "node1"), *more, **changes)


def phase_set(actions: list[w.Action]) -> str:
    """The phase the migration is given, "" for none."""
    for action in actions:
        if isinstance(action, w.Patch) and isinstance(action.object, LabMigration):
            status = action.body.get("status", {})
            if "phase" in status:
                return str(status["phase"])
    return ""


def reason(actions: list[w.Action]) -> str:
    for action in actions:
        if isinstance(action, w.Patch) and isinstance(action.object, LabMigration):
            return str(action.body["status"]["migrationState"]["failureReason"])
    return ""


def test_a_vm_that_should_run_gets_an_instance_it_controls() -> None:
    (action,) = kubevirt.plan(world(vm()))
    assert isinstance(action, w.CreateVMI)
    (owner,) = action.body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("VirtualMachine", "vm-uid", True)
    assert kv.ANNOTATION_BRIDGE_MIGRATION in action.body["metadata"]["annotations"]


def test_a_halted_vm_gets_none_and_loses_its_instance() -> None:
    assert kubevirt.plan(world(vm(runStrategy="Halted"))) == []
    actions = kubevirt.plan(world(vm(runStrategy="Halted"), vmi(), launcher("pod-1", "node1")))
    assert any(isinstance(action, w.Remove) for action in actions)


def test_a_failed_instance_is_replaced() -> None:
    assert kubevirt.plan(world(vm(), vmi("Failed"))) == [w.Remove(vmi("Failed"))]


def test_an_instance_gets_its_launcher_on_the_preferred_node() -> None:
    actions = kubevirt.plan(world(vm(), vmi("")))
    (body,) = [action.body for action in actions if isinstance(action, w.CreatePod)]
    assert body["spec"]["nodeName"] == "node2"
    labels = body["metadata"]["labels"]
    assert labels["kubevirt.io"] == "virt-launcher"
    assert labels["kubevirt.io/created-by"] == "vmi-uid"
    assert labels["app"] == "vm"
    assert "kubevirt.io/migrationJobUID" not in labels
    assert body["metadata"]["ownerReferences"][0]["uid"] == "vmi-uid"


def test_planning_twice_names_the_same_launcher() -> None:
    first, second = (kubevirt.plan(world(vm(), vmi(""))) for _ in range(2))
    assert first == second


def test_guest_starts_when_the_launcher_runs_and_then_the_status_says_where() -> None:
    here = launcher("pod-1", "node2")
    waiting = world(vm(), vmi("Scheduling"), launcher("pod-1", "node2", "Pending"))
    assert kubevirt.plan(waiting) == []
    assert kubevirt.plan(world(vm(), vmi("Scheduling"), here)) == [
        w.StartGuest(vmi("Scheduling"), here)
    ]
    actions = kubevirt.plan(world(vm(), vmi("Scheduling"), here, guests={"vmi-uid": GUEST}))
    last = actions[-1]
    assert isinstance(last, w.Patch)
    status = last.body["status"]
    assert (status["phase"], status["nodeName"]) == ("Running", "node2")
    assert status["activePods"] == {"pod-1": "node2"}
    assert status["interfaces"][0]["ipAddress"] == "10.65.0.2"


def test_a_settled_world_wants_nothing() -> None:
    assert kubevirt.plan(running()) == []


@pytest.mark.parametrize("pods", [(), (launcher("pod-1", "node1", "Failed"),)])
def test_an_instance_without_its_launcher_has_failed(pods: tuple[LabPod, ...]) -> None:
    actions = kubevirt.plan(world(vm(), vmi(), *pods, guests={"vmi-uid": GUEST}))
    assert w.Patch(vmi(), {"status": {"phase": "Failed"}}, status=True) in actions


def test_a_migration_walks_through_its_phases() -> None:
    assert phase_set(kubevirt.plan(running(job()))) == "Pending"

    actions = kubevirt.plan(running(job("Pending")))
    (body,) = [action.body for action in actions if isinstance(action, w.CreatePod)]
    assert body["spec"]["nodeName"] == "node2"
    assert body["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == "job-1"
    assert body["metadata"]["annotations"]["kubevirt.io/migrationJobName"] == "job"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "vmi-uid"

    waiting = launcher("pod-2", "node2", "Pending", job())
    target = launcher("pod-2", "node2", "Running", job())
    assert phase_set(kubevirt.plan(running(job("Pending"), waiting))) == "Scheduling"
    assert kubevirt.plan(running(job("Scheduling"), waiting)) == []
    assert phase_set(kubevirt.plan(running(job("Scheduling"), target))) == "Scheduled"

    actions = kubevirt.plan(running(job("Scheduled"), target))
    assert phase_set(actions) == "PreparingTarget"
    state = next(
        action.body["status"]["migrationState"]
        for action in actions
        if isinstance(action, w.Patch) and isinstance(action.object, LabVMI) and action.status
    )
    assert (state["sourceNode"], state["targetNode"]) == ("node1", "node2")
    assert state["targetPod"] == target.metadata.name
    assert state["completed"] is None

    assert kubevirt.plan(running(job("PreparingTarget"), target)) == [
        w.PrepareTarget(vmi(), target)
    ]
    plumbed = {"vmi-uid": replace(GUEST, targets=frozenset({"pod-2"}))}
    ready = running(job("PreparingTarget"), target, guests=plumbed)
    assert phase_set(kubevirt.plan(ready)) == "TargetReady"
    assert (
        phase_set(kubevirt.plan(running(job("TargetReady"), target, guests=plumbed))) == "Running"
    )
    assert kubevirt.plan(running(job("Running"), target, guests=plumbed)) == [
        w.CutOver(vmi(), job("Running"), target)
    ]

    moved = {"vmi-uid": replace(plumbed["vmi-uid"], moved={"job-1": REPORT})}
    actions = kubevirt.plan(running(job("Running"), target, guests=moved))
    assert phase_set(actions) == "Succeeded"
    flipped = [
        action.body["status"]
        for action in actions
        if isinstance(action, w.Patch) and isinstance(action.object, LabVMI) and action.status
    ]
    assert flipped[-1]["nodeName"] == "node2"
    assert flipped[-1]["migrationState"]["completed"] is True


def test_afterwards_the_source_is_finished_and_forgotten() -> None:
    old = launcher("pod-1", "node1").metadata.name
    state = {"completed": True, "sourcePod": old}
    both = {"pod-1": "node1", "pod-2": "node2"}
    after = vmi(nodeName="node2", activePods=both, migrationState=state)
    target = launcher("pod-2", "node2", job=job())
    moved = {"vmi-uid": replace(GUEST, pod_uid="pod-2")}
    source = launcher("pod-1", "node1")
    done = job("Succeeded")
    actions = kubevirt.plan(world(vm(), after, source, target, done, guests=moved))
    assert actions == [w.Patch(source, {"status": {"phase": "Succeeded"}}, status=True)]
    source = launcher("pod-1", "node1", "Succeeded")
    actions = kubevirt.plan(world(vm(), after, source, target, done, guests=moved))
    assert actions == [w.Patch(after, {"status": {"activePods": {"pod-1": None}}}, status=True)]


def test_a_wished_node_is_obeyed_and_an_impossible_one_refused() -> None:
    actions = kubevirt.plan(running(job("Pending", node="node3")))
    (body,) = [action.body for action in actions if isinstance(action, w.CreatePod)]
    assert body["spec"]["nodeName"] == "node3"
    assert "no node but node1 fits" in reason(kubevirt.plan(running(job("Pending", node="node1"))))


def test_a_second_job_for_the_same_vm_is_refused() -> None:
    busy = running(job("Running", uid="job-0", name="older"), job())
    busy = replace(busy, guests={"vmi-uid": GUEST})
    failing = [
        action
        for action in kubevirt.plan(busy)
        if isinstance(action, w.Patch) and action.object.metadata.uid == "job-1"
    ]
    assert "in-flight migration detected" in str(failing[0].body)


def test_a_vm_that_may_not_move_is_refused_in_kubevirts_words() -> None:
    plain = vmi()
    fixed = plain.model_copy(
        update={"metadata": plain.metadata.model_copy(update={"annotations": {}})}
    )
    actions = kubevirt.plan(
        world(vm(), fixed, launcher("pod-1", "node1"), job(), guests={"vmi-uid": GUEST})
    )
    assert reason(actions).startswith(
        "Cannot migrate VMI, Reason: InterfaceNotLiveMigratable, Message: cannot migrate VMI"
    )


def test_a_migration_without_its_vm_or_target_fails() -> None:
    assert "does not exist" in reason(kubevirt.plan(world(job("Pending"))))
    assert "is gone" in reason(kubevirt.plan(running(job("Running"))))


def test_a_failure_after_the_hand_off_is_told_to_the_instance() -> None:
    handed = vmi(migrationState={"migrationUid": "job-1"})
    actions = kubevirt.plan(
        world(vm(), handed, launcher("pod-1", "node1"), job("Running"), guests={"vmi-uid": GUEST})
    )
    told = [a for a in actions if isinstance(a, w.Patch) and isinstance(a.object, LabVMI)]
    assert told[0].body["status"]["migrationState"]["failed"] is True
    assert phase_set(actions) == "Failed"


def test_the_target_of_a_dead_job_is_removed() -> None:
    target = launcher("pod-2", "node2", job=job())
    assert kubevirt.plan(running(job("Failed"), target)) == [w.Remove(target)]
    assert kubevirt.plan(running(target)) == [w.Remove(target)]


def test_a_pod_of_another_instance_is_nobodys_launcher() -> None:
    stranger = launcher("pod-9", "node3", name="stranger")
    meta = stranger.metadata
    owner = meta.owner_references[0].model_copy(update={"uid": "other"})
    stranger = stranger.model_copy(
        update={"metadata": meta.model_copy(update={"owner_references": (owner,)})}
    )
    assert kubevirt.plan(running(stranger)) == []


def deleting(found: LabVMI | LabPod, **more: Any) -> Any:
    update = {"deletion_timestamp": "2026-01-01T00:00:00Z", **more}
    return found.model_copy(update={"metadata": found.metadata.model_copy(update=update)})


def test_a_deleted_instance_goes_after_its_guest_and_pods() -> None:
    gone = deleting(vmi())
    pod = launcher("pod-1", "node1")
    actions = kubevirt.plan(world(gone, pod, guests={"vmi-uid": GUEST}))
    assert actions == [w.StopGuest("vmi-uid"), w.Remove(pod)]
    assert kubevirt.plan(world(gone)) == [w.Patch(gone, {"metadata": {"finalizers": None}})]


@pytest.mark.parametrize(("text", "value"), [("", 50.0), ("10", 10.0), ("0", 0.0)])
def test_blackout_annotation(text: str, value: float) -> None:
    annotations = {names.ANNOTATION_BLACKOUT: text} if text else {}
    assert blackout_ms(annotations) == value


def test_a_blackout_that_is_no_number_is_an_error() -> None:
    with pytest.raises(LabError, match="is no number"):
        blackout_ms({names.ANNOTATION_BLACKOUT: "soon"})


def test_pods_without_a_node_are_spread() -> None:
    def pod(name: str, node: str) -> LabPod:
        return LabPod.model_validate(seed.pod_body(name, "default", node))

    actions = kubevirt.plan(world(pod("a", "node1"), pod("b", ""), pod("c", "")))
    nodes = [action.body["spec"]["nodeName"] for action in actions if isinstance(action, w.Patch)]
    assert nodes == ["node2", "node3"]


READY = Sandbox("default", "p", "u", "c", "tlab-pod-p-u", ("10.65.0.2",))
HALF = replace(READY, addresses=())


@pytest.mark.parametrize(
    ("phase", "gone", "sandbox", "step"),
    [
        ("Pending", False, None, Step.SET_UP),
        ("Running", False, READY, Step.NOTHING),
        ("Pending", False, HALF, Step.TEAR_DOWN),
        ("Succeeded", False, READY, Step.TEAR_DOWN),
        ("Succeeded", False, None, Step.NOTHING),
        ("Running", True, READY, Step.TEAR_DOWN),
        ("Running", True, None, Step.FORGET),
    ],
)
def test_kubelet_decides(phase: str, gone: bool, sandbox: Sandbox | None, step: Step) -> None:
    pod = launcher("pod-1", "node1", phase)
    assert decide(deleting(pod) if gone else pod, sandbox) is step


def test_kubelet_removes_the_sandbox_of_a_pod_that_is_gone() -> None:
    assert decide(None, READY) is Step.TEAR_DOWN
    assert decide(None, None) is Step.NOTHING


def test_a_sandbox_tells_the_plugin_who_it_is() -> None:
    args = dict(READY.attachment.args)
    assert args["K8S_POD_NAME"] == "p"
    assert args["K8S_POD_UID"] == "u"
    assert args["K8S_POD_INFRA_CONTAINER_ID"] == READY.attachment.container_id == "c"
    assert READY.attachment.netns == "/run/netns/tlab-pod-p-u"


def test_pod_status_in_a_kubelets_words() -> None:
    assert running_status(READY, "172.31.0.11")["podIPs"] == [{"ip": "10.65.0.2"}]
    status = refused_status(CniError("tortie", 100, "no", "why"))
    assert status["message"] == (
        'Failed to create pod sandbox: plugin type="tortie" failed (add): no: why'
    )
    assert status["phase"] == "Pending"
