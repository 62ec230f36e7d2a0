"""KubeVirt's controllers, level-triggered: from what the API shows to what has to be done next.

Pure: `plan(world)` looks at everything and names the next steps; repeating a step that has already
happened is harmless (names are deterministic, patches idempotent), so a stale view costs a round
and never a second pod. Objects, labels and phases are those of the published KubeVirt API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lab import names
from lab import objects as kv
from lab.cutover import Report
from lab.objects import LabMigration, LabPod, LabVM, LabVMI

Name = tuple[str, str]
DIRECT_PORT = 49152


@dataclass(frozen=True, slots=True)
class GuestView:
    """What the hypervisors know of one guest."""

    pod_uid: str
    mac: str
    address: str
    targets: frozenset[str] = frozenset()
    moved: Mapping[str, Report] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """Everything a plan is made from. `guests` is by VMI UID, `nodes` in scheduling order."""

    vms: Mapping[Name, LabVM]
    vmis: Mapping[Name, LabVMI]
    migrations: Mapping[Name, LabMigration]
    pods: Mapping[Name, LabPod]
    guests: Mapping[str, GuestView]
    nodes: tuple[str, ...]
    node_addresses: Mapping[str, str]
    now: datetime

    def launchers(self, vmi: LabVMI) -> tuple[LabPod, ...]:
        """Launcher pods whose controller is exactly this VMI."""
        return tuple(
            pod
            for (namespace, _), pod in sorted(self.pods.items())
            if namespace == vmi.metadata.namespace
            and pod.metadata.labels.get(kv.LABEL_LAUNCHER) == kv.LAUNCHER
            and (owner := pod.metadata.controller()) is not None
            and owner.uid == vmi.metadata.uid
        )


@dataclass(frozen=True, slots=True)
class CreateVMI:
    """A VM that should run has no VMI."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A launcher pod is missing."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an object."""

    object: LabVMI | LabPod


@dataclass(frozen=True, slots=True)
class Patch:
    """Merge-patch an object, or its status."""

    object: LabVM | LabVMI | LabMigration | LabPod
    body: dict[str, Any]
    status: bool = False


@dataclass(frozen=True, slots=True)
class StartGuest:
    """Boot the guest in its launcher."""

    vmi: LabVMI
    pod: LabPod


@dataclass(frozen=True, slots=True)
class StopGuest:
    """Power the guest off."""

    vmi_uid: str


@dataclass(frozen=True, slots=True)
class PrepareTarget:
    """Plumb the target pod."""

    vmi: LabVMI
    pod: LabPod


@dataclass(frozen=True, slots=True)
class CutOver:
    """Move the guest."""

    vmi: LabVMI
    migration: LabMigration
    target: LabPod


Action = CreateVMI | CreatePod | Remove | Patch | StartGuest | StopGuest | PrepareTarget | CutOver


def plan(world: World) -> list[Action]:
    """The next steps for every VM, VMI and migration."""
    actions: list[Action] = []
    for vm in world.vms.values():
        actions += _plan_vm(vm, world)
    for vmi in world.vmis.values():
        actions += _plan_vmi(vmi, world)
    for migration in world.migrations.values():
        actions += _plan_migration(migration, world)
    return actions


# --- virtual machines ------------------------------------------------------------------------


def _plan_vm(vm: LabVM, world: World) -> Iterator[Action]:
    meta = vm.metadata
    vmi = world.vmis.get((meta.namespace, meta.name))
    wanted = vm.spec.wants_to_run and not meta.deleting
    if vmi is None and wanted:
        yield CreateVMI(vmi_body(vm))
    elif vmi is None and meta.deleting and VM_FINALIZER in vm.metadata.finalizers:
        yield Patch(vm, {"metadata": {"finalizers": None}})
    elif (
        vmi is not None
        and not vmi.metadata.deleting
        and (not wanted or vmi.status.phase in ("Failed", "Succeeded"))
    ):
        yield Remove(vmi)


VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VMI_FINALIZER = "foregroundDeleteVirtualMachine"


def vmi_body(vm: LabVM) -> dict[str, Any]:
    """The VMI a VM's template describes."""
    meta = vm.metadata
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": dict(vm.spec.template.metadata.labels),
            "annotations": dict(vm.spec.template.metadata.annotations),
            "finalizers": [VMI_FINALIZER],
            "ownerReferences": [
                _owner("VirtualMachine", meta.name, meta.uid),
            ],
        },
        "spec": dict(vm.spec.template.spec),
    }


