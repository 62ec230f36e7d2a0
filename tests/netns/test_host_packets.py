"""Host endpoints against real packets: what gets to the node, out of it and through it."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from felix_shim.drivers.nftables import Nftables
from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from tests.fakes.host_meaning import HostMeaning
from tests.fakes.host_worlds import (
    BEYOND,
    NODE_ADDRESSES,
    OTHER,
    OUTSIDE,
    PEER,
    UP,
    UP_HEP,
    between,
    host_rules,
    host_worlds,
)
from tests.fakes.packets import ICMP, ICMPV6, SCTP, TCP, UDP, Packet
from tests.fakes.policy_matrix import RULES
from tests.fakes.policy_meaning import Meaning, Written
from tests.fakes.policy_worlds import ACCOUNTS, NAMESPACES, NETSETS, PODS
from tests.fakes.wired_host import OPEN_IN, OPEN_OUT, WiredHost, wired_host
from tests.fakes.wired_pods import Wire, far_wire

pytestmark = pytest.mark.root

POD = PODS[0]
POD_WIRE = Wire("cali00000000001", "02:00:00:00:00:01", POD.addresses)
WIRES = (
    far_wire(OUTSIDE),
    Wire(OTHER, "02:00:00:00:00:e1", BEYOND, "02:00:00:00:00:e0"),
    POD_WIRE,
)
MARKERS = ({"protocol": "UDP", "port": OPEN_IN},), ({"protocol": "UDP", "port": OPEN_OUT},)
SERVICE, POD_PORT = 8080, 80
"""A port of the node that is translated to the pod's."""


@pytest.fixture(scope="module")
def node() -> Iterator[WiredHost]:
    with wired_host(WIRES, NODE_ADDRESSES) as made:
        yield made


@pytest.fixture(scope="module")
def nft() -> Nftables:
    """One for all: each example's rules come about by the difference to those before."""
    return Nftables()


def rules_of(world: HostMeaning) -> PolicySet:
    pod = EndpointPolicy(POD_WIRE.interface, POD_WIRE.mac, POD_WIRE.addresses, vm=True)
    return policy_set([pod], rules=host_rules(world))


def marked(world: HostMeaning) -> HostMeaning:
    """The same, with the ports by which the markers come and go."""
    inbound, outbound = MARKERS
    return replace(
        world,
        failsafe_in=(*world.failsafe_in, *inbound),
        failsafe_out=(*world.failsafe_out, *outbound),
    )


def agrees(node: WiredHost, world: HostMeaning, packet: Packet) -> bool:
    """Whether the kernel does with a packet what is meant; returns what it is."""
    if packet.destination in NODE_ADDRESSES:
        found, meant = node.hears(packet), world.enters(UP, packet)
    elif packet.source in NODE_ADDRESSES:
        found, meant = node.sends(packet), world.leaves(UP, packet)
    elif packet.source in POD.addresses:
        found, meant = node.reaches(packet), world.goes_through(UP, packet)
    else:
        found, meant = node.reaches(packet), world.comes_through(UP, packet)
        if packet.destination in BEYOND:
            meant = meant and world.goes_through(OTHER, packet)
    assert found is meant, packet
    return meant


def kinds(version: int) -> list[dict[str, Any]]:
    icmp = ICMP if version == 4 else ICMPV6
    return [
        {"protocol": TCP, "source_port": 5000, "destination_port": 80},
        {"protocol": TCP, "source_port": 80, "destination_port": 443},
        {"protocol": UDP, "source_port": 443, "destination_port": 80},
        {"protocol": SCTP, "source_port": 80, "destination_port": 5000},
        {"protocol": 47},
        {"protocol": icmp, "icmp": (8, 0) if version == 4 else (128, 0)},
    ]


def matrix_packets() -> list[Packet]:
    """To the node, from it, and through it to a pod and from one, of every kind."""
    pairs = [
        ("203.0.113.9", "172.31.0.11"),
        ("fd00:99::9", "fd00:31::11"),
        ("172.31.0.11", "198.51.100.7"),
        ("fd00:31::11", "fd00:99::9"),
        ("198.51.100.7", "10.65.0.2"),
        ("fd00:99::9", "fd00:65::2"),
        ("10.65.0.2", "203.0.113.9"),
        ("fd00:65::2", "fd00:99::9"),
    ]
    return [
        Packet(ip_address(one), ip_address(other), **kind)
        for one, other in pairs
        for kind in kinds(ip_address(one).version)
    ]


