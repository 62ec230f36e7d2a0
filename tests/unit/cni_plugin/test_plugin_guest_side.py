"""What a guest sees of its pod's interface stays as it is when the VM migrates: MAC and MTU."""

from __future__ import annotations

import pytest

from cni_plugin.types import Result
from ipam.ownership import same_pod
from libtortie.errors import Unavailable
from libtortie.kube.objects import VirtualMachineInstance
from libtortie.model import names
from libtortie.model.keys import ResourceKey
from tests.fakes.cni_world import CniWorld, endpoint_key, owner_reference

HANDLE = "k8s-pod-network.vmi.default.db"
HW_ADDR = "cni.projectcalico.org/hwAddr"


@pytest.fixture
def vm(world: CniWorld) -> CniWorld:
    """A VM with a live migration, of which no pod has come yet."""
    world.put_vm()
    world.put_migration("m1")
    return world


def start(world: CniWorld, mtu: int = 1500, mac: str = "") -> Result:
    world.put_launcher("virt-launcher-db-a", annotations={HW_ADDR: mac} if mac else {})
    return world.node("node1").add("virt-launcher-db-a", "c1", conf={"mtu": mtu})


def migrate(world: CniWorld, mtu: int = 1500, mac: str = "") -> Result:
    world.put_launcher(
        "virt-launcher-db-b", migration="m1", annotations={HW_ADDR: mac} if mac else {}
    )
    return world.node("node2").add("virt-launcher-db-b", "c2", conf={"mtu": mtu})


def seen(result: Result) -> tuple[str, int, int]:
    """MAC and MTU of the pod's end, MTU of the node's."""
    host, pod = result.interfaces
    return pod.mac, pod.mtu, host.mtu


def edit(world: CniWorld, key: ResourceKey, **notes: str) -> None:
    """Change notes of a stored endpoint."""
    record = world.memory.get(key)
    (stored,) = (one for one in world.endpoints() if one.key == key)
    meta = stored.metadata.model_copy(
        update={"annotations": {**stored.metadata.annotations, **notes}}
    )
    world.memory.update(key, stored.model_copy(update={"metadata": meta}), record.revision)


@pytest.mark.parametrize(("before", "after"), [(1500, 1400), (1400, 1500), (1500, 9000)])
def test_the_mtu_was_changed_between_source_and_target(
    vm: CniWorld, before: int, after: int
) -> None:
    source = start(vm, before)
    target = migrate(vm, after)
    assert seen(target) == seen(source)
    assert seen(target)[1:] == (before, before)
    again = vm.node("node2").add("virt-launcher-db-b", "c2", conf={"mtu": after})
    assert again == target


def test_a_chain_of_migrations_keeps_the_first_ones(vm: CniWorld) -> None:
    source = start(vm, 1400)
    migrate(vm, 1500)
    node = vm.node("node2")
    (held,) = node.ipam.by_handle(HANDLE)
    assert node.ipam.promote(HANDLE, held.alternate)
    vm.put_migration("m1", phase="Succeeded")
    vm.node("node1").delete("virt-launcher-db-a", "c1")
    vm.put_migration("m2")
    vm.put_launcher("virt-launcher-db-c", migration="m2")
    assert seen(vm.node("node3").add("virt-launcher-db-c", "c3")) == seen(source)


def test_a_repeat_after_the_hand_over_when_the_source_is_gone(vm: CniWorld) -> None:
    start(vm, 1400)
    target = migrate(vm)
    node = vm.node("node2")
    (held,) = node.ipam.by_handle(HANDLE)
    assert node.ipam.promote(HANDLE, held.alternate)
    vm.node("node1").delete("virt-launcher-db-a", "c1")
    assert node.add("virt-launcher-db-b", "c2") == target


