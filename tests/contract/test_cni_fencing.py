"""DEL acts for its own container alone: late, repeated, at once, without pod or handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipam.client import Allocation
from libtortie.kube.objects import Pod, VirtualMachine, VirtualMachineInstance
from libtortie.model.keys import HandleKey
from tests.fakes.cni_stores import CNI_STORES, StoredWorld
from tests.fakes.cni_world import first_address, owners

HANDLE = "k8s-pod-network.vmi.default.db"
SOURCE, TARGET = "virt-launcher-db-1", "virt-launcher-db-2"


@pytest.fixture(params=list(CNI_STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredWorld]:
    with CNI_STORES[request.param](request, tmp_path) as made:
        yield made


def launch(world: StoredWorld, pod: str, container: str, node: str, migration: str = "") -> str:
    """A launcher, attached; its address."""
    world.put_launcher(pod, migration=migration, spec={"nodeName": node})
    return first_address(world.node(node).add(pod, container, uid=f"uid-of-{pod}"))


def run(world: StoredWorld, pod: str, container: str, node: str = "node1", **args: str) -> str:
    """An ordinary pod, attached; its address."""
    world.put_pod(pod, spec={"nodeName": node})
    return first_address(world.node(node).add(pod, container, uid=f"uid-of-{pod}", **args))


def started(world: StoredWorld) -> str:
    world.put_vm()
    return launch(world, SOURCE, "c1", "node1")


def migrated(world: StoredWorld) -> str:
    """The VM runs on node2; its source has not gone yet."""
    address = started(world)
    world.put_migration("m1")
    assert launch(world, TARGET, "c2", "node2", "m1") == address
    ipam = world.node("node2").ipam
    assert ipam.promote(HANDLE, held(world).alternate)
    return address


def held(world: StoredWorld) -> Allocation:
    (one,) = world.node().ipam.by_handle(HANDLE)
    return one


def containers(world: StoredWorld) -> set[str]:
    """Whose endpoints are there."""
    return {one.spec.container_id for one in world.endpoints()}


def all_at_once(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for one in [pool.submit(call) for call in calls]:
            one.result(300)


def delete(world: StoredWorld, pod: str, container: str, node: str) -> Callable[[], None]:
    return lambda: world.node(node).delete(pod, container, netns="")


def test_a_late_del_of_a_vms_former_sandbox(world: StoredWorld) -> None:
    address, node = started(world), world.node()
    assert first_address(node.add(SOURCE, "c2", uid=f"uid-of-{SOURCE}")) == address
    for _ in range(2):
        node.delete(SOURCE, "c1")
        assert held(world).active["container-id"] == "c2"
        assert containers(world) == {"c2"}
        assert node.route(address) is not None


def test_dels_of_a_moved_vms_source_late_and_all_at_once(world: StoredWorld) -> None:
    address = migrated(world)
    all_at_once(*[delete(world, SOURCE, "c1", "node1") for _ in range(6)])
    world.kube.remove(Pod, SOURCE, "default")
    delete(world, SOURCE, "c1", "node1")()
    assert owners((held(world),)) == (TARGET, "")
    assert containers(world) == {"c2"}
    assert world.allocated() == {address: HANDLE}
    assert world.node("node1").route(address) is None


def test_source_and_target_go_at_once(world: StoredWorld) -> None:
    """Whichever comes first: the VM, which is not deleted, keeps its address without a pod."""
    address = migrated(world)
    calls = [delete(world, SOURCE, "c1", "node1"), delete(world, TARGET, "c2", "node2")]
    all_at_once(*calls, *calls)
    assert owners((held(world),)) == ("", "")
    assert held(world).active["vm-uid"] == "vm-db"
    assert world.allocated() == {address: HANDLE}
    assert containers(world) == set()


def test_the_vm_is_deleted_with_both_pods_at_once_and_frees_once(world: StoredWorld) -> None:
    address = migrated(world)
    for pod in (SOURCE, TARGET):
        world.kube.remove(Pod, pod, "default")
    world.kube.remove(VirtualMachineInstance, "db", "default")
    world.kube.remove(VirtualMachine, "db", "default")
    calls = [delete(world, SOURCE, "c1", "node1"), delete(world, TARGET, "c2", "node2")]
    all_at_once(*calls, *calls)
    assert world.allocated() == {}
    assert run(world, "web", "c3", IP=address) == address
    for call in calls:
        call()
    assert world.allocated() == {address: "k8s-pod-network.c3"}
    assert containers(world) == {"c3"}


@pytest.mark.parametrize("again", [1, 2], ids=["once", "twice"])
def test_the_pod_is_gone_from_the_api(world: StoredWorld, again: int) -> None:
    """A VM that was stopped: DEL knows whose the sandbox was without its pod."""
    address = started(world)
    world.kube.remove(Pod, SOURCE, "default")
    world.kube.remove(VirtualMachineInstance, "db", "default")
    for _ in range(again):
        world.node().delete(SOURCE, "c1", netns="")
    assert owners((held(world),)) == ("", "")
    assert world.allocated() == {address: HANDLE}
    assert not world.node().veths()
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-9", generation=2, spec={"nodeName": "node2"})
    assert first_address(world.node("node2").add("virt-launcher-db-9", "c9")) == address
    world.node().delete(SOURCE, "c1", netns="")
    assert owners((held(world),)) == ("virt-launcher-db-9", "")


def test_an_administrator_released_the_vms_address(world: StoredWorld) -> None:
    """Its handle is gone, and another pod has the address: DEL strips nobody."""
    address = started(world)
    world.node().ipam.release(HANDLE)
    assert run(world, "web", "c5", "node2", IP=address) == address
    for _ in range(2):
        world.node().delete(SOURCE, "c1")
    assert world.allocated() == {address: "k8s-pod-network.c5"}
    assert containers(world) == {"c5"}
    assert not world.node().veths()


def test_the_vms_handle_record_is_missing(world: StoredWorld) -> None:
    """Garbage collection writes it again from the blocks; the VM's address waits for that."""
    address = started(world)
    record = world.memory.get(HandleKey(HANDLE))
    world.memory.delete(record.key)
    other = run(world, "web", "c5", "node2")
    for _ in range(2):
        world.node().delete(SOURCE, "c1")
    assert not world.node().veths()
    assert containers(world) == {"c5"}
    assert world.allocated() == {address: HANDLE, other: "k8s-pod-network.c5"}
    world.memory.create(record.key, record.value)
    world.kube.remove(Pod, SOURCE, "default")
    assert launch(world, TARGET, "c9", "node2") == address
    world.node().delete(SOURCE, "c1")
    assert owners((held(world),)) == (TARGET, "")


