"""Which pools may give an address: enabled, of the family and use, selected, not overlapping."""

from __future__ import annotations

from typing import Any

import pytest

from ipam.pools import Wanted, eligible, parse_pool
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.resources import parse_resource
from tests.fakes.ipam_world import pool


def wanted(version: int = 4, *requested: str, **labels: dict[str, str]) -> Wanted:
    return Wanted(version, requested, labels.get("node", {}), labels.get("namespace", {}))


def names(pools: list[Any], want: Wanted) -> list[str]:
    return [p.name for p in eligible([parse_pool(p) for p in pools], want)]


def test_pools_come_in_name_order_and_only_of_the_family() -> None:
    pools = [pool("b", "10.1.0.0/16"), pool("v6", "fd00::/64"), pool("a", "10.0.0.0/16")]
    assert names(pools, wanted()) == ["a", "b"]
    assert names(pools, wanted(6)) == ["v6"]


@pytest.mark.parametrize(
    "spec",
    [
        {"disabled": True},
        {"assignmentMode": "Manual"},
        {"allowedUses": ["Tunnel"]},
        {"allowedUses": ["LoadBalancer"]},
        {"nodeSelector": "rack == 'r2'"},
        {"nodeSelector": "rack ==="},
        {"namespaceSelector": "team == 'b'"},
    ],
)
def test_pools_that_are_not_for_this_attachment(spec: dict[str, Any]) -> None:
    want = wanted(node={"rack": "r1"}, namespace={"team": "a"})
    assert names([pool("a", "10.0.0.0/16", **spec)], want) == []


def test_selectors_that_match() -> None:
    chosen = pool("a", "10.0.0.0/16", nodeSelector="rack == 'r1'", namespaceSelector="team == 'a'")
    assert names([chosen], wanted(node={"rack": "r1"}, namespace={"team": "a"})) == ["a"]


def test_deleted_pool_and_pool_not_allocatable_are_not_enabled() -> None:
    wire: dict[str, Any] = {"kind": "IPPool", "spec": {"cidr": "10.0.0.0/16"}}
    deleting = {**wire, "metadata": {"name": "a", "deletionTimestamp": "2026-08-22T13:30:00Z"}}
    condition = {"type": "Allocatable", "status": "False", "reason": "CIDROverlap"}
    overlapping = {**wire, "metadata": {"name": "b"}, "status": {"conditions": [condition]}}
    fine = {"conditions": [{"type": "Allocatable", "status": "True"}]}
    usable = {**wire, "metadata": {"name": "c"}, "status": fine}
    parsed = [parse_resource(Kind.IP_POOL, data) for data in (deleting, overlapping, usable)]
    assert names(parsed, wanted()) == ["c"]


def test_requested_pools_bypass_selectors_and_mode_and_keep_their_order() -> None:
    pools = [
        pool("a", "10.0.0.0/16", nodeSelector="!all()"),
        pool("b", "10.1.0.0/16", assignmentMode="Manual"),
        pool("c", "10.2.0.0/16"),
        pool("t", "10.3.0.0/16", allowedUses=["Tunnel"]),
    ]
    assert names(pools, wanted(4, "10.1.0.0/16", "a", "t")) == ["b", "a"]


@pytest.mark.parametrize("text", ["nope", "off", "10.9.0.0/16", "v6"])
def test_requested_pool_that_can_not_be_used_is_an_error(text: str) -> None:
    pools = [
        pool("a", "10.0.0.0/16"),
        pool("off", "10.9.0.0/16", disabled=True),
        pool("v6", "fd00::/64"),
    ]
    with pytest.raises(InvalidInput, match=r"the given pool \("):
        names(pools, wanted(4, "a", text))
