"""`natOutgoing` by real packets: who leaves with an address of the node, and who as who he is."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.host_settings import HostSettings
from felix_shim.nat_rules import NatSettings
from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from felix_shim.policy_book import PolicyRules
from felix_shim.surroundings import Surroundings, with_node
from libtortie.model.policy import PortRange
from libtortie.model.resources import IPPoolSpec
from tests.fakes.packets import SCTP, TCP, UDP, Packet
from tests.fakes.wired_host import WiredHost, wired_host
from tests.fakes.wired_pods import Wire, far_wire

pytestmark = pytest.mark.root

Address = IPv4Address | IPv6Address
OWN = ip_address("172.31.0.11"), ip_address("fd00:31::11")
FAR = ip_address("203.0.113.9"), ip_address("fd00:99::9")
PEER = ip_address("172.31.0.12")
"""Another node."""
REMOTE = ip_address("10.66.0.9"), ip_address("fd00:66::9")
"""A pod of another node, in a pool that stays inside without NAT."""
BALANCER = ip_address("10.68.0.9")
POD = Wire(
    "cali00000000001",
    "02:00:00:00:00:01",
    (ip_address("10.65.0.2"), ip_address("fd00:65::2")),
)
PLAIN = Wire("cali00000000002", "02:00:00:00:00:02", (ip_address("10.66.0.2"),))
POOLS = tuple(
    IPPoolSpec.model_validate({"cidr": cidr, "natOutgoing": wants, "allowedUses": uses})
    for cidr, wants, uses in (
        ("10.65.0.0/16", True, ("Workload", "Tunnel")),
        ("fd00:65::/48", True, ("Workload", "Tunnel")),
        ("10.66.0.0/16", False, ("Workload", "Tunnel")),
        ("fd00:66::/48", False, ("Workload", "Tunnel")),
        ("10.68.0.0/16", False, ("LoadBalancer",)),
    )
)


@pytest.fixture(scope="module")
def node() -> Iterator[WiredHost]:
    far = far_wire((*FAR, PEER, *REMOTE, BALANCER))
    with wired_host((far, POD, PLAIN), OWN) as made:
        yield made


@pytest.fixture(scope="module")
def nft() -> Nftables:
    return Nftables(quiet=0.0)


def rules(pools: tuple[IPPoolSpec, ...], settings: NatSettings | None = None) -> PolicySet:
    around = Surroundings(
        HostSettings(nat=settings or NatSettings()),
        nodes=frozenset({OWN[0], OWN[1], PEER}),
        pools=pools,
    )
    endpoints = [EndpointPolicy(wire.interface, wire.mac, wire.addresses) for wire in (POD, PLAIN)]
    return policy_set(endpoints, rules=with_node(PolicyRules(), around))


def source(node: WiredHost, packet: Packet) -> tuple[Address, int]:
    """With which address and port a packet leaves."""
    frame = node.crosses(packet)
    assert frame, packet
    if packet.version == 4:
        start, there, size = 14, 26, 4
        ports = start + 20
    else:
        start, there, size = 14, 22, 16
        ports = start + 40
    return ip_address(frame[there : there + size]), struct.unpack_from("!H", frame, ports)[0]


@pytest.mark.parametrize("protocol", [TCP, UDP, SCTP])
@pytest.mark.parametrize("family", [0, 1])
def test_who_leaves_with_the_nodes_address(
    node: WiredHost, nft: Nftables, protocol: int, family: int
) -> None:
    node.call(partial(nft.apply, rules(POOLS)))
    out = Packet(POD.addresses[family], FAR[family], protocol, 5000, 80)
    assert source(node, out)[0] == OWN[family]
    assert source(node, replace(out, destination=REMOTE[family]))[0] == out.source


def test_who_leaves_as_who_he_is(node: WiredHost, nft: Nftables) -> None:
    node.call(partial(nft.apply, rules(POOLS)))
    out = Packet(POD.addresses[0], BALANCER, TCP, 5000, 80)
    assert source(node, out)[0] == OWN[0], "a pool for load balancers is not inside"
    assert source(node, replace(out, destination=PEER))[0] == OWN[0]
    other = replace(out, source=PLAIN.addresses[0], destination=FAR[0])
    assert source(node, other)[0] == other.source
    node.call(partial(nft.apply, rules(())))
    assert source(node, replace(out, destination=FAR[0]))[0] == out.source


def test_to_nodes_as_who_he_is(node: WiredHost, nft: Nftables) -> None:
    node.call(partial(nft.apply, rules(POOLS, NatSettings(spare_nodes=True))))
    out = Packet(POD.addresses[0], PEER, TCP, 5000, 80)
    assert source(node, out)[0] == out.source
    assert source(node, replace(out, destination=FAR[0]))[0] == OWN[0]


def test_the_address_and_the_ports_that_are_asked_for(node: WiredHost, nft: Nftables) -> None:
    address, ports = IPv4Address("172.31.0.77"), PortRange(20000, 20009)
    for settings, there in (
        (NatSettings(ports=ports), OWN[0]),
        (NatSettings(address, ports), address),
        (NatSettings(address), address),
    ):
        node.call(partial(nft.apply, rules(POOLS, settings)))
        for protocol in (TCP, UDP, SCTP):
            out = Packet(POD.addresses[0], FAR[0], protocol, 5000, 80)
            found, port = source(node, out)
            assert found == there
            assert port in range(20000, 20010) if settings.ports else port == 5000
        six = Packet(POD.addresses[1], FAR[1], TCP, 5000, 80)
        assert source(node, six)[0] == OWN[1]


def test_pools_that_come_and_go_change_elements_alone(node: WiredHost, nft: Nftables) -> None:
    stays = IPPoolSpec.model_validate({"cidr": "10.70.0.0/16", "natOutgoing": True})
    with_it, without = (*POOLS, stays), (*POOLS[1:], stays)
    node.call(partial(nft.apply, rules(without)))
    before = listed(node)
    out = Packet(POD.addresses[0], FAR[0], TCP, 5000, 80)
    for pools, there in ((without, out.source), (with_it, OWN[0]), (without, out.source)):
        node.call(partial(nft.apply, rules(pools)))
        assert source(node, out)[0] == there
        assert listed(node) == before


def listed(node: WiredHost) -> object:
    """The chain's rules with their handles: one that was written anew has another."""
    command = ["nft", "-a", "list", "chain", "inet", "tortie", "nat-outgoing"]
    return node.call(lambda: subprocess.run(command, check=True, capture_output=True).stdout)
