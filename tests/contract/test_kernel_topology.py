"""The lab's building blocks on the real kernel: right, and harmless when repeated."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_address

import pytest

from libtortie.errors import KernelError, NotFound
from libtortie.linux import netns, topology
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.port import Link
from tests.fakes.fresh_names import fresh_name

pytestmark = pytest.mark.root


@pytest.fixture
def here() -> Iterator[str]:
    path = netns.create(fresh_name("here"))
    try:
        yield path
    finally:
        netns.delete(path)


@pytest.fixture
def there() -> Iterator[str]:
    path = netns.create(fresh_name("there"))
    try:
        yield path
    finally:
        netns.delete(path)


def link(path: str, name: str) -> Link | None:
    kernel = NetlinkKernel(path)
    try:
        return kernel.link(name)
    finally:
        kernel.close()


def test_bridges(here: str) -> None:
    made = topology.ensure_bridge(here, "br0", mac="02:00:00:00:00:0A")
    assert (made.kind, made.mac, made.up) == ("bridge", "02:00:00:00:00:0a", True)
    assert topology.ensure_bridge(here, "br0", mac="02:00:00:00:00:0A") == made
    down = topology.ensure_bridge(here, "br0", up=False)
    assert (down.ifindex, down.up) == (made.ifindex, False)
    with pytest.raises(KernelError, match="lo"):
        topology.ensure_bridge(here, "lo")


def test_a_bridge_down_stands_in_for_a_dummy(here: str) -> None:
    made = topology.ensure_bridge(here, "eth0", up=False)
    assert not made.up
    kernel = NetlinkKernel(here)
    kernel.ensure_address("eth0", IPv4Interface("10.65.0.2/32"))
    assert kernel.addresses("eth0") == (IPv4Interface("10.65.0.2/32"),)
    assert topology.delete_address(here, "eth0", IPv4Interface("10.65.0.2/32")) is True
    assert topology.delete_address(here, "eth0", IPv4Interface("10.65.0.2/32")) is False
    assert kernel.addresses("eth0") == ()
    kernel.close()


def test_veth_between_namespaces(here: str, there: str) -> None:
    ends = topology.ensure_veth_between(
        (here, "a"), (there, "b"), mtu=1400, near_mac="02:00:00:00:00:01"
    )
    assert ends == (link(here, "a"), link(there, "b"))
    assert [(end.up, end.mtu) for end in ends] == [(True, 1400)] * 2
    again = topology.ensure_veth_between(
        (here, "a"), (there, "b"), mtu=1300, far_mac="02:00:00:00:00:02"
    )
    assert [end.ifindex for end in again] == [end.ifindex for end in ends]
    assert [(end.mac, end.mtu) for end in again] == [
        ("02:00:00:00:00:01", 1300),
        ("02:00:00:00:00:02", 1300),
    ]
    for near, far in (((here, "a"), (there, "c")), ((here, "c"), (there, "b"))):
        with pytest.raises(KernelError, match="not one veth pair"):
            topology.ensure_veth_between(near, far)
    assert link(here, "c") is None
    assert link(there, "c") is None


def test_veth_within_a_namespace(here: str) -> None:
    ends = topology.ensure_veth_between((here, "a"), (here, "b"))
    assert topology.ensure_veth_between((here, "a"), (here, "b")) == ends
    assert {ends[0].peer_ifindex, ends[1].peer_ifindex} == {end.ifindex for end in ends}


def test_ports_and_forwarding(here: str) -> None:
    bridge = topology.ensure_bridge(here, "br0")
    topology.ensure_veth_between((here, "a"), (here, "b"))
    for _ in range(2):
        topology.set_master(here, "a", "br0")
    port = link(here, "a")
    assert port is not None
    assert port.master == bridge.ifindex
    for _ in range(2):
        topology.ensure_forwarding(here, "a", "02:00:00:00:00:77")
    assert "02:00:00:00:00:77" in {each.mac for each in topology.list_forwarding(here, "a")}
    assert topology.delete_forwarding(here, "a", "02:00:00:00:00:77") is True
    assert topology.delete_forwarding(here, "a", "02:00:00:00:00:77") is False
    assert "02:00:00:00:00:77" not in {each.mac for each in topology.list_forwarding(here, "a")}
    topology.set_master(here, "a", "")
    port = link(here, "a")
    assert port is not None
    assert port.master == 0


def test_neighbours_of_both_families(here: str) -> None:
    topology.ensure_veth_between((here, "a"), (here, "b"))
    four, six = ip_address("10.0.0.9"), ip_address("fd00::9")
    for address in (four, six, four):
        topology.ensure_neighbour(here, "a", address, "02:00:00:00:00:98")
    topology.ensure_neighbour(here, "a", four, "02:00:00:00:00:99")
    held = {
        each.address: (each.mac, each.permanent) for each in topology.list_neighbours(here, "a")
    }
    assert held[four] == ("02:00:00:00:00:99", True)
    assert held[six] == ("02:00:00:00:00:98", True)
    assert topology.list_neighbours(here, "lo") == ()
    assert topology.delete_neighbour(here, "a", four) is True
    assert topology.delete_neighbour(here, "a", four) is False
    assert topology.delete_neighbour(here, "none", four) is False


def test_taps(here: str) -> None:
    made = topology.ensure_tap(here, "tap0")
    assert (made.kind, made.up) == ("tun", True)
    assert topology.ensure_tap(here, "tap0") == made
    assert topology.delete_link(here, "tap0") is True
    assert topology.delete_link(here, "tap0") is False


def test_moving_and_renaming(here: str, there: str) -> None:
    topology.ensure_veth_between((here, "a"), (here, "b"))
    for _ in range(2):
        moved = topology.move_link(here, "b", there, "eth0")
        assert moved.name == "eth0"
    assert link(here, "b") is None
    for _ in range(2):
        topology.rename_link(there, "eth0", "eth0-nic")
    assert link(there, "eth0") is None
    topology.set_mac(there, "eth0-nic", "02:00:00:00:00:55")
    renamed = link(there, "eth0-nic")
    assert renamed is not None
    assert renamed.mac == "02:00:00:00:00:55"
    with pytest.raises(NotFound):
        topology.move_link(here, "b", here)


def test_missing_namespaces_and_links(here: str) -> None:
    missing = "/run/netns/tt-there-is-none"
    for attempt in (
        lambda: topology.ensure_bridge(missing, "br0"),
        lambda: topology.ensure_veth_between((here, "a"), (missing, "b")),
        lambda: topology.set_master(here, "a", ""),
        lambda: topology.set_master(here, "lo", "br9"),
        lambda: topology.set_up(here, "a"),
        lambda: topology.rename_link(here, "a", "b"),
        lambda: topology.list_neighbours(here, "a"),
    ):
        with pytest.raises(NotFound):
            attempt()
    assert link(here, "a") is None
