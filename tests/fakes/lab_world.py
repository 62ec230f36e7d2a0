"""Worlds made by hand for the lab's KubeVirt: objects by a few words, and what a plan says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lab import kubevirt, names, rendering, seed
from lab import objects as kv
from lab import world as w
from lab.cutover import Report
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from tortiectl.kubevirt.objects import Claim, Node

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
BEFORE = "2026-01-01T11:59:50Z"
GUEST = w.GuestView("pod-1", "02:00:00:00:00:01", ("10.65.0.2", "fd00:10:65::2"))
REPORT = Report(1, 2, (3,))


def node(name: str, **more: Any) -> Node:
    """A node; `labels`, `unschedulable`, `ready` by keyword."""
    number = int(name.removeprefix("node"))
    body = seed.kube_node(names.lab_nodes(number)[-1])
    body["metadata"]["labels"] |= more.get("labels", {})
    body["spec"] = {"unschedulable": more.get("unschedulable", False)}
    ready = "True" if more.get("ready", True) else "False"
    body["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    return Node.model_validate(body)


NODES = {name: node(name) for name in ("node1", "node2", "node3")}


def vm(*, status: dict[str, Any] | None = None, **spec: Any) -> LabVM:
    """The VM `vm` with everything settled: finalizer set, status told."""
    body = seed.vm_body("vm", "default", "node2", {"app": "vm"})
    body["metadata"] |= {"uid": "vm-uid", "finalizers": [kv.VM_FINALIZER]}
    body["spec"] |= spec
    body["status"] = status or {"created": True, "ready": True, "printableStatus": "Running"}
    return LabVM.model_validate(body)


def vmi(phase: str = "Running", *, spec: dict[str, Any] | None = None, **status: Any) -> LabVMI:
    """The VM's instance; running, it is on node1 in pod-1 and may migrate."""
    body = rendering.vmi_body(vm())
    body["metadata"]["uid"] = "vmi-uid"
    body["spec"] |= spec or {}
    body["status"] = {"phase": phase}
    if phase == "Running":
        kinds = ("Ready", "LiveMigratable", "StorageLiveMigratable")
        body["status"] |= {
            "nodeName": "node1",
            "activePods": {"pod-1": "node1"},
            "conditions": [{"type": kind, "status": "True"} for kind in kinds],
        }
    body["status"] |= status
    return LabVMI.model_validate(body)


def launcher(
    uid: str, where: str, phase: str = "Running", job: LabMigration | None = None, name: str = ""
) -> LabPod:
    """A launcher of the instance; with a job, its target."""
    body = rendering.launcher_body(vmi(), job)
    body["metadata"] |= {"uid": uid, "creationTimestamp": BEFORE}
    if name:
        body["metadata"]["name"] = name
    body["spec"]["nodeName"] = where
    body["status"] = {"phase": phase}
    return LabPod.model_validate(body)


def job(
    phase: str = "",
    *,
    to: str = "",
    uid: str = "job-1",
    name: str = "",
    vmi_name: str = "vm",
    deleted: bool = False,
    created: str = BEFORE,
    ended: str = "",
    annotations: dict[str, str] | None = None,
) -> LabMigration:
    """A migration of the instance."""
    body = seed.migration_body(
        name or f"migration-{uid}", "default", vmi_name, node=to, annotations=annotations or {}
    )
    body["metadata"] |= {
        "uid": uid,
        "creationTimestamp": created,
        "finalizers": [kv.MIGRATION_FINALIZER],
    }
    if deleted:
        body["metadata"]["deletionTimestamp"] = BEFORE
    times = [{"phase": phase, "phaseTransitionTimestamp": ended or BEFORE}]
    body["status"] = {"phase": phase, "phaseTransitionTimestamps": times}
    return LabMigration.model_validate(body)


def ago(seconds: float) -> str:
    """A time of the API, so long before the world's now."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def world(*objects: LabVM | LabVMI | LabMigration | LabPod | Claim, **changes: Any) -> w.World:
    """A world of three nodes and these objects."""
    found: dict[type, dict[w.Name, Any]] = {
        kind: {} for kind in (LabVM, LabVMI, LabMigration, LabPod, Claim)
    }
    for one in objects:
        found[type(one)][(one.metadata.namespace, one.metadata.name)] = one
    base = w.World(
        vms=found[LabVM],
        vmis=found[LabVMI],
        migrations=found[LabMigration],
        pods=found[LabPod],
        nodes=NODES,
        claims=found[Claim],
        guests={},
        now=NOW,
    )
    return replace(base, **changes)


def running(*more: LabVMI | LabMigration | LabPod | Claim, **changes: Any) -> w.World:
    """A world in which the VM runs on node1, and more."""
    changes.setdefault("guests", {"vmi-uid": GUEST})
    moving = [one for one in more if isinstance(one, LabMigration) and not one.final]
    busy = any(one.status.phase not in ("", "Pending") for one in moving)
    told = {"created": True, "ready": True, "printableStatus": "Migrating" if busy else "Running"}
    instance = () if any(isinstance(one, LabVMI) for one in more) else (vmi(),)
    return world(vm(status=told), *instance, launcher("pod-1", "node1"), *more, **changes)


def deleting(found: Any, **more: Any) -> Any:
    """The same object, being deleted."""
    update = {"deletion_timestamp": BEFORE, **more}
    return found.model_copy(update={"metadata": found.metadata.model_copy(update=update)})


def plan(where: w.World) -> list[w.Action]:
    """All next steps."""
    return [action for steps in kubevirt.plan(where) for action in steps]


def created(actions: list[w.Action], model: type) -> list[dict[str, Any]]:
    """Bodies of the objects of a kind that a plan creates."""
    return [one.body for one in actions if isinstance(one, w.Create) and one.model is model]


def statuses(actions: list[w.Action], model: type) -> list[dict[str, Any]]:
    """Status patches of a plan for a kind of object."""
    return [
        one.body["status"]
        for one in actions
        if isinstance(one, w.Patch) and one.status and isinstance(one.object, model)
    ]


def phase_set(actions: list[w.Action], model: type = LabMigration) -> str:
    """The phase a plan gives to the (first) migration or instance; empty for none."""
    phases = [one["phase"] for one in statuses(actions, model) if "phase" in one]
    return str(phases[0]) if phases else ""


def reason(actions: list[w.Action]) -> str:
    """Why the plan lets a migration fail."""
    for status in statuses(actions, LabMigration):
        if "failureReason" in status.get("migrationState", {}):
            return str(status["migrationState"]["failureReason"])
    return ""
