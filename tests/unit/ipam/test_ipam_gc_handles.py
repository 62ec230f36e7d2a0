"""Handles whose records and blocks disagree: orphans go, lost and wrong records are mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ipam.client import AddressRequest
from ipam.gc import Outcome
from libtortie.datastore.port import Delete, Op
from libtortie.errors import Malformed
from libtortie.model.ipam import Handle
from libtortie.model.keys import BlockKey, Blocks, HandleKey
from tests.fakes.faulty_store import Fault, FaultyStore, StepwiseStore
from tests.fakes.gc_world import BOTH, GRACE, V4, Town
from tests.fakes.ipam_world import vm_pod

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE
WEB = "k8s-pod-network.c-web"


@pytest.fixture
def town() -> Town:
    return Town()


def orphan(town: Town, name: str, **counts: int) -> None:
    """A handle's record that no block knows of."""
    blocks = {block.cidr: 1 for block in town.world.blocks()} if counts else {}
    town.world.store.create(HandleKey(name), Handle(blocks=blocks))


def test_a_thousand_empty_handles_go_and_ten_younger_ones_wait(town: Town) -> None:
    town.start("web", want=BOTH)
    for number in range(1000):
        orphan(town, f"old-{number}", **({"n": 1} if number % 2 else {}))
    town.sweep()
    for number in range(10):
        orphan(town, f"young-{number}")
    store = FaultyStore(town.world.store)
    town.sweep(store)
    assert set(town.world.handles()) == {WEB, *(f"young-{number}" for number in range(10))}
    states = town.outcomes("handle ")
    assert sum(outcome is FREE for outcome, _ in states.values()) == 1000
    assert {states[f"young-{number}"][0] for number in range(10)} == {WAIT}
    assert states[WEB][0] is KEEP
    deletions = [op for ops in store.commits for op in ops if isinstance(op, Delete)]
    assert len(deletions) == 1000
    assert all(op.revision for op in deletions), "each by its revision"
    assert len(store.commits) < 100


def test_deleting_an_orphan_stops_a_writer_that_had_raised_its_count(town: Town) -> None:
    """Calico writes the handle first, then the block: paused in between for longer than a grace."""
    town.start("web")
    (block,) = town.world.blocks()
    before = town.world.store.get(BlockKey(block.cidr)).revision
    town.world.store.create(HandleKey("slow"), Handle(blocks={block.cidr: 1}))
    town.settle(2)
    assert "slow" not in town.world.handles()
    assert town.world.store.get(BlockKey(block.cidr)).revision != before


def test_an_orphan_that_gets_its_address_meanwhile_is_kept(town: Town) -> None:
    town.start("web")
    orphan(town, "late")
    town.sweep()

    def add(_: Sequence[Op]) -> None:
        store.before_commit = lambda ops: None
        owner = {"namespace": "shop", "pod": "kube-proxy", "node": "n0"}
        town.world.client().assign("late", owner, AddressRequest())

    store = FaultyStore(town.world.store, before_commit=add)
    town.sweep(store)
    assert town.outcome("handle late") is KEEP
    assert town.reason("handle late") == "it changed after it was judged"
    assert town.world.allocated()["late"] == 1
    town.world.audit()


def test_one_changed_handle_of_a_batch_does_not_hinder_the_others(town: Town) -> None:
    for name in ("a", "b", "c"):
        orphan(town, name)
    town.sweep()
    record = town.world.store.get(HandleKey("b"))
    town.world.store.update(HandleKey("b"), Handle(blocks={}, extra={"x": 1}), record.revision)
    town.sweep()
    assert set(town.world.handles()) == {"b"}
    assert town.outcome("handle b") is WAIT
    town.sweep()
    assert town.world.handles() == {}


def test_a_lost_record_is_written_and_its_addresses_are_not_freed(town: Town) -> None:
    addresses = town.start("web", want=BOTH)
    town.world.store.delete(HandleKey(WEB))
    town.sweep()
    assert town.outcome(f"handle {WEB}") is WAIT
    town.sweep()
    assert town.outcome(f"handle {WEB}") is FREE
    assert town.held == {str(one) for one in addresses}
    town.world.audit()


def test_a_vm_whose_record_was_lost_finds_its_address_again(town: Town) -> None:
    handle = "k8s-pod-network.vmi.shop.db"
    (before,) = town.world.client().claim_vm(handle, vm_pod("p1"), V4)
    town.pod("p1", uid="u-p1")
    town.world.store.delete(HandleKey(handle))
    town.settle(2)
    (after,) = town.world.client().claim_vm(handle, vm_pod("p1"), V4)
    assert after.address == before.address


@pytest.mark.parametrize("count", [5, 2])
def test_a_wrong_count_is_mended(town: Town, count: int) -> None:
    addresses = town.start("web", want=BOTH)
    key = HandleKey(WEB)
    wrong = replace(town.world.handles()[WEB], blocks={town.world.blocks()[0].cidr: count})
    town.world.put(key, wrong)
    town.settle(2)
    assert town.held == {str(one) for one in addresses}
    town.world.audit()


def test_a_handle_of_a_block_that_cannot_be_read_is_kept(town: Town) -> None:
    town.start("web")
    orphan(town, "elsewhere", n=1)
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        return replace(found, records=(), malformed=("x",)) if scope == Blocks(4) else found

    store.list = half  # type: ignore[method-assign]  # the block is malformed
    town.settle()
    assert town.outcome(f"handle {WEB}") is KEEP
    assert town.reason("handle elsewhere").startswith("unknown: block 10.65.0.")
    assert "elsewhere" in town.world.handles()


def test_a_record_that_cannot_be_read_is_not_taken_for_lost(town: Town) -> None:
    town.start("web")
    orphan(town, "other")
    store = town.world.store
    real, get = store.list, store.get
    text = f"/calico/ipam/v2/handle/{WEB}: not JSON"

    def listed(scope: Any) -> Any:
        found = real(scope)
        left = tuple(one for one in found.records if one.key != HandleKey(WEB))
        return found if left == found.records else replace(found, records=left, malformed=(text,))

    def read(key: Any) -> Any:
        if key == HandleKey(WEB):
            raise Malformed(text)
        return get(key)

    store.list, store.get = listed, read  # type: ignore[method-assign]  # a malformed record
    town.settle()
    assert town.reason(f"handle {WEB}") == "unknown: its record cannot be read"
    assert town.last is not None
    assert text in town.last.opinions.inventory.unreadable
    store.list, store.get = real, get  # type: ignore[method-assign]  # back
    assert set(town.world.handles()) == {WEB}, "the others are seen to"


@pytest.mark.parametrize(
    "fault", [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER]
)
@pytest.mark.parametrize("stepwise", [False, True])
def test_commits_that_fail_or_whose_answer_is_lost(
    town: Town, fault: Fault, stepwise: bool
) -> None:
    town.start("web", want=BOTH)
    town.start("app", want=BOTH)
    town.world.store.delete(HandleKey(WEB))
    orphan(town, "old", n=1)
    town.sweep()
    kind = StepwiseStore if stepwise else FaultyStore
    town.sweep(kind(town.world.store, [fault]))
    assert town.outcome("handle old") is FREE
    assert len(town.held) == 4
    town.world.audit()


def test_the_grace_counts_from_when_it_was_first_seen(town: Town) -> None:
    orphan(town, "old")
    town.sweep()
    town.sweep(later=GRACE - 1)
    assert town.outcome("handle old") is WAIT
    town.sweep(later=1)
    assert town.world.handles() == {}
