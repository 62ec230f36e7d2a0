"""The tunnel's port is open to nodes and to nobody else, whatever the node's own policy says."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

import pytest

from felix_shim.cluster import FELIX, POOLS
from felix_shim.drivers.nftables_rules import chain_text
from felix_shim.events import Stored
from felix_shim.failsafe import NODES
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS, HostPlan
from felix_shim.nat_rules import NAT_CHAIN
from felix_shim.overlay_settings import TunnelSettings
from felix_shim.policy_book import PolicyRules
from felix_shim.surroundings import NodeRules, Surroundings
from felix_shim.tunnel_rules import (
    ENCAPSULATION,
    OpenTunnel,
    no_encapsulation,
    tunnel_in,
    tunnel_out,
)
from libtortie.model.keys import Kind
from libtortie.model.policy import ALL_LINKS, HostEnd
from libtortie.model.resources import IPPoolSpec
from tests.fakes.agent_world import NODE, Bench, resource_record
from tests.fakes.overlay_bench import block_record, pool_record, with_overlay

BOTH = OpenTunnel(4789, (4, 6))
NODE_SET = {version: f"{key.name}-0" for version, key in NODES.items()}


def test_what_comes_in_and_goes_out() -> None:
    sets = Surroundings(nodes=frozenset({ip_address("172.31.1.2")})).sets
    assert chain_text(tunnel_in(BOTH), sets, "-0") == [
        f"meta l4proto 17 th dport 4789 ip saddr @{NODE_SET[4]} accept",
        f"meta l4proto 17 th dport 4789 ip6 saddr @{NODE_SET[6]} accept",
        "meta l4proto 17 th dport 4789 counter drop",
    ]
    assert chain_text(tunnel_out(OpenTunnel(8472, (4,))), sets, "-0") == [
        f"meta l4proto 17 th dport 8472 ip daddr @{NODE_SET[4]} accept"
    ]


def test_it_stands_before_the_nodes_own_policy() -> None:
    closed = HostPlan(HostEnd("every", "n1", ALL_LINKS), closed=True)
    nodes = frozenset({ip_address("172.31.1.2")})
    found = NodeRules().added_to(
        PolicyRules(hosts=(closed,)), Surroundings(nodes=nodes, tunnel=BOTH)
    )
    into = found.chains[HOST_CHAINS[HostStage.IN]]
    assert into[: len(tunnel_in(BOTH))] == tunnel_in(BOTH)
    assert len(into) > len(tunnel_in(BOTH))
    assert set(NODES.values()) <= found.sets.keys()


@pytest.mark.parametrize("nat", [False, True])
def test_no_workload_gets_in_under_its_nodes_address(nat: bool) -> None:
    """`natOutgoing` would have its packet to a node's tunnel come from the node."""
    pool = IPPoolSpec(cidr="10.65.0.0/16", nat_outgoing=nat)
    around = Surroundings(pools=(pool,), tunnel=BOTH)
    chain = NodeRules().added_to(PolicyRules(), around).chains[NAT_CHAIN]
    assert chain == ((*tunnel_out(BOTH), *around.nat) if nat else ())


def test_the_agent_opens_it_with_the_overlay_and_closes_it_with_it() -> None:
    bench = Bench()
    bench.start()
    chain = HOST_CHAINS[HostStage.IN]
    assert bench.rules[-1].chains[chain] == ()
    with_overlay(bench, block_record("n0"))
    assert bench.rules[-1].chains[chain] == tunnel_in(OpenTunnel(4789, (4,)))
    felix = resource_record(Kind.FELIX_CONFIGURATION, "default", {"vxlanPort": 8472})
    bench.tell(Stored(FELIX, felix))
    assert bench.rules[-1].chains[chain] == tunnel_in(OpenTunnel(8472, (4,)))
    bench.tell(Stored(POOLS, pool_record("Never")))
    assert bench.rules[-1].chains[chain] == ()


IPIP = "meta l4proto 4 counter drop"
VXLAN = "meta l4proto 17 th dport {} counter drop"


@pytest.mark.parametrize(
    ("settings", "closed"),
    [
        (TunnelSettings(), [IPIP, VXLAN.format("4789")]),
        (TunnelSettings(port=8472), [IPIP, VXLAN.format("{ 4789, 8472 }")]),
        (TunnelSettings(port=500), [IPIP, VXLAN.format("{ 500, 4789 }")]),
        (TunnelSettings(port=500, workloads_vxlan=True), [IPIP]),
        (TunnelSettings(workloads_ipip=True), [VXLAN.format("4789")]),
        (TunnelSettings(workloads_vxlan=True, workloads_ipip=True), []),
    ],
)
def test_workloads_speak_no_encapsulation_but_what_is_allowed(
    settings: TunnelSettings, closed: list[str]
) -> None:
    assert chain_text(no_encapsulation(settings), {}, "-0") == closed


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ({"vxlanPort": 8472}, TunnelSettings(port=8472)),
        ({"allowVXLANPacketsFromWorkloads": True}, TunnelSettings(workloads_vxlan=True)),
        ({"allowIPIPPacketsFromWorkloads": True}, TunnelSettings(workloads_ipip=True)),
    ],
)
def test_what_workloads_may_encapsulate_is_said_without_a_tunnel_here(
    spec: Mapping[str, object], settings: TunnelSettings
) -> None:
    """Other nodes may have one, with the port."""
    bench = Bench()
    bench.start()
    assert bench.rules[-1].chains[ENCAPSULATION] == no_encapsulation()
    bench.tell(Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, "default", spec)))
    assert bench.rules[-1].chains[ENCAPSULATION] == no_encapsulation(settings)
    own = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", dict.fromkeys(spec, False))
    if "vxlanPort" not in spec:
        bench.tell(Stored(FELIX, own))
        assert bench.rules[-1].chains[ENCAPSULATION] == no_encapsulation()


def test_what_is_allowed_to_workloads_opens_no_nodes_end() -> None:
    """A tunnel lets in nodes' addresses alone, and a workload's packet keeps its own."""
    around = Surroundings(tunnel=BOTH, encapsulation=TunnelSettings(workloads_vxlan=True))
    chains = NodeRules().added_to(PolicyRules(), around).chains
    assert chains[HOST_CHAINS[HostStage.IN]][: len(tunnel_in(BOTH))] == tunnel_in(BOTH)
