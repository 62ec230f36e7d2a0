"""One migration through its phases, one step per look at the world. Pure.

Each phase is left when what it waits for is there: the target pod, its plumbing, the guest's move.
A hand-off replaces what an earlier migration left in the instance's `migrationState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import names
from lab import objects as kv
from lab.cutover import Report
from lab.objects import LabMigration, LabPod, LabVMI
from lab.rendering import launcher_body, launcher_name, migratable
from lab.world import (
    Action,
    CreatePod,
    CutOver,
    Patch,
    PrepareTarget,
    World,
    active_pod,
    pick_node,
)

DIRECT_PORT = 49152


def plan_migration(migration: LabMigration, world: World) -> Iterator[Action]:
    """The next step of a migration."""
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
        elif migratable(vmi)["status"] != "True":
            refusal = migratable(vmi)
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
        node = pick_node(world.nodes, selector, exclude=vmi.status.node_name)
        if node:
            yield CreatePod(launcher_body(vmi, name, node, migration))
        else:
            yield _fail(migration, f"no node but {vmi.status.node_name} fits {selector or 'it'}")
        return
    if pod is None or pod.finished or pod.metadata.deleting:
        if vmi.status.migration_state.migration_uid == uid:
            yield _state(vmi, _failed(world))
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
        yield _state(vmi, _failed(world))
        yield _fail(migration, guest.failed[uid])
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


def _failed(world: World) -> dict[str, Any]:
    return {"failed": True, "completed": True, "endTimestamp": _stamp(world)}


def _phase(migration: LabMigration, phase: str) -> Patch:
    return Patch(migration, {"status": {"phase": phase}}, status=True)


def _fail(migration: LabMigration, why: str) -> Patch:
    state = {"failed": True, "completed": True, "failureReason": why}
    return Patch(migration, {"status": {"phase": "Failed", "migrationState": state}}, status=True)


def _stamp(world: World) -> str:
    return world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
