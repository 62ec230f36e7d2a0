"""GC: what the runtime no longer lists goes, however little of it is left; the rest stays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from cni_plugin.plugin import Plugin
from ipam.client import AddressRequest
from libtortie.errors import KernelError, Unavailable
from libtortie.linux.port import VethPair
from libtortie.model import names
from tests.fakes.cni_world import NETWORK, CniNode, CniWorld, conf, endpoint_key, first_address

HANDLE = "k8s-pod-network.vmi.default.db"


def test_gc_takes_what_is_not_listed_and_only_that(world: CniWorld) -> None:
    node, other = world.node("node1"), world.node("node2")
    for number in range(3):
        world.put_pod(f"web-{number}")
        node.add(f"web-{number}", f"c{number}")
    world.put_pod("far")
    other.add("far", "c9")
    started = started_vm_on(world, node)
    world.put_pod("other-net")
    node.add("other-net", "c5", conf={"name": "othernet"})
    node.ipam.assign(
        "tunnel", {"node": "node1", "type": "vxlanTunnelAddress"}, AddressRequest()
    )  # as Calico's agent does
    world.clock.sleep(60)
    node.gc(("c1", "eth0"), ("c7", "eth0"))
    assert sorted(e.spec.container_id for e in world.endpoints()) == ["c1", "c5", "c7", "c9"]
    assert sorted(world.allocated().values()) == sorted(
        ["k8s-pod-network.c1", "k8s-pod-network.c9", "othernet.c5", HANDLE, "tunnel"]
    )
    assert started in world.allocated()
    node.gc()
    assert sorted(e.spec.container_id for e in world.endpoints()) == ["c5", "c9"]
    assert HANDLE in world.allocated().values(), "a VM keeps its address"


def started_vm_on(world: CniWorld, node: CniNode) -> str:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    return first_address(node.add("virt-launcher-db-a", "c7"))


def test_gc_spares_what_is_listed_though_its_endpoint_is_lost(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    address = first_address(node.add("web-0", "c1"))
    world.memory.delete(endpoint_key("node1", "web-0"))
    world.clock.sleep(60)
    node.gc(("c1", "eth0"))
    assert world.allocated() == {address: "k8s-pod-network.c1"}
    assert len(node.veths()) == 1
    node.gc()
    assert world.nothing_left()


def test_gc_spares_an_add_under_way_and_nothing_else_that_is_not_listed(world: CniWorld) -> None:
    """CNI has the runtime finish its ADDs before it lists, so what is complete counts."""
    node = world.node()
    world.put_pod("old")
    node.add("old", "c0")
    world.put_pod("web-0")
    node.gate.during = node.gc  # GC with a list from before, while ADD waits for policy
    node.add("web-0", "c1")
    assert [e.spec.container_id for e in world.endpoints()] == ["c1"], "c0 went, c1 stayed"
    node.gate.during = lambda: None
    node.gc()
    assert world.nothing_left()


def orphaned(world: CniWorld, pod: str = "web-0", container: str = "c1") -> CniNode:
    """A veth whose allocation is gone too: nothing in the datastore leads to it."""
    node = world.node()
    world.put_pod(pod)
    node.cut_short(pod, container)
    node.ipam.release(names.container_handle(NETWORK, container))
    assert world.allocated() == {}
    assert list(node.veths().values()) == [f"tortie:k8s-pod-network/{container}"]
    return node


def test_gc_finds_the_veth_of_an_add_that_was_killed(world: CniWorld) -> None:
    node = orphaned(world)
    node.gc(("c1", "eth0"))
    assert node.veths(), "the runtime knows the sandbox"
    node.gc(name="othernet")
    assert node.veths(), "another network's list says nothing about it"
    with node.locks.hold(next(iter(node.veths())), 1.0):
        node.gc()
    assert node.veths(), "somebody works on it"
    node.gc()
    assert world.nothing_left()


def test_gc_leaves_other_veths_alone(world: CniWorld) -> None:
    node = orphaned(world)
    for name, alias in (
        ("cali0", ""),
        ("cali1", "somebody's"),
        ("cali2", "tortie:"),
        ("veth0", ""),
    ):
        node.kernel.ensure_veth(
            VethPair(name, names.HOST_SIDE_MAC, name, node.netns("other"), 1500, alias=alias)
        )
    ours = replace(node.host.links["veth0"], alias="tortie:k8s-pod-network/c9")
    node.host.links["veth0"] = ours
    node.host.links["cali3"] = replace(ours, name="cali3", kind="dummy")
    node.gc()
    assert sorted(node.veths()) == ["cali0", "cali1", "cali2", "cali3"], "cali3 is no veth"
    assert "veth0" in node.host.links


def test_gc_leaves_files_alone_that_are_no_attachments(world: CniWorld) -> None:
    """A killed call's lock among them: its place is the next call's to take."""
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    files = {
        name: world.directory / name
        for name in ("node1/stale.lock", "node1/notes", "tortie.db", "nodename", "mtu", "lock")
    }
    for path in files.values():
        path.parent.mkdir(exist_ok=True)
        path.write_text("1400")
    world.clock.sleep(60)
    node.gc()
    assert world.endpoints() == []
    assert {path.read_text() for path in files.values()} == {"1400"}
    node.add("web-0", "c2")


class Overtaken:
    """A node's locks, where the runtime's repeated ADD is always quicker."""

    def __init__(self, node: CniNode) -> None:
        self._node = node
        self.busy = node.locks.busy

    def hold(self, key: str, timeout: float) -> AbstractContextManager[None]:
        """After the ADD."""
        self._node.add("web-0", "c1")
        return self._node.locks.hold(key, timeout)


def test_gc_looks_again_at_a_link_once_it_has_the_lock(world: CniWorld) -> None:
    """The runtime repeats a killed ADD just after GC listed its veth."""
    node = orphaned(world)
    plugin = Plugin(node.ports(locks=Overtaken(node)))
    plugin.cmd_gc(conf(**{"cni.dev/valid-attachments": []}))
    assert list(node.veths().values()) == ["tortie:k8s-pod-network/c1"]
    assert len(world.endpoints()) == 1


def test_gc_reports_a_veth_that_resists(world: CniWorld) -> None:
    node = orphaned(world)

    def refuse(operation: str, subject: str) -> None:
        if operation == "delete_link":
            raise KernelError("busy")

    node.machine.before = refuse
    with pytest.raises(KernelError, match="busy"):
        node.gc()


def test_gc_without_a_list_frees_nothing(world: CniWorld) -> None:
    """libcni sends none when it was given none, as by `cnitool gc`; its DELs have come before."""
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.plugin.cmd_gc(conf())
    assert len(world.endpoints()) == 1
    node.plugin.cmd_gc(conf(**{"cni.dev/valid-attachments": None, "cni.dev/attachments": None}))
    assert world.nothing_left(), "Go writes an empty list as null"


def test_gc_reports_all_that_failed(world: CniWorld) -> None:
    node = world.node()
    for number in range(3):
        world.put_pod(f"web-{number}")
        node.add(f"web-{number}", f"c{number}")

    def refuse(operation: str, subject: str) -> None:
        if operation == "delete_link":
            raise Unavailable(f"{subject} is stuck")

    node.machine.before = refuse
    with pytest.raises(Unavailable) as caught:
        node.gc()
    told = {str(caught.value), *caught.value.__notes__}
    stuck = [names.host_ifname("default", f"web-{number}") for number in range(3)]
    assert all(any(name in text for text in told) for name in stuck)


def test_gc_goes_on_after_an_error_and_reports_it(world: CniWorld) -> None:
    node = world.node()
    for number in range(3):
        world.put_pod(f"web-{number}")
        node.add(f"web-{number}", f"c{number}")
    world.clock.sleep(60)
    broken = names.host_ifname("default", "web-1")

    def refuse(operation: str, subject: str) -> None:
        if (operation, subject) == ("delete_link", broken):
            raise Unavailable("the kernel does not answer")

    node.machine.before = refuse
    with pytest.raises(Unavailable, match="does not answer"):
        node.gc()
    assert [e.spec.pod for e in world.endpoints()] == ["web-1"]


def test_gc_spares_an_add_under_way_however_long_it_waits(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")

    def long_wait() -> None:
        world.clock.sleep(600)
        node.gc()

    node.gate.during = long_wait
    result = node.add("web-0", "c1")
    assert node.route(first_address(result)) is not None
    assert [e.spec.container_id for e in world.endpoints()] == ["c1"]


def test_gc_looks_again_once_it_has_the_lock(world: CniWorld) -> None:
    """The runtime repeats a killed ADD just after GC listed its leftovers."""
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.memory.delete(endpoint_key("node1", "web-0"))  # as if killed before it was written
    world.clock.sleep(60)
    plugin = Plugin(node.ports(locks=Overtaken(node)))
    plugin.cmd_gc(conf(**{"cni.dev/valid-attachments": []}))
    assert [e.spec.container_id for e in world.endpoints()] == ["c1"]
    assert len(world.allocated()) == 1
