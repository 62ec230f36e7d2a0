"""Paths are Calico's, each belongs to one key, and a scope's range holds its own keys alone."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from libtortie.errors import Malformed
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
    parse_path,
    path_of,
    scope_bounds,
)

V3 = "/calico/resources/v3/projectcalico.org"
IPAM = "/calico/ipam/v2"
V4, V6 = ip_network("10.244.1.0/26"), ip_network("fd00:10:244:1::/122")

PATHS: list[tuple[str, Key]] = [
    (f"{V3}/ippools/pool-a", ResourceKey(Kind.IP_POOL, "pool-a")),
    (f"{V3}/globalnetworkpolicies/deny", ResourceKey(Kind.GLOBAL_NETWORK_POLICY, "deny")),
    (f"{V3}/networkpolicies/shop/web", ResourceKey(Kind.NETWORK_POLICY, "web", "shop")),
    (f"{V3}/workloadendpoints/shop/w", ResourceKey(Kind.WORKLOAD_ENDPOINT, "w", "shop")),
    (f"{IPAM}/assignment/ipv4/block/10.244.1.0-26", BlockKey(V4)),
    (f"{IPAM}/assignment/ipv6/block/fd00:10:244:1::-122", BlockKey(V6)),
    (f"{IPAM}/host/node-1/ipv4/block/10.244.1.0-26", AffinityKey("node-1", V4)),
    (
        f"{IPAM}/virtual/lb/ipv4/block/10.244.1.0-26",
        AffinityKey("lb", V4, "virtual"),
    ),
    (f"{IPAM}/handle/k8s-pod-network.ABCdef", HandleKey("k8s-pod-network.ABCdef")),
    (f"{IPAM}/config", IPAMConfigKey()),
]


@pytest.mark.parametrize(("path", "key"), PATHS, ids=[path for path, _ in PATHS])
def test_paths_both_ways(path: str, key: Key) -> None:
    assert path_of(key) == path
    assert parse_path(path) == key


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_path_of_its_own(kind: Kind) -> None:
    key = ResourceKey(kind, "x", "ns" if kind.namespaced else "")
    assert parse_path(path_of(key)) == key


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "calico/ipam/v2/config",
        f"{V3}/ippools",
        f"{V3}/ippools/",
        f"{V3}/ippools/a/b",
        f"{V3}/unheardof/a",
        f"{V3}/workloadendpoints/w",
        f"{IPAM}/handle/",
        f"{IPAM}/config/x",
        f"{IPAM}/host/node-1",
        f"{IPAM}/other/node-1/ipv4/block/10.244.1.0-26",
        f"{IPAM}/assignment/ipv4/block/10.244.1.1-26",
        f"{IPAM}/assignment/ipv6/block/10.244.1.0-26",
        f"{IPAM}/assignment/ipv4/other/10.244.1.0-26",
        f"{IPAM}/assignment/ipv6/block/FD00::-122",
        f"{IPAM}/assignment/ipv4/block/10.244.1.0",
        "/calico/felix/v2/no-region/host/n/status",
    ],
)
def test_other_paths_are_malformed(path: str) -> None:
    with pytest.raises(Malformed, match="not one of Calico's"):
        parse_path(path)


SCOPES: list[tuple[Scope, set[int]]] = [
    (Resources(Kind.IP_POOL), {0}),
    (Resources(Kind.NETWORK_POLICY), {2}),
    (Resources(Kind.WORKLOAD_ENDPOINT, "shop"), {3}),
    (Resources(Kind.WORKLOAD_ENDPOINT, "sho"), set()),
    (Blocks(4), {4}),
    (Blocks(6), {5}),
    (Affinities(), {6}),
    (Affinities("node-1"), {6}),
    (Affinities("node-"), set()),
    (Handles(), {8}),
    (IPAMConfigKey(), {9}),
]


@pytest.mark.parametrize(("scope", "members"), SCOPES, ids=[str(scope) for scope, _ in SCOPES])
def test_scope_bounds(scope: Scope, members: set[int]) -> None:
    low, high = scope_bounds(scope)
    assert {i for i, (path, _) in enumerate(PATHS) if low <= path < high} == members
    beyond = low.rstrip("/") + "0"
    assert not low <= beyond < high
    assert not low <= beyond + "/x" < high
