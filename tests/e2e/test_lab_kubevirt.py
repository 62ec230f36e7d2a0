"""A VM's life in the lab: reboots, evictions, cancelled and failed migrations, hotplug, the end.

Whatever happens, its address stays, its owner in IPAM is the pod it runs in, and one node, its own,
has a route to it; and when it is deleted, the address is free.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import control, names, seed
from lab.cluster import CONTROL_PLANE, start_daemon, until
from lab.measure import await_echo, guest_ip
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from libtortie.errors import TortieError
from tests.fakes.running_lab import (
    Lab,
    active_launcher,
    allocation,
    assert_settled,
    everywhere,
    lab_up,
    launchers,
    metrics,
    target_of,
    traces,
)

pytestmark = pytest.mark.root

EXT = names.netns(names.EXT)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_up(tmp_path_factory.mktemp("lab") / "state", 1.0) as found:
        yield found


def vm_name(request: pytest.FixtureRequest) -> str:
    return f"vm-{abs(hash(request.node.name)) % 100000}"


@pytest.fixture
def vm(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """A running VM on node1, named after its test; afterwards nothing of it is left."""
    name = vm_name(request)
    lab.cli("vm", "create", name, "--node", "node1")
    address = guest_ip(control.get(LabVMI, name))
    yield name
    lab.cli("vm", "delete", name)
    until(lambda: not traces(lab, name), f"something of {name} is left", 20)
    until(lambda: allocation(lab, address) is None, f"{address} is not free", 10)
    until(lambda: not everywhere(address), f"routes to {address} are left", 10)


def address_of(vm: str) -> str:
    return guest_ip(control.get(LabVMI, vm))


def migrate_held(vm: str, phase: str, *, to: str = "node2", **more: str) -> LabMigration:
    """A migration that stays in a phase, once it is there."""
    wishes = {names.ANNOTATION_HOLD: phase, **more}
    job = control.create_migration(vm, to, wishes)
    until(lambda: phase_of(job) == phase, f"the migration does not get to {phase}", 20)
    return job


def phase_of(job: LabMigration) -> str:
    return control.get(LabMigration, job.metadata.name).status.phase


def let_go(job: LabMigration) -> None:
    patch = {"metadata": {"annotations": {names.ANNOTATION_HOLD: None}}}
    name = job.metadata.name
    control.with_client(lambda api: api.patch(LabMigration, name, control.NAMESPACE, patch))


def over(job: LabMigration) -> LabMigration:
    return control.await_migration(job.metadata.name, print)


def test_a_reboot_makes_a_new_instance_with_the_same_address(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    lab.cli("vm", "restart", vm)
    after = control.get(LabVMI, vm)
    assert after.metadata.uid != before.metadata.uid
    assert guest_ip(after) == guest_ip(before)
    assert after.status.interfaces[0].mac == before.status.interfaces[0].mac
    assert_settled(lab, vm, guest_ip(after))
    await_echo(guest_ip(after), EXT)


def test_a_stopped_vm_keeps_its_address_and_gets_it_back(lab: Lab, vm: str) -> None:
    address = address_of(vm)
    lab.cli("vm", "stop", vm)
    until(lambda: not everywhere(address), "a stopped VM has a route", 10)
    held = allocation(lab, address)
    assert held is not None
    assert held.handle_id == f"k8s-pod-network.vmi.default.{vm}"
    assert "pod" not in held.active
    assert vm in lab.cli("status")
    lab.cli("vm", "start", vm)
    assert address_of(vm) == address
    assert_settled(lab, vm, address)
    await_echo(address, EXT)


def test_a_force_deleted_launcher_is_followed_by_another_with_the_address(
    lab: Lab, vm: str
) -> None:
    before = control.get(LabVMI, vm)
    lab.cli("pod", "delete", active_launcher(vm).metadata.name, "--force")
    after = control.await_vm(vm, besides=before.metadata.uid)
    assert guest_ip(after) == guest_ip(before)
    assert after.status.interfaces[0].mac == before.status.interfaces[0].mac
    assert_settled(lab, vm, guest_ip(after))
    await_echo(guest_ip(after), EXT)


def test_a_launcher_whose_sandbox_dies_is_followed_by_another(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    lab.cli("pod", "kill-sandbox", active_launcher(vm).metadata.name)
    after = control.await_vm(vm, besides=before.metadata.uid)
    assert guest_ip(after) == guest_ip(before)
    assert_settled(lab, vm, guest_ip(after))
    await_echo(guest_ip(after), EXT)


def test_a_drain_moves_the_vm_by_an_evacuation(lab: Lab, vm: str) -> None:
    address = address_of(vm)
    source = active_launcher(vm).metadata.name
    try:
        words = lab.kubectl("drain", "node1", "--force", "--timeout=90s")
    finally:
        lab.kubectl("uncordon", "node1")
    assert f'Eviction triggered evacuation of VMI "default/{vm}"' in words
    assert "node/node1 drained" in words
    vmi = control.get(LabVMI, vm)
    assert vmi.status.node_name in ("node2", "node3")
    assert vmi.status.evacuation_node_name == ""
    (job,) = [one for one in control.listing(LabMigration) if one.spec.vmi_name == vm]
    assert job.metadata.name.startswith("kubevirt-evacuation-")
    assert job.metadata.annotations["kubevirt.io/evacuationMigration"] == "node1"
    assert job.spec.priority == "system-critical"
    assert control.find(LabPod, source) is None
    assert guest_ip(vmi) == address
    assert_settled(lab, vm, address)
    await_echo(address, EXT)


def test_a_vm_without_an_eviction_strategy_is_restarted_elsewhere(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    patch = {"spec": {"evictionStrategy": None}}
    control.with_client(lambda api: api.patch(LabVMI, vm, control.NAMESPACE, patch))
    try:
        lab.kubectl("drain", "node1", "--force", "--timeout=90s")
        after = control.await_vm(vm, besides=before.metadata.uid)
    finally:
        lab.kubectl("uncordon", "node1")
    assert after.status.node_name != "node1"
    assert guest_ip(after) == guest_ip(before)
    assert_settled(lab, vm, guest_ip(after))


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
    job = control.create_migration(vm, "node2", {names.ANNOTATION_COPY: "60"})
    until(lambda: phase_of(job) == "Running", "the migration does not run", 20)
    until(lambda: _alternate(lab, address) == "node2", "the target is no alternate owner", 10)
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
    until(lambda: target_of(job) is None, "the target pod is left", 20)
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
    until(lambda: target_of(job) is None, "the target pod is left", 20)
    assert_settled(lab, vm, guest_ip(after))
    await_echo(guest_ip(after), EXT)


def test_a_source_that_dies_just_after_the_move_changes_nothing(lab: Lab, vm: str) -> None:
    address, before = address_of(vm), control.get(LabVMI, vm)
    source = active_launcher(vm).metadata.name
    job = control.create_migration(vm, "node2")
    until(lambda: metrics("node2", address) == [names.METRIC_ELEVATED], "no sign", 20)
    control.delete(LabPod, source, force=True)
    assert over(job).status.phase == "Succeeded"
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert after.status.node_name == "node2"
    assert_settled(lab, vm, address)
    await_echo(address, EXT)


def _lingering(request: pytest.FixtureRequest, seconds: int) -> str:
    """A VM whose launchers take their time to end."""
    name = vm_name(request)
    body = seed.vm_body(name, "default", "node1", {})
    body["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_LINGER] = str(seconds)
    control.with_client(lambda api: api.create(LabVM, body))
    control.await_vm(name)
    return name


def test_migrations_in_a_row_while_the_first_source_still_ends(
    lab: Lab, request: pytest.FixtureRequest
) -> None:
    """From node1 to node2 and on to node3, with both old launchers alive all the time."""
    name = _lingering(request, 12)
    try:
        address = address_of(name)
        for node in ("node2", "node3"):
            lab.cli("migrate", name, "--to", node)
        alive = [one for one in launchers(control.get(LabVMI, name)) if not one.finished]
        assert {one.spec.node_name for one in alive} == {"node1", "node2", "node3"}
        until(
            lambda: everywhere(address) == {"node3": [names.METRIC_NORMAL]},
            "not only node3 has a route",
            20,
        )
        found = allocation(lab, address)
        assert found is not None
        assert found.active["node"] == "node3"
        await_echo(address, EXT)
        assert_settled(lab, name, address)
        await_echo(address, EXT)
    finally:
        lab.cli("vm", "delete", name)
    until(lambda: allocation(lab, address) is None, f"{address} is not free", 30)


def test_an_instance_without_a_vm_lives_and_its_end_frees_the_address(lab: Lab) -> None:
    lab.cli("vmi", "create", "alone", "--node", "node1")
    address = address_of("alone")
    assert_settled(lab, "alone", address)
    lab.cli("migrate", "alone", "--to", "node2")
    assert_settled(lab, "alone", address)
    assert "alone" in lab.cli("status")
    lab.cli("vmi", "delete", "alone")
    until(lambda: allocation(lab, address) is None, f"{address} is not free", 15)
    until(lambda: not traces(lab, "alone"), "something of the instance is left", 15)


def test_an_instance_without_a_vm_that_dies_keeps_its_address(lab: Lab) -> None:
    lab.cli("vmi", "create", "mortal", "--node", "node1")
    address = address_of("mortal")
    control.delete(LabPod, active_launcher("mortal").metadata.name, force=True)
    until(lambda: control.get(LabVMI, "mortal").status.phase == "Failed", "it lives", 15)
    until(lambda: not everywhere(address), "it has a route", 15)
    assert allocation(lab, address) is not None
    lab.cli("vmi", "delete", "mortal")
    lab.cli("vmi", "create", "mortal", "--node", "node1")
    address = address_of("mortal")
    assert_settled(lab, "mortal", address)
    lab.cli("vmi", "delete", "mortal")
    until(lambda: not traces(lab, "mortal"), "something of the instance is left", 15)


def test_attachment_pods_are_ordinary_pods(lab: Lab, request: pytest.FixtureRequest) -> None:
    name = vm_name(request)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "hot", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    control.with_client(lambda api: api.raw("POST", path, claim))
    body = seed.vm_body(name, "default", "node1", {})
    volume = {"name": "hot", "persistentVolumeClaim": {"claimName": "hot", "hotpluggable": True}}
    body["spec"]["template"]["spec"]["volumes"] = [volume]
    control.with_client(lambda api: api.create(LabVM, body))
    try:
        address = guest_ip(control.await_vm(name))
        until(lambda: bool(_attachment_ips()), "no attachment pod runs", 20)
        ((attachment, own),) = _attachment_ips().items()
        assert own != address
        held = allocation(lab, own)
        assert held is not None
        assert ".vmi." not in str(held.handle_id)
        words = _evict(lab, attachment)
        assert (
            f"cannot evict hotplug pod: {attachment} associated with running vmi: {name}" in words
        )
        lab.cli("migrate", name, "--to", "node2")
        assert_settled(lab, name, address)
        until(lambda: set(_attachment_ips()) - {attachment} != set(), "no second one", 20)
        until(lambda: len(_attachment_ips()) == 1, "the first attachment pod is left", 20)
        until(lambda: allocation(lab, own) is None, f"{own} is not free", 15)
    finally:
        lab.cli("vm", "delete", name)
        control.with_client(lambda api: api.raw("DELETE", f"{path}/hot"))
    until(lambda: allocation(lab, address) is None, f"{address} is not free", 15)
    until(lambda: not _attachment_ips(), "an attachment pod is left", 15)


def _attachment_ips() -> dict[str, str]:
    """Attachment pods that run, with their addresses."""
    return {
        pod.metadata.name: pod.status.pod_ip
        for pod in control.listing(LabPod)
        if pod.metadata.labels.get("kubevirt.io") == "hotplug-disk" and pod.status.pod_ip
    }


def _evict(lab: Lab, pod: str) -> str:
    """The refusal of a pod's eviction."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "default"},
    }
    path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
    try:
        control.with_client(lambda api: api.raw("POST", path, body))
    except TortieError as error:
        return str(error)
    return ""