def test_the_next_start_goes_by_what_is_configured_now(vm: CniWorld) -> None:
    start(vm, 1400)
    vm.node("node1").delete("virt-launcher-db-a", "c1")
    vm.put_vm(generation=2)
    vm.put_launcher("virt-launcher-db-c", generation=2)
    result = vm.node("node1").add("virt-launcher-db-c", "c3", conf={"mtu": 1500})
    assert seen(result)[1:] == (1500, 1500)


@pytest.mark.parametrize("note", ["", "0", "-1", "70000", "1e3", "١٤٠٠", "9" * 400])
def test_a_source_that_says_nothing_readable(vm: CniWorld, note: str) -> None:
    start(vm, 1400)
    edit(vm, endpoint_key("node1", "virt-launcher-db-a"), **{names.ANNOTATION_MTU: note})
    assert seen(migrate(vm, 1450))[1:] == (1450, 1450)


def test_a_source_without_an_endpoint(vm: CniWorld) -> None:
    source = start(vm, 1400)
    vm.memory.delete(endpoint_key("node1", "virt-launcher-db-a"))
    assert seen(migrate(vm, 1450)) == (seen(source)[0], 1450, 1450)


def test_an_endpoint_of_another_sandbox_than_the_owner_is_not_believed(vm: CniWorld) -> None:
    source = start(vm, 1400)
    vm.edit_endpoint("c1", container_id="c9", mac="02:00:00:00:00:99")
    assert seen(migrate(vm, 1450)) == (seen(source)[0], 1450, 1450)


def test_a_store_that_does_not_answer_is_no_reason_for_another_mtu(vm: CniWorld) -> None:
    start(vm, 1400)
    read = vm.store.get

    def get(key: object) -> object:
        if key == endpoint_key("node1", "virt-launcher-db-a"):
            raise Unavailable("silent")
        return read(key)  # type: ignore[arg-type]  # a key, by this test's callers

    vm.store.get = get  # type: ignore[method-assign,assignment]  # one key of one store
    with pytest.raises(Unavailable, match="silent"):
        migrate(vm, 1450)
    assert {one.spec.pod for one in vm.endpoints()} == {"virt-launcher-db-a"}
    (held,) = vm.node().ipam.by_handle(HANDLE)
    assert not held.alternate


def test_a_mac_asked_for_by_annotation_counts_before_a_derived_one(vm: CniWorld) -> None:
    asked = "02:aa:bb:cc:dd:ee"
    assert seen(start(vm, mac=asked))[0] == asked
    assert seen(migrate(vm, mac=asked))[0] == asked


def test_a_target_has_the_sources_mac_whatever_its_annotation_says(vm: CniWorld) -> None:
    source = start(vm)
    assert seen(source)[0] == names.derived_mac(HANDLE)
    assert seen(migrate(vm, mac="02:aa:bb:cc:dd:ee"))[0] == names.derived_mac(HANDLE)


def test_a_guest_agents_report_does_not_change_the_targets_mac(vm: CniWorld) -> None:
    """`status.interfaces` is filled while the VM runs, by whatever the guest calls its MAC."""
    source = start(vm)
    vm.kube.put(
        {
            "metadata": {
                "name": "db",
                "namespace": "default",
                "uid": "vmi-db-1",
                "ownerReferences": [owner_reference("VirtualMachine", "db", "vm-db")],
            },
            "spec": {"networks": [{"name": "default", "pod": {}}]},
            "status": {"interfaces": [{"name": "default", "mac": "02:00:00:00:00:01"}]},
        },
        VirtualMachineInstance,
    )
    assert seen(migrate(vm)) == seen(source)


def test_the_owner_is_the_source_not_the_target(vm: CniWorld) -> None:
    """The tests above stand on it: while it migrates, the VM's active owner is the source."""
    start(vm)
    migrate(vm)
    (held,) = vm.node().ipam.by_handle(HANDLE)
    assert not same_pod(held.active, held.alternate)
    assert held.active["pod"] == "virt-launcher-db-a"
