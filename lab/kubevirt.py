"""KubeVirt's controllers and a scheduler, level-triggered: from what is to what is next.

Pure: `plan(world)` looks at everything and names the next steps; repeating a step that has already
happened is harmless (names are deterministic, patches idempotent), so a stale view costs a round
and never a second pod. Objects, labels and phases are those of the published KubeVirt API.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import names
from lab import objects as kv
from lab.evacuation import may_start, plan_evacuation, plan_leftovers
from lab.hotplug import plan_attachments
from lab.migratable import live_migratable, migration_method, storage_live_migratable
from lab.objects import Condition, LabPod, LabVMI, condition
from lab.rendering import launcher_body, launcher_name
from lab.scheduler import plan_scheduling
from lab.vm import plan_vm
from lab.vmim import plan_migration
from lab.world import (
    Action,
    Create,
    GuestView,
    Patch,
    Remove,
    StartGuest,
    StopGuest,
    World,
    active_pod,
    over,
    since,
    stamp,
    without_finalizer,
)

NOT_BRIDGE = "the lab runs guests that are on the pod network by bridge binding, and no others"


def plan(world: World) -> list[tuple[Action, ...]]:
    """The next steps for every VM, VMI, migration and pod.

    Those of one of them stand together and in order: each may rely on the ones before it. A
    migration is final only when its instance says where the guest is.
    """
    allowed = may_start(world)
    living = {vmi.metadata.uid for vmi in world.vmis.values()}
    found = [
        *(plan_vm(vm, world) for vm in world.vms.values()),
        *(plan_vmi(vmi, world) for vmi in world.vmis.values()),
        *(
            plan_migration(migration, world, migration.metadata.uid in allowed)
            for migration in world.migrations.values()
        ),
        *((patch,) for patch in plan_scheduling(world)),
        *((StopGuest(uid),) for uid in world.guests if uid not in living),
    ]
    return [tuple(steps) for steps in found]


def plan_vmi(vmi: LabVMI, world: World) -> Iterator[Action]:
    """The next steps for one instance."""
    if vmi.metadata.deleting:
        yield from _plan_stop(vmi, world)
    elif vmi.status.phase in ("", "Pending", "Scheduling", "Scheduled"):
        yield from _plan_boot(vmi, world)
    elif vmi.status.phase == "Running":
        yield from _plan_running(vmi, world)
    elif vmi.metadata.uid in world.guests:
        yield StopGuest(vmi.metadata.uid)
    yield from plan_attachments(vmi, world)
    yield from plan_leftovers(vmi, world)


def phase_patch(vmi: LabVMI, phase: str, world: World, **status: Any) -> Patch:
    """A new phase with its time."""
    times = [
        one.model_dump(by_alias=True)
        for one in vmi.status.phase_transition_timestamps
        if one.phase != phase
    ]
    times.append({"phase": phase, "phaseTransitionTimestamp": stamp(world)})
    body = {"phase": phase, "phaseTransitionTimestamps": times, **status}
    return Patch(vmi, {"status": body}, status=True)


def _plan_stop(vmi: LabVMI, world: World) -> Iterator[Action]:
    if vmi.metadata.uid in world.guests:
        yield StopGuest(vmi.metadata.uid)
    pods = world.launchers(vmi)
    yield from (Remove(pod) for pod in pods if not pod.metadata.deleting)
    if not pods and kv.VMI_FINALIZER in vmi.metadata.finalizers:
        yield without_finalizer(vmi, kv.VMI_FINALIZER)


def _plan_boot(vmi: LabVMI, world: World) -> Iterator[Action]:
    name = launcher_name(vmi.metadata.name, vmi.metadata.uid)
    pod = world.pods.get((vmi.metadata.namespace, name))
    if pod is None:
        yield Create(LabPod, launcher_body(vmi, None))
        if vmi.status.phase == "":
            yield phase_patch(vmi, "Pending", world)
    elif over(pod):
        yield phase_patch(vmi, "Failed", world)
    elif vmi.status.phase in ("", "Pending"):
        yield phase_patch(vmi, "Scheduling", world)
    elif pod.status.phase == "Running":
        yield from _plan_guest(vmi, pod, world)


def _plan_guest(vmi: LabVMI, pod: LabPod, world: World) -> Iterator[Action]:
    """The launcher is ready: virt-handler's turn."""
    node, guest = pod.spec.node_name, world.guests.get(vmi.metadata.uid)
    if vmi.status.phase != "Scheduled":
        yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_NODE: node}}})
        active = {pod.metadata.uid: node}
        yield phase_patch(vmi, "Scheduled", world, nodeName=node, activePods=active)
        return
    interface = vmi.spec.pod_interface
    if interface is None or interface.bridge is None:
        refused = Condition(
            type="Synchronized",
            status="False",
            reason="Synchronizing with the Domain failed.",
            message=NOT_BRIDGE,
        )
        yield from _plan_conditions(vmi, world, refused)
    elif guest is None:
        yield StartGuest(vmi, pod)
    else:
        yield _running(vmi, interface.name, guest, world)


