"""Who has a VM's name: a namesake elsewhere, the name's next VM, a VMI alone, a helper pod."""

from __future__ import annotations

import pytest

from libtortie.errors import OwnerMismatch
from libtortie.kube.objects import Pod, VirtualMachine, VirtualMachineInstance
from tests.fakes.cni_world import CniWorld, first_address, owner_reference, owners

HANDLE = "k8s-pod-network.vmi.default.db"
OLD, NEW = "virt-launcher-db-old", "virt-launcher-db-new"
IP_ADDRS = "cni.projectcalico.org/ipAddrs"


def make_again(world: CniWorld) -> None:
    """The VM was deleted and made again under its name; its first launcher has come."""
    meta = {"name": "db", "namespace": "default"}
    world.kube.put({"metadata": {**meta, "uid": "vm-next"}}, VirtualMachine)
    references = [owner_reference("VirtualMachine", "db", "vm-next")]
    body = {"metadata": {**meta, "uid": "vmi-next", "ownerReferences": references}}
    world.kube.put(body, VirtualMachineInstance)
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-next")
    world.put_launcher(NEW, ownerReferences=[reference])


@pytest.fixture
def vm(world: CniWorld) -> CniWorld:
    world.put_vm()
    world.put_launcher(OLD, status={"phase": "Running"})
    world.node("node1").add(OLD, "c1")
    return world


def test_the_names_next_vm_waits_for_the_last_pod_of_the_former(vm: CniWorld) -> None:
    (had,) = vm.allocated()
    make_again(vm)
    node = vm.node("node2")
    with pytest.raises(OwnerMismatch, match=f"{OLD}, which is alive"):
        node.add(NEW, "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == (OLD, "")
    vm.kube.remove(Pod, OLD, "default")  # its node is silent: no DEL yet
    assert first_address(node.add(NEW, "c2")) == had
    for _ in range(2):
        vm.node("node1").delete(OLD, "c1")
        assert owners(node.ipam.by_handle(HANDLE)) == (NEW, "")
    assert vm.allocated() == {had: HANDLE}
    assert node.ipam.by_handle(HANDLE)[0].active["vm-uid"] == "vm-next"


def test_a_vm_does_not_take_the_address_of_a_vmi_without_one_that_lives(world: CniWorld) -> None:
    meta = {"name": "db", "namespace": "default", "uid": "vmi-alone"}
    world.kube.put({"metadata": meta}, VirtualMachineInstance)
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-alone")
    world.put_launcher(OLD, ownerReferences=[reference])
    had = first_address(world.node("node1").add(OLD, "c1"))
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", ownerReferences=[reference], migration="m1")
    assert first_address(world.node("node2").add("virt-launcher-db-b", "c2")) == had
    world.node("node2").delete("virt-launcher-db-b", "c2")
    make_again(world)
    with pytest.raises(OwnerMismatch, match=f"{OLD}, which is alive"):
        world.node("node2").add(NEW, "c3")
    world.kube.remove(Pod, OLD, "default")
    assert first_address(world.node("node2").add(NEW, "c3")) == had


def test_namesakes_in_two_namespaces_have_nothing_in_common(vm: CniWorld) -> None:
    (had,) = vm.allocated()
    vm.put_vm(namespace="shop")
    vm.put_launcher(OLD, namespace="shop", uid="uid-in-shop")
    node = vm.node("node1")
    other = first_address(node.add(OLD, "c9", "shop"))
    assert vm.allocated() == {had: HANDLE, other: "k8s-pod-network.vmi.shop.db"}
    macs = {one.spec.mac for one in vm.endpoints()}
    assert len(macs) == 2
    vm.kube.remove(VirtualMachine, "db", "shop")
    vm.kube.remove(VirtualMachineInstance, "db", "shop")
    node.delete(OLD, "c9", "shop")
    assert vm.allocated() == {had: HANDLE}
    assert owners(node.ipam.by_handle(HANDLE)) == (OLD, "")
    assert node.route(had) is not None


def test_a_namesakes_migration_is_not_ones_own(vm: CniWorld) -> None:
    vm.put_vm(namespace="shop")
    vm.put_migration("m1", namespace="shop")
    vm.put_launcher(NEW, migration="m1")
    with pytest.raises(OwnerMismatch, match=f"{OLD}, which is alive"):
        vm.node("node2").add(NEW, "c2")


@pytest.mark.parametrize("who", ["pod", "VM", "namesake"])
def test_a_vms_fixed_address_is_nobody_elses(world: CniWorld, who: str) -> None:
    notes = {IP_ADDRS: '["10.65.0.77"]'}
    world.put_vm()
    world.put_launcher(OLD, annotations=notes)
    world.node().add(OLD, "c1")
    name, namespace = ("web-0", "shop") if who == "pod" else (NEW, "shop")
    if who == "pod":
        world.put_pod(name, namespace, annotations=notes)
    else:
        machine = "db" if who == "namesake" else "web"
        world.put_vm(machine, namespace)
        world.put_launcher(name, machine, namespace, annotations=notes)
    with pytest.raises(OwnerMismatch, match=r"10\.65\.0\.77"):
        world.node("node2").add(name, "c2", namespace)
    assert world.allocated() == {"10.65.0.77": HANDLE}
    assert owners(world.node().ipam.by_handle(HANDLE)) == (OLD, "")


def test_a_hotplug_attachment_pod_beside_its_migrating_vm(vm: CniWorld) -> None:
    """Owned by the launcher, with the VMI's labels: it is no pod that runs the VM."""
    (had,) = vm.allocated()
    vm.put_migration("m1")
    reference = owner_reference("Pod", OLD, f"uid-of-{OLD}", apiVersion="v1")
    labels = {
        "kubevirt.io": "hotplug-disk",
        "kubevirt.io/migrationJobUID": "vmim-m1",
        "vm.kubevirt.io/name": "db",
    }
    vm.put_pod("hp-volume-x7k2p", labels=labels, ownerReferences=[reference])
    node = vm.node("node1")
    own = first_address(node.add("hp-volume-x7k2p", "c5"))
    assert vm.allocated() == {had: HANDLE, own: "k8s-pod-network.c5"}
    assert node.route(own) is not None, "no target: it has its route at once"
    assert owners(node.ipam.by_handle(HANDLE)) == (OLD, "")
    node.delete("hp-volume-x7k2p", "c5")
    assert vm.allocated() == {had: HANDLE}
