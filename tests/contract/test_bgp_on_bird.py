"""The language of BIRD's configuration, as BIRD itself reads it: filters' meaning, every option.

One BIRD without kernel and neighbours has routes with attributes; `show route filter` evaluates a
BGPFilter's function on them and prints what it makes of them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_filter import Direction, RouteFilter, function_name, route_filter
from felix_shim.bgp_model import Bfd, BirdInput, Canary, LogLevel, NextHop, Peer, Tagged
from felix_shim.bird_filters import Family, render_filters
from libtortie.model.bgp_spec import BGPFilterWire

ROUTES = {
    "10.65.0.0/16": "",
    "10.65.0.0/26": "bgp_local_pref = 2147482623;",
    "10.65.0.2/32": "bgp_local_pref = 2147483135; bgp_community.add((65000,100));",
    "10.65.9.9/32": "bgp_large_community.add((65000,1,2)); bgp_path.prepend(65001);",
    "10.66.0.0/24": "bgp_path.prepend(65001); bgp_path.prepend(65000);",
    "192.0.2.0/24": "bgp_local_pref = 100;",
}
ALL = frozenset(ROUTES)
VMS = frozenset({"10.65.0.0/16", "10.65.0.0/26", "10.65.0.2/32", "10.65.9.9/32"})
HERE = BirdInput(
    node="n1",
    router_id=IPv4Address("172.31.1.2"),
    address=IPv4Interface("172.31.1.2/24"),
    address6=IPv6Interface("fd00:1::2/64"),
)
Ask = Callable[[RouteFilter, Direction, bool], dict[str, str]]


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def made(name: str, *rules: dict[str, Any]) -> RouteFilter:
    return route_filter(name, BGPFilterWire.model_validate({"importV4": rules, "exportV4": rules}))


Case = tuple[str, dict[str, Any], bool, frozenset[str]]
"""Name, conditions, whether the neighbour is of our AS, and which routes are taken."""
CASES: tuple[Case, ...] = (
    ("any", {}, True, ALL),
    ("in", {"cidr": "10.65.0.0/16", "matchOperator": "In"}, True, VMS),
    ("notin", {"cidr": "10.65.0.0/16", "matchOperator": "NotIn"}, True, ALL - VMS),
    ("equal", {"cidr": "10.65.0.0/16", "matchOperator": "Equal"}, True,
     frozenset({"10.65.0.0/16"})),
    ("notequal", {"cidr": "10.65.0.0/16", "matchOperator": "NotEqual"}, True,
     ALL - {"10.65.0.0/16"}),
    ("length", {"cidr": "10.65.0.0/16", "matchOperator": "In", "prefixLength": {"min": 26}},
     True, VMS - {"10.65.0.0/16"}),
    ("lengths",
     {"cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": 20, "max": 26}}, True,
     frozenset({"10.65.0.0/26", "10.66.0.0/24"})),
    ("supernets", {"cidr": "10.65.0.0/26", "matchOperator": "In", "prefixLength": {"min": 8}},
     True, frozenset({"10.65.0.0/26", "10.65.0.2/32"})),
    ("notlength", {"cidr": "10.65.0.0/16", "matchOperator": "NotIn", "prefixLength": {"min": 32}},
     True, ALL - {"10.65.0.2/32", "10.65.9.9/32"}),
    ("notequallen",
     {"cidr": "10.65.0.0/16", "matchOperator": "NotEqual", "prefixLength": {"max": 24}},
     True, frozenset({"10.66.0.0/24", "192.0.2.0/24"})),
    ("peers", {"source": "RemotePeers"}, True, frozenset()),
    ("interface", {"interface": "eth*"}, True, frozenset()),
    ("community", {"communities": {"values": ["65000:100"]}}, True, frozenset({"10.65.0.2/32"})),
    ("large", {"communities": {"values": ["65000:1:2"]}}, True, frozenset({"10.65.9.9/32"})),
    ("path", {"asPathPrefix": [65000]}, True, frozenset({"10.66.0.0/24"})),
    ("path2", {"asPathPrefix": [65000, 65001]}, True, frozenset({"10.66.0.0/24"})),
    ("path1", {"asPathPrefix": [65001]}, True, frozenset({"10.65.9.9/32"})),
    ("raised", {"priority": 512}, True, frozenset({"10.65.0.2/32"})),
    ("normal", {"priority": 1024}, True, frozenset({"10.65.0.0/26"})),
    ("ibgp", {"peerType": "iBGP"}, True, ALL),
    ("ebgp", {"peerType": "eBGP"}, True, frozenset()),
    ("ibgpout", {"peerType": "iBGP"}, False, frozenset()),
    ("ebgpout", {"peerType": "eBGP"}, False, ALL),
    ("both", {"cidr": "10.65.0.0/16", "matchOperator": "In", "priority": 512}, True,
     frozenset({"10.65.0.2/32"})),
)  # fmt: skip
OPERATIONS = made(
    "operations",
    {
        "cidr": "10.65.0.2/32",
        "matchOperator": "Equal",
        "action": "Accept",
        "operations": [
            {"addCommunity": {"value": "65000:200"}},
            {"addCommunity": {"value": "65000:3:4"}},
            {"prependASPath": {"prefix": [65010, 65011]}},
            {"setPriority": {"value": 2048}},
        ],
    },
    {
        "cidr": "10.65.9.9/32",
        "matchOperator": "Equal",
        "action": "Accept",
        "operations": [{"setPriority": {"value": 512}}],
    },
    {"cidr": "10.65.0.0/16", "matchOperator": "In", "action": "Reject"},
)
FILTERS = (OPERATIONS, *(made(name, rule | {"action": "Accept"}) for name, rule, _, _ in CASES))


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """What a filter's function accepts, with the attributes it then has."""
    work = tmp_path_factory.mktemp("bird")
    names = tuple(one.name for one in FILTERS)
    peer = Peer(ip_address("172.31.1.3"), 64512, filters=names)
    family = Family(4, replace(HERE, filters=FILTERS, peers=(peer,)))
    routes = "".join(f"  route {net} blackhole {{ {how} }};\n" for net, how in ROUTES.items())
    config, control = work / "bird.conf", work / "bird.ctl"
    config.write_text(
        f'log "{work}/log" all;\nrouter id 1.1.1.1;\nprotocol device {{ }}\n'
        f"{render_filters(family)}\nprotocol static {{\n  ipv4;\n{routes}}}\n"
    )
    run("bird", "-c", str(config), "-s", str(control), "-P", str(work / "pid"))

    def asked(found: RouteFilter, direction: Direction, same_as: bool) -> dict[str, str]:
        name = function_name(found.name, direction, 4)
        call = f"{name}({'true' if same_as else 'false'}); reject;"
        text = run("birdc", "-s", str(control), f"show route filter {{ {call} }} all")
        parts = re.split(r"^(?=\d+\.\d+\.\d+\.\d+/)", text, flags=re.MULTILINE)[1:]
        return {part.split()[0]: part for part in parts}

    try:
        yield asked
    finally:
        run("birdc", "-s", str(control), "down")


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_each_condition_takes(ask: Ask, case: Case, direction: Direction) -> None:
    name, rule, same_as, expected = case
    found = next(one for one in FILTERS if one.name == name)
    assert ask(found, direction, same_as).keys() == expected, rule


