"""Several interfaces of one sandbox, as Multus makes them: each has its own names and addresses."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any

import pytest

from cni_plugin import interfaces
from cni_plugin.errors import CheckFailed
from ipam.ownership import IFNAME
from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.kube.objects import Pod
from libtortie.linux.port import Route
from libtortie.model import names
from tests.fakes.cni_world import CniNode, CniWorld, conf, first_address, owners

VM = "k8s-pod-network.vmi.default.db"
LAN = "lan.vmi.default.db"
SECOND = {"name": "lan", "ipam": {"type": "tortie-ipam", "ipv4_pools": ["lan"]}}
"""Another network, with a pool of its own."""


@pytest.fixture
def lan(world: CniWorld) -> CniWorld:
    world.pool("lan", "10.77.0.0/24", assignmentMode="Manual")
    return world


def add(node: CniNode, pod: str, container: str, ifname: str, **settings: Any) -> str:
    result = node.add(pod, container, ifname=ifname, conf=settings)
    assert node.add(pod, container, ifname=ifname, conf=settings) == result
    return first_address(result)


def delete(node: CniNode, pod: str, container: str, ifname: str, **settings: Any) -> None:
    args = node.args(pod, container, ifname=ifname)
    for _ in range(2):
        node.plugin.cmd_del(args, conf(**settings))


def pod_routes(node: CniNode, container: str, ifname: str) -> set[str]:
    routes = node.machine.space(f"/run/netns/{container}").routes.values()
    return {str(one.dst) for one in routes if one.ifname == ifname}


def test_a_pods_two_interfaces_come_and_go_each_by_itself(lan: CniWorld) -> None:
    node = lan.node()
    lan.put_pod("web-0")
    one = add(node, "web-0", "c1", "eth0")
    two = add(node, "web-0", "c1", "net1", **SECOND)
    assert lan.allocated() == {one: "k8s-pod-network.c1", two: "lan.c1.net1"}
    assert set(node.veths()) == {
        names.host_ifname("default", "web-0"),
        names.host_ifname("default", "web-0", "net1"),
    }
    assert pod_routes(node, "c1", "eth0") == {"0.0.0.0/0", "169.254.1.1/32"}
    assert pod_routes(node, "c1", "net1") == {"10.77.0.0/24"}, "the way out stays the first's"
    assert node.route(one) is not None
    assert node.route(two) is not None
    delete(node, "web-0", "c1", "net1", **SECOND)
    assert lan.allocated() == {one: "k8s-pod-network.c1"}
    assert [e.spec.endpoint for e in lan.endpoints()] == ["eth0"]
    two = add(node, "web-0", "c1", "net1", **SECOND)
    delete(node, "web-0", "c1", "eth0")
    assert lan.allocated() == {two: "lan.c1.net1"}
    assert node.route(two) is not None
    delete(node, "web-0", "c1", "net1", **SECOND)
    assert lan.nothing_left()


def test_twice_in_one_network(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    found = {add(node, "web-0", "c1", name): name for name in ("eth0", "net1", "net2")}
    handles = ["k8s-pod-network.c1", "k8s-pod-network.c1.net1", "k8s-pod-network.c1.net2"]
    assert sorted(world.allocated().values()) == handles
    delete(node, "web-0", "c1", "net1")
    assert {found[address] for address in world.allocated()} == {"eth0", "net2"}
    assert len(node.veths()) == 2


def test_del_of_an_interface_that_never_was_touches_nothing(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.add("virt-launcher-db-a", "c2")
    before, held = world.left(), node.ipam.by_handle(VM)
    delete(node, "web-0", "c1", "net1")
    delete(node, "virt-launcher-db-a", "c2", "net1")
    assert world.left() == before
    assert node.ipam.by_handle(VM) == held


def test_a_lone_interface_is_the_way_out_whatever_its_name(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    add(node, "web-0", "c1", "wan0")
    assert pod_routes(node, "c1", "wan0") == {"0.0.0.0/0", "169.254.1.1/32"}


def test_the_first_interface_is_a_way_out_whatever_others_lead_out(lan: CniWorld) -> None:
    """Multus can move the default route to another interface: CHECK and a repeat of ADD see it."""
    node = lan.node()
    lan.put_pod("web-0")
    add(node, "web-0", "c1", "eth0")
    add(node, "web-0", "c1", "net1", **SECOND)
    inside = node.machine.open("/run/netns/c1")
    for route in inside.routes(dst=ip_network("0.0.0.0/0")):
        inside.delete_route(route)
    inside.ensure_route(Route(ip_network("0.0.0.0/0"), 0, "net1", link_scope=True))
    inside.close()
    ways = {
        name: interfaces.leads_out(node.machine, node.args("web-0", "c1", ifname=name))
        for name in ("eth0", "net1", "net2")
    }
    assert ways == {"eth0": True, "net1": True, "net2": False}


def test_a_vm_keeps_the_addresses_of_all_its_interfaces(lan: CniWorld) -> None:
    """Restarted and migrated, with the interfaces in another order."""
    first, second = lan.node("node1"), lan.node("node2")
    lan.put_vm()
    lan.put_launcher("virt-launcher-db-a")
    several: list[tuple[str, dict[str, Any]]] = [
        ("eth0", {}),
        ("net1", SECOND),
        ("net2", SECOND),
    ]
    had = {name: add(first, "virt-launcher-db-a", "c1", name, **s) for name, s in several}
    own = names.vm_interface_handle("lan", "default", "db", "net2")
    assert lan.allocated() == {had["eth0"]: VM, had["net1"]: LAN, had["net2"]: own}
    macs = {one.spec.mac for one in lan.endpoints()}
    assert len(macs) == 3
    for name, settings in several:
        delete(first, "virt-launcher-db-a", "c1", name, **settings)
    lan.kube.remove(Pod, "virt-launcher-db-a", "default")
    lan.put_vm(generation=2)
    lan.put_launcher("virt-launcher-db-b", generation=2)
    again = {name: add(second, "virt-launcher-db-b", "c2", name, **s) for name, s in several[::-1]}
    assert again == had
    lan.put_migration("m1")
    lan.put_launcher("virt-launcher-db-c", generation=2, migration="m1")
    moved = {name: add(first, "virt-launcher-db-c", "c3", name, **s) for name, s in several}
    assert moved == had
    assert {one.spec.mac for one in lan.endpoints()} == macs
    delete(first, "virt-launcher-db-c", "c3", "net1", **SECOND)
    assert owners(first.ipam.by_handle(LAN)) == ("virt-launcher-db-b", "")
    for handle in (VM, own):
        pods = ("virt-launcher-db-b", "virt-launcher-db-c")
        assert owners(first.ipam.by_handle(handle)) == pods
    assert set(lan.allocated()) == set(had.values())


def test_an_interface_that_was_unplugged_does_not_lend_its_address_to_the_next(
    lan: CniWorld,
) -> None:
    node = lan.node()
    lan.put_vm()
    lan.put_launcher("virt-launcher-db-a")
    for name in ("net1", "net2"):
        add(node, "virt-launcher-db-a", "c1", name, **SECOND)
    had = first_address(node.add("virt-launcher-db-a", "c1", ifname="net2", conf=SECOND))
    for name in ("net1", "net2"):
        delete(node, "virt-launcher-db-a", "c1", name, **SECOND)
    lan.put_launcher("virt-launcher-db-b")
    assert add(node, "virt-launcher-db-b", "c2", "net2", **SECOND) == had


def test_a_target_has_no_address_that_the_source_lacks(lan: CniWorld) -> None:
    lan.put_vm()
    lan.put_launcher("virt-launcher-db-a")
    add(lan.node(), "virt-launcher-db-a", "c1", "net1", **SECOND)
    lan.put_migration("m1")
    lan.put_launcher("virt-launcher-db-b", migration="m1")
    before = lan.allocated()
    with pytest.raises(MigrationRefused, match="no IP allocated"):
        lan.node("node2").add("virt-launcher-db-b", "c2", ifname="net2", conf=SECOND)
    assert lan.allocated() == before


@pytest.mark.parametrize("target", [False, True], ids=["first start", "target"])
def test_two_interfaces_that_claim_at_once_do_not_share(lan: CniWorld, target: bool) -> None:
    """The faster runs to its end between the slower's look and its claim."""
    node = lan.node()
    lan.put_vm()
    pod, claim = "virt-launcher-db-a", "claim_vm"
    lan.put_launcher(pod)
    if target:
        for name in ("net1", "net2"):
            add(node, pod, "c1", name, **SECOND)
        pod, claim, node = "virt-launcher-db-b", "claim_vm_target", lan.node("node2")
        lan.put_migration("m1")
        lan.put_launcher(pod, migration="m1")
    late, shared = getattr(node.ipam, claim), LAN

    def overtaken(handle: str, owner: dict[str, str], *rest: Any, **options: Any) -> Any:
        setattr(node.ipam, claim, late)
        node.add(pod, "c2", ifname="net1", conf=SECOND)
        return late(shared, owner, *rest, **options)

    setattr(node.ipam, claim, overtaken)
    with pytest.raises(OwnerMismatch, match=r"interface net1 of pod default/.* net2 may not"):
        node.add(pod, "c2", ifname="net2", conf=SECOND)
    add(node, pod, "c2", "net2", **SECOND)
    found = {first_address(node.add(pod, "c2", ifname=n, conf=SECOND)) for n in ("net1", "net2")}
    assert len(found) == 2


