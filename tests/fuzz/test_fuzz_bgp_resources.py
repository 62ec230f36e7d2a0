"""Whatever BGP resources say, BIRD takes what comes of them: one bad resource costs no other.

Every value is one that the resource's reader may let pass: edges, odd addresses, hostile text.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import Bfd
from felix_shim.bird_input import Here, bird_input
from felix_shim.bird_peers import Secrets
from felix_shim.cluster import BGP, FILTERS, NODES, PEERS, POOLS, Cluster
from felix_shim.settings import Settings
from libtortie.datastore.port import Record
from libtortie.errors import Malformed
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Resource, parse_resource
from tests.fakes.agent_world import NODE

ADDRESSES = (
    "192.0.2.1", "172.31.1.2", "172.31.1.9", "0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1",
    "240.0.0.1", "169.254.1.1", "fd00::1", "fd00:1::9", "::", "::1", "fe80::1", "ff02::1",
    "::ffff:192.0.2.1", "2001:db8::1", "x", "", "192.0.2.1%eth0", '1.1.1.1"; }',
)  # fmt: skip
TEXTS = ("", "hush", 'a"b', "a\nb", "a;b} #", "ü" * 40, "\\", "x" * 81, "$", "'")
NUMBERS = (0, 1, 23456, 64512, 65000, 4294967295)
NETS = (
    "10.65.0.0/16", "10.65.0.0/26", "10.65.0.1/32", "0.0.0.0/0", "fd00:65::/64", "fd00:65::1/128",
    "::/0", "10.65.0.1/16", "224.0.0.0/4", "127.0.0.0/8", "fe80::/10", "x",
)  # fmt: skip
NAMES = ("tor", "a.b-c", "x" * 70, "1", "A", "a b", 'f"; }')
COMMUNITIES = ("65000:100", "0:0", "65535:65535", "4294967295:1:2", "65536:1", "vm", "")
DURATIONS = ("", "0s", "1s", "90s", "21845s", "4095s", "2h", "1ms", "x")


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def some(values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


password = st.fixed_dictionaries(
    {"secretKeyRef": st.fixed_dictionaries({"name": some(TEXTS[:4]), "key": some(("k", "l", ""))})}
)
selector = some(("all()", "has(a)", "!has(a)", "((", "a == 'b'"))
peer = maybe(
    node=some((NODE, "n2")),
    nodeSelector=selector,
    peerIP=st.one_of(some(ADDRESSES), some(("192.0.2.1:1", "[fd00::1]:179", "192.0.2.1:0"))),
    peerSelector=selector,
    asNumber=some(NUMBERS),
    localASNumber=some(NUMBERS),
    password=password,
    filters=st.lists(some(NAMES), max_size=2),
    ttlSecurity=some((0, 1, 2, 255, 256)),
    keepaliveTime=some(DURATIONS),
    maxRestartTime=some(DURATIONS),
    sourceAddress=some(("UseNodeIP", "None", "x")),
    nextHopMode=some(("Auto", "Self", "Keep", "x")),
    keepOriginalNextHop=st.booleans(),
    numAllowedLocalASNumbers=some((0, 1, 10, 255, 256)),
    reachableBy=some(ADDRESSES),
    reversePeering=some(("Auto", "Manual")),
)
way = st.one_of(
    st.fixed_dictionaries({"peerIP": some(("192.0.2.1", "172.31.1.9:1790", "fd00:1::9"))}),
    st.fixed_dictionaries({"peerSelector": some(("all()", "has(a)"))}),
)
options = maybe(
    localASNumber=some(NUMBERS[1:]),
    password=st.just({"secretKeyRef": {"name": "hush", "key": "k"}}),
    filters=st.lists(some(NAMES[:4]), max_size=3),
    ttlSecurity=some((1, 2, 255)),
    keepaliveTime=some(("1s", "21845s")),
    maxRestartTime=some(("0s", "4095s")),
    sourceAddress=some(("UseNodeIP", "None")),
    nextHopMode=some(("Auto", "Self", "Keep")),
    numAllowedLocalASNumbers=some((1, 255)),
)
good_peer = st.builds(lambda one, other: one | other, way, options)
rule = maybe(
    cidr=some(NETS),
    matchOperator=some(("In", "NotIn", "Equal", "NotEqual")),
    prefixLength=maybe(min=some((0, 8, 24, 32, 128)), max=some((0, 8, 24, 32, 128))),
    source=some(("RemotePeers",)),
    interface=some(("eth0", "*", "eth*", 'e"', "x" * 16)),
    peerType=some(("eBGP", "iBGP")),
    communities=st.fixed_dictionaries({"values": st.lists(some(COMMUNITIES), max_size=2)}),
    asPathPrefix=st.lists(some(NUMBERS), max_size=3),
    priority=some((1, 512, 2147483646, 2147483647)),
    action=some(("Accept", "Reject")),
    operations=st.lists(
        maybe(
            addCommunity=st.fixed_dictionaries({"value": some(COMMUNITIES)}),
            prependASPath=st.fixed_dictionaries({"prefix": st.lists(some(NUMBERS), max_size=3)}),
            setPriority=st.fixed_dictionaries({"value": some((1, 512, 2147483646))}),
        ),
        max_size=2,
    ),
)
good_rule = st.builds(
    lambda one, other: {"action": "Reject"} | one | other,
    maybe(
        source=st.just("RemotePeers"),
        interface=some(("eth0", "*", "eth*")),
        peerType=some(("eBGP", "iBGP")),
        communities=some(({"values": ["65535:65535"]}, {"values": ["4294967295:1:2"]})),
        asPathPrefix=st.lists(some(NUMBERS[1:]), max_size=3),
        priority=some((1, 512, 2147483646)),
    ),
    st.one_of(
        st.just({}),
        st.just({"action": "Accept", "operations": [{"setPriority": {"value": 2147483646}}]}),
        st.just({"action": "Accept", "operations": [{"prependASPath": {"prefix": [1, 65536]}}]}),
    ),
)
lists = st.one_of(st.lists(good_rule, max_size=3), st.lists(rule, max_size=3))
route_filter = maybe(importV4=lists, exportV4=lists, importV6=lists, exportV6=lists)
ranges = st.lists(st.fixed_dictionaries({"cidr": some(NETS)}), max_size=2)
conf = maybe(
    asNumber=some(NUMBERS),
    listenPort=some((0, 1, 179, 65535, 65536)),
    bindMode=some(("None", "NodeIP", "x")),
    nodeToNodeMeshEnabled=st.booleans(),
    nodeMeshPassword=password,
    nodeMeshMaxRestartTime=some(DURATIONS),
    ignoredInterfaces=st.lists(some(("eth0", "eth*", "*", 'e"')), max_size=2),
    logSeverityScreen=some(("Trace", "debug", "Info", "Warning", "Error", "Fatal", "x")),
    serviceClusterIPs=ranges,
    serviceExternalIPs=ranges,
    serviceLoadBalancerIPs=ranges,
    communities=st.lists(
        st.fixed_dictionaries({"name": some(("vm", "")), "value": some(COMMUNITIES)}), max_size=2
    ),
    prefixAdvertisements=st.lists(
        st.fixed_dictionaries(
            {"cidr": some(NETS), "communities": st.lists(some(COMMUNITIES), max_size=2)}
        ),
        max_size=2,
    ),
    programClusterRoutes=some(("Enabled", "Disabled")),
)
node = st.fixed_dictionaries(
    {
        "bgp": maybe(
            ipv4Address=some(tuple(f"{one}/24" for one in ADDRESSES)),
            ipv6Address=some(tuple(f"{one}/64" for one in ADDRESSES)),
            asNumber=some(NUMBERS),
            routeReflectorClusterID=some(("", "244.0.0.1", "0.0.0.0", "x", "fd00::1", '1"; }')),
        )
    }
)
pool = st.fixed_dictionaries({"cidr": some(NETS[:7])}, optional={"disableBGPExport": st.booleans()})


def records(kind: Kind, found: dict[str, Any]) -> tuple[Record, ...]:
    """Those of the resources that a store could have given the agent."""
    made = []
    for name, spec in found.items():
        body = {"kind": kind, "metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec}
        try:
            value: Resource = parse_resource(kind, body)
        except Malformed:
            continue
        made.append(Record(ResourceKey(kind, name), value, "1"))
    return tuple(made)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bird") / "bird.conf"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    peers=st.dictionaries(some(NAMES), st.one_of(good_peer, peer), max_size=4),
    filters=st.dictionaries(some(NAMES), route_filter, max_size=2),
    confs=st.dictionaries(some(("default", f"node.{NODE}", "node.n2")), conf, max_size=2),
    nodes=st.dictionaries(some((NODE, "n2", "n3")), node, max_size=3),
    pools=st.dictionaries(some(NAMES), pool, max_size=2),
    dual=st.booleans(),
)
def test_bird_takes_what_comes_of_any_resources(file: Path, **found: Any) -> None:
    cluster = Cluster(NODE)
    for scope, kind, name in (
        (PEERS, Kind.BGP_PEER, "peers"),
        (FILTERS, Kind.BGP_FILTER, "filters"),
        (BGP, Kind.BGP_CONFIGURATION, "confs"),
        (NODES, Kind.NODE, "nodes"),
        (POOLS, Kind.IP_POOL, "pools"),
    ):
        cluster.replace(scope, records(kind, found[name]))
    passwords = dict(zip((("hush", "k"), ("hush", "l")), TEXTS[1:6:4], strict=True))
    here = Here(IPv4Interface("172.31.1.2/24"), uplinks=("eth0",), bfd=Bfd(),
                secrets=Secrets(passwords, "kube-system"))  # fmt: skip
    if found["dual"]:
        here = replace(here, address6=IPv6Interface("fd00:1::2/64"))
    text = render_bird(bird_input(cluster, here, Settings()).input)
    file.write_text(text)
    command = ["bird", "-p", "-c", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + text
