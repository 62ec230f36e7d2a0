"""BIRD's configuration and the neighbours it names."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput, NextHop, Peer
from felix_shim.routes import Priorities
from libtortie.errors import InvalidInput

GOLDEN = Path(__file__).with_name("golden_bird.conf")
MESH = Peer(ip_address("172.31.0.12"), 64512, mesh=True)
FAR_MESH = Peer(ip_address("172.31.9.12"), 64513, mesh=True)
TOR = Peer(ip_address("172.31.0.1"), 65000, port=1179)
MESH6 = Peer(ip_address("fd00:1::2"), 64512, mesh=True)
CONFIG = BirdInput(
    node="n1",
    router_id=IPv4Address("172.31.0.11"),
    address=IPv4Interface("172.31.0.11/24"),
    address6=IPv6Interface("fd00:1::1/64"),
    peers=(MESH, FAR_MESH, TOR, MESH6),
    blocks=(ip_network("10.65.0.0/26"), ip_network("10.66.0.5/32"), ip_network("fd00:65::/122")),
    uplinks=("eth0",),
    log_file="/var/log/tortie/bird.log",
)


def session(text: str, protocol: str) -> str:
    start = text.index(f"protocol bgp {protocol} {{")
    return text[start : text.index("\n}", start)]


def test_golden_text() -> None:
    assert render_bird(CONFIG) == GOLDEN.read_text()


def test_the_order_of_peers_and_blocks_does_not_matter() -> None:
    texts = {
        render_bird(replace(CONFIG, peers=tuple(peers), blocks=tuple(reversed(CONFIG.blocks))))
        for peers in itertools.permutations(CONFIG.peers)
    }
    assert texts == {render_bird(CONFIG)}


def test_one_fixed_kernel_metric_between_the_two_priorities() -> None:
    text = render_bird(replace(CONFIG, priorities=Priorities(normal=200, elevated=100)))
    assert "metric 150;" in text
    assert "krt_metric < 150 then preference = 250" in text
    assert "merge paths off" in text
    assert "krt_metric =" not in text, "BIRD 2.0.12 leaves the old route behind"


def test_local_preference_is_the_metric_seen_from_the_other_end() -> None:
    text = render_bird(CONFIG)
    assert f"bgp_local_pref > {2147483647 - 768} then preference = 200" in text
    assert "bgp_local_pref = 2147483647 - our_metric" in text


def test_a_mesh_pair_agrees_who_opens() -> None:
    ours = session(render_bird(CONFIG), MESH.protocol)
    back = replace(
        CONFIG,
        address=IPv4Interface("172.31.0.12/24"),
        address6=None,
        peers=(Peer(ip_address("172.31.0.11"), 64512, mesh=True),),
    )
    theirs = session(render_bird(back), "mesh_172_31_0_11")
    assert ("passive on" in ours) != ("passive on" in theirs)
    assert "passive" not in session(render_bird(CONFIG), TOR.protocol)


def test_multihop_only_where_needed() -> None:
    text = render_bird(CONFIG)
    assert "direct;" in session(text, MESH.protocol)
    assert "multihop;" in session(text, FAR_MESH.protocol)
    assert "neighbor 172.31.0.1 port 1179 as 65000" in session(text, TOR.protocol)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"ttl_hops": 1}, ["direct", "ttl security on"]),
        ({"ttl_hops": 2}, ["multihop 2", "ttl security on"]),
        ({"reachable_by": ip_address("172.31.0.9")}, ["multihop"]),
    ],
)
def test_how_a_neighbour_of_the_own_subnet_is_reached(
    options: dict[str, Any], lines: list[str]
) -> None:
    peer = replace(TOR, **options)
    text = session(render_bird(replace(CONFIG, peers=(peer,))), peer.protocol)
    assert [f"  {line};" in text.splitlines() for line in lines] == [True] * len(lines)
    assert ("direct;" in text) == ("direct" in lines)


@pytest.mark.parametrize(
    ("as_number", "next_hop", "said"),
    [
        (64512, NextHop.AUTO, ""),
        (65000, NextHop.AUTO, "next hop self;"),
        (64512, NextHop.SELF, "next hop self;"),
        (65000, NextHop.SELF, "next hop self;"),
        (64512, NextHop.KEEP, "next hop keep;"),
        (65000, NextHop.KEEP, "next hop keep;"),
    ],
)
def test_next_hops(as_number: int, next_hop: NextHop, said: str) -> None:
    peer = Peer(ip_address("172.31.0.1"), as_number, next_hop=next_hop)
    text = session(render_bird(replace(CONFIG, peers=(peer,))), peer.protocol)
    found = [line.strip() for line in text.splitlines() if "next hop" in line]
    assert found == ([said] if said else [])


@pytest.mark.parametrize(
    "change",
    [
        {"as_number": 0},
        {"peers": (Peer(ip_address("172.31.0.12"), 2**32),)},
        {"peers": (Peer(ip_address("172.31.0.12"), 1, port=0),)},
        {"peers": (Peer(ip_address("172.31.0.11"), 1),)},
        {"peers": (MESH6,), "address6": None},
        {"uplinks": ('eth0"; }',)},
        {"log_file": 'x" all; router id 1'},
    ],
)
def test_what_bird_must_not_be_given_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        render_bird(replace(CONFIG, **change))  # type: ignore[arg-type]  # test data