def test_a_pods_annotations_are_about_its_first_interface(lan: CniWorld) -> None:
    notes = {
        "cni.projectcalico.org/ipAddrs": '["10.65.0.77"]',
        "cni.projectcalico.org/hwAddr": "02:aa:bb:cc:dd:ee",
        "cni.projectcalico.org/allowedSourcePrefixes": '["192.0.2.0/24"]',
    }
    lan.put_pod("web-0", annotations=notes)
    pools = {"cni.projectcalico.org/ipv4pools": json.dumps(["pool-4"])}
    lan.put_namespace("default", annotations=pools)
    node = lan.node()
    assert add(node, "web-0", "c1", "eth0") == "10.65.0.77"
    assert add(node, "web-0", "c1", "net1", **SECOND).startswith("10.77.0.")
    stored = {one.spec.endpoint: one.spec for one in lan.endpoints()}
    assert stored["eth0"].mac == "02:aa:bb:cc:dd:ee"
    assert stored["net1"].mac != stored["eth0"].mac
    assert not stored["net1"].allow_spoofed_source_prefixes


def test_check_looks_at_each_by_itself(lan: CniWorld) -> None:
    node = lan.node()
    lan.put_pod("web-0")
    results = {
        name: node.add("web-0", "c1", ifname=name, conf=settings).to_wire("1.1.0")
        for name, settings in (("eth0", {}), ("net1", SECOND))
    }

    def check(ifname: str, **settings: Any) -> None:
        args = node.args("web-0", "c1", ifname=ifname)
        node.plugin.cmd_check(args, conf(prevResult=results[ifname], **settings))

    check("eth0")
    check("net1", **SECOND)
    inside = node.machine.space("/run/netns/c1")
    for key, route in list(inside.routes.items()):
        if route.ifname == "net1":
            del inside.routes[key]
    check("eth0")
    with pytest.raises(CheckFailed, match=r"no route 10\.77\.0\.0/24 dev net1"):
        check("net1", **SECOND)


