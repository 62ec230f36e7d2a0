"""What BGPPeers, BGPFilters and pools do between real BIRDs, in both families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from felix_shim.bgp_filter import RouteFilter, route_filter
from felix_shim.bgp_model import Bfd, Canary, NextHop, Tagged
from felix_shim.routes import Priorities
from libtortie.model.bgp_spec import BGPFilterWire
from tests.fakes.bird_lab import eventually, ip
from tests.fakes.bird_nodes import BirdNode, BirdNodes

pytestmark = pytest.mark.root
NORMAL, ELEVATED = 1024, 512
VMS = {4: "10.65.0.2/32", 6: "fd00:65::2/128"}
POOLS = (ip_network("10.65.0.0/16"), ip_network("fd00:65::/64"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BirdNode]]:
    """Three nodes; BIRDs start with the first test that has them run."""
    built = BirdNodes(tmp_path_factory.mktemp("nodes"), 3)
    try:
        built.up()
        yield built.nodes
    finally:
        built.down()


@pytest.fixture
def nodes(three: list[BirdNode]) -> Iterator[list[BirdNode]]:
    """The same, with nothing left of the test before."""
    clean = [node.input for node in three]
    yield three
    for node, before in zip(three, clean, strict=True):
        for cidr in VMS.values():
            for metric in (NORMAL, ELEVATED):
                if str(metric) in node.routes(cidr):
                    node.workload("del", cidr, metric)
        node.input = before


def filter_of(name: str, **lists: Any) -> RouteFilter:
    return route_filter(name, BGPFilterWire.model_validate(lists))


def mesh(nodes: list[BirdNode], **options: Any) -> None:
    """Every node with every other, in both families."""
    for node in nodes:
        others = [one for one in nodes if one is not node]
        node.run(*(one.peer(v, mesh=True, **options) for one in others for v in (4, 6)))
    for node in nodes:
        eventually(lambda node=node: node.established(2 * len(nodes) - 2))  # type: ignore[misc]  # bound now


@pytest.mark.parametrize("version", [4, 6])
def test_a_raise_moves_others_in_either_family(nodes: list[BirdNode], version: int) -> None:
    mesh(nodes)
    source, target, third = nodes
    cidr = VMS[version]
    source.workload("add", cidr, NORMAL)
    eventually(lambda: f"via {source.own(version)} " in third.routes(cidr))
    target.workload("add", cidr, ELEVATED)
    eventually(lambda: f"via {target.own(version)} " in third.routes(cidr))
    eventually(lambda: f"via {target.own(version)} " in source.routes(cidr))
    source.workload("del", cidr, NORMAL)
    target.workload("add", cidr, NORMAL)
    target.workload("del", cidr, ELEVATED)
    eventually(lambda: "calivm" in target.routes(cidr))
    eventually(lambda: f"via {target.own(version)} " in third.routes(cidr))


def test_passwords_and_bfd_in_both_families(nodes: list[BirdNode]) -> None:
    """A session comes up again with a new password only when both ends have it."""
    pair = nodes[:2]
    for node, other in (pair, pair[::-1]):
        node.run(*(other.peer(v, mesh=True, password="one") for v in (4, 6)), bfd=Bfd(100, 10))
    for node in pair:
        eventually(lambda node=node: node.established(2))  # type: ignore[misc]  # bound now
        eventually(lambda node=node: node.birdc("show bfd sessions").count(" Up ") == 2)  # type: ignore[misc]  # bound now
    a, b = pair
    a.run(*(b.peer(v, mesh=True, password="two") for v in (4, 6)))
    eventually(lambda: a.established(0))
    b.run(*(a.peer(v, mesh=True, password="two") for v in (4, 6)))
    eventually(lambda: a.established(2) and b.established(2))


def test_ttl_security_source_address_and_ports(nodes: list[BirdNode]) -> None:
    a, b, _ = nodes
    a.run(b.peer(4, port=1790, ttl_hops=1), listen_port=1791, bind_node_address=True)
    b.run(a.peer(4, port=1791, ttl_hops=1, from_node_address=False), listen_port=1790)
    eventually(lambda: a.established(1) and b.established(1))
    for node in (a, b):
        node.run(listen_port=179, bind_node_address=False)


def test_filters_carry_a_priority_over_ebgp_and_change_without_a_reset(
    nodes: list[BirdNode],
) -> None:
    """Across autonomous systems a community says what is raised; filters make it a priority."""
    a, b, c = nodes
    cidr = VMS[4]
    tag = filter_of(
        "tag",
        exportV4=[
            {
                "peerType": "eBGP",
                "priority": ELEVATED,
                "action": "Accept",
                "operations": [{"addCommunity": {"value": "65000:100"}}],
            }
        ],
    )
    raised = {
        "communities": {"values": ["65000:100"]},
        "action": "Accept",
        "operations": [{"setPriority": {"value": ELEVATED}}],
    }
    read = filter_of("read", importV4=[raised])
    for node in (a, b):
        node.run(c.peer(4, 65000, filters=("tag",)), filters=(tag,))
    peers = tuple(node.peer(4, 64512, filters=("read",)) for node in (a, b))
    c.run(*peers, as_number=65000, filters=(read,))
    eventually(lambda: c.established(2))
    a.workload("add", cidr, NORMAL)
    eventually(lambda: f"via {a.own(4)} " in c.routes(cidr))
    b.workload("add", cidr, ELEVATED)
    eventually(lambda: f"via {b.own(4)} " in c.routes(cidr))
    best = c.birdc(f"show route primary for {cidr} all")
    assert "(65000,100)" in best
    assert "(200)" in best, "it is the raised one by preference, not by chance"
    sessions = c.connections()
    assert len(sessions) == 2
    shut = filter_of("read", importV4=[raised | {"action": "Reject", "operations": []}])
    c.run(*peers, filters=(shut,))
    eventually(lambda: f"via {a.own(4)} " in c.routes(cidr))
    assert c.connections() == sessions, "no session was reset"
    c.run(*peers, filters=(read,))
    eventually(lambda: f"via {b.own(4)} " in c.routes(cidr))
    assert c.connections() == sessions
    c.run(as_number=64512)


def test_a_reflector_tells_its_clients_of_each_other(nodes: list[BirdNode]) -> None:
    a, reflector, c = nodes
    for node in (a, c):
        node.run(*(reflector.peer(v, member=True) for v in (4, 6)))
    clients = [one.peer(v, member=True, reflect=True, relay=True) for one in (a, c) for v in (4, 6)]
    reflector.run(*clients, cluster_id="244.0.0.1")
    for cidr in VMS.values():
        a.workload("add", cidr, NORMAL)
    for version, cidr in VMS.items():
        eventually(lambda v=version, net=cidr: f"via {a.own(v)} " in c.routes(net))  # type: ignore[misc]  # bound now
        c.workload("add", cidr, ELEVATED)
        eventually(lambda v=version, net=cidr: f"via {c.own(v)} " in a.routes(net))  # type: ignore[misc]  # bound now


def test_a_route_reflector_to_another_as_keeps_the_way_or_takes_it_on(
    nodes: list[BirdNode],
) -> None:
    a, border, tor = nodes
    cidr = VMS[4]
    a.run(border.peer(4, mesh=True))
    tor.run(border.peer(4, 64512), as_number=65000)
    told = filter_of("told", exportV4=[{"source": "RemotePeers", "action": "Accept"}])
    a.workload("add", cidr, NORMAL)
    keep = tor.peer(4, 65000, next_hop=NextHop.KEEP, relay=True)
    border.run(a.peer(4, mesh=True), keep, pools=POOLS)
    eventually(lambda: f"via {a.own(4)} " in tor.routes(cidr))
    through = tor.peer(4, 65000, relay=True, filters=("told",))
    border.run(a.peer(4, mesh=True), through, filters=(told,))
    eventually(lambda: f"via {border.own(4)} " in tor.routes(cidr))
    border.run(a.peer(4, mesh=True), tor.peer(4, 65000))
    eventually(lambda: not tor.routes(cidr))
    tor.run(as_number=64512)


def test_blocks_services_communities_hidden_pools_and_a_canary(nodes: list[BirdNode]) -> None:
    a, b, _ = nodes
    hidden = ip_network("10.67.0.0/16")
    a.run(
        b.peer(4),
        pools=(*POOLS, hidden),
        hidden=(hidden,),
        blocks=(ip_network("10.65.0.0/26"), ip_network("10.67.0.0/26")),
        services=(ip_network("10.96.0.0/12"),),
        tagged=(Tagged(POOLS[0], ((65000, 7),)),),
        canaries=(Canary(ip_network("198.51.100.7/32"), ELEVATED),),
    )
    b.run(a.peer(4))
    a.workload("add", "10.67.0.70/32", ELEVATED)
    eventually(lambda: "via" in b.routes("198.51.100.7/32"))
    eventually(lambda: "via" in b.routes("10.96.0.0/12"))
    eventually(lambda: "via" in b.routes("10.65.0.0/26"))
    assert "(65000,7)" in b.birdc("show route 10.65.0.0/26 all")
    assert "(65000,7)" not in b.birdc("show route 10.96.0.0/12 all")
    assert f"BGP.local_pref: {2147483647 - ELEVATED}" in b.birdc("show route 198.51.100.7/32 all")
    assert not a.routes("198.51.100.7/32"), "a canary is in no kernel"
    assert "10.67" not in b.birdc("show route"), "what is hidden is told nobody"
    eventually(lambda: "10.67.0.70" in a.birdc("show route"))
    a.workload("del", "10.67.0.70/32", ELEVATED)
    a.run(hidden=(), services=(), tagged=(), canaries=(), blocks=(), pools=())


def test_a_filter_that_accepts_all_lets_nothing_out_that_never_may(nodes: list[BirdNode]) -> None:
    a, b, _ = nodes
    everything = filter_of("everything", exportV4=[{"action": "Accept"}])
    hidden = ip_network("10.67.0.0/16")
    ip(a.namespace, f"route add default via {b.own(4)}")
    try:
        a.run(b.peer(4, filters=("everything",)), filters=(everything,), hidden=(hidden,))
        b.run(a.peer(4))
        eventually(lambda: "0.0.0.0/0" in a.birdc("show route"))
        for cidr in ("10.67.0.70/32", VMS[4]):
            a.workload("add", cidr, NORMAL)
        eventually(lambda: "via" in b.routes(VMS[4]))
        told = b.birdc("show route protocol peer_172_31_1_2")
        assert VMS[4] in told
        for never in ("0.0.0.0/0", "172.31.1.0/24", "10.67.0.70"):
            assert never not in told
    finally:
        ip(a.namespace, "route del default")
        a.workload("del", "10.67.0.70/32", NORMAL)
        a.run(filters=(), hidden=())


def test_priorities_change_while_everything_runs(nodes: list[BirdNode]) -> None:
    mesh(nodes)
    a, b, c = nodes
    cidr = VMS[4]
    a.workload("add", cidr, NORMAL)
    eventually(lambda: "metric 768" in c.routes(cidr))
    for node in nodes:
        node.input = replace(node.input, priorities=Priorities(normal=2000, elevated=1000))
        node.run(*node.input.peers)
    a.workload("add", cidr, 2000)
    a.workload("del", cidr, NORMAL)
    eventually(lambda: c.routes(cidr).count(cidr.partition("/")[0]) == 1)
    eventually(lambda: "metric 1500" in c.routes(cidr))
    b.workload("add", cidr, 1000)
    eventually(lambda: f"via {b.own(4)} " in c.routes(cidr))
    a.workload("del", cidr, 2000)
    b.workload("del", cidr, 1000)