def matrix_world(rule: dict[str, Any], flags: dict[str, Any]) -> HostMeaning:
    """What the rule is about passes, and nothing else does."""
    spec: dict[str, Any] = {
        "applyOnForward": True,
        "order": 5,
        "ingress": [{"action": "Allow", **rule}],
        **flags,
    }
    if "preDNAT" not in flags:
        spec["egress"] = [{"action": "Allow", **rule}]
    nothing = {"applyOnForward": True, "order": 6, "types": ["Ingress", "Egress"]}
    policies = (Written("matrix", spec), Written("nothing", nothing))
    meaning = Meaning(PODS, policies, NETSETS, NAMESPACES, ACCOUNTS)
    return marked(HostMeaning(meaning, (UP_HEP,), (), ()))


@pytest.mark.parametrize("flags", [{}, {"doNotTrack": True}, {"preDNAT": True}], ids=str)
def test_every_kind_of_match(node: WiredHost, nft: Nftables, flags: dict[str, Any]) -> None:
    verdicts = Counter[bool]()
    for number, rule in enumerate(RULES):
        world = matrix_world(rule, flags)
        node.call(partial(nft.apply, rules_of(world)))
        packets = matrix_packets()
        for packet in packets if not flags else packets[number % 3 :: 3]:
            verdicts[agrees(node, world, packet)] += 1
    assert min(verdicts[True], verdicts[False]) > 100


SOME = settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ANY_WAY = st.one_of(
    between(OUTSIDE, NODE_ADDRESSES),
    between(NODE_ADDRESSES, OUTSIDE),
    between(OUTSIDE, (*BEYOND, *POD.addresses)),
)


def tracked(packet: Packet) -> bool:
    """Whether conntrack takes it for a connection's first: not an answer without a question."""
    return packet.icmp[0] in (8, 128) or packet.protocol not in (ICMP, ICMPV6)


@SOME
@given(host_worlds(), st.lists(ANY_WAY.filter(tracked), min_size=12, max_size=12))
def test_the_kernel_decides_as_the_policies_mean(
    node: WiredHost, nft: Nftables, world: HostMeaning, some: list[Packet]
) -> None:
    world = marked(world)
    node.call(lambda: nft.apply(rules_of(world)))
    for packet in some:
        agrees(node, world, packet)


@pytest.fixture
def translated(node: WiredHost) -> Iterator[None]:
    """A port of the node is the pod's, and another one is another of the node's."""
    rules = "".join(
        f"meta nfproto ipv{version} {family} daddr {address} meta l4proto {{ tcp, udp }} "
        f"th dport {SERVICE} dnat {family} to {there}\n"
        for version, family, address, there in (
            (4, "ip", NODE_ADDRESSES[0], f"{POD.addresses[0]}:{POD_PORT}"),
            (6, "ip6", NODE_ADDRESSES[1], f"[{POD.addresses[1]}]:{POD_PORT}"),
        )
    )
    chain = "type nat hook prerouting priority -100;"
    text = f"table inet services {{\nchain translated {{\n{chain}\n{rules}}}\n}}\n"
    node.call(partial(_nft, "-f", "-", text=text))
    yield
    node.call(partial(_nft, "delete", "table", "inet", "services"))


def _nft(*words: str, text: str = "") -> None:
    subprocess.run(["nft", *words], input=text, check=True, capture_output=True, text=True)


def about_service(action: str, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "protocol": "TCP",
        "destination": {"ports": [SERVICE], **more},
    }


