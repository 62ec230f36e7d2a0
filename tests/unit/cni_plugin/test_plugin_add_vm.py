"""ADD of a VM's launchers: one address for its life, targets, owners, who is refused."""

from __future__ import annotations

import pytest

from cni_plugin.errors import (
    IdentityRefused,
)
from libtortie.errors import (
    MigrationRefused,
    OwnerMismatch,
)
from libtortie.kube.objects import VirtualMachine, VirtualMachineInstance
from libtortie.linux.port import Route
from libtortie.model import names
from libtortie.model.ipam import Persistence
from tests.fakes.cni_world import (
    CniWorld,
    first_address,
    owner_reference,
    owners,
)

HANDLE = "k8s-pod-network.vmi.default.db"


def test_a_vm_gets_its_own_handle_mac_and_endpoint_notes(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    result = node.add("virt-launcher-db-a", "c1")
    assert world.allocated() == {first_address(result): HANDLE}
    assert result.interfaces[1].mac == names.derived_mac(HANDLE)
    (stored,) = world.endpoints()
    assert stored.metadata.annotations == {
        names.ANNOTATION_POD_UID: "uid-of-virt-launcher-db-a",
        names.ANNOTATION_HANDLE: HANDLE,
        names.ANNOTATION_VMI_NAME: "db",
        names.ANNOTATION_VMI_UID: "vmi-db-1",
        names.ANNOTATION_VM_UID: "vm-db",
        names.ANNOTATION_MTU: "1500",
    }
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")


def test_a_restarted_vm_keeps_its_address_on_any_node(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = world.node("node1").add("virt-launcher-db-a", "c1")
    world.node("node1").delete("virt-launcher-db-a", "c1")
    assert world.allocated() == {first_address(first): HANDLE}, "stopped, not freed"
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-b", generation=2)
    second = world.node("node2").add("virt-launcher-db-b", "c2")
    assert second.addresses == first.addresses
    assert second.interfaces[1].mac == first.interfaces[1].mac


def test_a_restart_on_the_same_node_replaces_the_old_sandbox_route(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = node.add("virt-launcher-db-a", "c1")
    old_name = first.interfaces[0].name
    node.kernel.ensure_route(Route(first.addresses[0].network, 512, old_name))  # an elevated one
    world.put_launcher("virt-launcher-db-a", status={"phase": "Succeeded"})
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-b", generation=2)
    second = node.add("virt-launcher-db-b", "c2")
    assert second.addresses == first.addresses
    here = [r for r in node.host.routes.values() if r.dst == first.addresses[0].network]
    assert [(r.ifname, r.priority) for r in here] == [(second.interfaces[0].name, 1024)]
    node.delete("virt-launcher-db-a", "c1")
    assert node.route(first_address(second)) is not None
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-b", "")


def test_a_migration_target_has_everything_but_the_route(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    source = world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    node = world.node("node2")
    target = node.add("virt-launcher-db-b", "c2")
    assert target.addresses == source.addresses
    assert target.interfaces[1].mac == source.interfaces[1].mac
    assert node.route(first_address(target)) is None
    host_name = target.interfaces[0].name
    assert node.host.sysctls[f"net/ipv4/conf/{host_name}/proxy_arp"] == "1"
    assert world.node("node1").route(first_address(source)) is not None
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "virt-launcher-db-b")
    assert node.gate.asked, "a target waits for policy too"
    target_endpoint = next(e for e in world.endpoints() if e.spec.node == "node2")
    assert target_endpoint.metadata.annotations[names.ANNOTATION_MIGRATION_UID] == "vmim-m1"


def test_a_failed_target_leaves_the_source_sole_owner(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    node = world.node("node2")
    node.add("virt-launcher-db-b", "c2")
    node.delete("virt-launcher-db-b", "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")


def test_a_target_of_a_vm_without_address_is_refused(world: CniWorld) -> None:
    world.put_vm()
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    with pytest.raises(MigrationRefused, match="no IP allocated"):
        world.node().add("virt-launcher-db-b", "c2")
    assert world.nothing_left()


def test_a_forged_pod_with_the_right_uid_does_not_take_a_live_vms_address(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a", status={"phase": "Running"})
    source = world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_launcher("virt-launcher-db-forged")
    node = world.node("node2")
    with pytest.raises(OwnerMismatch, match="virt-launcher-db-a, which is alive"):
        node.add("virt-launcher-db-forged", "c9")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")
    assert [e.spec.pod for e in world.endpoints()] == ["virt-launcher-db-a"]
    assert node.route(first_address(source)) is None


def test_a_second_target_of_one_migration_is_refused(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    world.node("node2").add("virt-launcher-db-b", "c2")
    world.put_launcher("virt-launcher-db-c", migration="m1")
    with pytest.raises(OwnerMismatch, match="alternate owner"):
        world.node("node3").add("virt-launcher-db-c", "c3")
    assert owners(world.node().ipam.by_handle(HANDLE))[1] == "virt-launcher-db-b"


def test_the_next_vm_of_a_name_takes_over_once_the_old_one_is_gone(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    node = world.node()
    first = node.add("virt-launcher-db-a", "c1")
    node.delete("virt-launcher-db-a", "c1")
    reborn = {"name": "db", "namespace": "default", "uid": "vm-db-reborn"}
    world.kube.put({"metadata": reborn}, VirtualMachine)
    vmi = {
        "name": "db",
        "namespace": "default",
        "uid": "vmi-reborn",
        "ownerReferences": [owner_reference("VirtualMachine", "db", "vm-db-reborn")],
    }
    world.kube.put({"metadata": vmi}, VirtualMachineInstance)
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-reborn")
    world.put_launcher("virt-launcher-db-z", ownerReferences=[reference])
    second = node.add("virt-launcher-db-z", "c2")
    assert second.addresses == first.addresses
    assert node.ipam.by_handle(HANDLE)[0].active["vm-uid"] == "vm-db-reborn"


def test_disabled_persistence(world: CniWorld) -> None:
    world.config(kubevirt_persistence=Persistence.DISABLED)
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    node.add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}
    assert names.ANNOTATION_VMI_NAME not in world.endpoints()[0].metadata.annotations
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    with pytest.raises(MigrationRefused) as refused:
        node.add("virt-launcher-db-b", "c2")
    assert str(refused.value) == (
        "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
    )
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_identity_failure_leaves_nothing(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")  # no VMI
    with pytest.raises(IdentityRefused):
        world.node().add("virt-launcher-db-a", "c1")
    assert world.nothing_left()