def _running(vmi: LabVMI, interface: str, guest: GuestView, world: World) -> Patch:
    address = {
        "name": interface,
        "mac": guest.mac,
        "ipAddress": guest.addresses[0],
        "ipAddresses": list(guest.addresses),
        "infoSource": "domain",
    }
    conditions = (Condition(type="Ready", status="True"), *_verdicts(vmi, world))
    return phase_patch(
        vmi,
        "Running",
        world,
        interfaces=[address],
        migrationMethod=migration_method(vmi),
        migrationTransport="Unix",
        conditions=[one.body() for one in conditions],
    )


def _verdicts(vmi: LabVMI, world: World) -> tuple[Condition, Condition]:
    around = world.surroundings()
    return live_migratable(vmi, around), storage_live_migratable(vmi, around)


def _plan_conditions(vmi: LabVMI, world: World, *more: Condition) -> Iterator[Patch]:
    """Keep the conditions what they should be; others' are left alone."""
    wanted = (*more, *_verdicts(vmi, world))
    if any(condition(vmi.status.conditions, one.type) != one for one in wanted):
        kinds = {one.type for one in wanted}
        kept = [one for one in vmi.status.conditions if one.type not in kinds]
        body = [one.body() for one in (*kept, *wanted)]
        yield Patch(vmi, {"status": {"conditions": body}}, status=True)


def _plan_running(vmi: LabVMI, world: World) -> Iterator[Action]:
    active, guest = active_pod(vmi, world), world.guests.get(vmi.metadata.uid)
    if guest is None or (over(active) and not _has_left(vmi, guest, world)):
        yield phase_patch(vmi, "Failed", world)
        return
    yield from _plan_conditions(vmi, world)
    yield from plan_evacuation(vmi, world)
    if active is None:
        return
    inhabited = (active.metadata.uid, guest.pod_uid)  # a status that lags still names the source
    for pod in world.launchers(vmi):
        if pod.metadata.uid not in inhabited and not pod.metadata.deleting:
            yield from _plan_other(vmi, pod, world)


def _has_left(vmi: LabVMI, guest: GuestView, world: World) -> bool:
    """Whether the guest runs in another launcher already: the end of its old one is no loss."""
    return any(pod.metadata.uid == guest.pod_uid and not over(pod) for pod in world.launchers(vmi))


def _plan_other(vmi: LabVMI, pod: LabPod, world: World) -> Iterator[Action]:
    """A launcher the guest is not in: it was once a source, or is a target, live or dead."""
    uid, job = pod.metadata.uid, pod.metadata.labels.get(kv.LABEL_JOB)
    left = _left_at(vmi, pod, world)
    if left is None:
        live = any(one.metadata.uid == job and not one.final for one in world.migrations.values())
        if job and not live and not pod.finished:
            yield Remove(pod)
    elif not pod.finished:
        if since(left, world) >= names.linger_s(pod.metadata.annotations):
            yield Patch(pod, {"status": {"phase": "Succeeded"}}, status=True)
    elif uid in vmi.status.active_pods:
        yield Patch(vmi, {"status": {"activePods": {uid: None}}}, status=True)


def _left_at(vmi: LabVMI, pod: LabPod, world: World) -> str | None:
    """When the guest left a pod, by the records of its migrations; None when none names it."""
    records = [one.status.migration_state for one in world.migrations_of(vmi)]
    for state in (vmi.status.migration_state, *reversed(records)):
        if state.completed and not state.failed and state.source_pod == pod.metadata.name:
            return state.end_timestamp or None
    return None
