"""Who may send on a workload's link, by real packets of both families: its MAC, its addresses.

That does not depend on routes: a migration target, whose address still leads to another node, is
let out from its first packet on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import cast

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.policy import EndpointPolicy, policy_set
from libtortie.model.felix_values import EndpointToHost
from tests.fakes.packets import ICMPV6, TCP, UDP, Packet
from tests.fakes.wired_host import WiredHost, wired_host
from tests.fakes.wired_pods import Wire, far_wire

pytestmark = pytest.mark.root

Address = IPv4Address | IPv6Address
OWN = ip_address("172.31.0.11"), ip_address("fd00:31::11")
FAR = ip_address("203.0.113.9"), ip_address("fd00:99::9")
A = Wire(
    "cali00000000001",
    "02:00:00:00:00:01",
    (ip_address("10.65.0.2"), ip_address("fd00:65::2")),
)
B = Wire(
    "cali00000000002",
    "02:00:00:00:00:02",
    (ip_address("10.65.0.3"), ip_address("fd00:65::3")),
)
UNKNOWN = Wire(
    "cali00000000003",
    "02:00:00:00:00:03",
    (ip_address("10.65.0.4"), ip_address("fd00:65::4")),
)
NOBODY = ip_address("10.65.0.77"), ip_address("fd00:65::77")
OTHER_MAC = "02:00:00:00:00:99"


@pytest.fixture(scope="module")
def node() -> Iterator[WiredHost]:
    with wired_host((far_wire(FAR), A, B, UNKNOWN), OWN) as made:
        endpoints = [EndpointPolicy(w.interface, w.mac, w.addresses, vm=True) for w in (A, B)]
        rules = policy_set(endpoints, endpoint_to_host=EndpointToHost.ACCEPT)
        made.call(partial(Nftables().apply, rules))
        yield made


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("mac", [A.mac, B.mac, OTHER_MAC])
def test_only_its_mac_with_its_addresses(node: WiredHost, family: int, mac: str) -> None:
    """To the world, to another workload, and to the node."""
    sender = replace(A, mac=mac)
    sources = (A.addresses, B.addresses, UNKNOWN.addresses, NOBODY, FAR, OWN)
    for source in (one[family] for one in sources):
        right = mac == A.mac and source == A.addresses[family]
        for protocol in (TCP, UDP):
            out = Packet(source, FAR[family], protocol, 5000, 80)
            assert bool(node.crosses(out, sender=sender)) is right, out
            over = replace(out, destination=B.addresses[family])
            if source != over.destination:
                assert bool(node.crosses(over, sender=sender)) is right, over
            inside = replace(out, destination=OWN[family])
            if source not in OWN:
                assert node.hears(inside, sender=sender) is right, inside


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_an_unknown_link_is_cut_off_both_ways(node: WiredHost, family: int) -> None:
    me, other, far = UNKNOWN.addresses[family], A.addresses[family], FAR[family]
    for source, destination in ((me, far), (far, me), (me, other), (other, me)):
        assert not node.reaches(Packet(source, destination, UDP, 5000, 80))
    assert not node.hears(Packet(me, OWN[family], UDP, 5000, 80))
    assert node.reaches(Packet(other, far, UDP, 5000, 80))
    assert node.reaches(Packet(far, other, UDP, 5000, 80))


def test_link_local_is_for_neighbour_discovery_alone(node: WiredHost) -> None:
    me, gateway = ip_address("fe80::2"), OWN[1]
    assert not node.hears(Packet(me, gateway, UDP, 5000, 80), sender=A)
    assert not node.hears(Packet(me, gateway, ICMPV6, icmp=(128, 0)), sender=A)
    assert not node.crosses(Packet(me, FAR[1], UDP, 5000, 80), sender=A)


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_a_target_is_let_out_before_its_route_is_here(node: WiredHost, family: int) -> None:
    """Its address still leads to the source node; its first packet leaves, spoofed ones do not."""
    first = Packet(A.addresses[family], FAR[family], TCP, 5000, 80)
    over = replace(first, destination=B.addresses[family])
    with routed_elsewhere(node, A.addresses[family]):
        assert node.reaches(first)
        assert node.reaches(over)
        assert not node.crosses(first, sender=replace(A, mac=OTHER_MAC))
        assert not node.crosses(replace(first, source=B.addresses[family]), sender=A)
        if family == 0:
            with filtered(node):
                assert not node.reaches(first), "the kernel's own check would lose it"
        assert node.reaches(first)
    assert node.reaches(first)


@contextmanager
def routed_elsewhere(node: WiredHost, address: Address) -> Iterator[None]:
    family, bits = f"-{address.version}", address.max_prefixlen
    node.ip(f"{family} route del {address}/{bits} dev {A.interface}")
    node.ip(f"{family} route add {address}/{bits} dev up0")
    try:
        yield
    finally:
        node.ip(f"{family} route del {address}/{bits} dev up0")
        node.ip(f"{family} route add {address}/{bits} dev {A.interface}")


@contextmanager
def filtered(node: WiredHost) -> Iterator[None]:
    """With the kernel's strict reverse-path check on the link."""
    path = Path(f"/proc/sys/net/ipv4/conf/{A.interface}/rp_filter")
    node.call(lambda: path.write_text("1"))
    try:
        yield
    finally:
        node.call(lambda: path.write_text("0"))
    assert cast(str, node.call(path.read_text)).strip() == "0"
