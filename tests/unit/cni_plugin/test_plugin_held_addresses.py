"""Whose an address is while sandboxes, pods and VMs of one name come, go and come again."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_address, ip_network

import pytest

from cni_plugin import skel
from cni_plugin.identity import Identifier
from cni_plugin.plugin import Plugin
from cni_plugin.types import Result
from ipam.block import set_owners
from ipam.client import Allocation
from libtortie.errors import NoFreeAddresses, OwnerMismatch, Unavailable
from libtortie.kube.objects import Pod
from libtortie.model.ipam import Block, Owner, Persistence
from libtortie.model.keys import Blocks, Kind, ResourceKey
from tests.fakes.cni_world import NETWORK, CniNode, CniWorld, conf, first_address
from tests.fakes.ipam_world import pool

FIXED = {"cni.projectcalico.org/ipAddrs": '["10.65.0.77"]'}
BOTH = {"cni.projectcalico.org/ipFamilies": '["IPv4","IPv6"]'}
TRY_AGAIN = 11


def small(world: CniWorld, *cidrs: str) -> CniNode:
    """A node whose pools have few addresses, in one block each."""
    world.memory.delete(ResourceKey(Kind.IP_POOL, "pool-4"))
    for cidr in map(ip_network, cidrs):
        few = pool(f"few-{cidr.version}", str(cidr), blockSize=cidr.prefixlen)
        world.memory.create(few.key, few)
    return world.node()


def holder(node: CniNode, address: str) -> Allocation:
    held = node.ipam.by_handle(node.world.allocated()[address])
    (found,) = [one for one in held if str(one.address) == address]
    return found


# -- sandboxes of one pod -----------------------------------------------------------------------


def test_an_old_sandboxs_address_goes_to_the_next_pod_and_the_new_ones_does_not(
    world: CniWorld,
) -> None:
    """Where nothing else is left: what the old one's DEL frees is all that there is to give."""
    node = small(world, "10.65.9.0/30")
    for number in range(2):
        world.put_pod(f"full-{number}")
        node.add(f"full-{number}", f"f{number}")
    world.put_pod("web-0")
    world.put_pod("web-1")
    old = first_address(node.add("web-0", "c1"))
    new = first_address(node.add("web-0", "c2"))
    with pytest.raises(NoFreeAddresses):
        node.add("web-1", "c3")
    node.delete("web-0", "c1")
    assert first_address(node.add("web-1", "c3")) == old
    assert world.allocated()[new] == f"{NETWORK}.c2"
    assert node.route(new).ifname != node.route(old).ifname


def test_a_del_of_a_vms_old_sandbox_leaves_nothing_for_the_next_pod(world: CniWorld) -> None:
    node = small(world, "10.65.9.0/31")
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = first_address(node.add("virt-launcher-db-a", "c1"))
    assert first_address(node.add("virt-launcher-db-a", "c2")) == first
    node.delete("virt-launcher-db-a", "c1")
    world.put_pod("web-0")
    world.put_pod("web-1")
    assert first_address(node.add("web-0", "c3")) != first
    with pytest.raises(NoFreeAddresses):
        node.add("web-1", "c4")
    assert holder(node, first).active["container-id"] == "c2"


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("listed", ["c2", ""])
def test_gc_and_the_late_del_after_a_sandbox_died(
    world: CniWorld, fixed: bool, listed: str
) -> None:
    """The claim is the new sandbox's whether or not the address is the same."""
    node = world.node()
    world.put_pod("web-0", annotations=FIXED if fixed else {})
    node.add("web-0", "c1")
    node.machine.delete("/run/netns/c1")
    address = first_address(node.add("web-0", "c2"))
    world.clock.sleep(60)
    node.gc(("c2", "eth0"))
    node.delete("web-0", "c1")
    node.delete("web-0", "c1")
    assert world.allocated() == {address: f"{NETWORK}.c2"}
    assert holder(node, address).active["container-id"] == "c2"
    assert node.route(address) is not None
    if not listed:
        node.gc()
        assert world.nothing_left()


# -- one address that several ask for -----------------------------------------------------------


def power_cut(world: CniWorld, node: CniNode, container: str) -> None:
    """The node starts anew: no DEL ran, no namespace and no veth is left."""
    node.machine.delete(f"/run/netns/{container}")
    for name in [*node.veths()]:
        node.kernel.delete_link(name)
    assert world.allocated()


def rebooted(world: CniWorld) -> CniNode:
    world.put_pod("db-0", annotations=FIXED, uid="u-1")
    node = world.node()
    node.add("db-0", "c1", uid="u-1")
    power_cut(world, node, "c1")
    return node


def test_a_pod_gets_its_fixed_address_back_after_a_power_cut(world: CniWorld) -> None:
    node = rebooted(world)
    assert first_address(node.add("db-0", "c2", uid="u-1")) == "10.65.0.77"
    assert world.allocated() == {"10.65.0.77": f"{NETWORK}.c2"}
    node.delete("db-0", "c1", uid="u-1")
    assert holder(node, "10.65.0.77").active["container-id"] == "c2"


@pytest.mark.parametrize("other", [False, True])
def test_so_does_its_successor_of_the_name_on_any_node(world: CniWorld, other: bool) -> None:
    """The API has another UID under the name: the old pod is proved to be gone."""
    rebooted(world)
    world.put_pod("db-0", annotations=FIXED, uid="u-2")
    node = world.node("node2" if other else "node1")
    assert first_address(node.add("db-0", "c2", uid="u-2")) == "10.65.0.77"
    assert holder(node, "10.65.0.77").active["pod-uid"] == "u-2"
    assert len(world.allocated()) == 1


