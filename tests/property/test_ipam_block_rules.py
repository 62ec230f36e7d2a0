"""Whatever happens to a block, it stays sound, and its stored form says the same."""

from __future__ import annotations

import os
from datetime import timedelta
from ipaddress import ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam import block as rules
from libtortie.datastore.codec import decode, encode
from libtortie.errors import NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import Block
from libtortie.model.keys import BlockKey
from tests.fakes.ipam_world import START, check_block

EXAMPLES = 5000 if os.environ.get("TORTIE_SOAK") else 200
CIDRS = [ip_network(text) for text in ("10.0.0.0/29", "10.0.0.8/32", "fd00::40/125")]

handles = st.sampled_from(["a", "b", "c"])
owners = st.dictionaries(st.sampled_from(["pod", "node"]), st.sampled_from(["x", "y"]))
changes = st.one_of(
    st.tuples(st.just("assign"), handles, st.integers(1, 5), owners),
    st.tuples(st.just("exact"), handles, st.integers(0, 7), owners),
    st.tuples(st.just("release"), st.sets(st.integers(0, 7)), st.sampled_from([0, 5]), owners),
    st.tuples(st.just("owners"), st.integers(0, 7), owners, owners),
    st.tuples(st.just("wait"), st.integers(0, 4), st.just(0), owners),
    st.tuples(st.just("claim"), st.sampled_from(["n1", "n2"]), st.just(0), owners),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(CIDRS), st.lists(changes, max_size=25))
def test_block_stays_sound(cidr: object, steps: list[tuple[object, ...]]) -> None:
    block = rules.new_block(cidr, node="n1", now=START)  # type: ignore[arg-type]  # sampled
    size = block.cidr.num_addresses
    holder: dict[int, str] = {}
    now = START
    for step in steps:
        before = block
        match step:
            case ("assign", str(handle), int(count), dict(owner)):
                try:
                    block, given_out = rules.assign(block, count, handle_id=handle, owner=owner)
                except NoFreeAddresses:
                    assert len(block.unallocated) < count
                    continue
                assert len(given_out) == count
                assert not set(given_out) & set(holder)
                holder.update(dict.fromkeys(given_out, handle))
            case ("exact", str(handle), int(ordinal), dict(owner)) if ordinal < size:
                try:
                    block = rules.assign_ordinal(block, ordinal, handle_id=handle, owner=owner)
                except OwnerMismatch:
                    assert ordinal not in block.unallocated
                    continue
                assert ordinal not in holder
                holder[ordinal] = handle
            case ("release", set(ordinals), int(cooldown), _):
                mine = {o for o in ordinals if o in holder}
                block = rules.release(block, mine, now=now, cooldown=cooldown)
                for ordinal in mine:
                    del holder[ordinal]
            case ("owners", int(ordinal), dict(active), dict(alternate)) if ordinal in holder:
                block = rules.set_owners(block, {ordinal: (active, alternate)})
                attribute = block.attribute(ordinal)
                assert attribute is not None
                assert (attribute.active, attribute.alternate) == (active, alternate)
            case ("wait", int(seconds), _, _):
                now += timedelta(seconds=seconds)
                block = rules.expire_cooldown(block, now=now, cooldown=5)
            case ("claim", str(node), _, _):
                block = rules.claim_for(block, node, now)
            case _:
                continue
        check_block(block)
        assert {o: h for h in "abc" for o in rules.held_by(block, h)} == holder
        assert block.sequence_number >= before.sequence_number
        _same_when_stored(block)


def _same_when_stored(block: Block) -> None:
    key = BlockKey(block.cidr)
    stored = encode(key, block)
    assert decode(key, stored) == block
    assert encode(key, decode(key, stored)) == stored


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(CIDRS), st.data())
def test_release_undoes_assign(cidr: object, data: st.DataObject) -> None:
    block = rules.new_block(cidr, node="n1", now=START)  # type: ignore[arg-type]  # sampled
    already = data.draw(st.integers(0, block.cidr.num_addresses))
    block, _ = rules.assign(block, already, handle_id="old", owner={"pod": "o"})
    count = data.draw(st.integers(0, block.cidr.num_addresses - already))
    taken, ordinals = rules.assign(block, count, handle_id="new", owner={"pod": "n"})
    back = rules.release(taken, ordinals, now=START, cooldown=0)
    assert back.allocations == block.allocations
    assert back.attributes == block.attributes
    assert back.sequence_numbers == block.sequence_numbers
    assert sorted(back.unallocated) == sorted(block.unallocated)
