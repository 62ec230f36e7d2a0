"""DEL by a runtime that says little, or something else than at ADD: what is on record counts."""

from __future__ import annotations

import pytest

from cni_plugin.errors import AttachmentConflict
from tests.fakes.cni_world import CniWorld, conf, first_address, owners, started_vm
from tests.fakes.ipam_program import FakeProgram

LAUNCHER = "virt-launcher-db-a"
HANDLE = "k8s-pod-network.vmi.default.db"
STATIC = {"kubernetes.io/config.mirror": "by-the-kubelet"}


# --- without the pod's name ---------------------------------------------------------------------


@pytest.mark.parametrize("netns", ["/run/netns/c1", ""])
def test_a_container_is_enough_for_what_was_a_pods(world: CniWorld, netns: str) -> None:
    node = world.node()
    for pod, container in (("web-0", "c1"), ("web-1", "c2")):
        world.put_pod(pod, "shop")
        node.add(pod, container, "shop")
    node.delete("", "c1", netns=netns)
    assert [e.spec.container_id for e in world.endpoints()] == ["c2"]
    assert list(world.allocated().values()) == ["k8s-pod-network.c2"]
    assert list(node.veths().values()) == ["tortie:k8s-pod-network/c2"]
    node.delete("", "c1", netns=netns)
    node.delete("", "c2", netns=netns)
    assert world.nothing_left()


def test_a_container_is_enough_for_what_was_left_of_a_killed_add(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.cut_short("web-0", "c1")
    node.delete("", "c1", netns="")
    assert world.nothing_left()


@pytest.mark.parametrize("has_endpoint", [True, False])
def test_a_container_is_enough_for_a_vms(world: CniWorld, has_endpoint: bool) -> None:
    node = started_vm(world)
    if not has_endpoint:
        (stored,) = world.endpoints()
        world.memory.delete(stored.key)
    node.delete("", "c1", netns="")
    assert owners(node.ipam.by_handle(HANDLE)) == ("", "")
    assert (world.endpoints(), node.veths()) == ([], {})


def test_a_container_is_enough_for_what_another_program_gave(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    program = FakeProgram(world.directory / "bin", "host-local")
    node.use(program, **program.settings())
    node.add("web-0", "c1")
    node.delete("", "c1", netns="")
    assert world.nothing_left()


def test_each_interface_and_network_by_itself(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.add("web-0", "c1", ifname="net1", conf={"name": "second"})
    before = world.left()
    node.delete("", "c1", ifname="net1")  # of the first network
    node.delete("", "c1", ifname="net2")
    assert world.left() == before
    node.delete("", "c1")
    assert list(world.allocated().values()) == ["second.c1.net1"]
    node.plugin.cmd_del(node.args("", "c1", ifname="net1"), conf(name="second"))
    assert world.nothing_left()


# --- by another pod's name ----------------------------------------------------------------------


def test_another_pods_name_takes_nothing_of_a_living_sandbox(world: CniWorld) -> None:
    """Its address above all: free, it would be the next pod's, too."""
    node = world.node()
    for pod in ("web-0", "web-1"):
        world.put_pod(pod)
    node.add("web-0", "c1")
    before = world.left()
    for words in ({"pod": "web-1"}, {"pod": "web-0", "namespace": "shop"}):
        node.delete(words["pod"], "c1", words.get("namespace", "default"))
        assert world.left() == before
    node.delete("web-0", "c1", uid="another")
    assert world.left() == before
    node.delete("web-0", "c1", uid="uid-of-web-0")
    assert world.nothing_left()


def test_a_static_pod_goes_by_the_uid_that_its_kubelet_says(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("proxy", uid="by-the-api", annotations=STATIC)
    result = node.add("proxy", "c1", uid="by-the-kubelet")
    wire = result.to_wire("1.1.0")
    node.plugin.cmd_check(node.args("proxy", "c1", uid="by-the-kubelet"), conf(prevResult=wire))
    node.delete("proxy", "c1", uid="by-the-kubelet")
    assert world.nothing_left()


# --- what reads alike ---------------------------------------------------------------------------


def test_one_id_on_two_nodes_is_two_containers(world: CniWorld) -> None:
    """Ids that a person chose (`ctr run … web`): the handle has no node in it."""
    one, two = world.node("node1"), world.node("node2")
    address = first_address(one.add("", "web"))
    before = world.left()
    with pytest.raises(AttachmentConflict, match=r"container web of node node1"):
        two.add("", "web")
    two.delete("", "web")
    left = world.left()
    assert (left["endpoints"], left["addresses"]) == (before["endpoints"], before["addresses"])
    assert one.route(address) is not None
    one.delete("", "web")
    assert first_address(two.add("", "web"))


def test_an_interface_is_part_of_whose_a_handle_is(world: CniWorld) -> None:
    """Network `a`, interface `c` of container `c`; and network `a.c`, its first one."""
    node = world.node()
    node.add("", "c", ifname="c", conf={"name": "a"})
    before = world.left()
    with pytest.raises(AttachmentConflict, match=r"interface c of container c"):
        node.add("", "c", conf={"name": "a.c"})
    node.plugin.cmd_del(node.args("", "c"), conf(name="a.c"))
    assert world.left() == before