def test_dels_of_an_ordinary_pods_dead_sandbox(world: StoredWorld) -> None:
    node, first = world.node(), run(world, "web", "c1")
    second = first_address(node.add("web", "c2", uid="uid-of-web"))
    all_at_once(*[delete(world, "web", "c1", "node1") for _ in range(6)])
    assert world.allocated() == {second: "k8s-pod-network.c2"}
    assert first_address(node.add("web", "c2", uid="uid-of-web")) == second
    assert run(world, "other", "c3") != second
    delete(world, "web", "c1", "node1")()
    assert containers(world) == {"c2", "c3"}
    assert first != second
    assert node.route(second) is not None


def test_a_del_by_another_name_of_the_pods_container(world: StoredWorld) -> None:
    """An id that was never attached, with a living pod's name; a living id, with another name."""
    address = started(world)
    run(world, "web", "c5")
    before = world.left()
    world.node().delete(SOURCE, "never", netns="")
    world.node().delete("web", "never", netns="")
    world.node().delete("web", "c1", netns="")
    world.node().delete(SOURCE, "c5", netns="")
    left = world.left()
    assert left["endpoints"] == before["endpoints"]
    assert left["node1 links"] == before["node1 links"]
    assert left["addresses"] == before["addresses"]
    assert held(world).active["container-id"] == "c1"
    assert address in world.allocated()
