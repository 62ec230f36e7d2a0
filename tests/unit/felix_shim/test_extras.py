"""Floating addresses and source prefixes, from the stored endpoint to rules and routes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from felix_shim.cluster import ENDPOINTS, FELIX, NODES, Cluster
from felix_shim.drivers.nftables_text import render, render_delta, render_sweep
from felix_shim.endpoints import parse_endpoint
from felix_shim.events import Stored, Unstored
from felix_shim.migration import State
from felix_shim.model import Endpoint
from felix_shim.policy import EndpointPolicy, PolicySet, compile_endpoint, policy_set
from felix_shim.routes import Priorities, desired_routes
from felix_shim.settings import Settings, effective
from libtortie.datastore.port import Record
from libtortie.errors import Malformed
from libtortie.model.keys import Kind
from libtortie.model.resources import FelixConfigurationSpec, WorkloadEndpoint
from tests.fakes.agent_world import ADDRESS, Bench, endpoint_record, migration, resource_record

OUTER = "192.0.2.7"
ON = {"floatingIPs": "Enabled", "workloadSourceSpoofing": "Any"}


def asking(record: Record, **spec: Any) -> Record:
    """An endpoint that asks for these besides."""
    assert isinstance(record.value, WorkloadEndpoint)
    wire = record.value.model_dump(by_alias=True, mode="json")
    value = WorkloadEndpoint.model_validate({**wire, "spec": {**wire["spec"], **spec}})
    return replace(record, value=value)


def floating(*outer: str, inner: str = ADDRESS) -> dict[str, Any]:
    return {"ipNATs": [{"internalIP": inner, "externalIP": one} for one in outer]}


def parsed(**spec: Any) -> Endpoint:
    value = asking(endpoint_record("web", vm=False), **spec).value
    assert isinstance(value, WorkloadEndpoint)
    return parse_endpoint(value)


def settings(**fields: Any) -> Settings:
    return effective([("default", FelixConfigurationSpec.model_validate(fields))])


# -- what an endpoint asks for -------------------------------------------------------------------


def test_what_is_stored_is_read() -> None:
    found = parsed(
        **floating(OUTER, "192.0.2.8"),
        allowSpoofedSourcePrefixes=["198.51.100.9/24", "198.51.100.0/25", "2001:db8::/64"],
    )
    assert [str(outer) for _, outer in found.floating] == [OUTER, "192.0.2.8"]
    assert [str(one) for one in found.source_prefixes] == ["198.51.100.0/24", "2001:db8::/64"]
    assert [str(one) for one in found.destinations] == [ADDRESS, OUTER, "192.0.2.8"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (floating("nonsense"), "ipNATs"),
        (floating(OUTER, inner="10.65.0.99"), "cannot stand for"),
        (floating("2001:db8::7"), "cannot stand for"),
        ({"allowSpoofedSourcePrefixes": ["nonsense"]}, "allowSpoofedSourcePrefixes"),
        ({"allowSpoofedSourcePrefixes": ["fe80::%x }; flush ruleset; /64"]}, "has a zone"),
        (floating("fe80::1%x }; flush ruleset;"), "has a zone"),
    ],
)
def test_what_cannot_be_read_is_no_endpoint(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parsed(**spec)


def test_a_stored_address_that_nobody_can_be_reached_by_is_left_out() -> None:
    """The endpoint stays: another version's ADD has taken it."""
    found = parsed(**floating("127.0.0.1", "224.0.0.5", OUTER, "0.0.0.0", "169.254.1.1"))
    assert [str(outer) for _, outer in found.floating] == [OUTER]


def test_the_settings_are_calicos_and_closed_by_default() -> None:
    assert (settings().floating_ips, settings().source_spoofing) == (False, False)
    assert (settings(**ON).floating_ips, settings(**ON).source_spoofing) == (True, True)
    off = FelixConfigurationSpec.model_validate(
        {"floatingIPs": "Disabled", "workloadSourceSpoofing": "Disabled"}
    )
    on = FelixConfigurationSpec.model_validate(ON)
    found = effective([("default", on), ("node.n1", off)])
    assert (found.floating_ips, found.source_spoofing) == (False, False)
    found = effective([("default", on), ("node.n1", FelixConfigurationSpec())])
    assert (found.floating_ips, found.source_spoofing) == (True, True)
    strange = settings(floatingIPs="Yes", workloadSourceSpoofing="All")
    assert (strange.floating_ips, strange.source_spoofing) == (False, False)
    assert [text.split(":")[1].strip() for text in strange.problems] == [
        "floatingIPs",
        "workloadSourceSpoofing",
    ]


