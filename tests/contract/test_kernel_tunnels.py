"""One suite for the tunnel port, in memory and in real namespaces (root)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface

import pytest

from libtortie.errors import KernelError, NotFound
from libtortie.linux import netns
from libtortie.linux.neighbours import ForwardingEntry, Neighbour
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.port import Kernel, Route, RouteProto
from libtortie.linux.tunnel import NetlinkTunnels, TunnelKernel, VxlanLink
from tests.fakes.fresh_names import fresh_name
from tests.fakes.kernel import FakeKernel
from tests.fakes.tunnels import FakeTunnels

FOUR = VxlanLink("vx4", 4096, 4789, ip_address("172.31.1.2"), "66:00:00:00:00:01", 1450)
SIX = VxlanLink("vx6", 4096, 4789, ip_address("fd31::2"), "66:00:00:00:00:02", 1430)
FAR, OTHER = "66:00:00:00:00:0f", "66:00:00:00:00:0e"


@dataclass
class Node:
    """A namespace by both ports."""

    kernel: Kernel
    tunnels: TunnelKernel


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.root)])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if request.param == "fake":
        kernel = FakeKernel()
        yield Node(kernel, FakeTunnels(kernel))
        return
    path = netns.create(fresh_name("tun"))
    try:
        real, tunnels = NetlinkKernel(path), NetlinkTunnels(path)
        real.set_link("lo", up=True)
        try:
            yield Node(real, tunnels)
        finally:
            tunnels.close()
            real.close()
    finally:
        netns.delete(path)


def index(node: Node, name: str) -> int:
    link = node.kernel.link(name)
    assert link is not None
    return link.ifindex


@pytest.mark.parametrize("wanted", [FOUR, SIX])
def test_a_device_is_made_once(node: Node, wanted: VxlanLink) -> None:
    assert node.tunnels.vxlan(wanted.name) is None
    assert node.tunnels.ensure_vxlan(wanted) is True
    assert node.tunnels.vxlan(wanted.name) == wanted
    link = node.kernel.link(wanted.name)
    assert link is not None
    assert (link.kind, link.up) == ("vxlan", True)
    assert node.tunnels.ensure_vxlan(wanted) is False
    assert index(node, wanted.name) == link.ifindex


def test_both_families_stand_beside_each_other(node: Node) -> None:
    assert node.tunnels.ensure_vxlan(FOUR)
    assert node.tunnels.ensure_vxlan(SIX)
    assert (node.tunnels.vxlan("vx4"), node.tunnels.vxlan("vx6")) == (FOUR, SIX)


def test_mac_and_mtu_change_in_place(node: Node) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    before = index(node, "vx4")
    changed = replace(FOUR, mac=OTHER, mtu=1400)
    assert node.tunnels.ensure_vxlan(changed) is False
    assert node.tunnels.vxlan("vx4") == changed
    assert node.tunnels.ensure_vxlan(replace(changed, mtu=0)) is False
    assert node.tunnels.vxlan("vx4") == changed, "0: as it is"
    assert index(node, "vx4") == before


@pytest.mark.parametrize(
    "changed",
    [replace(FOUR, vni=7), replace(FOUR, port=8472), replace(FOUR, local=ip_address("10.0.0.1"))],
)
def test_what_the_kernel_cannot_change_is_made_anew(node: Node, changed: VxlanLink) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    node.tunnels.ensure_neighbour("vx4", ip_address("10.65.2.1"), FAR)
    before = index(node, "vx4")
    assert node.tunnels.ensure_vxlan(changed) is True
    assert node.tunnels.vxlan("vx4") == changed
    assert index(node, "vx4") != before
    assert node.tunnels.neighbours("vx4") == ()


def test_a_link_that_is_down_comes_up(node: Node) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    node.kernel.set_link("vx4", up=False)
    assert node.tunnels.ensure_vxlan(FOUR) is False
    link = node.kernel.link("vx4")
    assert link is not None
    assert link.up


def test_another_kind_of_link_is_left_alone(node: Node) -> None:
    assert node.tunnels.vxlan("lo") is None
    with pytest.raises(KernelError, match="lo exists and is a"):
        node.tunnels.ensure_vxlan(replace(FOUR, name="lo"))


def test_far_ends(node: Node) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    end, place = ip_address("10.65.2.1"), ip_address("172.31.2.2")
    for _ in range(2):
        node.tunnels.ensure_neighbour("vx4", end, FAR)
        node.tunnels.ensure_forwarding("vx4", FAR, place)
    assert node.tunnels.neighbours("vx4") == (Neighbour(end, FAR, True),)
    assert node.tunnels.forwarding("vx4") == (ForwardingEntry(FAR, place, True),)
    moved = ip_address("172.31.9.2")
    node.tunnels.ensure_neighbour("vx4", end, OTHER)
    node.tunnels.ensure_forwarding("vx4", FAR, moved)
    assert node.tunnels.neighbours("vx4") == (Neighbour(end, OTHER, True),)
    assert node.tunnels.forwarding("vx4") == (ForwardingEntry(FAR, moved, True),)
    assert node.tunnels.delete_forwarding("vx4", FAR, place) is False
    assert node.tunnels.delete_forwarding("vx4", FAR, moved) is True
    assert node.tunnels.delete_forwarding("vx4", FAR, moved) is False
    assert node.tunnels.delete_neighbour("vx4", end) is True
    assert node.tunnels.delete_neighbour("vx4", end) is False
    left = [one for one in node.tunnels.neighbours("vx4") if one.permanent]
    assert (left, node.tunnels.forwarding("vx4")) == ([], ()), "the kernel may show it as failed"


def test_far_ends_of_ipv6(node: Node) -> None:
    node.tunnels.ensure_vxlan(SIX)
    end, place = ip_address("fd65::2:1"), ip_address("fd31::9")
    node.tunnels.ensure_neighbour("vx6", end, FAR)
    node.tunnels.ensure_forwarding("vx6", FAR, place)
    assert Neighbour(end, FAR, True) in node.tunnels.neighbours("vx6")
    assert node.tunnels.forwarding("vx6") == (ForwardingEntry(FAR, place, True),)


def test_addresses_go(node: Node) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    address = ip_interface("10.65.1.1/32")
    node.kernel.ensure_address("vx4", address)
    assert node.tunnels.delete_address("vx4", address) is True
    assert node.tunnels.delete_address("vx4", address) is False
    assert address not in node.kernel.addresses("vx4")


def test_no_such_link(node: Node) -> None:
    end = ip_address("10.65.2.1")
    for attempt in (
        lambda: node.tunnels.neighbours("vx4"),
        lambda: node.tunnels.forwarding("vx4"),
        lambda: node.tunnels.ensure_neighbour("vx4", end, FAR),
        lambda: node.tunnels.ensure_forwarding("vx4", FAR, end),
        lambda: node.tunnels.delete_address("vx4", ip_interface("10.65.1.1/32")),
    ):
        with pytest.raises(NotFound, match="vx4"):
            attempt()
    assert node.tunnels.delete_neighbour("vx4", end) is False
    assert node.tunnels.delete_forwarding("vx4", FAR, end) is False


def test_a_route_by_a_far_end_needs_no_subnet(node: Node) -> None:
    node.tunnels.ensure_vxlan(FOUR)
    node.kernel.ensure_address("vx4", ip_interface("10.65.1.1/32"))
    block = Route(
        dst=ip_interface("10.65.2.0/26").network,
        priority=896,
        ifname="vx4",
        gateway=ip_address("10.65.2.1"),
        proto=RouteProto.TORTIE,
        onlink=True,
    )
    node.kernel.ensure_route(block)
    assert block in node.kernel.routes()
