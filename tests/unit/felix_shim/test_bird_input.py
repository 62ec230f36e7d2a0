"""Which neighbours and blocks the stored resources give a node."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Interface, ip_address, ip_network
from typing import Any

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import Peer
from felix_shim.bird_input import BirdPlan, Here, bird_input
from felix_shim.cluster import BGP, NODES, PEERS, Cluster
from felix_shim.settings import Settings
from libtortie.datastore.port import Record
from libtortie.model.ipam import AffinityState, BlockAffinity
from libtortie.model.keys import Affinities, AffinityKey, Kind
from tests.fakes.agent_world import NODE, resource_record

ADDRESS = IPv4Interface("172.31.1.2/24")


def node(
    name: str, address: str = "", *, as_number: int | None = None, reflects: str = ""
) -> Record:
    bgp: dict[str, Any] = {"ipv4Address": address, "routeReflectorClusterID": reflects}
    if as_number:
        bgp["asNumber"] = as_number
    return resource_record(Kind.NODE, name, {"bgp": bgp} if address else {})


def peer(name: str, **spec: Any) -> Record:
    return resource_record(Kind.BGP_PEER, name, spec)


def plan(
    *records: Record, bgp: Mapping[str, Any] | None = None, peers: tuple[Record, ...] = ()
) -> BirdPlan:
    cluster = Cluster(NODE)
    cluster.replace(NODES, records)
    cluster.replace(PEERS, peers)
    if bgp is not None:
        cluster.replace(BGP, (resource_record(Kind.BGP_CONFIGURATION, "default", bgp),))
    found = bird_input(cluster, Here(ADDRESS, uplinks=("up0",)), Settings())
    assert render_bird(found.input)
    return found


def test_the_mesh_is_every_other_node_with_an_address() -> None:
    found = plan(
        node(NODE, "172.31.1.2/24"),
        node("n2", "172.31.2.2/24"),
        node("n3"),
        node("n4", "172.31.4.2/24", as_number=65004),
    )
    assert set(found.input.peers) == {
        Peer(ip_address("172.31.2.2"), 64512, mesh=True),
        Peer(ip_address("172.31.4.2"), 65004, mesh=True),
    }
    assert found.input.uplinks == ("up0",)


def test_the_mesh_can_be_off_and_the_as_number_set() -> None:
    found = plan(
        node("n2", "172.31.2.2/24"),
        bgp={"nodeToNodeMeshEnabled": False, "asNumber": 65001, "listenPort": 1790},
    )
    assert found.input.peers == ()
    assert found.input.as_number == 65001
    assert found.input.listen_port == 1790


def test_peers_for_all_for_this_node_and_for_others() -> None:
    found = plan(
        node(NODE, "172.31.1.2/24"),
        peers=(
            peer("tor", peerIP="192.0.2.1", asNumber=65000),
            peer("mine", node=NODE, peerIP="192.0.2.2:1790", asNumber=65000),
            peer("theirs", node="n2", peerIP="192.0.2.3", asNumber=65000),
            peer("selected", nodeSelector="has(rack)", peerIP="192.0.2.4", asNumber=65000),
        ),
    )
    assert set(found.input.peers) == {
        Peer(ip_address("192.0.2.1"), 65000),
        Peer(ip_address("192.0.2.2"), 65000, 1790),
    }
    assert found.problems == ()


def test_what_cannot_be_used_is_named_and_the_rest_goes_on() -> None:
    found = plan(
        node("twin", "172.31.1.2/24"),
        peers=(
            peer("self", peerIP="172.31.1.2", asNumber=65000),
            peer("empty", asNumber=65000),
            peer("bad", peerIP="nonsense", asNumber=65000),
            peer("port", peerIP="192.0.2.8:0", asNumber=65000),
            peer("text", peerIP="192.0.2.8:bgp", asNumber=65000),
            peer("bracket", peerIP="[fd00::1", asNumber=65000),
            peer("selector", nodeSelector="((", peerIP="192.0.2.9", asNumber=65000),
            peer("good", peerIP="192.0.2.1", asNumber=65000),
        ),
    )
    assert found.input.peers == (Peer(ip_address("192.0.2.1"), 65000),)
    assert [problem.split(":")[0].split()[1] for problem in sorted(found.problems)] == [
        "bad",
        "bracket",
        "empty",
        "port",
        "selector",
        "self",
        "text",
        "twin",
    ]


def test_the_mesh_spares_route_reflectors() -> None:
    me, other = node(NODE, "172.31.1.2/24"), node("n2", "172.31.2.2/24")
    reflector = node("n3", "172.31.3.2/24", reflects="1.0.0.1")
    assert [str(one.address) for one in plan(me, other, reflector).input.peers] == ["172.31.2.2"]
    me = node(NODE, "172.31.1.2/24", reflects="1.0.0.1")
    assert plan(me, other).input.peers == ()


def test_a_peer_for_this_node_beats_one_for_all() -> None:
    for order in ("aa", "zz"), ("zz", "aa"):
        found = plan(
            peers=(
                peer(order[0], peerIP="192.0.2.1", asNumber=65000),
                peer(order[1], peerIP="192.0.2.1", asNumber=65009, node=NODE),
            )
        )
        assert found.input.peers == (Peer(ip_address("192.0.2.1"), 65009),)


def test_only_confirmed_blocks_are_announced() -> None:
    cluster = Cluster(NODE)
    states = {
        "10.65.0.0/26": BlockAffinity(AffinityState.CONFIRMED),
        "10.65.0.64/26": BlockAffinity(AffinityState.PENDING),
        "10.65.0.128/26": BlockAffinity(AffinityState.CONFIRMED, deleted=True),
        "10.65.0.192/26": BlockAffinity(AffinityState.PENDING_DELETION),
    }
    for cidr, affinity in states.items():
        key = AffinityKey(NODE, ip_network(cidr))
        cluster.put(Affinities(NODE), Record(key, affinity, "1"))
    found = bird_input(cluster, Here(ADDRESS), Settings())
    assert found.input.blocks == (ip_network("10.65.0.0/26"),)
