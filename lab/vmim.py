"""One migration through its phases, one step per look at the world. Pure.

Each phase is left when what it waits for is there: the target pod, its plumbing, the guest's move.
A hand-off replaces what an earlier migration left in the instance's `migrationState`. A migration
that is deleted is cancelled: before the hand-off by removing its target, after it by an abort as
soon as it runs. Where the guest is decides, never who told first: a guest that has moved makes the
migration succeed, whatever has become of the source pod or of a wish to cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import names
from lab import objects as kv
from lab.cancel import expired, plan_cancel
from lab.hotplug import attachment_ready
from lab.migratable import live_migratable
from lab.objects import LabMigration, LabMigrationState, LabPod, LabVMI
from lab.rendering import launcher_body, launcher_name
from lab.vmim_status import conclude, phase_patch, state_patch
from lab.world import (
    AbortMove,
    Action,
    Create,
    CutOver,
    GuestView,
    Patch,
    PrepareTarget,
    Remove,
    World,
    active_pod,
    over,
    stamp,
    without_finalizer,
)

DIRECT_PORT, BLOCK_PORT = 49152, 49153


def plan_migration(migration: LabMigration, world: World, may_start: bool) -> Iterator[Action]:
    """The next step of a migration; `may_start`: the cluster has room for it."""
    vmi = world.vmis.get((migration.metadata.namespace, migration.spec.vmi_name))
    if vmi is None or migration.final:
        yield from _plan_end(migration, vmi)
    elif vmi.final or vmi.metadata.deleting:
        yield from conclude(migration, vmi, "the VMI has stopped", world)
    elif migration.metadata.deleting and not handed_off(migration, vmi):
        yield from plan_cancel(migration, vmi, _target(migration, vmi, world), world)
    elif migration.status.phase == "":
        yield from _plan_new(migration, vmi, world)
    elif migration.status.phase == "Pending":
        yield from _plan_pending(migration, vmi, world, may_start)
    else:
        yield from _plan_phase(migration, vmi, world)


def handed_off(migration: LabMigration, vmi: LabVMI) -> bool:
    """Whether virt-handler has it: the instance's state names it."""
    return vmi.status.migration_state.migration_uid == migration.metadata.uid


def _plan_end(migration: LabMigration, vmi: LabVMI | None) -> Iterator[Action]:
    """A migration whose instance is gone is deleted; a final one gives its finalizer up."""
    if not migration.metadata.deleting:
        if vmi is None:
            yield Remove(migration)
    elif kv.MIGRATION_FINALIZER in migration.metadata.finalizers:
        yield without_finalizer(migration, kv.MIGRATION_FINALIZER)


def _plan_new(migration: LabMigration, vmi: LabVMI, world: World) -> Iterator[Action]:
    other = next(
        (
            job
            for job in world.migrations_of(vmi)
            if job.metadata.uid != migration.metadata.uid and not job.final and job.status.phase
        ),
        None,
    )
    verdict = live_migratable(vmi, world.surroundings())
    if other is not None:
        why = in_flight(other.metadata.uid, vmi.metadata.name)
        yield from conclude(migration, vmi, why, world)
    elif vmi.status.phase == "Running" and verdict.status != "True":
        why = f"Cannot migrate VMI, Reason: {verdict.reason}, Message: {verdict.message}"
        yield from conclude(migration, vmi, why, world)
    else:
        yield phase_patch(migration, "Pending", world)


def in_flight(uid: str, vmi: str) -> str:
    """KubeVirt's words for a second migration of one instance."""
    return (
        f"in-flight migration detected. Active migration job ({uid}) is currently already in"
        f" progress for VMI {vmi}."
    )


def _target(migration: LabMigration, vmi: LabVMI, world: World) -> LabPod | None:
    name = launcher_name(vmi.metadata.name, vmi.metadata.uid, migration.metadata.uid)
    return world.pods.get((vmi.metadata.namespace, name))


def _held(migration: LabMigration) -> bool:
    """Whether its annotation keeps it in this phase; a cancelled one is never kept."""
    wish = migration.metadata.annotations.get(names.ANNOTATION_HOLD, "")
    return wish == migration.status.phase and not migration.metadata.deleting


def _plan_pending(
    migration: LabMigration, vmi: LabVMI, world: World, may_start: bool
) -> Iterator[Action]:
    pod = _target(migration, vmi, world)
    if pod is None:
        if may_start and vmi.status.phase == "Running":
            yield Create(LabPod, launcher_body(vmi, migration))
    elif over(pod):
        yield from conclude(migration, vmi, f"target pod {pod.metadata.name} is gone", world)
    elif why := expired(migration, pod, world):
        yield Remove(pod)
        yield from conclude(migration, vmi, why, world)
    elif vmi.hotplugged and not attachment_ready(pod, world):
        return
    elif not _held(migration):
        yield phase_patch(migration, "Scheduling", world)


