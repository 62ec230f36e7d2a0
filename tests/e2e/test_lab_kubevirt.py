"""A VM's life in the lab: reboots, evictions, sandboxes that die, hotplug, manifests, the end.

Whatever happens, its address stays, its owner in IPAM is the pod it runs in, and one node, its own,
has a route to it; and when it is deleted, the address is free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import control, seed
from lab.cluster import until
from lab.measure import await_echo, guest_ip
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from libtortie.errors import TortieError
from tests.fakes.lab_vms import EXT, address_of, vm_name
from tests.fakes.running_lab import (
    Lab,
    active_launcher,
    allocation,
    assert_settled,
    everywhere,
    traces,
)

pytestmark = pytest.mark.root


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
    """Row 7c: stop and start."""
    address = address_of(vm)
    lab.cli("vm", "stop", vm)
    until(lambda: not everywhere(address), "a stopped VM has a route")
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
    """Row 7b: the launcher is force-deleted."""
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
        words = lab.kubectl("drain", "node1", "--force", "--timeout=150s")
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
        lab.kubectl("drain", "node1", "--force", "--timeout=150s")
        after = control.await_vm(vm, besides=before.metadata.uid)
    finally:
        lab.kubectl("uncordon", "node1")
    assert after.status.node_name != "node1"
    assert guest_ip(after) == guest_ip(before)
    assert_settled(lab, vm, guest_ip(after))


def test_an_instance_without_a_vm_lives_and_its_end_frees_the_address(lab: Lab) -> None:
    lab.cli("vmi", "create", "alone", "--node", "node1")
    address = address_of("alone")
    assert_settled(lab, "alone", address)
    lab.cli("migrate", "alone", "--to", "node2")
    assert_settled(lab, "alone", address)
    assert "alone" in lab.cli("status")
    lab.cli("vmi", "delete", "alone")
    until(lambda: allocation(lab, address) is None, f"{address} is not free")
    until(lambda: not traces(lab, "alone"), "something of the instance is left")


def test_an_instance_without_a_vm_that_dies_keeps_its_address(lab: Lab) -> None:
    lab.cli("vmi", "create", "mortal", "--node", "node1")
    address = address_of("mortal")
    control.delete(LabPod, active_launcher("mortal").metadata.name, force=True)
    until(lambda: control.get(LabVMI, "mortal").status.phase == "Failed", "it lives")
    until(lambda: not everywhere(address), "it has a route")
    assert allocation(lab, address) is not None
    lab.cli("vmi", "delete", "mortal")
    lab.cli("vmi", "create", "mortal", "--node", "node1")
    address = address_of("mortal")
    assert_settled(lab, "mortal", address)
    lab.cli("vmi", "delete", "mortal")
    until(lambda: not traces(lab, "mortal"), "something of the instance is left")


def test_attachment_pods_are_ordinary_pods(lab: Lab, request: pytest.FixtureRequest) -> None:
    name = vm_name(request.node.name)
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
        until(lambda: bool(_attachment_ips()), "no attachment pod runs")
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
        until(lambda: set(_attachment_ips()) - {attachment} != set(), "no second one")
        until(lambda: len(_attachment_ips()) == 1, "the first attachment pod is left")
        until(lambda: allocation(lab, own) is None, f"{own} is not free")
    finally:
        lab.cli("vm", "delete", name)
        control.with_client(lambda api: api.raw("DELETE", f"{path}/hot"))
    until(lambda: allocation(lab, address) is None, f"{address} is not free")
    until(lambda: not _attachment_ips(), "an attachment pod is left")


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
        until(lambda: buried in log.read_text(), "the dead sandbox is left")
        after = control.get(LabPod, "plain")
        assert after.metadata.uid == before.metadata.uid
        assert allocation(lab, after.status.pod_ip) is not None
        await_echo(after.status.pod_ip, EXT)
        if after.status.pod_ip != before.status.pod_ip:
            assert allocation(lab, before.status.pod_ip) is None
    finally:
        lab.cli("pod", "delete", "plain")
    until(lambda: not traces(lab, "plain"), "something of the pod is left")


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
        lab.kubectl("delete", "vm", "testvm", "--timeout=120s")
    until(lambda: allocation(lab, address) is None, f"{address} is not free")


def test_a_vm_of_the_docs_with_masquerade_loads_and_says_why_it_does_not_run(
    lab: Lab, tmp_path: Path
) -> None:
    _apply(lab, tmp_path, "masquerade")
    try:
        control.start_vm("testvm")
        until(lambda: "bridge binding" in _conditions("testvm"), "it is not told")
        assert control.get(LabVMI, "testvm").status.phase == "Scheduled"
    finally:
        lab.kubectl("delete", "vm", "testvm", "--timeout=120s")
    until(lambda: not traces(lab, "testvm"), "something of the VM is left")


def _conditions(vm: str) -> str:
    vmi: Any = control.find(LabVMI, vm)
    return "" if vmi is None else str(vmi.status.conditions)


def test_kubectl_waits_for_a_vm_and_describes_it(lab: Lab, vm: str) -> None:
    lab.kubectl("wait", "--for=condition=Ready", f"vm/{vm}", "--timeout=120s")
    lab.kubectl("wait", "--for=condition=LiveMigratable", f"vmi/{vm}", "--timeout=120s")
    pod = active_launcher(vm).metadata.name
    lab.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=120s")
    assert "1/1" in lab.kubectl("get", "pod", pod)