def test_a_pod_gets_another_sandbox_and_the_late_del_of_the_dead_one_hurts_nobody(
    lab: Lab,
) -> None:
    lab.cli("pod", "create", "plain", "--node", "node2")
    try:
        before = control.get(LabPod, "plain")
        lab.cli("pod", "kill-sandbox", "plain")
        buried = "pod default/plain: dead sandbox removed"
        log = lab.state.logs / "daemon.log"
        until(lambda: buried in log.read_text(), "the dead sandbox is left", 30)
        after = control.get(LabPod, "plain")
        assert after.metadata.uid == before.metadata.uid
        assert allocation(lab, after.status.pod_ip) is not None
        await_echo(after.status.pod_ip, EXT)
        if after.status.pod_ip != before.status.pod_ip:
            assert allocation(lab, before.status.pod_ip) is None
    finally:
        lab.cli("pod", "delete", "plain")
    until(lambda: not traces(lab, "plain"), "something of the pod is left", 15)


def _restart_control_plane(lab: Lab) -> None:
    daemon = next(one for one in lab.state.ledger.alive() if one.name == CONTROL_PLANE)
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: daemon not in lab.state.ledger.alive(), "it does not die", 5)
    start_daemon(lab.state, 3)


def test_a_control_plane_that_is_killed_finds_its_guests_again(lab: Lab, vm: str) -> None:
    before = control.get(LabVMI, vm)
    _restart_control_plane(lab)
    lab.cli("migrate", vm, "--to", "node2")
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert_settled(lab, vm, guest_ip(before))
    await_echo(guest_ip(before), EXT)