# -- who has a floating address ------------------------------------------------------------------


def holder(interface: str, address: str, *outer: str) -> EndpointPolicy:
    own = ip_address(address)
    pairs = tuple((own, ip_address(one)) for one in outer)
    return EndpointPolicy(interface, "02:00:00:00:00:01", (own,), floating=pairs)


def texts(rules: PolicySet) -> dict[str, str]:
    return {str(outer): str(inner) for outer, inner in rules.translated.items()}


def test_an_endpoints_own_address_is_nobodys_floating_one() -> None:
    thief, owner = holder("cali1", "10.65.0.2", "10.65.0.3", OUTER), holder("cali2", "10.65.0.3")
    assert texts(policy_set([thief, owner])) == {OUTER: "10.65.0.2"}
    assert texts(policy_set([thief])) == {OUTER: "10.65.0.2", "10.65.0.3": "10.65.0.2"}


def test_two_who_want_one_address_are_decided_without_order() -> None:
    rivals = [holder("cali1", "10.65.0.2", OUTER), holder("cali2", "10.65.0.3", OUTER)]
    for order in itertools.permutations(rivals):
        assert texts(policy_set(order)) == {OUTER: "10.65.0.2"}
        text = render(policy_set(order))
        assert text.count(f"{OUTER} : ") == 1, "the kernel refuses a second one, and all with it"


def test_a_route_to_somebodys_own_address_is_not_another_ones() -> None:
    one = parsed(**floating(OUTER))
    thief = replace(one, interface="cali0", addresses=(ip_address("10.65.0.9"),))
    thief = replace(thief, floating=((thief.addresses[0], ip_address(ADDRESS)),))
    for state in (State.BASE, State.DEPARTED):
        found = desired_routes([(thief, State.LIVE), (one, state)], Priorities())
        stolen = [r for r in found if str(r.dst) == f"{ADDRESS}/32" and r.ifname == "cali0"]
        assert not stolen


# -- nft text ------------------------------------------------------------------------------------

PLAIN = policy_set([holder("cali1", "10.65.0.2")])
FLOATING = policy_set([holder("cali1", "10.65.0.2", "192.0.2.9", OUTER)])


def test_without_a_floating_address_nothing_is_translated() -> None:
    assert "nat-prerouting" not in render(PLAIN)
    text = render(FLOATING)
    assert f"{OUTER} : 10.65.0.2, 192.0.2.9 : 10.65.0.2" in text
    assert f"10.65.0.2 . 10.65.0.2 : {OUTER}" in text, "one of the two, the same on every run"


def test_the_difference_names_what_changed() -> None:
    text = render_delta(PLAIN, FLOATING)
    assert text.count("add chain inet tortie nat-") == 3
    back = render_delta(FLOATING, PLAIN)
    assert back.count("delete chain inet tortie nat-") == 3
    assert back.count("delete map inet tortie") == 4
    fewer = policy_set([holder("cali1", "10.65.0.2", "192.0.2.9")])
    text = render_delta(FLOATING, fewer)
    nat = [line for line in text.splitlines() if " floating" in line or " hairpins" in line]
    assert nat == [
        f"delete element inet tortie floating4-0 {{ {OUTER} : 10.65.0.2 }}",
        f"delete element inet tortie hairpins4-0 {{ 10.65.0.2 . 10.65.0.2 : {OUTER} }}",
        "add element inet tortie hairpins4-0 { 10.65.0.2 . 10.65.0.2 : 192.0.2.9 }",
    ]


def test_the_sweep_keeps_the_new_maps_and_takes_the_old_ones() -> None:
    listing = "\tmap floating4-0 {\n\tmap floating4-1 {\n\tchain nat-output {\n"
    assert "floating4-0" in render_sweep({"inet": listing}, FLOATING, "-1")
    assert "floating4-1" not in render_sweep({"inet": listing}, FLOATING, "-1")
    assert "delete chain inet tortie nat-output" in render_sweep({"inet": listing}, PLAIN, "-1")


