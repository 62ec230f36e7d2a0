"""Nodes with host endpoints and policies about them for Hypothesis, and the rules of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from hypothesis import strategies as st

from felix_shim.failsafe import NODES
from felix_shim.host_settings import HostSettings
from felix_shim.policy_book import PolicyBook, PolicyRules
from felix_shim.policy_sets import Elements
from felix_shim.surroundings import NodeRules, Surroundings
from libtortie.model.felix_values import parse_host_ports
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.policy import DEFAULT_ALLOW, PortRange
from libtortie.model.policy_wire import read_host_end, read_host_endpoint
from tests.fakes.host_meaning import DEFAULT_IN, DEFAULT_OUT, Hep, HostMeaning
from tests.fakes.packets import ICMP, ICMPV6, SCTP, TCP, UDP, Packet
from tests.fakes.policy_meaning import Meaning, Written
from tests.fakes.policy_worlds import (
    ACCOUNTS,
    NAMESPACES,
    NETSETS,
    PODS,
    book_of,
    policies,
    resource,
    rules,
)

NODE = "here"
UP, OTHER = "up0", "up1"
NODE_ADDRESSES = (ip_address("172.31.0.11"), ip_address("fd00:31::11"))
PEER = ip_address("172.31.0.12"), ip_address("fd00:31::12")
"""Another node of the cluster."""
OUTSIDE = (ip_address("203.0.113.9"), ip_address("198.51.100.7"), ip_address("fd00:99::9"), *PEER)
BEYOND = (ip_address("192.0.2.1"), ip_address("fd00:98::1"))
"""Whom one gets to by the other link."""
PORTS = (22, 68, 80, 443, 5000, 9199, 49200, 53)

UP_HEP = Hep(
    "", "b-up", NODE_ADDRESSES, {"app": "web"}, "", (("http", TCP, 80), ("dns", UDP, 80)), UP
)
ALL_HEP = Hep("", "a-all", NODE_ADDRESSES, {"tier": "x"}, "", (("http", TCP, 443),), "*")


def heps() -> st.SearchStrategy[tuple[Hep, ...]]:
    """One, the other, or both, with and without the profile that allows."""
    some = st.sampled_from([(UP_HEP,), (ALL_HEP,), (UP_HEP, ALL_HEP), (UP_HEP, ALL_HEP), ()])
    return st.tuples(some, st.booleans()).map(
        lambda found: tuple(replace(hep, allows_rest=found[1]) for hep in found[0])
    )


@st.composite
def host_policies(draw: st.DrawFn, name: str) -> Written:
    """A policy about everything or a part, of one of the four kinds."""
    written = draw(policies(name))
    spec: dict[str, Any] = {**written.spec}
    kind = draw(st.sampled_from(["plain", "forward", "forward", "untracked", "preDNAT"]))
    if kind != "plain":
        spec["applyOnForward"] = True
    if kind == "untracked":
        spec["doNotTrack"] = True
    if kind == "preDNAT":
        spec["preDNAT"] = True
        spec.pop("egress", None)
        spec["types"] = ["Ingress"]
    return Written(name, spec)


_LISTS: tuple[tuple[dict[str, Any], ...], ...] = (
    DEFAULT_IN,
    (),
    ({"protocol": "TCP", "port": 5000, "net": "203.0.113.0/24"}, {"protocol": "UDP", "port": 443}),
    ({"protocol": "TCP", "port": 443, "net": "fd00:99::/64"},),
    ({"protocol": "TCP", "port": 80, "net": "0.0.0.0/0"},),
)


_BROAD = st.sampled_from(
    [
        {},
        {"protocol": "TCP"},
        {"notProtocol": "UDP"},
        {"source": {"nets": ["203.0.113.0/24", "172.31.0.0/24"]}},
        {"protocol": "TCP", "destination": {"ports": [80, "http", "443:5000"]}},
        {"destination": {"selector": "app == 'web'"}},
        {"destination": {"ports": ["http", "dns"]}},
        {"destination": {"notPorts": ["http"]}},
        {"destination": {"nets": ["172.31.0.0/24"]}},
        {"destination": {"nets": ["10.65.0.0/16"]}},
    ]
)
"""What rules are about that are about many of the packets here."""


@st.composite
def _policies(draw: st.DrawFn) -> tuple[Written, ...]:
    """Up to four of any kind; or two of which the first decides alone about what it speaks of."""
    if draw(st.booleans()):
        return tuple(draw(host_policies(f"p{number}")) for number in range(draw(st.integers(0, 4))))
    action = draw(st.sampled_from(["Allow", "Deny"]))
    rule = {**draw(st.one_of(rules(), _BROAD, _BROAD)), "action": action}
    kind = draw(st.sampled_from(["doNotTrack", "preDNAT", "forward"]))
    first: dict[str, Any] = {"applyOnForward": True, "order": 5, "ingress": [rule]}
    if kind == "doNotTrack":
        first |= {"doNotTrack": True, "egress": [rule]}
    if kind == "preDNAT":
        first |= {"preDNAT": True}
    rest = [{"action": "Deny" if action == "Allow" else "Allow"}]
    second = {"applyOnForward": True, "order": 6, "ingress": rest, "egress": rest}
    return Written("a", first), Written("b", second)


@st.composite
def host_worlds(draw: st.DrawFn) -> HostMeaning:
    """A cluster with policies about its hosts, too."""
    meaning = Meaning(
        pods=PODS,
        policies=draw(_policies()),
        netsets=NETSETS,
        namespaces=NAMESPACES,
        accounts=ACCOUNTS,
        tiers={"default": (1e6, "Deny"), "first": (10.0, "Pass"), "last": (None, "Deny")},
    )
    return HostMeaning(
        meaning,
        draw(heps()),
        draw(st.sampled_from(_LISTS)),
        draw(st.sampled_from((DEFAULT_OUT, *_LISTS[1:]))),
        draw(st.sampled_from([(), (9199, 49200)])),
        (*NODE_ADDRESSES, *PEER),
    )


@st.composite
def kinds(draw: st.DrawFn, version: int) -> dict[str, Any]:
    """Protocol and ports of a packet."""
    icmp = ICMP if version == 4 else ICMPV6
    return {
        "protocol": draw(st.sampled_from([TCP, TCP, UDP, SCTP, icmp, 47])),
        "source_port": draw(st.sampled_from(PORTS)),
        "destination_port": draw(st.sampled_from(PORTS)),
        "icmp": draw(st.sampled_from([(8, 0), (8, 1), (3, 1), (128, 0), (135, 0)])),
    }


@st.composite
def between(draw: st.DrawFn, sources: tuple[Any, ...], destinations: tuple[Any, ...]) -> Packet:
    """A packet from one of these to one of those."""
    source = draw(st.sampled_from(sources))
    others = [one for one in destinations if one.version == source.version]
    return Packet(source, draw(st.sampled_from(others)), **draw(kinds(source.version)))


def host_resource(hep: Hep) -> Any:
    """A host endpoint as it is stored."""
    names = {TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}
    spec = {
        "node": NODE,
        "interfaceName": hep.link,
        "expectedIPs": [str(one) for one in hep.addresses],
        "profiles": [DEFAULT_ALLOW] if hep.allows_rest else [],
        "ports": [
            {"name": name, "protocol": names[protocol], "port": port}
            for name, protocol, port in hep.ports
        ],
    }
    return resource(Kind.HOST_ENDPOINT, hep.name, spec, labels=dict(hep.labels))


def host_book(world: HostMeaning) -> PolicyBook:
    """A book in which all of it is."""
    book = book_of(world.meaning)
    for hep in world.heps:
        found, key = host_resource(hep), ResourceKey(Kind.HOST_ENDPOINT, hep.name)
        item = read_host_endpoint(found)
        book.put_item(key, item)
        book.put_host(key, read_host_end(found), item)
    return book


def surroundings(world: HostMeaning) -> Surroundings:
    """What is around it, with addresses that tell no link."""
    settings = HostSettings(
        parse_host_ports([dict(one) for one in world.failsafe_in]),
        parse_host_ports([dict(one) for one in world.failsafe_out]),
    )
    return Surroundings(
        settings,
        tuple(PortRange(port, port) for port in sorted(world.between)),
        frozenset(world.nodes),
    )


def host_rules(world: HostMeaning) -> PolicyRules:
    """The rules of all of it."""
    found = NodeRules().added_to(host_book(world).rules(), surroundings(world))
    assert all(isinstance(found.sets.get(key, Elements()), Elements) for key in NODES.values())
    return found