@pytest.mark.parametrize(
    "early",
    [
        None,
        {"ingress": [about_service("Allow")]},
        {"ingress": [about_service("Allow", nets=["172.31.0.11/32"])]},
        {"ingress": [about_service("Allow", nets=["10.65.0.2/32"])]},
        {"ingress": [about_service("Allow", selector="app == 'web'")]},
        {"ingress": [about_service("Deny")]},
        {"ingress": [{"action": "Deny", "destination": {"nets": ["10.65.0.2/32"]}}]},
        {"ingress": [about_service("Pass")]},
        {"ingress": [{"action": "Allow", "destination": {"ports": ["service"]}}]},
        {"ingress": [{"action": "Allow", "destination": {"notPorts": ["service"]}}]},
        {"ingress": [{"action": "Allow", "protocol": "UDP", "destination": {"notPorts": [80]}}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("later", ["Allow", "Deny"])
@pytest.mark.usefixtures("translated")
def test_before_the_destination_is_translated(
    node: WiredHost, nft: Nftables, early: dict[str, Any] | None, later: str
) -> None:
    """Judged by the port that it came to; what is allowed there is not judged as forwarded."""
    rest = {"applyOnForward": True, "order": 6, "ingress": [{"action": later}]}
    policies = [Written("rest", rest)]
    if early is not None:
        policies.append(Written("early", {"applyOnForward": True, "preDNAT": True, **early}))
    meaning = Meaning(PODS, tuple(policies), NETSETS, NAMESPACES, ACCOUNTS)
    hep = replace(UP_HEP, ports=(("service", TCP, SERVICE),))
    world = marked(HostMeaning(meaning, (hep,), (), ()))
    node.call(lambda: nft.apply(rules_of(world)))
    for source, own, pod in (
        (OUTSIDE[0], NODE_ADDRESSES[0], POD.addresses[0]),
        (OUTSIDE[2], NODE_ADDRESSES[1], POD.addresses[1]),
    ):
        for protocol in (TCP, UDP):
            came = Packet(source, own, protocol, 5000, SERVICE)
            goes = replace(came, destination=pod, destination_port=POD_PORT)
            assert node.reaches(came, POD_WIRE) is world.comes_through(UP, goes, came), came


DENY_ALL = Written(
    "deny-all",
    {"applyOnForward": True, "types": ["Ingress", "Egress"], "selector": "has(app)"},
)


DENY_EARLY = Written(
    "deny-early",
    {
        "applyOnForward": True,
        "doNotTrack": True,
        "ingress": [{"action": "Deny"}],
        "egress": [{"action": "Deny"}],
    },
)


def closed_node(*policies: Written, **more: Any) -> HostMeaning:
    meaning = Meaning(PODS, (*policies, DENY_ALL), NETSETS, NAMESPACES, ACCOUNTS)
    return HostMeaning(meaning, (UP_HEP,), **more)


def test_a_node_that_denies_everything_can_be_reached(node: WiredHost, nft: Nftables) -> None:
    """ssh, BGP, etcd, Typha, the API and DHCP, both families, and nothing else."""
    world = closed_node()
    node.call(lambda: nft.apply(rules_of(world)))
    inward, outward = {22, 179, 2379, 2380, 5473, 6443, 6666, 6667}, {179, 2379, 2380, 5473}
    outward |= {6443, 6666, 6667}
    for far, own in zip((OUTSIDE[0], OUTSIDE[2]), NODE_ADDRESSES, strict=True):
        for port in sorted(inward | {23, 80, 9199, 49152, 10250}):
            asks = Packet(far, own, TCP, 40000, port)
            assert node.hears(asks) is (port in inward), asks
            assert not node.hears(replace(asks, source_port=port, destination_port=40000))
        for port in sorted(outward | {22, 80, 9199, 49152}):
            asks = Packet(own, far, TCP, 40000, port)
            assert node.sends(asks) is (port in outward), asks
        for port in (53, 67, 68, 69):
            assert node.hears(Packet(far, own, UDP, 40000, port)) is (port == 68)
            assert node.sends(Packet(own, far, UDP, 40000, port)) is (port in (53, 67))


def test_migration_ports_between_nodes(node: WiredHost, nft: Nftables) -> None:
    """From and to the cluster's nodes only, and only with the switch."""
    ports = (9199, 49152, 49153, 49200, 49299)
    for between_nodes in ((), ports):
        world = closed_node(between=between_nodes, nodes=(*NODE_ADDRESSES, *PEER))
        node.call(partial(nft.apply, rules_of(world)))
        for far in OUTSIDE:
            own = next(one for one in NODE_ADDRESSES if one.version == far.version)
            for port in (*ports, 49151, 49154, 49199, 49300):
                passes = port in between_nodes and far in PEER
                asks = Packet(far, own, TCP, 40000, port)
                assert node.hears(asks) is passes, asks
                assert node.sends(replace(asks, source=own, destination=far)) is passes, asks
                assert not node.hears(replace(asks, protocol=UDP))


@pytest.mark.parametrize("more", [(), (DENY_EARLY,)], ids=["tracked", "untracked"])
def test_answers_get_through_a_closed_node(
    node: WiredHost, nft: Nftables, more: tuple[Written, ...]
) -> None:
    """What conntrack knows goes on: the answer to what came to a failsafe port, and that of DNS."""
    node.call(lambda: nft.apply(rules_of(closed_node(*more))))
    for far, own in zip((OUTSIDE[0], OUTSIDE[2]), NODE_ADDRESSES, strict=True):
        answers(node, node.hears, node.sends, Packet(far, own, UDP, 40000, 68))
        answers(node, node.sends, node.hears, Packet(own, far, UDP, 40000, 53))


def answers(
    node: WiredHost,
    ask: Callable[[Packet], bool],
    answer: Callable[[Packet], bool],
    packet: Packet,
) -> None:
    back = replace(
        packet,
        source=packet.destination,
        destination=packet.source,
        source_port=packet.destination_port,
        destination_port=packet.source_port,
    )
    assert not answer(back), "nobody has asked"
    assert ask(packet)
    with node.remembering():
        assert answer(back)
