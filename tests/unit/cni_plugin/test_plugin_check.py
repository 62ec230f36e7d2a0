"""CHECK tells the truth, and all of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any, cast

import pytest

from cni_plugin import chain, mtu
from cni_plugin.errors import CheckFailed, InvalidConfig, UnknownContainer
from cni_plugin.ports import Ports
from libtortie.linux.port import VethPair
from libtortie.model import names
from tests.fakes.cni_world import CniNode, CniWorld, conf, endpoint_key

HOST = names.host_ifname("default", "web-0")
Break = Callable[[CniWorld, CniNode], object]


def check(node: CniNode, pod: str, previous: dict[str, Any], **extra: str) -> None:
    args = node.args(pod, "c1", **extra)
    node.plugin.cmd_check(args, conf(prevResult=previous))


def test_check_passes_after_add_by_every_path_to_the_namespace(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    result = node.add("web-0", "c1")
    for version in ("0.4.0", "1.0.0", "1.1.0"):
        check(node, "web-0", result.to_wire(version))
    node.machine.alias("/var/run/netns/c1", "/run/netns/c1")
    check(node, "web-0", result.to_wire("1.1.0"), netns="/var/run/netns/c1")


def without_host_route(world: CniWorld, node: CniNode) -> object:
    route = next(r for r in node.host.routes.values() if r.ifname == HOST)
    return node.kernel.delete_route(route)


def without_pod_route(world: CniWorld, node: CniNode) -> object:
    inside = node.machine.open("/run/netns/c1")
    return inside.delete_route(next(r for r in inside.routes() if r.gateway))


def without_endpoint(world: CniWorld, node: CniNode) -> object:
    world.memory.delete(endpoint_key("node1", "web-0"))
    return None


def other_container(world: CniWorld, node: CniNode) -> object:
    record = world.memory.get(endpoint_key("node1", "web-0"))
    endpoint: Any = record.value
    changed = endpoint.spec.model_copy(update={"container_id": "c2"})
    new = endpoint.model_copy(update={"spec": changed})
    return world.memory.update(record.key, new, record.revision)


def other_veth(world: CniWorld, node: CniNode) -> object:
    node.kernel.delete_link(HOST)
    return node.kernel.ensure_veth(
        VethPair(HOST, "ee:ee:ee:ee:ee:ee", "eth0", node.netns("other"), 1500)
    )


BREAKS: dict[str, tuple[Break, str]] = {
    "link gone": (lambda w, n: n.kernel.delete_link(HOST), "does not exist on the node"),
    "link down": (lambda w, n: n.kernel.set_link(HOST, up=False), "is down"),
    "host mac": (lambda w, n: n.kernel.set_link(HOST, mac="ee:ee:ee:ee:ee:01"), "has MAC"),
    "pod mac": (
        lambda w, n: n.machine.open("/run/netns/c1").set_link("eth0", mac="02:00:00:00:00:09"),
        "eth0 has MAC",
    ),
    "host mtu": (lambda w, n: n.kernel.set_link(HOST, mtu=1400), f"{HOST} has MTU 1400, prevR"),
    "pod mtu": (
        lambda w, n: n.machine.open("/run/netns/c1").set_link("eth0", mtu=9000),
        "eth0 has MTU 9000, prevResult 1500",
    ),
    "leads elsewhere": (other_veth, "does not lead into"),
    "address gone": (
        lambda w, n: n.machine.space("/run/netns/c1").addresses.clear(),
        "eth0 has no address",
    ),
    "host route": (without_host_route, "the node has no route"),
    "pod route": (without_pod_route, "the pod has no route"),
    "endpoint gone": (without_endpoint, "does not exist"),
    "endpoint of another": (other_container, "is of container c2"),
    "host sysctl": (
        lambda w, n: n.kernel.write_sysctl(f"net/ipv4/conf/{HOST}/proxy_arp", "0"),
        f"sysctl net/ipv4/conf/{HOST}/proxy_arp of the node is 0, not 1",
    ),
    "reverse path filter": (
        lambda w, n: n.kernel.write_sysctl("net/ipv4/conf/all/rp_filter", "1"),
        "sysctl net/ipv4/conf/all/rp_filter of the node is 1, not 0",
    ),
    "pod link down": (
        lambda w, n: n.machine.open("/run/netns/c1").set_link("eth0", up=False),
        "eth0 is down",
    ),
    "no rules": (
        lambda w, n: setattr(n.gate, "unpoliced", frozenset({HOST})),
        f"no rules for {HOST}",
    ),
    "no policy": (
        lambda w, n: setattr(n.gate, "satisfied", False),
        "the agent has no status for this container",
    ),
    "address freed": (lambda w, n: n.ipam.release("k8s-pod-network.c1"), "is not allocated"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_check_finds_what_is_broken(world: CniWorld, name: str) -> None:
    node = world.node()
    world.put_pod("web-0")
    previous = node.add("web-0", "c1").to_wire("1.1.0")
    damage, message = BREAKS[name]
    damage(world, node)
    with pytest.raises(CheckFailed, match=message):
        check(node, "web-0", previous)


def test_check_says_everything_that_differs(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    previous = node.add("web-0", "c1").to_wire("1.1.0")
    without_pod_route(world, node)
    node.gate.unpoliced = frozenset({HOST})
    node.ipam.release("k8s-pod-network.c1")
    with pytest.raises(CheckFailed, match=r"the pod has no route .*\(and 2 more\)") as caught:
        check(node, "web-0", previous)
    assert len(caught.value.__notes__) == 3
    told = "\n".join(caught.value.__notes__)
    assert all(text in told for text in ("no route", "no rules", "is not allocated"))


def test_check_compares_with_prev_result(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    previous = node.add("web-0", "c1").to_wire("1.1.0")
    wrong: dict[str, Callable[[dict[str, Any]], object]] = {
        "10.65.0.99": lambda r: r["ips"][0].update(address="10.65.0.99/32"),
        "no interface eth0": lambda r: r["interfaces"].pop(1),
        "MAC 02:00:00:00:00:99": lambda r: r["interfaces"][1].update(mac="02:00:00:00:00:99"),
        "has no address for eth0": lambda r: r["ips"][0].update(interface=0),
    }
    for text, change in wrong.items():
        result = copy.deepcopy(previous)
        change(result)
        with pytest.raises(CheckFailed, match=text):
            check(node, "web-0", result)
    with pytest.raises(InvalidConfig, match="prevResult"):
        check(node, "web-0", {"ips": [{"address": "nonsense"}]})
    with pytest.raises(InvalidConfig, match="prevResult"):
        node.plugin.cmd_check(node.args("web-0", "c1"), conf())


def test_check_lets_other_plugins_of_the_chain_have_what_they_made(world: CniWorld) -> None:
    """Before ours and behind it: interfaces, addresses and routes that are not ours."""
    node = world.node()
    world.put_pod("web-0")
    ours = node.add("web-0", "c1").to_wire("1.0.0")
    before = chain.previous(
        {
            "interfaces": [{"name": "lo", "sandbox": "/run/netns/c1"}],
            "ips": [{"interface": 0, "address": "127.0.0.1/8"}],
        }
    )
    whole = chain.extended(before, ours, "1.0.0")
    whole["interfaces"].append({"name": "net1", "sandbox": "/run/netns/c1", "mac": "02::1"})
    whole["ips"].append({"interface": 3, "address": "192.168.7.7/24"})
    whole["routes"] = [{"dst": "192.168.0.0/16"}]
    inside = node.machine.open("/run/netns/c1")
    inside.ensure_address("eth0", ip_interface("192.168.8.8/24"))
    check(node, "web-0", whole)


def test_check_knows_what_kubevirts_bridge_binding_does(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    previous = node.add("virt-launcher-db-a", "c1").to_wire("1.1.0")
    space = node.machine.space("/run/netns/c1")
    inside = node.machine.open("/run/netns/c1")
    inside.add_link("k6t-eth0")
    link = space.links.pop("eth0")
    space.links["eth0-nic"] = replace(link, name="eth0-nic", mac="02:11:22:33:44:55")
    space.peers["eth0-nic"] = space.peers.pop("eth0")
    space.addresses.pop("eth0")
    inside.add_link("eth0", "dummy", mac=link.mac, up=False)
    inside.ensure_address("eth0", ip_interface(previous["ips"][0]["address"]))
    check(node, "virt-launcher-db-a", previous)
    node.kernel.delete_link(names.host_ifname("default", "virt-launcher-db-a"))
    with pytest.raises(CheckFailed):
        check(node, "virt-launcher-db-a", previous)


def test_check_fails_for_a_vm_whose_address_another_sandbox_owns(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    previous = node.add("virt-launcher-db-a", "c1").to_wire("1.1.0")
    handle = "k8s-pod-network.vmi.default.db"
    node.ipam.disown_vm(handle, node.ipam.by_handle(handle)[0].active, vm_deleting=False)
    with pytest.raises(CheckFailed, match="another sandbox"):
        check(node, "virt-launcher-db-a", previous)


def test_check_of_a_namespace_that_is_gone(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    previous = node.add("web-0", "c1").to_wire("1.1.0")
    with pytest.raises(UnknownContainer, match="/run/netns/gone"):
        node.plugin.cmd_check(
            replace(node.args("web-0", "c1"), netns="/run/netns/gone"), conf(prevResult=previous)
        )


@pytest.mark.parametrize(
    ("configured", "host", "pod", "found"),
    [
        (1400, 1400, 1400, ()),
        (1400, 1400, 1300, ()),  # a later plugin's: no result says so
        (1400, 1450, 1400, (f"interface {HOST} has MTU 1450, the configuration 1400",)),
        (1400, 1300, 1300, (f"interface {HOST} has MTU 1300, the configuration 1400",)),
        (1400, 1400, 1500, ("eth0 has MTU 1500, the configuration 1400",)),
        (0, 1450, 1450, ()),
        (0, 1400, 1400, ()),  # the node's is larger by now: ADD's was this one
        (0, 1500, 1451, ("has MTU 1500, the node 1450", "eth0 has MTU 1451, the node 1450")),
    ],
)
def test_an_mtu_that_no_result_tells(
    world: CniWorld, configured: int, host: int, pod: int, found: tuple[str, ...]
) -> None:
    (world.directory / "mtu").write_text("1450\n")
    node = world.node()
    world.put_pod("web-0")
    previous = node.add("web-0", "c1", conf={"mtu": configured}).to_wire("1.0.0")
    node.kernel.set_link(HOST, mtu=host)
    node.machine.open("/run/netns/c1").set_link("eth0", mtu=pod)
    args = node.args("web-0", "c1")
    settings = conf(prevResult=previous, mtu=configured)
    if not found:
        node.plugin.cmd_check(args, settings)
        return
    with pytest.raises(CheckFailed) as caught:
        node.plugin.cmd_check(args, settings)
    assert len(caught.value.__notes__) == len(found)
    for text, note in zip(found, caught.value.__notes__, strict=True):
        assert text in note


@pytest.mark.parametrize("noted", ["0", "65536", "9" * 5000, "x"])
def test_an_endpoint_that_notes_no_mtu_is_compared_with_the_node(noted: str) -> None:
    """Who may patch a pod may have written it."""
    found = mtu.expected(chain.Previous(), HOST, noted, conf(mtu=1400), cast(Ports, None))
    assert (found.mtu, found.source) == (1400, "the configuration")


def test_a_vms_mtu_is_what_its_endpoint_says(world: CniWorld) -> None:
    """The target has its source's, whatever the node gives by now."""
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-0")
    previous = node.add("virt-launcher-db-0", "c1", conf={"mtu": 1400}).to_wire("1.0.0")
    args = node.args("virt-launcher-db-0", "c1")
    node.plugin.cmd_check(args, conf(prevResult=previous, mtu=9000))
    host = names.host_ifname("default", "virt-launcher-db-0")
    node.kernel.set_link(host, mtu=9000)
    with pytest.raises(CheckFailed, match="has MTU 9000, the endpoint 1400"):
        node.plugin.cmd_check(args, conf(prevResult=previous, mtu=9000))