# -- the agent -----------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Bench:
    return Bench()


def configured(bench: Bench, **felix: Any) -> None:
    bench.tell(Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, "default", felix)))


def test_nothing_without_leave_and_all_of_it_with_leave(bench: Bench) -> None:
    bench.start()
    prefixes = ["198.51.100.0/24"]
    record = asking(
        endpoint_record("web", vm=False), **floating(OUTER), allowSpoofedSourcePrefixes=prefixes
    )
    bench.attach(record)

    def has() -> tuple[list[int], dict[str, str], list[str]]:
        found = bench.rules[-1]
        sources = [str(net) for one in found.endpoints for net in one.source_prefixes]
        return bench.metrics("web", OUTER), texts(found), sources

    assert bench.metrics("web") == [1024]
    assert has() == ([], {}, [])
    configured(bench, **ON)
    assert has() == ([1024], {OUTER: ADDRESS}, prefixes)
    configured(bench, floatingIPs="Enabled")
    assert has() == ([1024], {OUTER: ADDRESS}, [])
    configured(bench)
    assert has() == ([], {}, [])
    configured(bench, **ON)
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    assert has() == ([], {}, []), "no longer asked for"
    assert bench.metrics("web") == [1024]
    bench.tell(Stored(ENDPOINTS, record))
    bench.detach(record)
    assert bench.metrics("web", OUTER) == []
    configured(bench)
    configured(bench, **ON)
    assert texts(bench.rules[-1]) == {}, "whoever is gone asks for nothing"


def test_a_nodes_address_leads_to_nobody_else(bench: Bench) -> None:
    """Its route would be announced, and every node's connections to that node led to a pod."""
    bench.start()
    configured(bench, **ON)
    bench.attach(asking(endpoint_record("web", vm=False), **floating(OUTER, "192.0.2.8")))
    assert texts(bench.rules[-1]) == {OUTER: ADDRESS, "192.0.2.8": ADDRESS}
    node = resource_record(Kind.NODE, "n9", {"bgp": {"ipv4Address": f"{OUTER}/24"}})
    bench.tell(Stored(NODES, node))
    assert texts(bench.rules[-1]) == {"192.0.2.8": ADDRESS}
    assert bench.metrics("web", OUTER) == []
    assert bench.metrics("web", "192.0.2.8") == [1024]
    bench.tell(Unstored(NODES, node.key))
    assert texts(bench.rules[-1]) == {OUTER: ADDRESS, "192.0.2.8": ADDRESS}


def test_the_nodes_addresses_are_read_once_for_all_who_ask() -> None:
    cluster = Cluster("n1")
    one = resource_record(Kind.NODE, "n9", {"bgp": {"ipv4Address": f"{OUTER}/24"}})
    assert cluster.node_addresses() == frozenset()
    cluster.put(NODES, one)
    assert cluster.node_addresses() == {ip_address(OUTER)}
    assert cluster.node_addresses() is cluster.node_addresses()
    cluster.remove(NODES, one.key)
    assert cluster.node_addresses() == frozenset()
    cluster.replace(NODES, (one,))
    assert cluster.node_addresses() == {ip_address(OUTER)}


def test_a_floating_address_goes_with_its_vm(bench: Bench) -> None:
    bench.listed(felix=ON)
    moving = migration("m1", target="target")
    bench.kube_in_sync(moving)
    bench.attach(asking(endpoint_record("target", migration="m1"), **floating(OUTER)))
    assert bench.metrics("target", OUTER) == []
    assert texts(bench.rules[-1]) == {OUTER: ADDRESS}, "ready before the VM is"
    bench.sign("target")
    assert bench.metrics("target", OUTER) == bench.metrics("target") == [512]


def test_compiling_keeps_what_is_asked() -> None:
    found = compile_endpoint(parsed(**floating(OUTER), allowSpoofedSourcePrefixes=["0.0.0.0/0"]))
    assert found.floating == ((ip_address(ADDRESS), ip_address(OUTER)),)
    assert found.source_prefixes == (ip_network("0.0.0.0/0"),)