class NobodySays(Identifier):
    """The API answers until the old pod is asked about."""

    def pod_lives(self, owner: Owner) -> bool:
        raise Unavailable(f"who knows of {owner['pod']}")


def test_while_the_api_does_not_say_it_does_not(world: CniWorld) -> None:
    node = rebooted(world)
    world.put_pod("db-0", annotations=FIXED, uid="u-2")
    plugin = Plugin(node.ports(identify=NobodySays(world.kube, lambda: Persistence.ENABLED)))
    with pytest.raises(Unavailable, match="who knows of db-0") as caught:
        plugin.cmd_add(node.args("db-0", "c2", uid="u-2"), conf())
    assert skel._code(caught.value) == TRY_AGAIN
    assert world.allocated() == {"10.65.0.77": f"{NETWORK}.c1"}
    assert world.left()["node1 links"] == []


def test_while_the_holder_may_be_the_pod_that_lives_it_does_not(world: CniWorld) -> None:
    """Calico records no UID: the pod of the name that the API has may be the holder."""
    node = rebooted(world)
    world.put_pod("db-0", annotations=FIXED, uid="u-2")
    (record,) = world.memory.list(Blocks(4)).records
    assert isinstance(record.value, Block)
    active = {k: v for k, v in holder(node, "10.65.0.77").active.items() if k != "pod-uid"}
    ordinal = record.value.ordinal(ip_address("10.65.0.77"))
    world.memory.update(
        record.key, set_owners(record.value, {ordinal: (active, {})}), record.revision
    )
    with pytest.raises(OwnerMismatch, match=rf"{NETWORK}\.c1 \(pod default/db-0 on node node1\)"):
        node.add("db-0", "c2", uid="u-2")
    assert world.allocated() == {"10.65.0.77": f"{NETWORK}.c1"}
    assert world.left()["node1 links"] == []


@pytest.mark.parametrize("gone", [False, True])
def test_a_pod_of_another_name_never_takes_it(world: CniWorld, gone: bool) -> None:
    node = world.node()
    world.put_pod("web-0", annotations=FIXED)
    world.put_pod("web-1", annotations=FIXED)
    node.add("web-0", "c1")
    if gone:
        world.kube.remove(Pod, "web-0", "default")
    with pytest.raises(OwnerMismatch, match=rf"10\.65\.0\.77 is not free.*{NETWORK}\.c1"):
        world.node("node2").add("web-1", "c2")
    assert world.allocated() == {"10.65.0.77": f"{NETWORK}.c1"}
    assert world.left()["node2 links"] == []


def vm_of(world: CniWorld, namespace: str, vm: str = "db") -> None:
    world.put_vm(vm, namespace)
    world.put_launcher(f"virt-launcher-{vm}-a", vm, namespace, annotations=FIXED)


def add_vm(node: CniNode, namespace: str, container: str, vm: str = "db") -> Result:
    return node.add(f"virt-launcher-{vm}-a", container, namespace)


@pytest.mark.parametrize(("namespace", "vm"), [("bank", "db"), ("default", "dbb")])
def test_another_vm_never_takes_it_whatever_its_name(
    world: CniWorld, namespace: str, vm: str
) -> None:
    vm_of(world, "default")
    vm_of(world, namespace, vm)
    assert first_address(add_vm(world.node(), "default", "c1")) == "10.65.0.77"
    with pytest.raises(OwnerMismatch, match=r"10\.65\.0\.77 is not free"):
        add_vm(world.node("node2"), namespace, "c2", vm)
    assert set(world.allocated().values()) == {f"{NETWORK}.vmi.default.db"}


def test_a_pod_never_takes_a_vms_and_a_vm_never_a_pods(world: CniWorld) -> None:
    vm_of(world, "default")
    world.put_pod("web-0", annotations=FIXED)
    add_vm(world.node(), "default", "c1")
    with pytest.raises(OwnerMismatch):
        world.node().add("web-0", "c2")
    world.node().delete("virt-launcher-db-a", "c1")
    with pytest.raises(OwnerMismatch):
        world.node().add("web-0", "c2")
    assert len(world.allocated()) == 1


# -- one family of two is used up ---------------------------------------------------------------

POOLS = {4: ("10.65.9.0/30", "fd00::/122"), 6: ("10.65.9.0/26", "fd00::/126")}


def used_up(world: CniWorld, family: int) -> CniNode:
    node = small(world, *POOLS[family])
    for number in range(4):
        only = {"cni.projectcalico.org/ipFamilies": json.dumps([f"IPv{family}"])}
        world.put_pod(f"full-{number}", annotations=only)
        node.add(f"full-{number}", f"f{number}")
    return node


def plain(world: CniWorld) -> str:
    world.put_pod("web-0", annotations=BOTH)
    return "web-0"


def launcher(world: CniWorld) -> str:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a", annotations=BOTH)
    return "virt-launcher-db-a"


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("who", [plain, launcher])
def test_nothing_is_left_of_the_other_family(
    world: CniWorld, who: Callable[[CniWorld], str], family: int
) -> None:
    node = used_up(world, family)
    before = world.left()
    name = who(world)
    for _ in range(3):
        with pytest.raises(NoFreeAddresses, match=f"IPv{family}"):
            node.add(name, "c1")
        assert world.left() == before
    node.delete("full-0", "f0")
    assert sorted(one.ip.version for one in node.add(name, "c1").addresses) == [4, 6]
