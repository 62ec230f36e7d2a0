"""Live migrations of a VM in the lab that are cancelled, fail, meet a death, or follow each other.

Whatever happens, the VM's address stays, its owner in IPAM is the pod it runs in, and one node, its
own, has a route to it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import control, names, seed
from lab.cluster import CONTROL_PLANE, start_daemon, until
from lab.measure import await_echo, guest_ip
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from libtortie.kube.client import HttpKubeClient
from tests.fakes.lab_vms import EXT, address_of, vm_name
from tests.fakes.running_lab import (
    Lab,
    active_launcher,
    allocation,
    assert_settled,
    everywhere,
    launchers,
    metrics,
    target_of,
)

pytestmark = pytest.mark.root


def migrate_held(vm: str, phase: str, *, to: str = "node2", **more: str) -> LabMigration:
    """A migration that stays in a phase, once it is there."""
    wishes = {names.ANNOTATION_HOLD: phase, **more}
    job = control.create_migration(vm, to, wishes)
    until(lambda: phase_of(job) == phase, f"the migration does not get to {phase}")
    return job


def phase_of(job: LabMigration) -> str:
    return control.get(LabMigration, job.metadata.name).status.phase


def over(job: LabMigration) -> LabMigration:
    return control.await_migration(job.metadata.name, print)


PHASES = ("Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady")


@pytest.mark.parametrize("phase", PHASES)
def test_a_migration_cancelled_in_any_phase_leaves_no_trace(lab: Lab, vm: str, phase: str) -> None:
    address = address_of(vm)
    job = migrate_held(vm, phase)
    assert metrics("node2", address) == []
    _cancel(lab, vm, job, address)
    _migrate_all_the_same(lab, vm, address)


def test_a_migration_cancelled_while_it_copies_leaves_no_trace(lab: Lab, vm: str) -> None:
    address = address_of(vm)
    job = control.create_migration(vm, "node2", {names.ANNOTATION_COPY: "3600"})
    until(lambda: phase_of(job) == "Running", "the migration does not run")
    until(lambda: _alternate(lab, address) == "node2", "the target is no alternate owner")
    _cancel(lab, vm, job, address)
    state = control.get(LabVMI, vm).status.migration_state
    assert state.abort_requested
    assert state.abort_status == "Succeeded"
    _migrate_all_the_same(lab, vm, address)


def _alternate(lab: Lab, address: str) -> str:
    found = allocation(lab, address)
    return found.alternate.get("node", "") if found is not None else ""


def _cancel(lab: Lab, vm: str, job: LabMigration, address: str) -> None:
    before = control.get(LabVMI, vm)
    control.delete(LabMigration, job.metadata.name)
    control.await_gone(LabMigration, job.metadata.name)
    until(lambda: target_of(job) is None, "the target pod is left")
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert after.status.node_name == "node1"
    assert everywhere(address) == {"node1": [names.METRIC_NORMAL]}
    assert_settled(lab, vm, address)
    await_echo(address, EXT)


def _migrate_all_the_same(lab: Lab, vm: str, address: str) -> None:
    lab.cli("migrate", vm, "--to", "node3")
    assert_settled(lab, vm, address)


@pytest.mark.parametrize("phase", ["Scheduled", "TargetReady"])
def test_a_migration_whose_target_dies_fails_and_the_next_one_works(
    lab: Lab, vm: str, phase: str
) -> None:
    address = address_of(vm)
    job = migrate_held(vm, phase)
    target = target_of(job)
    assert target is not None
    control.delete(LabPod, target.metadata.name, force=True)
    failed = over(job)
    assert failed.status.phase == "Failed"
    assert "is gone" in failed.status.migration_state.failure_reason
    assert_settled(lab, vm, address)
    await_echo(address, EXT)
    lab.cli("migrate", vm, "--to", "node2")
    assert_settled(lab, vm, address)


def test_a_migration_that_fits_nowhere_gives_up_when_its_time_is_over(lab: Lab, vm: str) -> None:
    address = address_of(vm)
    lab.kubectl("cordon", "node2", "node3")
    try:
        wish = {"kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "2"}
        failed = over(control.create_migration(vm, "", wish))
    finally:
        lab.kubectl("uncordon", "node2", "node3")
    assert failed.status.phase == "Failed"
    assert "unschedulable for 2 s: 0/3 nodes" in failed.status.migration_state.failure_reason
    assert target_of(failed) is None
    assert_settled(lab, vm, address)


def test_a_source_that_dies_before_the_move_takes_the_guest_with_it(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    job = migrate_held(vm, "TargetReady")
    state = before.status.migration_state
    source = next(one for one in launchers(before) if one.spec.node_name == "node1")
    assert state.source_pod in ("", source.metadata.name)
    control.delete(LabPod, source.metadata.name, force=True)
    after = control.await_vm(vm, besides=before.metadata.uid)
    assert guest_ip(after) == guest_ip(before)
    until(lambda: target_of(job) is None, "the target pod is left")
    assert_settled(lab, vm, guest_ip(after))
    await_echo(guest_ip(after), EXT)


def test_a_source_that_dies_just_after_the_move_changes_nothing(lab: Lab, vm: str) -> None:
    address, before = address_of(vm), control.get(LabVMI, vm)
    source = active_launcher(vm).metadata.name
    job = control.create_migration(vm, "node2")
    until(lambda: bool(metrics("node2", address)), "no sign")
    control.delete(LabPod, source, force=True)
    assert over(job).status.phase == "Succeeded"
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert after.status.node_name == "node2"
    assert_settled(lab, vm, address)
    await_echo(address, EXT)


def _lingering(request: pytest.FixtureRequest) -> str:
    """A VM whose launchers do not end, once the guest has left, until they are let go."""
    name = vm_name(request.node.name)
    body = seed.vm_body(name, "default", "node1", {})
    body["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_LINGER] = "600"
    control.with_client(lambda api: api.create(LabVM, body))
    control.await_vm(name)
    return name


def _let_end(vm: str) -> None:
    patch = {"metadata": {"annotations": {names.ANNOTATION_LINGER: None}}}
    pods = [pod.metadata.name for pod in launchers(control.get(LabVMI, vm))]

    def work(api: HttpKubeClient) -> None:
        for pod in pods:
            api.patch(LabPod, pod, control.NAMESPACE, patch)

    control.with_client(work)


def test_migrations_in_a_row_while_the_first_source_still_ends(
    lab: Lab, request: pytest.FixtureRequest
) -> None:
    """Row 7e: from node1 to node2 and on to node3, with both old launchers alive all the time."""
    name = _lingering(request)
    try:
        address = address_of(name)
        for node in ("node2", "node3"):
            lab.cli("migrate", name, "--to", node)
        alive = [one for one in launchers(control.get(LabVMI, name)) if not one.finished]
        assert {one.spec.node_name for one in alive} == {"node1", "node2", "node3"}
        until(
            lambda: everywhere(address) == {"node3": [names.METRIC_NORMAL]},
            "not only node3 has a route",
        )
        found = allocation(lab, address)
        assert found is not None
        assert found.active["node"] == "node3"
        await_echo(address, EXT)
        _let_end(name)
        assert_settled(lab, name, address)
        await_echo(address, EXT)
    finally:
        _let_end(name)
        lab.cli("vm", "delete", name)
    until(lambda: allocation(lab, address) is None, f"{address} is not free")


@contextmanager
def without_control_plane(lab: Lab) -> Iterator[None]:
    """It is killed, and started again afterwards."""
    daemon = next(one for one in lab.state.ledger.alive() if one.name == CONTROL_PLANE)
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: daemon not in lab.state.ledger.alive(), "it does not die")
    try:
        yield
    finally:
        start_daemon(lab.state, 3)


def test_a_control_plane_that_is_killed_finds_its_guests_again(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    with without_control_plane(lab):
        pass
    lab.cli("migrate", vm, "--to", "node2")
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert_settled(lab, vm, guest_ip(before))
    await_echo(guest_ip(before), EXT)


def _copies(lab: Lab, _: str) -> bool:
    return any(one.name.startswith("cut-over") for one in lab.state.ledger.alive())


def _has_left(_: Lab, address: str) -> bool:
    return bool(metrics("node2", address))


MOMENTS = {"before the move": ("3600", _copies), "in the move": ("0", _has_left)}
"""How long the memory takes to copy, in seconds, and what is awaited."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_migration_outlives_its_control_plane(lab: Lab, vm: str, moment: str) -> None:
    copy_s, has_come = MOMENTS[moment]
    before = control.get(LabVMI, vm)
    job = control.create_migration(vm, "node2", {names.ANNOTATION_COPY: copy_s})
    until(lambda: has_come(lab, guest_ip(before)), "the moment never came")
    with without_control_plane(lab):
        annotate(job, names.ANNOTATION_COPY, "0")
    assert over(job).status.phase == "Succeeded"
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert after.status.node_name == "node2"
    assert_settled(lab, vm, guest_ip(before))
    await_echo(guest_ip(before), EXT)


def annotate(job: LabMigration, key: str, value: str) -> None:
    """Change a migration's annotation."""
    patch = {"metadata": {"annotations": {key: value}}}
    control.with_client(
        lambda api: api.patch(LabMigration, job.metadata.name, control.NAMESPACE, patch)
    )
