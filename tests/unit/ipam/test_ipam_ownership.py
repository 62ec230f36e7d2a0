"""Who owns a VM's address after each event."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ipam import ownership as rules
from ipam.ownership import Owners, nobody_is_gone
from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.model.ipam import Owner
from tests.fakes.ipam_world import START, plain_pod, vm_pod

SOURCE = vm_pod("src", node="n1")
TARGET = vm_pod("dst", node="n2", vmim_uid="m-1")
STOPPED = {"namespace": "shop", "node": "n1", "vmi-name": "db", "vm-uid": "vm-1"}
REBORN = vm_pod("new", vmi_uid="vmi-9", vm_uid="vm-9")


def everyone_is_gone(_: Owner) -> bool:
    return True


def test_owner_attributes_are_calicos_and_empty_ones_are_left_out() -> None:
    owner = rules.pod_owner(
        namespace="shop", pod="web-0", node="n1", timestamp=START, container_id="c", vmi_name="db"
    )
    assert owner == {
        "namespace": "shop",
        "pod": "web-0",
        "node": "n1",
        "timestamp": "2026-08-22 13:30:00 +0000 UTC",
        "container-id": "c",
        "vmi-name": "db",
    }


@pytest.mark.parametrize(
    ("microseconds", "text"), [(0, ""), (100_000, ".1"), (123_456, ".123456"), (10, ".00001")]
)
def test_timestamp_is_gos_default_text_in_utc(microseconds: int, text: str) -> None:
    moment = datetime(2026, 8, 22, 15, 33, 20, microseconds, timezone(timedelta(hours=2)))
    assert rules.go_time(moment) == f"2026-08-22 13:33:20{text} +0000 UTC"


def test_sandboxes_are_told_apart_where_both_sides_know() -> None:
    a = vm_pod("p", container="one")
    assert rules.same_sandbox(a, vm_pod("p", container="one"))
    assert not rules.same_sandbox(a, vm_pod("p", container="two"))
    assert rules.same_pod(a, vm_pod("p", container="two"))
    assert not rules.same_pod(a, {**a, "pod-uid": "other"})
    assert not rules.same_pod(a, {**a, "namespace": "other"})
    calico = {"pod": "p", "namespace": "shop"}
    assert rules.same_sandbox(a, calico)
    assert not rules.same_pod({}, {})
    assert not rules.same_pod(STOPPED, STOPPED)


def test_vms_are_told_apart_by_uid() -> None:
    assert rules.same_vm(SOURCE, vm_pod("x", vmi_uid="vmi-2"))
    assert not rules.same_vm(SOURCE, REBORN)
    bare = vm_pod("x", vm_uid="", vmi_uid="vmi-1")
    assert rules.same_vm(bare, {**bare, "pod": "y"})
    assert not rules.same_vm(bare, vm_pod("x", vm_uid="", vmi_uid="vmi-2"))
    assert not rules.same_vm(bare, vm_pod("x", vmi_uid="vmi-2"))
    assert rules.same_vm(SOURCE, bare)
    assert rules.same_vm({}, SOURCE)


def test_stopped_vm_is_still_named() -> None:
    assert rules.stopped(SOURCE) == STOPPED
    bare = rules.stopped(vm_pod("x", vm_uid="", vmi_uid="vmi-1"))
    assert bare == {"namespace": "shop", "node": "n1", "vmi-name": "db", "vmi-uid": "vmi-1"}


@pytest.mark.parametrize(
    "current",
    [
        {},
        SOURCE,
        vm_pod("new", container="older"),
        STOPPED,
        vm_pod("old", vmi_uid="vmi-0"),
        vm_pod("old", vm_uid=""),
    ],
)
def test_claim_over_nobody_itself_the_stopped_vm_and_its_other_pods(current: Owner) -> None:
    new = vm_pod("new", node="n3")
    assert rules.claim(Owners(current, {}), new, nobody_is_gone) == Owners(new, {})


@pytest.mark.parametrize("current", [SOURCE, STOPPED])
def test_claim_of_another_vm_of_that_name_needs_the_old_one_gone(current: Owner) -> None:
    with pytest.raises(OwnerMismatch, match=r"vm-1.*vm-9"):
        rules.claim(Owners(current, {}), REBORN, nobody_is_gone)
    assert rules.claim(Owners(current, TARGET), REBORN, everyone_is_gone) == Owners(REBORN, {})


def test_claim_when_only_the_alternate_is_another_vm() -> None:
    with pytest.raises(OwnerMismatch):
        rules.claim(Owners({}, TARGET), REBORN, nobody_is_gone)


def test_claim_asks_about_the_owner_that_is_in_the_way() -> None:
    asked: list[Owner] = []

    def gone(owner: Owner) -> bool:
        asked.append(owner)
        return True

    rules.claim(Owners(SOURCE, {}), REBORN, gone)
    assert asked == [SOURCE]


def test_claim_again_writes_nothing_new() -> None:
    later = {**SOURCE, "timestamp": "2026-08-22 14:00:00 +0000 UTC"}
    assert rules.claim(Owners(SOURCE, TARGET), later, nobody_is_gone) == Owners(SOURCE, TARGET)


def test_claim_by_the_target_ends_its_being_alternate() -> None:
    """Its promotion was missed and its sandbox restarted after the migration."""
    again = {**TARGET, "container-id": "c2"}
    assert rules.claim(Owners(SOURCE, TARGET), again, nobody_is_gone) == Owners(again, {})


def test_target_becomes_alternate_in_place_of_an_older_one() -> None:
    older = vm_pod("dst0", vmim_uid="m-0")
    for alternate in ({}, older, TARGET):
        assert rules.claim_target(Owners(SOURCE, alternate), TARGET) == Owners(SOURCE, TARGET)
    assert rules.claim_target(Owners(STOPPED, {}), TARGET) == Owners(STOPPED, TARGET)


def test_target_of_another_vm_is_refused() -> None:
    for owners in (Owners(SOURCE, {}), Owners({}, SOURCE)):
        with pytest.raises(MigrationRefused, match=r"vm-1.*vm-9"):
            rules.claim_target(owners, vm_pod("x", vmi_uid="vmi-9", vm_uid="vm-9"))


def test_target_that_was_promoted_already_stays_active() -> None:
    again = {**TARGET, "container-id": "c2"}
    assert rules.claim_target(Owners(TARGET, SOURCE), again) == Owners(again, SOURCE)


def test_the_next_target_first_promotes_the_one_that_has_the_vm() -> None:
    """Its agent was away for the whole migration; without the seat it could never be promoted."""
    third = vm_pod("third", node="n3", vmim_uid="m-2")
    owners = rules.claim_target(Owners(SOURCE, TARGET), third, runs_in="dst")
    assert owners == Owners(TARGET, third)
    cancelled = rules.claim_target(Owners(SOURCE, TARGET), third, runs_in="src")
    assert cancelled == Owners(SOURCE, third)
    assert rules.claim_target(Owners(SOURCE, TARGET), TARGET, runs_in="src").active == SOURCE


def test_promotion_swaps_and_repeating_it_changes_nothing() -> None:
    done = rules.promote(Owners(SOURCE, TARGET), TARGET)
    assert done == Owners(TARGET, SOURCE)
    assert rules.promote(done, TARGET) == done


@pytest.mark.parametrize("active", [{}, STOPPED])
def test_promotion_over_nobody_or_a_stopped_vm_leaves_no_alternate(active: Owner) -> None:
    assert rules.promote(Owners(active, TARGET), TARGET) == Owners(TARGET, {})


@pytest.mark.parametrize("alternate", [{}, vm_pod("other"), {**TARGET, "pod-uid": "other"}])
def test_promotion_of_who_is_not_alternate_is_refused(alternate: Owner) -> None:
    with pytest.raises(OwnerMismatch, match="expected pod shop/dst"):
        rules.promote(Owners(SOURCE, alternate), TARGET)


def test_late_repeat_of_an_overtaken_promotion_is_refused() -> None:
    """A to B to C: B's own promotion, repeated after C's, must not bring B back."""
    b, c = TARGET, vm_pod("third", node="n3", vmim_uid="m-2")
    owners = rules.promote(Owners(SOURCE, b), b)
    owners = rules.promote(rules.claim_target(owners, c), c)
    assert rules.same_pod(owners.active, c)
    assert rules.same_pod(owners.alternate, b)
    with pytest.raises(OwnerMismatch, match="m-1"):
        rules.promote(owners, b)


def test_vm_that_came_back_to_its_source_is_promoted_there() -> None:
    owners = rules.promote(Owners(SOURCE, TARGET), TARGET)
    assert rules.promote(owners, SOURCE) == Owners(SOURCE, TARGET)


def test_a_source_that_was_mistaken_about_the_return_is_set_right_by_the_target() -> None:
    """Its API was so late that it still named it when the target's raise was over already."""
    owners = rules.promote(rules.promote(Owners(SOURCE, TARGET), TARGET), SOURCE)
    assert rules.promote(owners, TARGET) == Owners(TARGET, SOURCE)