def _owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


# --- instances -------------------------------------------------------------------------------


def active_pod(vmi: LabVMI, world: World) -> LabPod | None:
    """The launcher the VMI's status says the guest runs in."""
    here = [uid for uid, node in vmi.status.active_pods.items() if node == vmi.status.node_name]
    return next((pod for pod in world.launchers(vmi) if pod.metadata.uid in here), None)


def _plan_vmi(vmi: LabVMI, world: World) -> Iterator[Action]:
    if vmi.metadata.deleting:
        yield from _plan_stop(vmi, world)
    elif vmi.status.phase in ("", "Pending", "Scheduling"):
        yield from _plan_boot(vmi, world)
    elif vmi.status.phase == "Running":
        yield from _plan_running(vmi, world)
    elif vmi.metadata.uid in world.guests:
        yield StopGuest(vmi.metadata.uid)


def _plan_stop(vmi: LabVMI, world: World) -> Iterator[Action]:
    if vmi.metadata.uid in world.guests:
        yield StopGuest(vmi.metadata.uid)
    pods = world.launchers(vmi)
    yield from (Remove(pod) for pod in pods if not pod.metadata.deleting)
    if not pods and VMI_FINALIZER in vmi.metadata.finalizers:
        yield Patch(vmi, {"metadata": {"finalizers": None}})


def _plan_boot(vmi: LabVMI, world: World) -> Iterator[Action]:
    name = launcher_name(vmi.metadata.name, vmi.metadata.uid)
    pod = world.pods.get((vmi.metadata.namespace, name))
    if pod is None:
        nodes = sorted(world.nodes, key=lambda node: node not in vmi.spec.preferred_nodes)
        node = _pick_node(nodes, vmi.spec.node_selector, exclude="")
        if node:
            yield CreatePod(launcher_body(vmi, name, node, None))
        if vmi.status.phase == "":
            yield Patch(vmi, {"status": {"phase": "Pending"}}, status=True)
        return
    if vmi.status.phase != "Scheduling":
        yield Patch(vmi, {"status": {"phase": "Scheduling"}}, status=True)
    if pod.status.phase != "Running":
        return
    guest = world.guests.get(vmi.metadata.uid)
    if guest is None:
        yield StartGuest(vmi, pod)
        return
    status = {
        "phase": "Running",
        "nodeName": pod.spec.node_name,
        "activePods": {pod.metadata.uid: pod.spec.node_name},
        "interfaces": [{"name": "default", "mac": guest.mac, "ipAddress": guest.address}],
        "conditions": [{"type": "Ready", "status": "True"}, _migratable(vmi)],
    }
    yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_NODE: pod.spec.node_name}}})
    yield Patch(vmi, {"status": status}, status=True)


def _migratable(vmi: LabVMI) -> dict[str, str]:
    if kv.ANNOTATION_BRIDGE_MIGRATION in vmi.metadata.annotations:
        return {"type": "LiveMigratable", "status": "True"}
    return {
        "type": "LiveMigratable",
        "status": "False",
        "reason": "InterfaceNotLiveMigratable",
        "message": "cannot migrate VMI which does not use masquerade or a migratable plugin"
        " to connect to the pod network",
    }


def _plan_running(vmi: LabVMI, world: World) -> Iterator[Action]:
    active = active_pod(vmi, world)
    if active is None or active.finished or active.metadata.deleting:
        yield Patch(vmi, {"status": {"phase": "Failed"}}, status=True)
        return
    for pod in world.launchers(vmi):
        uid = pod.metadata.uid
        if uid == active.metadata.uid or pod.metadata.deleting:
            continue
        state = vmi.status.migration_state
        if state.completed and state.source_pod == pod.metadata.name:
            if not pod.finished:
                yield Patch(pod, {"status": {"phase": "Succeeded"}}, status=True)
            elif uid in vmi.status.active_pods:
                yield Patch(vmi, {"status": {"activePods": {uid: None}}}, status=True)
        elif (job := pod.metadata.labels.get(kv.LABEL_JOB)) and _job_is_over(job, world):
            yield Remove(pod)


def _job_is_over(uid: str, world: World) -> bool:
    return not any(
        migration.metadata.uid == uid and not migration.final
        for migration in world.migrations.values()
    )


