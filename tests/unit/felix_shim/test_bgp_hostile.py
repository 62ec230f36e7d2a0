"""Whatever is in one field of one BGP resource: the agent goes on, and the others hold."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_filter import Direction, function_name
from felix_shim.bird_input import BirdPlan, Here, bird_input
from felix_shim.bird_peers import Secrets
from felix_shim.cluster import BGP, FILTERS, NODES, PEERS, POOLS, Cluster
from felix_shim.settings import Settings
from libtortie.errors import Malformed
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, resource_record

HERE = Here(
    IPv4Interface("172.31.1.2/24"),
    IPv6Interface("fd00:1::2/64"),
    secrets=Secrets({("hush", "k"): "pw"}, "kube-system"),
)
SCOPES = {
    Kind.BGP_PEER: PEERS,
    Kind.BGP_FILTER: FILTERS,
    Kind.BGP_CONFIGURATION: BGP,
    Kind.NODE: NODES,
    Kind.IP_POOL: POOLS,
}
GOOD: dict[Kind, dict[str, dict[str, Any]]] = {
    Kind.BGP_PEER: {"good": {"peerIP": "172.31.1.9", "asNumber": 65000, "filters": ["ok"]}},
    Kind.BGP_FILTER: {"ok": {"importV4": [{"action": "Accept"}]}},
    Kind.BGP_CONFIGURATION: {},
    Kind.NODE: {
        NODE: {"bgp": {"ipv4Address": "172.31.1.2/24"}},
        "n3": {"bgp": {"ipv4Address": "172.31.1.3/24"}},
    },
    Kind.IP_POOL: {"p": {"cidr": "10.65.0.0/16"}},
}
SECRET = {"secretKeyRef": {"name": "hush", "key": "k"}}
RULE = {
    "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": 24, "max": 32},
    "source": "RemotePeers", "interface": "eth0", "peerType": "eBGP",
    "communities": {"values": ["1:1"]}, "asPathPrefix": [1], "priority": 5, "action": "Accept",
    "operations": [{"addCommunity": {"value": "1:2"}}, {"prependASPath": {"prefix": [1]}},
                   {"setPriority": {"value": 3}}],
}  # fmt: skip
RANGE = [{"cidr": "10.96.0.0/12"}]
WHOLE: dict[Kind, tuple[str, dict[str, Any]]] = {
    Kind.BGP_PEER: ("other", {
        "node": NODE, "peerIP": "172.31.1.8:1790", "asNumber": 1, "localASNumber": 2,
        "password": SECRET, "sourceAddress": "None", "nextHopMode": "Self",
        "maxRestartTime": "3s", "keepaliveTime": "3s", "numAllowedLocalASNumbers": 1,
        "ttlSecurity": 2, "reachableBy": "172.31.1.7", "filters": ["ok"],
        "reversePeering": "Auto",
    }),
    Kind.BGP_FILTER: ("other", {
        "importV4": [RULE], "exportV4": [RULE],
        "importV6": [RULE | {"cidr": "fd00::/8"}], "exportV6": [RULE | {"cidr": "fd00::/8"}],
    }),
    Kind.BGP_CONFIGURATION: ("default", {
        "logSeverityScreen": "Info", "nodeToNodeMeshEnabled": True, "asNumber": 64512,
        "listenPort": 179, "bindMode": "NodeIP", "ignoredInterfaces": ["eth*"],
        "communities": [{"name": "a", "value": "1:1"}],
        "prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["a", "1:2"]}],
        "serviceClusterIPs": RANGE, "serviceExternalIPs": RANGE, "serviceLoadBalancerIPs": RANGE,
        "serviceLoadBalancerAggregation": "Disabled", "nodeMeshMaxRestartTime": "3s",
        "nodeMeshPassword": SECRET, "programClusterRoutes": "Enabled",
    }),
    Kind.NODE: ("n4", {"bgp": {
        "ipv4Address": "172.31.1.4/24", "ipv6Address": "fd00:1::4/64", "asNumber": 64512,
        "routeReflectorClusterID": "1.0.0.1",
    }}),
    Kind.IP_POOL: ("other", {"cidr": "10.66.0.0/16", "disableBGPExport": True, "blockSize": 26}),
}  # fmt: skip
JUNK: tuple[Any, ...] = (
    None, True, False, -1, 2**64, 10**400, 1.5, float("nan"), "", "x", "\ud800", "\u0663:\u0663",
    "a\nb", '"; }', "\x00", "9" * 5000, "9" * 400 + "h", "(" * 5000, "\u0661.2.3.4", "::1%x/128",
    [], [None], [1], [""], ["\ud800"], {}, {"": 1}, [[]], [{}], {"secretKeyRef": None},
    {"secretKeyRef": {"name": "../pods/x", "key": "k"}},
    {"secretKeyRef": {"name": "\ud800", "key": "\ud800"}},
)  # fmt: skip
Path = tuple[str | int, ...]


def plan(kind: Kind, name: str, spec: Any) -> BirdPlan:
    """What comes of the good resources and this one, if a store can hold it."""
    cluster = Cluster(NODE)
    for one, good in GOOD.items():
        records = [resource_record(one, *item) for item in good.items()]
        if one is kind:
            with suppress(Malformed):
                records.append(resource_record(kind, name, spec))
        cluster.replace(SCOPES[one], tuple(records))
    return bird_input(cluster, HERE, Settings())


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value."""
    yield path
    below: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        below = value if isinstance(value, dict) else dict(enumerate(value))
    for key, inner in below.items():
        yield from paths(inner, (*path, key))