def test_disown_takes_only_the_sandbox_that_leaves() -> None:
    both = Owners(SOURCE, TARGET)
    assert rules.disown(both, SOURCE) == Owners(STOPPED, TARGET)
    assert rules.disown(both, TARGET) == Owners(SOURCE, {})
    older = {**SOURCE, "container-id": "older"}
    assert rules.disown(both, older) == both
    assert rules.disown(both, {**SOURCE, "pod-uid": "earlier"}) == both
    assert rules.disown(both, plain_pod("else")) == both


def test_disown_after_promotion_clears_the_former_source_only() -> None:
    promoted = rules.promote(Owners(SOURCE, TARGET), TARGET)
    assert rules.disown(promoted, SOURCE) == Owners(TARGET, {})


def test_promotion_still_works_when_the_source_left_first() -> None:
    left = rules.disown(Owners(SOURCE, TARGET), SOURCE)
    assert rules.promote(left, TARGET) == Owners(TARGET, {})


@pytest.mark.parametrize(
    ("owners", "free"),
    [
        (Owners({}, {}), True),
        (Owners(STOPPED, {}), True),
        (Owners(SOURCE, {}), False),
        (Owners({}, TARGET), False),
        (Owners(STOPPED, TARGET), False),
        (Owners(rules.stopped(REBORN), {}), False),
    ],
)
def test_when_a_deleted_vms_address_may_be_freed(owners: Owners, free: bool) -> None:
    assert rules.may_free(owners, SOURCE) is free


