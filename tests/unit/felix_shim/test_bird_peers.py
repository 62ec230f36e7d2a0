"""Which neighbours BGPPeers, nodes and Secrets give this node, and with which options."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import NextHop, Peer
from felix_shim.bird_input import BirdPlan, Here, bird_input
from felix_shim.bird_peers import Secrets
from felix_shim.cluster import BGP, FILTERS, NODES, PEERS, Cluster
from felix_shim.settings import Settings
from libtortie.datastore.port import Record
from libtortie.model.keys import Kind
from libtortie.model.resources import Node
from tests.fakes.agent_world import NODE, resource_record

ADDRESS = IPv4Interface("172.31.1.2/24")
ADDRESS6 = IPv6Interface("fd00:1::2/64")
HERE = Here(ADDRESS, ADDRESS6, secrets=Secrets({("s", "k"): "hush"}, "kube-system"))
TOR = ip_address("192.0.2.1")
PASSWORD = {"secretKeyRef": {"name": "s", "key": "k"}}


def node(name: str, *labels: str, **bgp: Any) -> Record:
    record = resource_record(Kind.NODE, name, {"bgp": bgp})
    assert isinstance(record.value, Node)
    metadata = record.value.metadata.model_copy(update={"labels": dict.fromkeys(labels, "")})
    return replace(record, value=record.value.model_copy(update={"metadata": metadata}))


ME = node(NODE, "me", ipv4Address=str(ADDRESS), ipv6Address=str(ADDRESS6))
OTHER = node("n2", "other", ipv4Address="172.31.1.3/24", ipv6Address="fd00:1::3/64")
FAR = node("n3", "far", ipv4Address="172.31.3.3/24", asNumber=65003)


def plan(
    *nodes: Record,
    peers: dict[str, dict[str, Any]] | None = None,
    filters: dict[str, dict[str, Any]] | None = None,
    bgp: dict[str, Any] | None = None,
    here: Here = HERE,
) -> BirdPlan:
    cluster = Cluster(NODE)
    cluster.replace(NODES, nodes or (ME,))
    for scope, kind, found in (
        (PEERS, Kind.BGP_PEER, peers),
        (FILTERS, Kind.BGP_FILTER, filters),
        (BGP, Kind.BGP_CONFIGURATION, {"default": bgp} if bgp else {}),
    ):
        cluster.replace(scope, tuple(resource_record(kind, *one) for one in (found or {}).items()))
    made = bird_input(cluster, here, Settings())
    assert render_bird(made.input)
    return made


def one_peer(*nodes: Record, here: Here = HERE, **spec: Any) -> Peer:
    found = plan(*nodes, peers={"tor": spec}, here=here, bgp={"nodeToNodeMeshEnabled": False})
    assert found.problems == ()
    (peer,) = found.input.peers
    return peer


def test_a_dual_stack_mesh_has_a_session_for_each_family_that_both_have() -> None:
    found = plan(ME, OTHER, FAR)
    assert [(str(one.address), one.as_number) for one in found.input.peers] == [
        ("172.31.1.3", 64512),
        ("172.31.3.3", 65003),
        ("fd00:1::3", 64512),
    ]
    only4 = plan(ME, OTHER, here=Here(ADDRESS))
    assert [str(one.address) for one in only4.input.peers] == ["172.31.1.3"]
    only6 = plan(ME, OTHER, here=Here(None, ADDRESS6))
    assert [str(one.address) for one in only6.input.peers] == ["fd00:1::3"]


def test_every_option_of_a_peer_is_obeyed() -> None:
    peer = one_peer(
        peerIP="192.0.2.1:1179",
        asNumber=65000,
        localASNumber=65001,
        password=PASSWORD,
        sourceAddress="None",
        nextHopMode="Keep",
        ttlSecurity=3,
        maxRestartTime="1m30s",
        keepaliveTime="4s",
        numAllowedLocalASNumbers=2,
        reachableBy="172.31.1.9",
    )
    assert peer == Peer(
        TOR,
        65000,
        1179,
        local_as=65001,
        password="hush",
        from_node_address=False,
        next_hop=NextHop.KEEP,
        ttl_hops=3,
        restart_seconds=90,
        keepalive_seconds=4,
        own_as_allowed=2,
        reachable_by=ip_address("172.31.1.9"),
        relay=True,
    )


def test_defaults_of_a_peer() -> None:
    assert one_peer(peerIP="192.0.2.1") == Peer(TOR, 64512)
    assert one_peer(peerIP="192.0.2.1", keepOriginalNextHop=True).next_hop is NextHop.KEEP
    assert one_peer(peerIP="192.0.2.1", nextHopMode="Self").next_hop is NextHop.SELF


def test_a_peer_selector_makes_nodes_peers_both_ways() -> None:
    there = {"p": {"nodeSelector": "has(me)", "peerSelector": "has(other) || has(far)"}}
    back = {"p": {"nodeSelector": "has(other) || has(far)", "peerSelector": "has(me)"}}
    off = {"nodeToNodeMeshEnabled": False}
    expected = [("172.31.1.3", 64512), ("172.31.3.3", 65003), ("fd00:1::3", 64512)]
    for peers in (there, back):
        found = plan(ME, OTHER, FAR, peers=peers, bgp=off).input.peers
        assert [(str(one.address), one.as_number) for one in found] == expected
        assert all(one.member for one in found)
    manual = {"p": back["p"] | {"reversePeering": "Manual"}}
    assert plan(ME, OTHER, FAR, peers=manual, bgp=off).input.peers == ()


def test_of_two_nodes_that_peer_both_ways_one_opens() -> None:
    spec: dict[str, dict[str, Any]] = {
        "p": {"nodeSelector": "has(me)", "peerSelector": "has(other)"}
    }
    off = {"nodeToNodeMeshEnabled": False}
    ours = plan(ME, OTHER, peers=spec, bgp=off, here=Here(ADDRESS)).input.peers
    assert [one.passive for one in ours] == [True], "172.31.1.3 sorts higher: it opens"
    spec["p"]["reversePeering"] = "Manual"
    ours = plan(ME, OTHER, peers=spec, bgp=off, here=Here(ADDRESS)).input.peers
    assert [one.passive for one in ours] == [False], "the other may know nothing of it"


def test_a_route_reflector_reflects_to_clients_and_not_to_its_like() -> None:
    reflector = node(NODE, "me", ipv4Address=str(ADDRESS), routeReflectorClusterID="244.0.0.1")
    twin = node("n4", "twin", ipv4Address="172.31.1.4/24", routeReflectorClusterID="244.0.0.1")
    other_id = node("n5", "twin", ipv4Address="172.31.1.5/24", routeReflectorClusterID="244.0.0.5")
    found = plan(
        reflector, OTHER, FAR, twin, other_id,
        peers={
            "clients": {"nodeSelector": "has(me)", "peerSelector": "!has(me)"},
            "outside": {"peerIP": "192.0.2.1", "asNumber": 64512},
            "foreign": {"peerIP": "192.0.2.2", "asNumber": 65000},
        },
        here=Here(ADDRESS),
    )  # fmt: skip
    assert found.input.cluster_id == "244.0.0.1"
    assert {str(one.address): (one.reflect, one.relay) for one in found.input.peers} == {
        "172.31.1.3": (True, True),
        "172.31.3.3": (False, True),
        "172.31.1.4": (False, True),
        "172.31.1.5": (True, True),
        "192.0.2.1": (True, True),
        "192.0.2.2": (False, True),
    }
    assert "rr cluster id 244.0.0.1;" in render_bird(found.input)


def test_a_bgp_peer_beats_the_mesh_and_knows_a_node_when_it_names_one() -> None:
    found = plan(ME, FAR, peers={"p": {"peerIP": "172.31.3.3", "keepaliveTime": "3s"}})
    assert found.input.peers == (
        Peer(ip_address("172.31.3.3"), 65003, member=True, keepalive_seconds=3),
    )


def test_mesh_options_and_each_nodes_own_port() -> None:
    cluster = Cluster(NODE)
    cluster.replace(NODES, (ME, OTHER, FAR))
    default: dict[str, Any] = {
        "listenPort": 1790,
        "nodeMeshPassword": PASSWORD,
        "nodeMeshMaxRestartTime": "2m0s",
    }
    specs: dict[str, dict[str, Any]] = {
        "default": default,
        "node.n3": {"listenPort": 1793},
        f"node.{NODE}": {"listenPort": 1791},
    }
    found_in = (resource_record(Kind.BGP_CONFIGURATION, *one) for one in specs.items())
    cluster.replace(BGP, tuple(found_in))
    found = bird_input(cluster, replace(HERE, address6=None), Settings())
    assert found.input.listen_port == 1791
    assert [(one.port, one.password, one.restart_seconds) for one in found.input.peers] == [
        (1790, "hush", 120),
        (1793, "hush", 120),
    ]
    assert found.secrets == {("s", "k")}


@pytest.mark.parametrize(
    ("known", "namespace", "problem"),
    [
        ({("s", "k"): None}, "kube-system", "there is no key k of Secret kube-system/s"),
        ({("s", "k"): 'a"b'}, "kube-system", "has a quotation mark"),
        ({("s", "k"): "a\nb"}, "kube-system", "has a quotation mark or a control"),
        ({("s", "k"): ""}, "kube-system", "is not 1 to 80 bytes"),
        ({("s", "k"): "x" * 81}, "kube-system", "is not 1 to 80 bytes"),
        ({}, "", "needs the Kubernetes API"),
    ],
)
def test_no_session_without_its_password(
    known: dict[tuple[str, str], str | None], namespace: str, problem: str
) -> None:
    here = replace(HERE, secrets=Secrets(known, namespace))
    spec: dict[str, dict[str, Any]]
    spec = {"tor": {"peerIP": "192.0.2.1", "password": PASSWORD}, "plain": {"peerIP": "192.0.2.2"}}
    found = plan(peers=spec, here=here)
    assert [str(one.address) for one in found.input.peers] == ["192.0.2.2"]
    assert found.input.complete
    (said,) = found.problems
    assert said.startswith("BGPPeer tor: no session: ")
    assert problem in said


def test_a_secret_that_was_not_answered_yet_makes_the_input_incomplete() -> None:
    here = replace(HERE, secrets=Secrets({}, "kube-system"))
    found = plan(peers={"tor": {"peerIP": "192.0.2.1", "password": PASSWORD}}, here=here)
    assert not found.input.complete
    assert found.secrets == {("s", "k")}
    assert found.problems == ()
    theirs = plan(peers={"tor": {"peerIP": "192.0.2.1", "password": PASSWORD, "node": "n2"}})
    assert theirs.secrets == frozenset(), "another node's password is not this one's to read"


def test_a_filter_that_cannot_be_obeyed_closes_its_peers() -> None:
    good: dict[str, Any] = {"importV4": [{"action": "Accept"}]}
    peers: dict[str, dict[str, Any]] = {
        "a": {"peerIP": "192.0.2.1", "filters": ["good", "missing"]},
        "b": {"peerIP": "192.0.2.2", "filters": ["good"]},
        "c": {"peerIP": "192.0.2.3", "filters": ["bad"]},
    }
    found = plan(
        peers=peers, filters={"good": good, "bad": {"importV4": [{"action": "Accept", "vlan": 3}]}}
    )
    assert {str(one.address): one.closed for one in found.input.peers} == {
        "192.0.2.1": True,
        "192.0.2.2": False,
        "192.0.2.3": True,
    }
    assert [one.name for one in found.input.filters] == ["good"]
    assert found.problems == (
        "BGPFilter bad: spec.importV4.0.vlan: no such field is known",
        "BGPPeer a: nothing passes: no usable BGPFilter missing",
        "BGPPeer c: nothing passes: no usable BGPFilter bad",
    )


def test_a_filter_that_speaks_of_neighbours_routes_lets_them_through() -> None:
    rule = {"source": "RemotePeers", "action": "Accept"}
    peers: dict[str, dict[str, Any]] = {"a": {"peerIP": "192.0.2.1", "filters": ["f"]}}
    for spec, relayed in (
        ({"exportV4": [rule]}, True),
        ({"exportV6": [rule]}, True),
        ({"importV4": [rule]}, False),
        ({"exportV4": [rule | {"action": "Reject"}]}, False),
        ({"exportV4": [{"action": "Accept"}]}, False),
    ):
        (peer,) = plan(peers=peers, filters={"f": spec}).input.peers
        assert peer.relay is relayed, spec


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"peerIP": "192.0.2.1", "peerSelector": "all()"}, "want one of peerIP, peerSelector"),
        ({"asNumber": 65000}, "want one of peerIP, peerSelector"),
        ({"peerSelector": "all()", "asNumber": 65000}, "not asNumber"),
        ({"peerIP": "192.0.2.1", "node": NODE, "nodeSelector": "all()"}, "exclude each other"),
        (
            {"peerIP": "192.0.2.1", "keepOriginalNextHop": True, "nextHopMode": "Self"},
            "exclude each other",
        ),
        ({"peerIP": "192.0.2.1", "ttlSecurity": 256}, "spec.ttlSecurity"),
        ({"peerIP": "192.0.2.1", "keepaliveTime": "0s"}, "spec.keepaliveTime"),
        ({"peerIP": "192.0.2.1", "maxRestartTime": "2h"}, "spec.maxRestartTime"),
        ({"peerIP": "192.0.2.1", "nextHopMode": "Elsewhere"}, "spec.nextHopMode"),
        ({"peerIP": "192.0.2.1", "password": {"secretKeyRef": {"name": "s"}}}, "spec.password"),
        ({"peerIP": "192.0.2.1%eth0"}, "has a zone"),
        ({"peerIP": "fd00:1::2"}, "is this node"),
        ({"peerIP": "224.0.0.1"}, "is no address that a neighbour has here"),
        ({"peerIP": "fe80::1"}, "is no address that a neighbour has here"),
        ({"peerIP": "192.0.2.1", "reachableBy": "fd00::1"}, "is no gateway to 192.0.2.1"),
        ({"peerIP": "192.0.2.1", "reachableBy": "192.0.2.1"}, "is no gateway to 192.0.2.1"),
        ({"peerIP": "192.0.2.1", "reachableBy": "0.0.0.0"}, "is no gateway to 192.0.2.1"),
    ],
)
def test_a_peer_that_cannot_be_is_named_and_costs_no_other(
    spec: dict[str, Any], problem: str
) -> None:
    found = plan(peers={"bad": spec, "good": {"peerIP": "192.0.2.9"}})
    assert [str(one.address) for one in found.input.peers] == ["192.0.2.9"]
    (said,) = found.problems
    assert said.startswith("BGPPeer bad: ")
    assert problem in said


def test_a_cluster_id_that_is_none_reflects_nothing_and_costs_nothing_else() -> None:
    me = node(NODE, "me", ipv4Address=str(ADDRESS), routeReflectorClusterID="one")
    found = plan(me, OTHER, here=Here(ADDRESS), peers={"p": {"peerIP": "192.0.2.1"}})
    assert {str(one.address): one.reflect for one in found.input.peers} == {
        "172.31.1.3": False,
        "192.0.2.1": False,
    }
    (said,) = found.problems
    assert f"Node {NODE}: routeReflectorClusterID 'one' is not like 244.0.0.1" in said


def test_a_node_whose_address_is_nobodys_is_no_peer() -> None:
    found = plan(ME, node("n9", ipv4Address="224.0.0.9/24"), here=Here(ADDRESS))
    assert found.input.peers == ()
    assert found.problems == ("Node n9: 224.0.0.9 is no address of a node",)


def test_a_peer_of_a_family_that_this_node_has_no_address_of() -> None:
    found = plan(peers={"six": {"peerIP": "fd00::9"}}, here=Here(ADDRESS))
    assert found.problems == ("BGPPeer six: fd00::9 needs an IPv6 address of this node",)


def test_a_field_that_is_not_known_is_named_and_the_peer_is_used() -> None:
    found = plan(peers={"tor": {"peerIP": "192.0.2.1", "colour": "red"}})
    assert len(found.input.peers) == 1
    assert found.problems == ("BGPPeer tor: not obeyed: colour",)
