"""Which blocks are considered, and in what order."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv6Network, ip_network

import pytest

from ipam import affinity as rules
from ipam.affinity import Reservations, Standing
from ipam.block import assign, new_block
from ipam.pools import parse_pool
from libtortie.errors import Malformed
from libtortie.model.ipam import AffinityState, BlockAffinity, IPAMConfig
from libtortie.model.keys import IPNetwork, Kind
from libtortie.model.resources import IPReservation, parse_resource
from tests.fakes.ipam_world import START, pool


def walk(
    cidr: str = "10.0.0.0/28",
    node: str = "n1",
    taken: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
    size: int = 30,
) -> list[IPNetwork]:
    return list(
        rules.candidates(
            parse_pool(pool("a", cidr, blockSize=size)),
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
            parse_pool(pool("a", "10.0.0.0/24", blockSize=32)),
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


def reserved(*texts: str) -> Reservations:
    spec = {"reservedCIDRs": list(texts)} if texts else {}
    wire = {"kind": "IPReservation", "metadata": {"name": "r"}, "spec": spec}
    resource = parse_resource(Kind.IP_RESERVATION, wire)
    assert isinstance(resource, IPReservation)
    return rules.parse_reservations([resource])


def test_reservations_are_networks_and_single_addresses() -> None:
    found = reserved("10.0.0.0/30", "fd00::1/128", "10.9.0.1")
    assert [str(one) for one in found.networks] == ["10.0.0.0/30", "fd00::1/128", "10.9.0.1/32"]
    assert reserved().networks == ()


@pytest.mark.parametrize("text", ["10.0.0.0/99", "10.0.0.1/24", "x", "10.0.0.0/255.255.255.0"])
def test_a_reservation_that_could_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match=r"IPReservation 'r': spec\.reservedCIDRs\.1: "):
        reserved("10.0.0.0/30", text)


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
