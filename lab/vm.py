"""virt-controller's part for VirtualMachines: which should have an instance, and their status.

Pure. A run strategy says what becomes of an instance that is missing or has ended; requests left
by `virtctl` (start, stop, restart) are done once and taken off the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import objects as kv
from lab.objects import LabVM, LabVMI
from lab.rendering import vmi_body
from lab.world import Action, Create, Patch, Remove, World, without_finalizer

RUNS_AFTER = {
    "Always": ("Succeeded", "Failed"),
    "RerunOnFailure": ("Failed",),
    "Once": (),
    "Manual": (),
}
"""Run strategies under which an instance may be, and the ends after which it is made anew."""


def plan_vm(vm: LabVM, world: World) -> Iterator[Action]:
    """The next steps for one VM."""
    meta = vm.metadata
    vmi = world.vmis.get((meta.namespace, meta.name))
    vmi = vmi if vmi is not None and controls(vm, vmi) else None
    if meta.deleting:
        yield from _plan_deletion(vm, vmi)
    elif kv.VM_FINALIZER not in meta.finalizers:
        yield _with_finalizer(vm)
    else:
        yield from _plan_instance(vm, vmi, world)
    yield from _plan_status(vm, vmi, world)


def controls(vm: LabVM, vmi: LabVMI) -> bool:
    """Whether an instance is this VM's own."""
    owner = vmi.metadata.controller()
    return owner is not None and owner.uid == vm.metadata.uid


def _plan_deletion(vm: LabVM, vmi: LabVMI | None) -> Iterator[Action]:
    """The instance first; a VM deleted with `--cascade=orphan` leaves it alone."""
    orphaning = kv.ORPHAN in vm.metadata.finalizers
    if vmi is not None and not orphaning:
        if not vmi.metadata.deleting:
            yield Remove(vmi)
    elif kv.VM_FINALIZER in vm.metadata.finalizers:
        yield without_finalizer(vm, kv.VM_FINALIZER)


def _with_finalizer(vm: LabVM) -> Patch:
    meta = vm.metadata
    fence = {"resourceVersion": meta.resource_version} if meta.resource_version else {}
    return Patch(vm, {"metadata": {"finalizers": [*meta.finalizers, kv.VM_FINALIZER], **fence}})


def _plan_instance(vm: LabVM, vmi: LabVMI | None, world: World) -> Iterator[Action]:
    strategy, asked = vm.spec.strategy, vm.status.state_change_requests
    first = asked[0] if asked else None
    if vmi is None:
        started = first is not None and first.action == "Start"
        taken = (vm.metadata.namespace, vm.metadata.name) in world.vmis
        wanted = started if strategy == "Manual" else strategy in RUNS_AFTER
        if wanted and not taken:
            yield Create(LabVMI, vmi_body(vm))
        if first is not None:
            yield _answered(vm)
        return
    if first is not None and (first.action != "Stop" or first.uid != vmi.metadata.uid):
        yield _answered(vm)
        return
    ended = vmi.status.phase in RUNS_AFTER.get(strategy, ())
    unwanted = strategy not in RUNS_AFTER or first is not None
    if (ended or unwanted) and not vmi.metadata.deleting:
        yield Remove(vmi)


def _answered(vm: LabVM) -> Patch:
    """The first request has been done, or makes no sense any more."""
    rest = [
        {"action": one.action, **({"uid": one.uid} if one.uid else {})}
        for one in vm.status.state_change_requests[1:]
    ]
    return Patch(vm, {"status": {"stateChangeRequests": rest or None}}, status=True)


def _plan_status(vm: LabVM, vmi: LabVMI | None, world: World) -> Iterator[Action]:
    ready = vmi is not None and vmi.status.phase == "Running" and not vmi.metadata.deleting
    printable = _printable(vm, vmi, world)
    before = vm.status
    if (before.created, before.ready, before.printable_status) != (
        vmi is not None,
        ready,
        printable,
    ):
        status: dict[str, Any] = {
            "created": vmi is not None,
            "ready": ready,
            "printableStatus": printable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        yield Patch(vm, {"status": status}, status=True)


def _printable(vm: LabVM, vmi: LabVMI | None, world: World) -> str:
    if vm.metadata.deleting:
        return "Terminating"
    if vmi is None:
        return "Starting" if vm.spec.strategy in ("Always", "RerunOnFailure") else "Stopped"
    if vmi.metadata.deleting:
        return "Stopping"
    if vmi.final:
        return "Stopped"
    if vmi.status.phase != "Running":
        stuck = any(pod.unschedulable for pod in world.launchers(vmi))
        return "ErrorUnschedulable" if stuck else "Starting"
    moving = any(
        not job.final and job.status.phase not in ("", "Pending")
        for job in world.migrations_of(vmi)
    )
    return "Migrating" if moving else "Running"
