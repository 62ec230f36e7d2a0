"""What BGPConfigurations and pools say about a node."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_address, ip_network
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import LogLevel, Tagged
from felix_shim.bird_input import BirdPlan, Here, bird_input
from felix_shim.bird_peers import Secrets
from felix_shim.bird_services import Use
from felix_shim.cluster import BGP, POOLS, Cluster
from felix_shim.events import ServiceAddress
from felix_shim.routes import Priorities
from felix_shim.settings import Settings
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, resource_record

HERE = Here(IPv4Interface("172.31.1.2/24"), IPv6Interface("fd00:1::2/64"), uplinks=("eth0", "eth1"))


def plan(
    *, pools: dict[str, dict[str, Any]] | None = None, here: Here = HERE, **confs: dict[str, Any]
) -> BirdPlan:
    """`confs` are BGPConfigurations by name; `own` is this node's."""
    cluster = Cluster(NODE)
    cluster.replace(
        BGP,
        tuple(
            resource_record(Kind.BGP_CONFIGURATION, f"node.{NODE}" if name == "own" else name, spec)
            for name, spec in confs.items()
        ),
    )
    cluster.replace(
        POOLS, tuple(resource_record(Kind.IP_POOL, *one) for one in (pools or {}).items())
    )
    found = bird_input(cluster, here, Settings())
    assert render_bird(found.input)
    return found


def test_services_are_announced_whole() -> None:
    found = plan(
        default={
            "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}, {"cidr": "fd00:96::/112"}],
            "serviceExternalIPs": [{"cidr": "192.0.2.0/28"}],
            "serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}],
        }
    )
    assert found.problems == ()
    text = render_bird(found.input)
    for cidr in ("10.96.0.0/12", "fd00:96::/112", "192.0.2.0/28", "198.51.100.0/24"):
        assert ip_network(cidr) in found.input.services
        assert f"route {cidr} blackhole;" in text


def test_services_one_by_one() -> None:
    """Without aggregation only single addresses are announced; they are waited for, once."""
    conf = {
        "serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}],
        "serviceLoadBalancerAggregation": "Disabled",
    }
    found = plan(default=conf)
    assert found.wants_services
    assert found.input.services == ()
    assert "services one by one need the Kubernetes API" in found.problems[0]
    api = replace(HERE, secrets=Secrets({}, "kube-system"))
    assert not plan(default=conf, here=api).input.complete
    one = ServiceAddress(Use.BALANCER, ip_address("198.51.100.9"), local=False, here=False)
    known = plan(default=conf, here=replace(api, services=frozenset({one})))
    assert known.input.complete
    assert known.problems == ()
    assert known.input.services == (ip_network("198.51.100.9/32"),)
    text = render_bird(known.input)
    assert "route 198.51.100.9/32 blackhole;" in text
    assert 'proto = "services4" then reject' in text, "no blackhole in the node's kernel"
    assert not plan(default={}).wants_services


def test_communities_by_name_and_value() -> None:
    found = plan(
        default={
            "communities": [{"name": "vm", "value": "65000:100"}],
            "prefixAdvertisements": [
                {"cidr": "10.65.0.0/16", "communities": ["vm", "65000:1:2"]},
                {"cidr": "fd00:65::/64", "communities": ["vm"]},
            ],
        }
    )
    assert found.input.tagged == (
        Tagged(ip_network("10.65.0.0/16"), ((65000, 100), (65000, 1, 2))),
        Tagged(ip_network("fd00:65::/64"), ((65000, 100),)),
    )
    text = render_bird(found.input)
    assert (
        "if net ~ 10.65.0.0/16 then { bgp_community.add((65000, 100)); "
        "bgp_large_community.add((65000, 1, 2)); }" in text
    )


def test_a_community_that_is_none_is_named() -> None:
    found = plan(
        default={"prefixAdvertisements": [{"cidr": "10.65.0.0/16", "communities": ["vms"]}]}
    )
    (problem,) = found.problems
    assert "10.65.0.0/16: 'vms' is no community aa:nn or aa:nn:mm, nor the name of one" in problem


