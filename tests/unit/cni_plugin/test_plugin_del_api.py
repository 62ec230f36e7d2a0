"""DEL while the API refuses, stammers or is away, and of sandboxes that left no endpoint."""

from __future__ import annotations

import pytest

from libtortie.errors import InvalidInput, Malformed, Unauthorized, Unavailable
from libtortie.kube.objects import Pod, VirtualMachine, VirtualMachineInstance
from tests.fakes.cni_world import CniWorld, conf, endpoint_key, owners, started_vm

HANDLE = "k8s-pod-network.vmi.default.db"


API_FAILURES = [
    Unauthorized("get: forbidden"),
    Malformed("get: not JSON"),
    Unavailable("get: no answer in 5 s"),
    InvalidInput("get: bad request"),
]


def api_is_away(world: CniWorld, error: Exception) -> None:
    world.kube.fail(error, times=1000)


@pytest.mark.parametrize("error", API_FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("netns", ["", "/run/netns/gone"])
def test_a_sandbox_that_owns_nothing_goes_whatever_the_api_does(
    world: CniWorld, error: Exception, netns: str
) -> None:
    node = started_vm(world)
    node.delete("virt-launcher-db-a", "c1")
    before = world.left()
    api_is_away(world, error)
    for pod, container in (("virt-launcher-db-a", "c1"), ("virt-launcher-x", "c9"), ("web", "c8")):
        node.delete(pod, container, netns=netns)
    assert world.left() == before


@pytest.mark.parametrize("error", API_FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("recorded", [True, False], ids=["endpoint", "no endpoint"])
def test_an_api_that_does_not_say_whether_the_vm_goes_keeps_its_address(
    world: CniWorld, error: Exception, recorded: bool
) -> None:
    """Only one that is away is asked again, once; the seat is given up at once."""
    node = started_vm(world)
    if not recorded:
        world.memory.delete(endpoint_key("node1", "virt-launcher-db-a"))
    api_is_away(world, error)
    if isinstance(error, Unavailable):
        with pytest.raises(Unavailable):
            node.delete("virt-launcher-db-a", "c1")
        assert owners(node.ipam.by_handle(HANDLE)) == ("", "")
    node.delete("virt-launcher-db-a", "c1", netns="")
    assert list(world.allocated().values()) == [HANDLE]
    assert owners(node.ipam.by_handle(HANDLE)) == ("", "")
    assert world.endpoints() == []
    assert "vm_state_unknown" in [event for event, _ in node.log]


@pytest.mark.parametrize("pod_there", [True, False])
def test_a_seat_without_an_endpoint_is_found_without_the_pod(
    world: CniWorld, pod_there: bool
) -> None:
    """An ADD that was killed before it wrote the endpoint; on a block of another node's, too."""
    started_vm(world)
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    other = world.node("node2")
    other.add("virt-launcher-db-b", "c2")
    world.memory.delete(endpoint_key("node2", "virt-launcher-db-b"))
    if not pod_there:
        world.kube.remove(Pod, "virt-launcher-db-b", "default")
    other.delete("virt-launcher-db-b", "c3")
    other.delete("virt-launcher-db-b", "c2", uid="another")
    assert owners(other.ipam.by_handle(HANDLE))[1] == "virt-launcher-db-b", "another sandbox's"
    other.delete("virt-launcher-db-b", "c2", netns="")
    assert owners(other.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")


def test_a_seat_without_an_endpoint_is_freed_with_the_vm(world: CniWorld) -> None:
    node = started_vm(world)
    world.memory.delete(endpoint_key("node1", "virt-launcher-db-a"))
    world.kube.remove(VirtualMachine, "db", "default")
    world.kube.remove(VirtualMachineInstance, "db", "default")
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_a_seat_of_another_network_is_not_ours_to_leave(world: CniWorld) -> None:
    node = started_vm(world)
    world.memory.delete(endpoint_key("node1", "virt-launcher-db-a"))
    node.plugin.cmd_del(node.args("virt-launcher-db-a", "c1"), conf(name="another-network"))
    assert owners(node.ipam.by_handle(HANDLE))[0] == "virt-launcher-db-a"