def test_operations_of_an_import_and_the_preference_that_follows(ask: Ask) -> None:
    accepted = ask(OPERATIONS, Direction.IMPORT, True)
    assert accepted.keys() == {"10.65.0.2/32", "10.65.9.9/32"}, "the first rule that holds decides"
    changed = accepted["10.65.0.2/32"]
    assert "BGP.as_path: 65010 65011" in changed
    assert "BGP.community: (65000,100) (65000,200)" in changed
    assert "BGP.large_community: (65000, 3, 4)" in changed
    assert f"BGP.local_pref: {2147483647 - 2048}" in changed
    assert "(100)" in changed.splitlines()[0]
    assert "(200)" in accepted["10.65.9.9/32"].splitlines()[0], "raised by the rule"


def test_operations_of_an_export_reach_another_as_too(ask: Ask) -> None:
    accepted = ask(OPERATIONS, Direction.EXPORT, False)
    assert "BGP.med: 2048" in accepted["10.65.0.2/32"]


def everything() -> BirdInput:
    """An input with every option that there is."""
    tor = ip_address("192.0.2.1")
    return replace(
        HERE,
        peers=(
            Peer(ip_address("172.31.1.3"), 64512, mesh=True, password="hush; } #"),
            Peer(ip_address("fd00:1::3"), 64513, member=True, passive=True, reflect=False),
            Peer(ip_address("172.31.1.4"), 64512, member=True, reflect=True, relay=True),
            Peer(tor, 65000, 1179, local_as=65001, ttl_hops=3, next_hop=NextHop.KEEP, relay=True,
                 from_node_address=False, restart_seconds=0, keepalive_seconds=40,
                 own_as_allowed=2, reachable_by=ip_address("172.31.1.9"), filters=("raised",)),
            Peer(ip_address("172.31.1.1"), 65000, ttl_hops=1, closed=True, filters=("any",)),
            Peer(ip_address("192.0.2.2"), 64512, next_hop=NextHop.SELF),
            Peer(ip_address("10.65.0.5"), 65401, interface="cali1", filters=("raised",),
                 source=ip_address("169.254.0.179")),
            Peer(ip_address("fd00:65::5"), 64512, interface="cali1", ttl_hops=1,
                 source=ip_address("fd12::179")),
        ),
        filters=FILTERS,
        blocks=(ip_network("10.65.0.0/26"), ip_network("fd00:65::/122")),
        pools=(ip_network("10.65.0.0/16"), ip_network("fd00:65::/64")),
        hidden=(ip_network("10.67.0.0/16"),),
        services=(ip_network("10.96.0.0/12"),),
        tagged=(Tagged(ip_network("10.65.0.0/16"), ((65000, 1), (65000, 1, 2))),
                Tagged(ip_network("fd00:65::/64"), ())),
        canaries=(Canary(ip_network("198.51.100.7/32"), 512),),
        uplinks=("eth0", "eth1"),
        ignored=("eth0", "eth1"),
        cluster_id="244.0.0.1",
        cluster_routes=False,
        bfd=Bfd(),
    )  # fmt: skip


@pytest.mark.parametrize("level", list(LogLevel))
@pytest.mark.parametrize("bound", [True, False])
def test_bird_reads_every_option(tmp_path: Path, level: LogLevel, bound: bool) -> None:
    file = tmp_path / "bird.conf"
    file.write_text(render_bird(replace(everything(), log_level=level, bind_node_address=bound)))
    run("bird", "-p", "-c", str(file))


@pytest.mark.parametrize(
    "change",
    [
        {"address6": None},
        {"address": None},
        {"uplinks": (), "ignored": ("docker*",)},
        {"bfd": None},
    ],
)
def test_bird_reads_it_with_parts_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    config = replace(everything(), **change)
    peers = tuple(one for one in config.peers if config.own(one.address.version) is not None)
    file = tmp_path / "bird.conf"
    file.write_text(render_bird(replace(config, peers=peers)))
    run("bird", "-p", "-c", str(file))
