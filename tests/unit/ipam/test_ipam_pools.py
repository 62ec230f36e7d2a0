"""Which pools may give an address: enabled, of the family and use, selected, not overlapping."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from ipam.pools import Lan, Pool, Wanted, eligible, parse_pool, serves, settled
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.resources import IPPool, parse_resource
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


def parsed(name: str, cidr: str, created: str = "", **spec: Any) -> Pool:
    resource = pool(name, cidr, **spec)
    meta = resource.metadata.model_copy(update={"creation_timestamp": created or None})
    return parse_pool(resource.model_copy(update={"metadata": meta}))


def enabled(pools: tuple[Pool, ...]) -> list[str]:
    return [one.name for one in pools if one.enabled]


OLD, NEW = "2026-08-22T13:30:00Z", "2026-08-22T13:30:01Z"


@pytest.mark.parametrize(
    ("pools", "left"),
    [
        ([parsed("a", "10.0.0.0/16", NEW), parsed("b", "10.0.1.0/24", OLD)], ["b"]),
        ([parsed("a", "10.0.0.0/16", OLD), parsed("b", "10.0.1.0/24", NEW)], ["a"]),
        ([parsed("b", "10.0.0.0/16", OLD), parsed("a", "10.0.0.0/16", OLD)], ["a"]),
        ([parsed("a", "10.0.0.0/16", OLD, disabled=True), parsed("b", "10.0.1.0/24", NEW)], ["b"]),
        ([parsed("a", "10.0.0.0/16", OLD), parsed("b", "10.1.0.0/16", NEW)], ["a", "b"]),
        ([parsed("a", "10.0.0.0/16", OLD), parsed("b", "fd00::/64", NEW)], ["a", "b"]),
        # c overlaps only b, which is beaten: it is free to go on
        (
            [
                parsed("a", "10.0.0.0/24", OLD),
                parsed("b", "10.0.0.0/16", NEW),
                parsed("c", "10.0.9.0/24", "2026-08-22T13:30:02Z"),
            ],
            ["a", "c"],
        ),
    ],
)
def test_of_pools_that_overlap_the_oldest_is_used(pools: list[Pool], left: list[str]) -> None:
    assert enabled(settled(pools)) == left
    assert settled(reversed(pools)) == settled(pools), "whatever the order they are read in"
    assert settled(settled(pools)) == settled(pools)


def test_a_pool_that_overlaps_says_which() -> None:
    pools = settled([parsed("a", "10.0.0.0/16", OLD), parsed("b", "10.0.1.0/24", NEW)])
    assert [one.unusable for one in pools] == ["", "overlaps older pool a, 10.0.0.0/16"]
    with pytest.raises(InvalidInput, match=r"not enabled: b: overlaps older pool a"):
        eligible(pools, wanted(4, "b"))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"conditions": [{"type": "Allocatable", "status": "False"}]}, "no reason given"),
        ({"conditions": [{"type": "Other", "status": "False"}]}, ""),
        ({"conditions": ["x", None, 7]}, ""),
        ({"conditions": {"type": "Allocatable"}}, ""),
        ({"conditions": None}, ""),
        ("x", ""),
        (None, ""),
    ],
)
def test_a_status_of_any_form_is_read(status: Any, why: str) -> None:
    wire = {"kind": "IPPool", "metadata": {"name": "a"}, "spec": {"cidr": "10.0.0.0/16"}}
    resource = parse_resource(Kind.IP_POOL, wire | {"status": status})
    assert isinstance(resource, IPPool)
    assert why in parse_pool(resource).unusable
    assert parse_pool(resource).enabled == (not why)


def test_a_block_is_a_pools_only_with_its_size() -> None:
    one = parsed("a", "10.0.0.0/24", blockSize=28, nodeSelector="rack == 'r1'")
    block, other = ip_network("10.0.0.16/28"), ip_network("10.0.0.16/29")
    assert one.has(block)
    assert not one.has(other)
    assert not one.has(ip_network("10.0.1.0/28"))
    assert not one.has(ip_network("fd00::/124"))
    assert serves(block, [one], {"rack": "r1"})
    assert not serves(block, [one], {"rack": "r2"})
    assert not serves(other, [one], {"rack": "r1"})


def spared(link: str, *routers: str, whole_pool: bool = False) -> list[str]:
    """What no host of a link can have; of a pool it is the first block."""
    block = ip_network(link)
    around = block.supernet(new_prefix=max(block.prefixlen - 2, 0))
    lan = Lan(whole_pool, frozenset(ip_address(text) for text in routers))
    return [str(one) for one in block if lan.spares(one, block, around)]


def test_a_links_own_addresses() -> None:
    assert spared("10.0.0.0/29") == ["10.0.0.0", "10.0.0.1", "10.0.0.7"]
    assert spared("10.0.0.0/29", "10.0.0.6") == ["10.0.0.0", "10.0.0.6", "10.0.0.7"]
    assert spared("10.0.0.0/29", "fd00::1") == ["10.0.0.0", "10.0.0.1", "10.0.0.7"]
    assert spared("fd00::/125") == ["fd00::", "fd00::1"]
    assert spared("10.0.0.0/29", whole_pool=True) == ["10.0.0.0", "10.0.0.1"]
    assert spared("10.0.0.8/29", whole_pool=True) == []
    assert spared("10.0.0.0/31") == []
    assert spared("10.0.0.0/31", "10.0.0.1") == ["10.0.0.1"]
    assert spared("10.0.0.0/32") == []
