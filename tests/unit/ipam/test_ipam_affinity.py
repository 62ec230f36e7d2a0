"""Which pools and blocks are considered, and in what order."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv6Network, ip_network
from typing import Any

import pytest

from ipam import affinity as rules
from ipam.affinity import Reservations, Standing, Wanted
from ipam.block import assign, new_block
from libtortie.errors import InvalidInput, Malformed
from libtortie.model.ipam import AffinityState, BlockAffinity, IPAMConfig
from libtortie.model.keys import IPNetwork, Kind
from libtortie.model.resources import parse_resource
from tests.fakes.ipam_world import START, pool


def wanted(version: int = 4, *requested: str, **labels: dict[str, str]) -> Wanted:
    return Wanted(version, requested, labels.get("node", {}), labels.get("namespace", {}))


def names(pools: list[Any], want: Wanted) -> list[str]:
    return [p.name for p in rules.eligible([rules.parse_pool(p) for p in pools], want)]


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


@pytest.mark.parametrize(
    "broken",
    [
        pool("a", "10.0.0.0/33"),
        pool("a", "10.0.0.0/24", blockSize=23),
        pool("a", "10.0.0.0/16", blockSize=19),
        pool("a", "10.0.0.0/28"),
        pool("a", "fd00::/64", blockSize=64),
    ],
)
def test_pool_that_can_not_be_used_is_malformed(broken: Any) -> None:
    with pytest.raises(Malformed, match="IPPool 'a'"):
        rules.parse_pool(broken)


def walk(
    cidr: str = "10.0.0.0/28",
    node: str = "n1",
    taken: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
    size: int = 30,
) -> list[IPNetwork]:
    return list(
        rules.candidates(
            rules.parse_pool(pool("a", cidr, blockSize=size)),
            node=node,
            taken={ip_network(text) for text in taken},
            reservations=Reservations(tuple(ip_network(text) for text in reserved)),
            now=START,
        )
    )


def test_candidates_go_once_round_from_a_start_that_is_the_nodes_own() -> None:
    expected = list(ip_network("10.0.0.0/28").subnets(new_prefix=30))
    starts = set()
    for number in range(20):
        found = walk(node=f"n{number}")
        assert found == walk(node=f"n{number}")
        start = expected.index(found[0])
        starts.add(start)
        assert found == expected[start:] + expected[:start]
    assert len(starts) > 1


def test_candidates_leave_out_what_is_taken_or_reserved() -> None:
    found = walk(taken=("10.0.0.4/30",), reserved=("10.0.0.8/31", "10.0.0.10/31"))
    assert sorted(map(str, found)) == ["10.0.0.0/30", "10.0.0.12/30"]
    assert walk(reserved=("10.0.0.0/8",)) == []
    partly = walk(reserved=("10.0.0.8/31",))
    assert ip_network("10.0.0.8/30") in partly


def test_candidates_never_overlap_blocks_of_another_size() -> None:
    assert sorted(map(str, walk(taken=("10.0.0.0/29",)))) == ["10.0.0.12/30", "10.0.0.8/30"]
    assert len(walk(taken=("10.0.0.3/32",))) == 3


def test_large_reservation_is_stepped_over_at_once() -> None:
    """2**74 blocks, all but one reserved: a walk block by block would never end."""
    halves = IPv6Network("fd00::/48").address_exclude(IPv6Network("fd00:0:0:7::40/122"))
    found = walk("fd00::/48", reserved=tuple(map(str, halves)), size=122)
    assert found == [ip_network("fd00:0:0:7::40/122")]


def test_single_address_blocks_start_with_the_clock() -> None:
    def first(seconds: int) -> IPNetwork:
        one = rules.candidates(
            rules.parse_pool(pool("a", "10.0.0.0/24", blockSize=32)),
            node="n1",
            taken=(),
            reservations=Reservations(),
            now=START + timedelta(seconds=seconds),
        )
        return next(one)

    assert len({first(seconds) for seconds in range(8)}) > 1


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0x050C5D7E), ("foobar", 0x31F0B262)]
)
def test_fnv1(text: str, value: int) -> None:
    assert rules.fnv1(text) == value


def test_reservations_are_read_or_refused() -> None:
    good = {
        "kind": "IPReservation",
        "metadata": {"name": "r"},
        "spec": {"reservedCIDRs": ["10.0.0.0/30", "fd00::1/128"]},
    }
    bad = {**good, "spec": {"reservedCIDRs": ["10.0.0.0/99"]}}
    empty = {**good, "spec": {}}
    parsed = rules.parse_reservations([parse_resource(Kind.IP_RESERVATION, good)])
    assert len(parsed.networks) == 2
    assert rules.parse_reservations([parse_resource(Kind.IP_RESERVATION, empty)]).networks == ()
    with pytest.raises(Malformed, match="IPReservation 'r'"):
        rules.parse_reservations([parse_resource(Kind.IP_RESERVATION, bad)])


def test_the_block_decides_what_an_affinity_is_worth() -> None:
    mine = new_block(ip_network("10.0.0.0/30"), node="n1", now=START)
    theirs = new_block(ip_network("10.0.0.0/30"), node="n2", now=START)
    nobodys = new_block(ip_network("10.0.0.0/30"), node=None, now=START)
    for state in AffinityState:
        affinity = BlockAffinity(state=state)
        assert rules.standing(affinity, mine, "n1") is Standing.OWNED
        assert rules.standing(affinity, theirs, "n1") is Standing.FALSE
        assert rules.standing(affinity, nobodys, "n1") is Standing.FALSE
    assert rules.standing(BlockAffinity(), None, "n1") is Standing.UNFINISHED
    leaving = BlockAffinity(state=AffinityState.PENDING_DELETION)
    assert rules.standing(leaving, None, "n1") is Standing.LEAVING


def test_only_empty_blocks_of_some_age_are_taken_over() -> None:
    theirs = new_block(ip_network("10.0.0.0/30"), node="n2", now=START)
    used, _ = assign(theirs, 1, handle_id="h", owner={})
    minute = START + timedelta(minutes=1)
    assert not rules.reclaimable(theirs, "n1", minute - timedelta(seconds=1))
    assert rules.reclaimable(theirs, "n1", minute)
    assert not rules.reclaimable(used, "n1", minute)
    assert not rules.reclaimable(theirs, "n2", minute)
    nobodys = new_block(ip_network("10.0.0.0/30"), node=None, now=START)
    assert rules.reclaimable(assign(nobodys, 1, handle_id="h", owner={})[0], "n1", START)


def test_block_limit_of_zero_is_twenty() -> None:
    assert rules.block_limit(IPAMConfig()) == 20
    assert rules.block_limit(IPAMConfig(max_blocks_per_host=3)) == 3