@pytest.mark.parametrize("vm", [False, True], ids=["pod", "VM"])
@pytest.mark.parametrize("whole", [False, True], ids=["killed", "whole"])
def test_gc_takes_one_interface_and_leaves_the_other(lan: CniWorld, whole: bool, vm: bool) -> None:
    node, pod = lan.node(), "virt-launcher-db-a" if vm else "web-0"
    if vm:
        lan.put_vm()
        lan.put_launcher(pod)
    else:
        lan.put_pod(pod)
    for name in ("net1", "net2"):
        add(node, pod, "c1", name, **SECOND)
    if not whole:
        (stored,) = (one for one in lan.endpoints() if one.spec.endpoint == "net2")
        lan.memory.delete(stored.key)
    lists = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]}
    node.plugin.cmd_gc(conf(**SECOND, **lists))
    assert [one.spec.endpoint for one in lan.endpoints()] == ["net1"]
    assert list(node.veths()) == [names.host_ifname("default", pod, "net1")]
    owned = [seat for _, seat in node.ipam.seats_of("c1")]
    assert {seat[IFNAME] for seat in owned} == {"net1"}
    node.plugin.cmd_gc(conf(**SECOND, **{"cni.dev/valid-attachments": []}))
    assert not node.veths()
    assert not node.ipam.seats_of("c1")