# --- rivals ----------------------------------------------------------------------------------

RIVAL = vm_pod("forged", node="n3", vmim_uid="m-1")


def everyone_lives(_: Owner) -> bool:
    return True


def test_of_two_targets_of_one_migration_the_first_stays_until_one_is_named() -> None:
    sitting = Owners(SOURCE, RIVAL)
    with pytest.raises(OwnerMismatch, match="forged, which is alive"):
        rules.claim_target(sitting, TARGET, everyone_lives)
    assert rules.claim_target(sitting, TARGET, everyone_lives, named=True) == Owners(SOURCE, TARGET)
    assert rules.claim_target(sitting, TARGET) == Owners(SOURCE, TARGET), "a dead one goes"


def test_a_named_target_asks_about_nobody() -> None:
    def fails(owner: Owner) -> bool:
        raise AssertionError(owner)

    rules.claim_target(Owners(SOURCE, RIVAL), TARGET, fails, named=True)


def test_a_rival_that_was_promoted_gives_the_seat_back_to_the_source() -> None:
    promoted = rules.promote(Owners(SOURCE, RIVAL), RIVAL)
    assert promoted == Owners(RIVAL, SOURCE)
    assert rules.claim_target(promoted, TARGET, named=True) == Owners(SOURCE, TARGET)
    gone = Owners(RIVAL, {})
    left = rules.claim_target(gone, TARGET, named=True)
    assert (rules.is_pod(left.active), left.alternate) == (False, TARGET)
    assert left.active["vm-uid"] == "vm-1"
    assert rules.claim_target(Owners(RIVAL, TARGET), TARGET, named=True).alternate == TARGET


def test_a_named_target_takes_only_its_own_migrations_seats() -> None:
    older = vm_pod("dst0", vmim_uid="m-0")
    assert rules.claim_target(Owners(older, {}), TARGET, named=True) == Owners(older, TARGET)
    done = Owners(TARGET, SOURCE)
    assert rules.claim_target(done, TARGET, named=True) == done
    bare = {**TARGET, "vmim-uid": ""}
    assert rules.claim_target(Owners(SOURCE, {}), bare, named=True).active == SOURCE
