"""KubeVirt's controllers and a scheduler, level-triggered: from what is to what is next.

Pure: `plan(world)` looks at everything and names the next steps; repeating a step that has already
happened is harmless (names are deterministic, patches idempotent), so a stale view costs a round
and never a second pod. Objects, labels and phases are those of the published KubeVirt API.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab import objects as kv
from lab.objects import LabVM, LabVMI
from lab.rendering import (
    VM_FINALIZER,
    VMI_FINALIZER,
    launcher_body,
    launcher_name,
    migratable,
    vmi_body,
)
from lab.vmim import plan_migration
from lab.world import (
    Action,
    CreatePod,
    CreateVMI,
    Patch,
    Remove,
    StartGuest,
    StopGuest,
    World,
    active_pod,
    pick_node,
)


def plan(world: World) -> list[Action]:
    """The next steps for every VM, VMI and migration."""
    actions: list[Action] = []
    for vm in world.vms.values():
        actions += _plan_vm(vm, world)
    for vmi in world.vmis.values():
        actions += _plan_vmi(vmi, world)
    for migration in world.migrations.values():
        actions += plan_migration(migration, world)
    actions += _plan_scheduling(world)
    return actions


def _plan_scheduling(world: World) -> Iterator[Action]:
    """A node for each pod that names none: the one with the fewest pods."""
    load = dict.fromkeys(world.nodes, 0)
    for pod in world.pods.values():
        if pod.spec.node_name in load and not pod.finished:
            load[pod.spec.node_name] += 1
    for pod in world.pods.values():
        if not pod.spec.node_name and not pod.metadata.deleting and not pod.finished:
            node = min(load, key=lambda name: load[name])
            load[node] += 1
            yield Patch(pod, {"spec": {"nodeName": node}})


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
        node = pick_node(nodes, vmi.spec.node_selector, exclude="")
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
        "conditions": [{"type": "Ready", "status": "True"}, migratable(vmi)],
    }
    yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_NODE: pod.spec.node_name}}})
    yield Patch(vmi, {"status": status}, status=True)


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
