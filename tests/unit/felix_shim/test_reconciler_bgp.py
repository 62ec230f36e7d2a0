"""What the agent has BIRD do, as its resources, passwords and canaries come and go."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from felix_shim.bgp_model import BirdInput, Canary
from felix_shim.cluster import BGP, FILTERS, NODES, PEERS, POOLS
from felix_shim.events import BgpTold, ServiceAddress, Stored, Unstored
from libtortie.datastore.port import Record
from libtortie.model.bgp_canary import ANNOTATION
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.times import rfc3339
from tests.fakes.agent_world import NODE, Bench, resource_record

PEER = {"peerIP": "192.0.2.1", "asNumber": 65000}
SECRET = {"password": {"secretKeyRef": {"name": "bgp", "key": "tor"}}}
KEY = ("bgp", "tor")
RESYNC_SECONDS = 60.0


@pytest.fixture
def bench() -> Bench:
    """One that has begun."""
    found = Bench()
    found.start()
    return found


def peer(**spec: Any) -> Record:
    return resource_record(Kind.BGP_PEER, "tor", PEER | spec)


def told(bench: Bench) -> BirdInput:
    """What BIRD was last told."""
    return bench.bird[-1]


def test_a_password_is_waited_for_obeyed_and_changed(bench: Bench) -> None:
    bench.tell(Stored(PEERS, peer(**SECRET)))
    assert bench.passwords_wanted[-1] == {KEY}
    assert not told(bench).complete
    bench.tell(BgpTold({KEY: "one"}))
    assert told(bench).complete
    assert [one.password for one in told(bench).peers] == ["one"]
    bench.tell(BgpTold({KEY: "two"}))
    assert [one.password for one in told(bench).peers] == ["two"]
    bench.tell(BgpTold({KEY: None}))
    assert told(bench).peers == ()
    (said,) = bench.log.of("bgp_setting_ignored")
    assert "no session: there is no key tor of Secret kube-system/bgp" in str(said)


def test_a_password_that_nobody_wants_is_asked_for_no_more(bench: Bench) -> None:
    bench.tell(Stored(PEERS, peer(**SECRET)))
    bench.tell(Unstored(PEERS, ResourceKey(Kind.BGP_PEER, "tor")))
    assert bench.passwords_wanted[-1] == frozenset()


def test_without_an_api_a_password_is_said_to_be_out_of_reach() -> None:
    bench = Bench(kube=False)
    bench.listed()
    bench.tell(Stored(PEERS, peer(**SECRET)))
    assert told(bench).complete
    assert "needs the Kubernetes API" in str(bench.log.of("bgp_setting_ignored"))


def test_services_are_asked_for_when_they_matter_and_obeyed(bench: Bench) -> None:
    assert bench.services_wanted == []
    conf = {"serviceExternalIPs": [{"cidr": "192.0.2.0/24"}]}
    bench.tell(Stored(BGP, resource_record(Kind.BGP_CONFIGURATION, "default", conf)))
    assert bench.services_wanted
    assert not told(bench).complete
    one = ServiceAddress("externalIP", ip_address("192.0.2.9"), local=True, here=True)
    bench.tell(BgpTold(services=frozenset({one})))
    assert told(bench).complete
    assert ip_network("192.0.2.9/32") in told(bench).services
    bench.tell(BgpTold(services=frozenset({replace(one, here=False)})))
    assert told(bench).services == (ip_network("192.0.2.0/24"),)


def test_a_filter_that_comes_opens_the_peer_that_names_it(bench: Bench) -> None:
    bench.tell(Stored(PEERS, peer(filters=["f"])))
    assert [one.closed for one in told(bench).peers] == [True]
    rule = {"exportV4": [{"action": "Accept"}]}
    bench.tell(Stored(FILTERS, resource_record(Kind.BGP_FILTER, "f", rule)))
    assert [one.closed for one in told(bench).peers] == [False]
    bench.tell(Unstored(FILTERS, ResourceKey(Kind.BGP_FILTER, "f")))
    assert [one.closed for one in told(bench).peers] == [True]


def test_a_pool_that_is_not_exported_any_more(bench: Bench) -> None:
    pool = {"cidr": "10.65.0.0/16"}
    bench.tell(Stored(POOLS, resource_record(Kind.IP_POOL, "p", pool)))
    assert told(bench).hidden == ()
    bench.tell(Stored(POOLS, resource_record(Kind.IP_POOL, "p", pool | {"disableBGPExport": True})))
    assert told(bench).hidden == (ip_network("10.65.0.0/16"),)


def test_a_canary_ends_when_its_time_is_over_whoever_asked_for_it(bench: Bench) -> None:
    until = rfc3339(bench.time_of_day + timedelta(seconds=30))
    text = json.dumps({"cidr": "198.51.100.7/32", "metric": 512, "until": until})
    record = resource_record(Kind.NODE, NODE, {"bgp": {"ipv4Address": "172.31.1.2/24"}})
    value: Any = record.value
    metadata = value.metadata.model_copy(update={"annotations": {ANNOTATION: text}})
    node = Record(record.key, value.model_copy(update={"metadata": metadata}), "2")
    bench.tell(Stored(NODES, node))
    assert told(bench).canaries == (Canary(ip_network("198.51.100.7/32"), 512),)
    bench.time_of_day += timedelta(seconds=31)
    bench.advance(2 * RESYNC_SECONDS)
    assert told(bench).canaries == ()
