"""The rules of one block."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address, ip_network

import pytest

from ipam import block as rules
from libtortie.errors import NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import Attribute, Block
from tests.fakes.ipam_world import START, check_block

CIDR = ip_network("10.250.0.4/30")
OWNER = {"namespace": "shop", "pod": "web-0", "node": "n1"}


def fresh() -> Block:
    return rules.new_block(CIDR, node="n1", now=START)


def test_new_block_is_seeded_with_wall_clock_nanoseconds() -> None:
    block = fresh()
    assert block.sequence_number == 1787405400 * 10**9
    assert block.affinity == "host:n1"
    assert block.affinity_claim_time == START
    assert block.unallocated == (0, 1, 2, 3)
    check_block(block)


def test_block_without_a_node_has_no_claim_time() -> None:
    block = rules.new_block(CIDR, node=None, now=START)
    assert (block.affinity, block.affinity_claim_time) == (None, None)


def test_ordinals_leave_at_the_front_and_return_at_the_back() -> None:
    block, given = rules.assign(fresh(), 2, handle_id="h", owner=OWNER)
    assert given == (0, 1)
    block = rules.release(block, [0], now=START, cooldown=0)
    assert block.unallocated == (2, 3, 0)
    assert rules.held_by(block, "h") == (1,)
    check_block(block)


def test_allocation_remembers_the_sequence_number_before_the_change() -> None:
    start = fresh()
    block, _ = rules.assign(start, 1, handle_id="h", owner=OWNER)
    assert block.sequence_numbers == {0: start.sequence_number}
    assert block.sequence_number == start.sequence_number + 1


def test_equal_attributes_are_shared_and_dropped_with_their_last_user() -> None:
    block, _ = rules.assign(fresh(), 1, handle_id="a", owner=OWNER)
    block, _ = rules.assign(block, 2, handle_id="b", owner=OWNER)
    assert block.allocations == (0, 1, 1, None)
    block = rules.release(block, [0], now=START, cooldown=0)
    assert block.allocations == (None, 0, 0, None)
    assert block.attributes == (Attribute(handle_id="b", active=OWNER),)
    block = rules.release(block, [1, 2], now=START, cooldown=0)
    assert block.attributes == ()
    check_block(block)


def test_all_or_none_of_a_request_and_reservations_are_skipped() -> None:
    reserved = {ip_address("10.250.0.4"), ip_address("10.250.0.6")}.__contains__
    block, given = rules.assign(fresh(), 2, handle_id="h", owner=OWNER, reserved=reserved)
    assert given == (1, 3)
    assert block.unallocated == (0, 2)
    with pytest.raises(NoFreeAddresses, match="0 of 1"):
        rules.assign(block, 1, handle_id="h", owner=OWNER, reserved=reserved)


def test_particular_ordinal_is_given_once_and_the_error_names_the_holder() -> None:
    block = rules.assign_ordinal(fresh(), 2, handle_id="h", owner=OWNER)
    assert rules.held_by(block, "h") == (2,)
    with pytest.raises(OwnerMismatch, match=r"10\.250\.0\.6 .* handle h \(pod shop/web-0 on node"):
        rules.assign_ordinal(block, 2, handle_id="other", owner={})


def test_cooldown_keeps_an_ordinal_away_for_longer_than_asked() -> None:
    block, _ = rules.assign(fresh(), 1, handle_id="h", owner=OWNER)
    released = START + timedelta(seconds=0.9)
    block = rules.release(block, [0], now=released, cooldown=30)
    assert block.attributes == (Attribute(released_at=START),)
    assert rules.held_by(block, "h") == ()
    assert not rules.is_empty(block)
    assert 0 not in block.unallocated
    check_block(block)
    for seconds, free in ((30.0, False), (30.99, False), (31.0, True)):
        later = rules.expire_cooldown(block, now=START + timedelta(seconds=seconds), cooldown=30)
        assert (0 in later.unallocated) is free
        check_block(later)


def test_cooldown_switched_off_frees_what_rests() -> None:
    block, _ = rules.assign(fresh(), 1, handle_id="h", owner=OWNER)
    block = rules.release(block, [0], now=START, cooldown=30)
    assert rules.is_empty(rules.expire_cooldown(block, now=START, cooldown=0))


def test_particular_ordinal_that_cools_down_is_not_free() -> None:
    block = rules.assign_ordinal(fresh(), 1, handle_id="h", owner=OWNER)
    block = rules.release(block, [1], now=START, cooldown=30)
    with pytest.raises(OwnerMismatch, match="cooling down"):
        rules.assign_ordinal(block, 1, handle_id="h", owner=OWNER)


def test_owners_of_one_ordinal_change_without_its_sibling_or_its_number() -> None:
    block, _ = rules.assign(fresh(), 2, handle_id="h", owner=OWNER)
    changed = rules.set_owners(block, {1: ({"pod": "x"}, {"pod": "y"})})
    assert changed.attribute(0) == Attribute(handle_id="h", active=OWNER)
    assert changed.attribute(1) == Attribute("h", {"pod": "x"}, {"pod": "y"})
    assert changed.sequence_numbers == block.sequence_numbers
    assert changed.sequence_number == block.sequence_number + 1
    check_block(changed)
    assert rules.set_owners(changed, {1: ({"pod": "x"}, {"pod": "y"})}) is changed


def test_owners_of_a_free_or_resting_ordinal_can_not_be_set() -> None:
    block, _ = rules.assign(fresh(), 1, handle_id="h", owner=OWNER)
    resting = rules.release(block, [0], now=START, cooldown=9)
    for ordinal, of in ((3, block), (0, resting)):
        with pytest.raises(OwnerMismatch):
            rules.set_owners(of, {ordinal: ({}, {})})


def test_releasing_twice_changes_nothing() -> None:
    block, _ = rules.assign(fresh(), 1, handle_id="h", owner=OWNER)
    block = rules.release(block, [0], now=START, cooldown=0)
    assert rules.release(block, [0], now=START, cooldown=0) is block


def test_claim_moves_the_block_to_another_node() -> None:
    claimed = rules.claim_for(fresh(), "n2", START + timedelta(seconds=5.5))
    assert claimed.node == "n2"
    assert claimed.affinity_claim_time == START + timedelta(seconds=5)