def launcher_name(vmi: str, *identity: str) -> str:
    """`virt-launcher-<vmi>-<5 characters>`, the same for the same VMI and migration."""
    digest = hashlib.sha256("/".join(identity).encode()).hexdigest()
    return f"virt-launcher-{vmi}-{digest[:5]}"


def launcher_body(
    vmi: LabVMI, name: str, node: str, migration: LabMigration | None
) -> dict[str, Any]:
    """The launcher pod virt-controller renders; for a migration, its target."""
    meta = vmi.metadata
    labels = {
        **meta.labels,
        kv.LABEL_LAUNCHER: kv.LAUNCHER,
        kv.LABEL_CREATED_BY: meta.uid,
        kv.LABEL_VM_NAME: meta.name,
        kv.LABEL_VMI: meta.name,
    }
    kept = {k: v for k, v in meta.annotations.items() if not k.startswith("kubectl.kubernetes.io")}
    annotations = {
        **kept,
        kv.ANNOTATION_DOMAIN: meta.name,
        kv.ANNOTATION_UNIX: "true",
        kv.ANNOTATION_EVICT: "",
    }
    if migration is not None:
        labels[kv.LABEL_JOB] = migration.metadata.uid
        annotations[kv.ANNOTATION_JOB_NAME] = migration.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner("VirtualMachineInstance", meta.name, meta.uid)],
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "containers": [{"name": "compute", "image": "virt-launcher"}],
        },
    }


def _pick_node(nodes: Iterable[str], selector: Mapping[str, str], exclude: str) -> str:
    wanted = selector.get(kv.LABEL_HOSTNAME, "")
    fitting = [node for node in nodes if node != exclude and wanted in ("", node)]
    return fitting[0] if fitting else ""


# --- migrations ------------------------------------------------------------------------------


def _plan_migration(migration: LabMigration, world: World) -> Iterator[Action]:
    if migration.final or migration.metadata.deleting:
        return
    vmi = world.vmis.get((migration.metadata.namespace, migration.spec.vmi_name))
    if vmi is None or vmi.status.phase != "Running" or vmi.metadata.deleting:
        where = f"{migration.metadata.namespace}/{migration.spec.vmi_name}"
        yield _fail(migration, f'the VMI "{where}" does not exist or is not running')
        return
    other = _other_job(migration, world)
    if migration.status.phase == "":
        if other is not None:
            yield _fail(
                migration,
                "in-flight migration detected. Active migration job"
                f" ({other.metadata.uid}) is currently already in progress for VMI"
                f" {vmi.metadata.name}.",
            )
        elif _migratable(vmi)["status"] != "True":
            refusal = _migratable(vmi)
            yield _fail(
                migration,
                f"Cannot migrate VMI, Reason: {refusal['reason']}, Message: {refusal['message']}",
            )
        else:
            yield _phase(migration, "Pending")
        return
    yield from _plan_phase(migration, vmi, world)


def _other_job(migration: LabMigration, world: World) -> LabMigration | None:
    return next(
        (
            other
            for other in world.migrations.values()
            if other.metadata.uid != migration.metadata.uid
            and other.metadata.namespace == migration.metadata.namespace
            and other.spec.vmi_name == migration.spec.vmi_name
            and not other.final
            and other.status.phase != ""
        ),
        None,
    )


def _plan_phase(migration: LabMigration, vmi: LabVMI, world: World) -> Iterator[Action]:
    uid = migration.metadata.uid
    name = launcher_name(vmi.metadata.name, vmi.metadata.uid, uid)
    pod = world.pods.get((vmi.metadata.namespace, name))
    phase = migration.status.phase
    if phase == "Pending":
        if pod is not None:
            yield _phase(migration, "Scheduling")
            return
        selector = {**vmi.spec.node_selector, **migration.spec.added_node_selector}
        node = _pick_node(world.nodes, selector, exclude=vmi.status.node_name)
        if node:
            yield CreatePod(launcher_body(vmi, name, node, migration))
        else:
            yield _fail(migration, f"no node but {vmi.status.node_name} fits {selector or 'it'}")
        return
    if pod is None or pod.finished or pod.metadata.deleting:
        yield _fail(migration, f"target pod {name} is gone")
    elif phase == "Scheduling" and pod.status.phase == "Running":
        yield _phase(migration, "Scheduled")
    elif phase == "Scheduled":
        yield from _hand_off(migration, vmi, pod, world)
    else:
        yield from _plan_handed_off(migration, vmi, pod, world)


