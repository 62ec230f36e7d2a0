"""The reconciler from events to routes, rules, status files and owners, on a clock of its own."""

from __future__ import annotations

import json
from ipaddress import ip_network

import pytest

from felix_shim.cluster import ENDPOINTS, FELIX, NODES, POLICY_SCOPES, POOLS
from felix_shim.events import Listed, Stored
from felix_shim.migration import State
from libtortie.linux.port import Route
from libtortie.model.keys import Kind
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import (
    ADDRESS,
    NAMESPACE,
    Bench,
    endpoint_record,
    resource_record,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- ordinary endpoints --------------------------------------------------------------------------


def test_an_endpoint_gets_rules_then_route_then_status(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    assert [one.interface for one in bench.rules[-1].endpoints] == [host_ifname(NAMESPACE, "web")]
    assert bench.metrics("web") == [1024]
    body = json.loads(bench.status["k8s default%2Fweb eth0"])
    assert body["containerID"] == "ctr-web"
    assert body["ipv4Nets"] == [f"{ADDRESS}/32"]
    assert bench.kernel.read_sysctl(f"net/ipv4/conf/{host_ifname(NAMESPACE, 'web')}/proxy_arp")


def test_no_route_and_no_status_before_the_rules_are_in(bench: Bench) -> None:
    bench.start()
    bench.nft_broken = True
    bench.attach(endpoint_record("web", vm=False))
    assert bench.metrics("web") == []
    assert bench.status == {}
    bench.nft_broken = False
    bench.advance(0.2)
    assert bench.metrics("web") == [1024]
    assert bench.status


def test_nothing_is_touched_before_the_first_list(bench: Bench) -> None:
    bench.add_veth("old")
    stray = Route(ip_network(ADDRESS), 1024, ifname=host_ifname(NAMESPACE, "old"), link_scope=True)
    bench.kernel.ensure_route(stray)
    bench.settle()
    bench.tell(Listed(FELIX, ()), Listed(NODES, ()))
    assert bench.rules == []
    assert bench.metrics("old") == [1024]
    bench.tell(Listed(ENDPOINTS, ()))
    assert bench.rules == [], "what policies there are is not known yet"
    bench.tell(*(Listed(scope, ()) for scope in POLICY_SCOPES))
    assert bench.rules == [], "nor which pools"
    bench.tell(Listed(POOLS, ()))
    assert bench.rules
    bench.advance(11)
    assert bench.metrics("old") == []


def test_endpoints_of_other_nodes_are_not_ours(bench: Bench) -> None:
    bench.start(endpoint_record("far", node="n2"))
    assert bench.rules[-1].endpoints == ()


def test_removal_takes_everything_away(bench: Bench) -> None:
    bench.start()
    record = endpoint_record("web", vm=False)
    bench.attach(record)
    bench.detach(record)
    assert bench.metrics("web") == []
    assert bench.status == {}
    assert bench.rules[-1].endpoints == ()


def test_a_lost_watch_takes_nothing_away_but_a_list_does(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    bench.tell(Listed(ENDPOINTS, (), unreadable=("/somewhere/web",)))
    assert bench.metrics("web") == [1024]
    bench.tell(Listed(ENDPOINTS, ()))
    assert bench.metrics("web") == []


def test_a_deleted_route_comes_back(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    (route,) = bench.kernel.routes(ifname=host_ifname(NAMESPACE, "web"))
    bench.kernel.delete_route(route)
    bench.settle()
    assert bench.metrics("web") == [1024]


def test_a_stray_route_on_a_workload_interface_goes(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    stray = Route(
        ip_network("10.65.0.9"), 77, ifname=host_ifname(NAMESPACE, "web"), link_scope=True
    )
    bench.kernel.ensure_route(stray)
    bench.settle()
    bench.advance(9)
    assert bench.metrics("web", "10.65.0.9") == [77]
    bench.advance(2)
    assert bench.metrics("web", "10.65.0.9") == []


def test_the_route_of_an_add_is_left_alone_until_its_endpoint_is_there(bench: Bench) -> None:
    bench.start()
    bench.add_veth("web")
    early = Route(ip_network(ADDRESS), 1024, ifname=host_ifname(NAMESPACE, "web"), link_scope=True)
    bench.kernel.ensure_route(early)
    bench.settle()
    bench.kernel.namespaces.changes.clear()
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    bench.advance(60)
    assert [one for one in bench.kernel.namespaces.changes if "route" in one[0]] == []
    assert bench.metrics("web") == [1024]


def test_routes_that_went_silently_with_the_link_are_back_when_it_is(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    interface = host_ifname(NAMESPACE, "web")
    bench.kernel.set_link(interface, up=False)
    bench.settle()
    assert bench.status == {}
    bench.kernel.set_link(interface, up=True)
    bench.settle()
    assert bench.metrics("web") == [1024]
    assert bench.status


def test_a_new_sandbox_of_the_same_pod_waits_for_rules_again(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False, container="one"))
    bench.nft_broken = True
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False, container="two")))
    assert bench.status == {}
    bench.nft_broken = False
    bench.advance(0.2)
    assert json.loads(bench.status["k8s default%2Fweb eth0"])["containerID"] == "two"


def test_changed_labels_disturb_nothing(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    before = list(bench.kernel.namespaces.changes)
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False, labels={"a": "b"})))
    assert bench.kernel.namespaces.changes == before
    assert bench.metrics("web") == [1024]


def test_new_priorities_are_made_before_the_old_are_broken(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    spec = {"ipv4NormalRoutePriority": 2000, "ipv4ElevatedRoutePriority": 1000}
    bench.kernel.namespaces.changes.clear()
    bench.tell(Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, "default", spec)))
    assert bench.metrics("web") == [2000]
    moves = [what for what in bench.kernel.namespaces.changes if "route" in what[0]]
    assert [name for name, _ in moves] == ["ensure_route", "delete_route"]
    assert bench.bird[-1].priorities.normal == 2000


def test_resync_alone_changes_nothing(bench: Bench) -> None:
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    bench.kernel.namespaces.changes.clear()
    bench.advance(31)
    assert bench.kernel.namespaces.changes == []


def test_without_an_api_nobody_has_a_role() -> None:
    bench = Bench(kube=False)
    bench.listed()
    bench.attach(endpoint_record("tgt", migration="m1"))
    assert bench.state("tgt") is State.BASE
    assert bench.metrics("tgt") == [1024]