def test_what_is_of_one_node_beats_the_cluster_field_by_field() -> None:
    found = plan(
        default={"logSeverityScreen": "Debug", "bindMode": "NodeIP", "ignoredInterfaces": ["eth0"]},
        own={"logSeverityScreen": "warning", "listenPort": 1179},
        other={"listenPort": 99},
    )
    assert found.problems == ()
    assert found.input.log_level is LogLevel.WARNING
    assert found.input.bind_node_address
    assert found.input.listen_port == 1179
    text = render_bird(found.input)
    assert 'interface "eth1";' in text
    assert "syslog { warning, error, auth, fatal, bug }" in text


def test_what_is_of_the_cluster_alone_is_not_obeyed_of_one_node() -> None:
    found = plan(default={"asNumber": 64600}, own={"asNumber": 65001, "listenPort": 180})
    assert found.input.as_number == 64600
    assert found.problems == (f"BGPConfiguration node.{NODE}: not obeyed: asNumber",)


def test_a_field_that_cannot_be_used_costs_no_other() -> None:
    found = plan(
        default={
            "listenPort": 1790,
            "bindMode": "Everywhere",
            "serviceClusterIPs": [{"cidr": "10.96.0.1/12"}],
            "logSeverityScreen": "loud",
            "novelty": 1,
        }
    )
    assert found.input.listen_port == 1790
    assert not found.input.bind_node_address
    assert [one.split(": ")[1] for one in found.problems] == [
        "spec.logSeverityScreen",
        "spec.serviceClusterIPs.0.cidr",
        "spec.bindMode",
        "not obeyed",
    ]


@pytest.mark.parametrize(
    ("value", "programmed"),
    [("", True), ("Enabled", True), ("EnabledNoEncapOnly", True), ("Disabled", False),
     ("EnabledIPIPOnly", False)],
)  # fmt: skip
def test_cluster_routes_can_be_somebody_elses(value: str, programmed: bool) -> None:
    found = plan(default={"programClusterRoutes": value}, pools={"p": {"cidr": "10.65.0.0/16"}})
    assert found.problems == ()
    line = "if source = RTS_BGP && net ~ [ 10.65.0.0/16+ ] then reject;"
    assert (line not in render_bird(found.input)) is programmed


def test_the_priorities_are_felix_configurations() -> None:
    found = plan(default={"ipv4NormalRoutePriority": 900, "ipv6NormalRoutePriority": 1024})
    assert found.input.priorities == Priorities()
    (problem,) = found.problems
    assert "ipv4NormalRoutePriority 900 is not FelixConfiguration's 1024" in problem


def test_disabled_and_unexported_pools_are_two_things() -> None:
    """A disabled pool has workloads still: only what it is not exported for is kept back."""
    found = plan(
        pools={
            "open": {"cidr": "10.65.0.0/16"},
            "disabled": {"cidr": "10.66.0.0/16", "disabled": True},
            "kept": {"cidr": "10.67.0.0/16", "disableBGPExport": True},
            "kept6": {"cidr": "fd00:67::/64", "disableBGPExport": True},
        }
    )
    text = render_bird(found.input)
    assert "if net ~ [ 10.67.0.0/16+ ] then reject;" in text
    assert "if net ~ [ fd00:67::/64+ ] then reject;" in text
    assert "net ~ [ 10.65.0.0/16+, 10.66.0.0/16+, 10.67.0.0/16+ ]" in text


def test_a_node_without_ipv4_has_a_router_id_of_its_name() -> None:
    ids = set()
    for node in ("n1", "n2"):
        found = bird_input(Cluster(node), Here(None, HERE.address6), Settings())
        again = bird_input(Cluster(node), Here(None, HERE.address6), Settings())
        assert found.input.router_id == again.input.router_id != IPv4Address(0)
        text = render_bird(found.input)
        assert "fib6" in text
        assert "fib4" not in text
        ids.add(found.input.router_id)
    assert len(ids) == 2


@pytest.mark.parametrize(("said", "wanted"), [("", "172.31.1.2"), ("192.0.2.7", "192.0.2.7")])
def test_the_router_id_is_the_address_unless_it_is_said(said: str, wanted: str) -> None:
    here = replace(HERE, router_id=said)
    assert str(bird_input(Cluster("n1"), here, Settings()).input.router_id) == wanted


def test_a_router_id_may_be_of_the_name_though_there_is_an_address() -> None:
    ids = {
        bird_input(Cluster("n1"), here, Settings()).input.router_id
        for here in (replace(HERE, router_id="hash"), Here(None, HERE.address6))
    }
    assert len(ids) == 1
    assert IPv4Address("172.31.1.2") not in ids