def _hand_off(migration: LabMigration, vmi: LabVMI, pod: LabPod, world: World) -> Iterator[Action]:
    source = active_pod(vmi, world)
    state = {
        "migrationUid": migration.metadata.uid,
        "sourceNode": vmi.status.node_name,
        "sourcePod": source.metadata.name if source else "",
        "targetNode": pod.spec.node_name,
        "targetPod": pod.metadata.name,
        "mode": "PreCopy",
        "migrationNetworkType": "Pod",
    }
    # A hand-off replaces what an earlier migration left: null removes its fields.
    blank = dict.fromkeys(
        (
            "startTimestamp",
            "endTimestamp",
            "targetNodeDomainReadyTimestamp",
            "targetNodeAddress",
            "targetDirectMigrationNodePorts",
            "completed",
            "failed",
            "failureReason",
        )
    )
    status = {
        "migrationState": {**blank, **state},
        "activePods": {pod.metadata.uid: pod.spec.node_name},
    }
    yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_TARGET_NODE: pod.spec.node_name}}})
    yield Patch(vmi, {"status": status}, status=True)
    yield _phase(migration, "PreparingTarget")


def _plan_handed_off(
    migration: LabMigration, vmi: LabVMI, pod: LabPod, world: World
) -> Iterator[Action]:
    uid, phase = migration.metadata.uid, migration.status.phase
    guest = world.guests.get(vmi.metadata.uid)
    if guest is None:
        yield _fail(migration, "the guest is gone")
    elif uid in guest.failed:
        yield _fail(migration, guest.failed[uid])
        yield _state(vmi, {"failed": True, "completed": True, "endTimestamp": _stamp(world)})
    elif phase == "PreparingTarget":
        if pod.metadata.uid not in guest.targets:
            yield PrepareTarget(vmi, pod)
            return
        yield _state(
            vmi,
            {
                "targetNodeAddress": world.node_addresses.get(pod.spec.node_name, ""),
                "targetDirectMigrationNodePorts": {str(DIRECT_PORT): DIRECT_PORT},
                "targetNodeDomainDetected": True,
            },
        )
        yield _phase(migration, "TargetReady")
    elif phase == "TargetReady":
        yield _state(vmi, {"startTimestamp": _stamp(world)})
        yield _phase(migration, "Running")
    elif phase == "Running" and uid not in guest.moved:
        yield CutOver(vmi, migration, pod)
    elif phase == "Running":
        yield from _complete(migration, vmi, pod, guest.moved[uid], world)


def _complete(
    migration: LabMigration, vmi: LabVMI, pod: LabPod, report: Report, world: World
) -> Iterator[Action]:
    now, node = _stamp(world), pod.spec.node_name
    ready = {"annotations": {kv.ANNOTATION_READY: str(world.now)}}
    yield Patch(pod, {"metadata": ready})
    yield _state(vmi, {"targetNodeDomainReadyTimestamp": now})
    labels = {kv.LABEL_NODE: node, kv.LABEL_TARGET_NODE: None}
    yield Patch(vmi, {"metadata": {"labels": labels}})
    done = {"endTimestamp": now, "completed": True}
    status = {"nodeName": node, "migrationState": done}
    yield Patch(vmi, {"status": status}, status=True)
    yield Patch(
        migration, {"metadata": {"annotations": {names.ANNOTATION_CUTOVER: report.to_json()}}}
    )
    state = vmi.status.migration_state
    copy = {
        "migrationUid": migration.metadata.uid,
        "sourceNode": state.source_node,
        "sourcePod": state.source_pod,
        "targetNode": state.target_node,
        "targetPod": state.target_pod,
        **done,
    }
    final = {"phase": "Succeeded", "migrationState": copy}
    yield Patch(migration, {"status": final}, status=True)


def _state(vmi: LabVMI, fields: dict[str, Any]) -> Patch:
    return Patch(vmi, {"status": {"migrationState": fields}}, status=True)


def _phase(migration: LabMigration, phase: str) -> Patch:
    return Patch(migration, {"status": {"phase": phase}}, status=True)


def _fail(migration: LabMigration, why: str) -> Patch:
    state = {"failed": True, "completed": True, "failureReason": why}
    return Patch(migration, {"status": {"phase": "Failed", "migrationState": state}}, status=True)


def _stamp(world: World) -> str:
    return world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
