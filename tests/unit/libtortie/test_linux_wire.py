"""Netlink bodies: what is built reads back, and foreign bytes never surprise."""

from __future__ import annotations

import struct
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import InvalidInput
from libtortie.linux import routes, sysctl, wire
from libtortie.linux.port import IPInterface, IPNetwork, Route, RouteType

NAMES = {7: "cali1"}


def name_of(ifindex: int) -> str:
    return NAMES.get(ifindex, "")


def networks() -> st.SearchStrategy[IPNetwork]:
    four = st.builds(
        lambda number, length: IPv4Network((number, length), strict=False),
        st.integers(0, 2**32 - 1),
        st.integers(0, 32),
    )
    six = st.builds(
        lambda number, length: IPv6Network((number, length), strict=False),
        st.integers(0, 2**128 - 1),
        st.integers(0, 128),
    )
    return st.one_of(four, six)


@given(
    dst=networks(),
    priority=st.integers(1, 2**32 - 1),
    proto=st.integers(0, 255),
    table=st.one_of(st.integers(1, 255), st.integers(256, 2**32 - 1)),
    scoped=st.booleans(),
    onlink=st.booleans(),
    gateway=st.sampled_from([None, "10.0.0.1", "fe80::1"]),
)
def test_a_route_reads_back(
    *,
    dst: IPNetwork,
    priority: int,
    proto: int,
    table: int,
    scoped: bool,
    onlink: bool,
    gateway: str | None,
) -> None:
    if dst.version == 6 and gateway == "10.0.0.1":
        gateway = None
    route = Route(
        dst,
        priority,
        "cali1",
        None if gateway is None else ip_address(gateway),
        proto,
        link_scope=scoped and dst.version == 4,
        onlink=onlink,
        table=table,
    )
    body = memoryview(routes.route_addition(route, 7))
    assert routes.parse_route(body, name_of) == route
    mark = routes.route_mark(dst)
    assert (mark is None) == (dst.prefixlen == 0)
    assert mark is None or mark in bytes(body)


def test_types_of_others_are_left_out() -> None:
    blackhole = Route(IPv4Network("10.0.0.0/26"), 9, type=RouteType.BLACKHOLE)
    body = bytearray(routes.route_addition(blackhole, 0))
    assert routes.parse_route(memoryview(body), name_of) == blackhole
    for kind in (0, 2, 3, 5, 7, 11):  # unspec, local, broadcast, multicast, unreachable, nat
        body[7] = kind
        assert routes.parse_route(memoryview(body), name_of) is None


def test_a_cached_ipv6_route_is_no_route() -> None:
    body = bytearray(routes.route_addition(Route(IPv6Network("fd00::1/128"), 9, "cali1"), 7))
    struct.pack_into("=I", body, 8, 0x200)
    assert routes.parse_route(memoryview(body), name_of) is None


def test_a_link_that_went_has_no_name() -> None:
    body = memoryview(routes.route_addition(Route(IPv4Network("10.0.0.1/32"), 9, "cali1"), 8))
    route = routes.parse_route(body, name_of)
    assert route is not None
    assert route.ifname == ""


def test_a_deletion_names_the_key_and_nothing_else() -> None:
    route = Route(IPv4Network("10.0.0.1/32"), 9, "cali1", ip_address("10.9.9.9"), 80, onlink=True)
    body = routes.route_deletion(route, 0)
    _, _, _, _, table, proto, scope, kind, flags = struct.unpack_from("=BBBBBBBBI", body)
    assert (table, proto, scope, kind, flags) == (254, 0, 255, 0, 0)
    assert sorted(wire.attributes(memoryview(body), 12)) == [1, 6, 15]  # dst, priority, table
    assert sorted(wire.attributes(memoryview(routes.route_deletion(route, 7)), 12)) == [1, 4, 6, 15]


@pytest.mark.parametrize("address", ["10.65.0.2/32", "10.1.2.3/24", "fd00::2/128", "fd00::3/64"])
def test_an_address_reads_back(address: str) -> None:
    wanted: IPInterface = IPv6Interface(address) if ":" in address else IPv4Interface(address)
    body = memoryview(wire.address_change(7, wanted))
    assert wire.parse_address(body) == (7, wanted)
    assert wire.parse_address(memoryview(b"\x0a" + bytes(7))) is None


def test_an_ipv6_address_asks_for_no_duplicate_detection() -> None:
    assert wire.address_change(7, IPv6Interface("fd00::2/128"))[2] == 0x02
    assert wire.address_change(7, IPv4Interface("10.0.0.2/32"))[2] == 0


def test_a_bridges_word_about_its_port_is_no_link() -> None:
    body = bytearray(wire.bridge_creation("br0", "02:00:00:00:00:01", True))
    answer = wire.parse_link(memoryview(body))
    assert answer is not None
    link = answer.link
    assert (link.name, link.mac, link.kind, link.up) == ("br0", "02:00:00:00:00:01", "bridge", True)
    assert answer.peer_nsid is None
    body[0] = wire.AF_BRIDGE
    assert wire.parse_link(memoryview(body)) is None


def test_only_a_veth_has_a_peer() -> None:
    end = wire.VethEnd("cali1", "ee:ee:ee:ee:ee:ee")
    body = wire.veth_creation(end, wire.VethEnd("eth0", netns_fd=3), mtu=1440, queues=1)
    peer = struct.pack("=HHI", 8, 5, 12) + struct.pack("=HHi", 8, 37, 0)  # IFLA_LINK, its nsid
    answer = wire.parse_link(memoryview(body + peer))
    assert answer is not None
    assert (answer.link.kind, answer.link.peer_ifindex, answer.peer_nsid) == ("veth", 12, 0)
    bridge = wire.parse_link(memoryview(wire.bridge_creation("br0", "", True) + peer))
    assert bridge is not None
    assert bridge.link.peer_ifindex == 0


def test_a_change_says_only_what_changes() -> None:
    body = memoryview(wire.link_change(7, mtu=1300))
    _, _, ifindex, flags, mask = struct.unpack_from("=BxHiII", body)
    assert (ifindex, flags, mask) == (7, 0, 0)
    assert list(wire.attributes(body, 16)) == [4]
    down = struct.unpack_from("=BxHiII", wire.link_change(7, up=False))
    assert down[3:] == (0, 1)
    release = wire.attributes(memoryview(wire.link_change(7, master=0)), 16)
    assert bytes(release[10]) == bytes(4)


@given(st.binary(max_size=200), st.integers(0, 20))
def test_attributes_of_any_bytes(data: bytes, offset: int) -> None:
    for value in wire.attributes(memoryview(data), offset).values():
        assert len(value) <= len(data)


@pytest.mark.parametrize(
    "name", ["", "/", "net/", "/etc/passwd", "../etc/passwd", "net/../../etc", "a\0b", "net//x"]
)
def test_a_sysctl_stays_below_its_root(name: str) -> None:
    with pytest.raises(InvalidInput):
        sysctl.path_of(name)


def test_dots_belong_to_interface_names() -> None:
    path = sysctl.path_of("net/ipv4/conf/eth0.5/rp_filter")
    assert str(path) == "/proc/sys/net/ipv4/conf/eth0.5/rp_filter"