MOMENTS: dict[str, Callable[[LabMigration, str], bool]] = {
    "before the move": lambda job, _: phase_of(job) == "Running",
    "in the move": lambda _, address: everywhere(address).get("node2") == [512],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_migration_outlives_its_control_plane(lab: Lab, vm: str, moment: str) -> None:
    before = control.get(LabVMI, vm)
    job = control.create_migration(vm, "node2", {names.ANNOTATION_COPY: "2"})
    until(lambda: MOMENTS[moment](job, guest_ip(before)), "the moment never came", 20)
    _restart_control_plane(lab)
    assert over(job).status.phase == "Succeeded"
    after = control.get(LabVMI, vm)
    assert after.metadata.uid == before.metadata.uid
    assert after.status.node_name == "node2"
    assert_settled(lab, vm, guest_ip(before))
    await_echo(guest_ip(before), EXT)


DOCS_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: testvm
spec:
  runStrategy: Halted
  template:
    metadata:
      labels:
        kubevirt.io/size: small
        kubevirt.io/domain: testvm
    spec:
      domain:
        devices:
          disks:
            - name: containerdisk
              disk:
                bus: virtio
            - name: cloudinitdisk
              disk:
                bus: virtio
          interfaces:
          - name: default
            BINDING: {}
        resources:
          requests:
            memory: 64M
      networks:
      - name: default
        pod: {}
      volumes:
        - name: containerdisk
          containerDisk:
            image: quay.io/kubevirt/cirros-container-disk-demo
        - name: cloudinitdisk
          cloudInitNoCloud:
            userDataBase64: SGkuXG4=
"""


def _apply(lab: Lab, tmp_path: Path, binding: str) -> None:
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(DOCS_VM.replace("BINDING", binding))
    assert "virtualmachine.kubevirt.io/testvm created" in lab.kubectl("apply", "-f", str(manifest))


def test_a_vm_of_the_docs_loads_and_runs_on_a_bridge(lab: Lab, tmp_path: Path) -> None:
    _apply(lab, tmp_path, "bridge")
    try:
        assert control.find(LabVMI, "testvm") is None
        lab.cli("vm", "start", "testvm")
        address = address_of("testvm")
        assert_settled(lab, "testvm", address)
        await_echo(address, EXT)
        vmi = control.get(LabVMI, "testvm")
        assert vmi.status.migration_method == "BlockMigration"
        words = lab.cli("migrate", "testvm", ok=False)
        assert "Cannot migrate VMI, Reason: InterfaceNotLiveMigratable, Message: " in words
        assert "Running" in lab.kubectl("get", "vm", "testvm")
    finally:
        lab.kubectl("delete", "vm", "testvm", "--timeout=60s")
    until(lambda: allocation(lab, address) is None, f"{address} is not free", 15)


def test_a_vm_of_the_docs_with_masquerade_loads_and_says_why_it_does_not_run(
    lab: Lab, tmp_path: Path
) -> None:
    _apply(lab, tmp_path, "masquerade")
    try:
        control.start_vm("testvm")
        until(lambda: "bridge binding" in _conditions("testvm"), "it is not told", 20)
        assert control.get(LabVMI, "testvm").status.phase == "Scheduled"
    finally:
        lab.kubectl("delete", "vm", "testvm", "--timeout=60s")
    until(lambda: not traces(lab, "testvm"), "something of the VM is left", 15)


def _conditions(vm: str) -> str:
    vmi: Any = control.find(LabVMI, vm)
    return "" if vmi is None else str(vmi.status.conditions)


def test_kubectl_waits_for_a_vm_and_describes_it(lab: Lab, vm: str) -> None:
    lab.kubectl("wait", "--for=condition=Ready", f"vm/{vm}", "--timeout=30s")
    lab.kubectl("wait", "--for=condition=LiveMigratable", f"vmi/{vm}", "--timeout=30s")
    pod = active_launcher(vm).metadata.name
    lab.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=30s")
    assert "1/1" in lab.kubectl("get", "pod", pod)