def _plan_phase(migration: LabMigration, vmi: LabVMI, world: World) -> Iterator[Action]:
    uid, phase = migration.metadata.uid, migration.status.phase
    pod, guest = _target(migration, vmi, world), world.guests.get(vmi.metadata.uid)
    if guest is not None and uid in guest.moved:
        yield from _complete(migration, vmi, pod, guest, world)
    elif guest is not None and uid in guest.failed:
        yield from conclude(migration, vmi, guest.failed[uid], world)
    elif pod is None or over(pod):
        why = f"target pod {pod.metadata.name if pod else ''} is gone".replace("  ", " ")
        if guest is not None and uid in guest.moving:
            yield AbortMove(vmi.metadata.uid, uid, why)
        else:
            yield from conclude(migration, vmi, why, world)
    elif phase == "Scheduling":
        yield from _plan_scheduling(migration, vmi, pod, world)
    elif guest is None:
        yield from conclude(migration, vmi, "the guest is gone", world)
    elif not _held(migration):
        yield from _plan_handed_off(migration, vmi, pod, guest, world)


def _plan_scheduling(
    migration: LabMigration, vmi: LabVMI, pod: LabPod, world: World
) -> Iterator[Action]:
    if pod.status.phase == "Running":
        if not _held(migration):
            yield phase_patch(migration, "Scheduled", world)
    elif why := expired(migration, pod, world):
        yield Remove(pod)
        yield from conclude(migration, vmi, why, world)


def _plan_handed_off(
    migration: LabMigration, vmi: LabVMI, pod: LabPod, guest: GuestView, world: World
) -> Iterator[Action]:
    uid, phase = migration.metadata.uid, migration.status.phase
    if phase == "Scheduled":
        yield from _hand_off(migration, vmi, pod, world)
    elif phase == "PreparingTarget" and pod.metadata.uid not in guest.targets:
        yield PrepareTarget(vmi, pod)
    elif phase == "PreparingTarget":
        node = world.nodes.get(pod.spec.node_name)
        address = node.internal_ip if node is not None else None
        yield state_patch(
            vmi,
            {
                "targetNodeAddress": str(address or ""),
                "targetDirectMigrationNodePorts": _ports(vmi),
                "targetNodeDomainDetected": True,
            },
        )
        yield phase_patch(migration, "TargetReady", world)
    elif phase == "TargetReady":
        yield state_patch(vmi, {"startTimestamp": stamp(world)})
        yield phase_patch(migration, "Running", world)
    elif migration.metadata.deleting:
        yield from _abort(migration, vmi, uid)
    else:
        yield CutOver(vmi, migration, pod)


def _ports(vmi: LabVMI) -> dict[str, int]:
    block = vmi.status.migration_method == "BlockMigration"
    return {str(port): port for port in ((DIRECT_PORT, BLOCK_PORT) if block else (DIRECT_PORT,))}


def _abort(migration: LabMigration, vmi: LabVMI, uid: str) -> Iterator[Action]:
    """A running migration was deleted: note the wish, then act on it."""
    if not vmi.status.migration_state.abort_requested:
        asked = [{"type": "migrationAbortRequested", "status": "True"}]
        yield Patch(migration, {"status": {"conditions": asked}}, status=True)
        yield state_patch(vmi, {"abortRequested": True, "abortStatus": "Aborting"})
    yield AbortMove(vmi.metadata.uid, uid, "Live migration aborted")


def _hand_off(migration: LabMigration, vmi: LabVMI, pod: LabPod, world: World) -> Iterator[Action]:
    source = active_pod(vmi, world)
    attachments = world.attachments(pod)
    state = {
        "migrationUid": migration.metadata.uid,
        "sourceNode": vmi.status.node_name,
        "sourcePod": source.metadata.name if source else "",
        "targetNode": pod.spec.node_name,
        "targetPod": pod.metadata.name,
        "mode": "PreCopy",
        "migrationNetworkType": "Pod",
    }
    if attachments:
        state["targetAttachmentPodUID"] = attachments[0].metadata.uid
    # A hand-off replaces what an earlier migration left: null removes its fields.
    fields = LabMigrationState.model_fields.values()
    blank = dict.fromkeys([str(field.alias) for field in fields])
    status = {
        "migrationState": {**blank, **state},
        "activePods": {pod.metadata.uid: pod.spec.node_name},
    }
    yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_TARGET_NODE: pod.spec.node_name}}})
    yield Patch(vmi, {"status": status}, status=True)
    yield phase_patch(migration, "PreparingTarget", world)


def _complete(
    migration: LabMigration, vmi: LabVMI, pod: LabPod | None, guest: GuestView, world: World
) -> Iterator[Action]:
    """The guest runs on the target."""
    uid, now = migration.metadata.uid, stamp(world)
    state = vmi.status.migration_state
    if pod is not None:
        ready = {"annotations": {kv.ANNOTATION_READY: str(world.now)}}
        yield Patch(pod, {"metadata": ready})
    yield state_patch(vmi, {"targetNodeDomainReadyTimestamp": now})
    labels = {kv.LABEL_NODE: state.target_node, kv.LABEL_TARGET_NODE: None}
    yield Patch(vmi, {"metadata": {"labels": labels}})
    done: dict[str, Any] = {"endTimestamp": now, "completed": True}
    if state.abort_requested:
        done["abortStatus"] = "Failed"
    status = {
        "nodeName": state.target_node,
        "evacuationNodeName": None,
        "migrationState": done,
    }
    yield Patch(vmi, {"status": status}, status=True)
    report = guest.moved[uid]
    if report is not None:
        words = {names.ANNOTATION_CUTOVER: report.to_json()}
        yield Patch(migration, {"metadata": {"annotations": words}})
    copy = {**state.body(), "targetNodeDomainReadyTimestamp": now, **done}
    yield phase_patch(migration, "Succeeded", world, migrationState=copy)