def changed(value: Any, path: Path, junk: Any) -> Any:
    if not path:
        return junk
    found = copy.deepcopy(value)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = junk
    return found


@pytest.mark.parametrize("kind", list(WHOLE))
def test_nothing_in_any_field_costs_another_session_or_the_agent(kind: Kind) -> None:
    name, whole = WHOLE[kind]
    for path in list(paths(whole))[1:]:
        for junk in JUNK:
            found = plan(kind, name, changed(whole, path, junk))
            text = render_bird(found.input)
            assert "protocol bgp peer_172_31_1_9 {" in text, (path, junk)
            assert text.encode()
            assert json.dumps(found.problems)
            for asked in found.secrets:
                assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", one) for one in asked), asked


@pytest.mark.parametrize("junk", [one for one in JUNK if one is not None])
def test_a_mesh_whose_password_is_wrongly_written_is_not_opened_without(junk: Any) -> None:
    whole = {"asNumber": 65001, "nodeMeshPassword": junk}
    found = plan(Kind.BGP_CONFIGURATION, "default", whole)
    assert "protocol bgp mesh" not in render_bird(found.input)
    assert found.input.as_number == 65001, "and the other fields hold"
    assert any("no mesh" in problem for problem in found.problems)


def test_a_wrong_field_of_a_bgpconfiguration_costs_no_other() -> None:
    """Else the mesh would be open, and of another AS, because of a wrong port."""
    for field in WHOLE[Kind.BGP_CONFIGURATION][1]:
        whole = {"nodeToNodeMeshEnabled": False, "asNumber": 65001, field: {"a": 1}}
        found = plan(Kind.BGP_CONFIGURATION, "default", whole)
        assert any(field in problem for problem in found.problems)
        if field not in ("asNumber", "nodeToNodeMeshEnabled"):
            assert found.input.as_number == 65001
            assert "protocol bgp mesh" not in render_bird(found.input)


def test_no_filter_can_be_named_like_another_ones_hash() -> None:
    long = function_name("x" * 100, Direction.IMPORT, 4)
    inner = long.removeprefix("'bgp_").removesuffix("_importFilterV4'")
    for name in (inner, inner.lstrip("_")):
        found = plan(Kind.BGP_FILTER, name, GOOD[Kind.BGP_FILTER]["ok"])
        taken = [function_name(one.name, Direction.IMPORT, 4) for one in found.input.filters]
        assert long not in [*taken, function_name(inner.lstrip("_"), Direction.IMPORT, 4)]
