"""The state machine against the design's table, cell by cell, and the rules beside the table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from felix_shim.migration import (
    RAISED,
    CancelTimer,
    Event,
    Facts,
    Input,
    Machine,
    Moved,
    StartSniffing,
    StartTimer,
    State,
    StopSniffing,
    SwapOwner,
    Warn,
    recover,
    settle,
    step,
    wants_owner,
    wants_signs,
)
from felix_shim.model import Proof, Role


@dataclass(frozen=True)
class Timing:
    convergence_seconds: float = 30.0


TIMING = Timing()
COLUMNS = (
    State.BASE,
    State.TARGET,
    State.LIVE,
    State.TIME_WAIT,
    State.SUPPRESSED,
    State.DEPARTED,
    State.REFUSED,
)
ABBREVIATIONS = {
    "B": State.BASE,
    "T": State.TARGET,
    "L": State.LIVE,
    "W": State.TIME_WAIT,
    "S": State.SUPPRESSED,
    "D": State.DEPARTED,
    "R": State.REFUSED,
    "E": State.ENDED,
}
# One letter a column, `-` for "nothing happens"; as in the design, plus SOURCE in Suppressed and
# the row and column of a pod beside which another is named.
ROWS = {
    Input.ANOTHER_NAMED: "RRRRRR-",
    Input.BECAME_TARGET: "T---TT-",
    Input.SIGN: "-L--LL-",
    Input.FINAL_HERE: "-WW-WB-",
    Input.FINAL_NOT_HERE: "-S-----",
    Input.RAISED_ELSEWHERE: "D-SS---",
    Input.RAISE_GONE: "-----B-",
    Input.PROVED_ELSEWHERE: "D-DD---",
    Input.TIMER: "---B---",
    Input.BECAME_SOURCE: "-BBBB--",
    Input.REMOVED: "EEEEEEE",
}
CELLS = [
    (row, column, ABBREVIATIONS.get(letter, column))
    for row, letters in ROWS.items()
    for column, letter in zip(COLUMNS, letters, strict=True)
]


def machine_in(state: State, **memory: object) -> Machine:
    """A machine for which every condition that the table words is met."""
    base = Machine(state, episode=5, facts=Facts(Role.NONE, final=True, proof=Proof.HERE))
    if state is State.TIME_WAIT:
        base = replace(base, since=0.0, deadline=30.0, arrived=True)
    return replace(base, **memory)  # type: ignore[arg-type]  # test data


def test_the_rows_cover_every_input() -> None:
    assert set(ROWS) == set(Input)


@pytest.mark.parametrize(("row", "column", "after"), CELLS)
def test_cell(row: Input, column: State, after: State) -> None:
    before = machine_in(column)
    machine, actions = step(before, Event(row, before.episode), 30.0, TIMING)
    assert machine.state is after
    if after is column:
        assert machine == before
        assert actions == ()
    else:
        assert machine.episode == before.episode + 1
        assert actions[0] == Moved(column, after, row, machine.episode)


@pytest.mark.parametrize("row", list(Input))
def test_an_ended_machine_ignores_everything(row: Input) -> None:
    ended = Machine(State.ENDED, episode=3)
    assert step(ended, Event(row, 3), 0.0, TIMING) == (ended, ())
    settled, actions = settle(ended, Facts(proof=Proof.HERE, raised_elsewhere=4), 0.0, TIMING)
    assert (settled.state, actions) == (State.ENDED, ())


@pytest.mark.parametrize("state", [State.SUPPRESSED, State.DEPARTED])
def test_a_sign_where_the_vm_was_given_up_counts_only_after_the_migration(state: State) -> None:
    machine = machine_in(state, facts=Facts(Role.NONE, final=False))
    assert step(machine, Event(Input.SIGN, 5), 0.0, TIMING) == (machine, ())


@pytest.mark.parametrize("row", [Input.SIGN, Input.TIMER])
@pytest.mark.parametrize("episode", [0, 4, 6])
def test_late_signs_and_timers_change_nothing(row: Input, episode: int) -> None:
    for state in COLUMNS:
        machine = machine_in(state)
        assert step(machine, Event(row, episode), 1e9, TIMING) == (machine, ())


TARGETING = Facts(Role.TARGET, final=False, proof=Proof.ELSEWHERE, migration_uid="m1")


def heard() -> Machine:
    """A target that has heard its VM."""
    target, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    return step(target, Event(Input.SIGN, target.episode), 0.0, TIMING)[0]


def test_an_ordinary_migration_as_the_target_lives_it() -> None:
    target, actions = settle(Machine(), TARGETING, 0.0, TIMING)
    assert (target.state, target.migration_uid) == (State.TARGET, "m1")
    assert StartSniffing(target.episode) in actions
    live, actions = step(target, Event(Input.SIGN, target.episode), 1.0, TIMING)
    assert live.state is State.LIVE
    assert [type(one) for one in actions] == [Moved, StopSniffing, SwapOwner]
    assert settle(live, TARGETING, 2.0, TIMING) == (live, ())
    final = Facts(Role.NONE, final=True, proof=Proof.HERE)
    waiting, actions = settle(live, final, 10.0, TIMING)
    assert waiting.state is State.TIME_WAIT
    assert StartTimer(40.0, waiting.episode) in actions
    assert not any(isinstance(one, SwapOwner) for one in actions), "swapped once"
    assert settle(waiting, final, 39.9, TIMING) == (waiting, ())
    base, actions = step(waiting, Event(Input.TIMER, waiting.episode), 40.0, TIMING)
    assert base.state is State.BASE
    assert CancelTimer() in actions
    assert wants_owner(base), "the swap may still have to be retried"
    assert settle(base, final, 41.0, TIMING) == (base, ())


def test_a_missed_sign_is_made_up_for_by_the_api() -> None:
    target, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    suppressed, _ = settle(target, Facts(proof=Proof.ELSEWHERE), 1.0, TIMING)
    assert suppressed.state is State.SUPPRESSED
    waiting, actions = settle(suppressed, Facts(proof=Proof.HERE), 2.0, TIMING)
    assert waiting.state is State.TIME_WAIT
    assert SwapOwner() in actions


def test_a_cancelled_target_never_gets_a_route_or_the_address() -> None:
    machine, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    machine, _ = settle(machine, Facts(proof=Proof.ELSEWHERE), 1.0, TIMING)
    assert machine.state is State.SUPPRESSED
    assert not wants_owner(machine)


def test_a_failed_phase_does_not_move_a_vm_that_spoke() -> None:
    live = heard()
    failed = Facts(Role.NONE, final=True, proof=Proof.ELSEWHERE)
    assert settle(live, failed, 0.0, TIMING)[0].state is State.LIVE
    known = replace(failed, word="m1")
    assert settle(live, known, 0.0, TIMING)[0].state is State.LIVE


def test_words_from_before_the_vm_came_do_not_take_its_route_when_it_is_the_next_source() -> None:
    """The watch of migrations is ahead of the VMIs', which still tells of earlier failures."""
    machine, leaving = heard(), Facts(Role.SOURCE, final=False, proof=Proof.ELSEWHERE, word="m0")
    for word in ("m0", "m0b", "m1"):
        machine, _ = settle(machine, replace(leaving, word=word), 1.0, TIMING)
        assert machine.state is State.BASE
    ended = replace(leaving, role=Role.NONE, final=True, word="m1")
    machine, _ = settle(machine, ended, 1.0, TIMING)
    assert machine.state is State.BASE
    machine, _ = settle(machine, replace(leaving, word="m2"), 2.0, TIMING)
    assert machine.state is State.DEPARTED


def test_a_word_of_a_later_migration_ends_a_raise_whose_end_was_missed() -> None:
    for first in (Facts(proof=Proof.HERE, word="m1"), Facts(proof=Proof.ELSEWHERE, word="m1")):
        machine, _ = settle(heard(), first, 1.0, TIMING)
        machine, _ = settle(machine, Facts(proof=Proof.ELSEWHERE, word="m2"), 2.0, TIMING)
        assert machine.state is State.DEPARTED


def test_beside_anothers_raise_the_next_source_stays_raised() -> None:
    """A normal route would be no route: everybody prefers the raise, and nobody listens here."""
    machine, _ = settle(heard(), Facts(Role.NONE, final=True, raised_elsewhere=1), 1.0, TIMING)
    assert machine.state is State.SUPPRESSED, "a newer one"
    machine, _ = step(machine, Event(Input.SIGN, machine.episode), 1.0, TIMING)
    leaving = Facts(Role.SOURCE, final=False, proof=Proof.HERE, raised_elsewhere=1)
    machine, _ = settle(machine, leaving, 2.0, TIMING)
    assert machine.state in RAISED
    machine, _ = settle(machine, replace(leaving, raised_elsewhere=0), 3.0, TIMING)
    assert machine.state is State.BASE


def test_a_lingering_cancelled_target_is_outvoted_by_the_next_one() -> None:
    first, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    first, _ = settle(first, Facts(proof=Proof.ELSEWHERE), 1.0, TIMING)
    raised = Facts(proof=Proof.ELSEWHERE, raised_elsewhere=1)
    first, _ = settle(first, raised, 2.0, TIMING)
    first, _ = settle(first, replace(raised, raised_elsewhere=0), 60.0, TIMING)
    after, actions = step(first, Event(Input.SIGN, first.episode), 61.0, TIMING)
    assert (after.state, actions) == (State.SUPPRESSED, ())


def test_a_stale_list_does_not_take_a_settled_vms_route_away() -> None:
    machine, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    machine, _ = step(machine, Event(Input.SIGN, machine.episode), 0.0, TIMING)
    here = Facts(proof=Proof.HERE)
    machine, _ = settle(machine, here, 1.0, TIMING)
    machine, _ = settle(machine, here, 31.0, TIMING)
    assert machine.state is State.BASE
    replayed, _ = settle(machine, replace(TARGETING, proof=Proof.HERE), 32.0, TIMING)
    assert replayed.state is State.BASE
    again, _ = settle(replayed, replace(TARGETING, migration_uid="m2"), 33.0, TIMING)
    assert again.state is State.TARGET


def test_an_older_raise_is_not_news() -> None:
    target, _ = settle(Machine(), replace(TARGETING, raised_elsewhere=3), 0.0, TIMING)
    live, _ = step(target, Event(Input.SIGN, target.episode), 0.0, TIMING)
    assert settle(live, replace(TARGETING, raised_elsewhere=3), 1.0, TIMING)[0].state is State.LIVE
    beaten, _ = settle(live, replace(TARGETING, raised_elsewhere=4), 1.0, TIMING)
    assert beaten.state is State.SUPPRESSED
    assert wants_signs(beaten)


def test_the_api_cannot_raise_us_against_a_newer_raise_but_the_vm_can() -> None:
    beaten = machine_in(State.SUPPRESSED, seen_raise=3, last_raise=4)
    stale = Facts(proof=Proof.HERE, raised_elsewhere=4)
    machine, _ = settle(beaten, stale, 0.0, TIMING)
    assert machine.state is State.SUPPRESSED
    live, _ = step(machine, Event(Input.SIGN, machine.episode), 0.0, TIMING)
    assert live.state is State.LIVE
    assert settle(live, stale, 1.0, TIMING)[0].state is State.TIME_WAIT


def test_a_target_whose_vm_was_moved_on_unheard_is_not_raised_by_an_older_truth() -> None:
    target, _ = settle(Machine(), TARGETING, 0.0, TIMING)
    stale = Facts(proof=Proof.HERE, raised_elsewhere=1)
    assert settle(target, stale, 1.0, TIMING)[0].state is State.SUPPRESSED
    settled = replace(stale, raised_elsewhere=0)
    assert settle(target, settled, 1.0, TIMING)[0].state is State.TIME_WAIT


def test_the_source_waits_for_its_vms_frames_while_another_node_is_raised() -> None:
    """A failed migration whose target raised: Base beside it would be neither seen nor heard."""
    here = Facts(proof=Proof.HERE, raised_elsewhere=1)
    departed, _ = settle(Machine(facts=Facts(proof=Proof.HERE)), here, 0.0, TIMING)
    assert departed.state is State.DEPARTED
    assert wants_signs(departed)
    assert settle(departed, here, 1.0, TIMING)[0].state is State.DEPARTED
    back, actions = settle(departed, replace(here, raised_elsewhere=0), 2.0, TIMING)
    assert back.state is State.BASE
    assert SwapOwner() in actions


def test_a_vm_known_to_have_left_lowers_a_node_that_missed_the_migration() -> None:
    gone = Facts(Role.SOURCE, final=True, proof=Proof.ELSEWHERE)
    machine, actions = settle(machine_in(State.LIVE), gone, 0.0, TIMING)
    assert machine.state is State.DEPARTED
    assert not wants_owner(machine)
    assert [one.input for one in actions if isinstance(one, Moved)] == [
        Input.BECAME_SOURCE,
        Input.PROVED_ELSEWHERE,
    ]


def test_a_target_that_is_already_the_next_source_has_the_vm() -> None:
    machine = machine_in(State.SUPPRESSED, migration_uid="m1")
    sourcing = Facts(Role.SOURCE, final=False, proof=Proof.HERE)
    assert settle(machine, sourcing, 0.0, TIMING)[0].state is State.BASE
    unproved = replace(sourcing, proof=Proof.UNKNOWN)
    assert settle(machine, unproved, 0.0, TIMING)[0].state is State.SUPPRESSED


def test_convergence_waits_for_a_stale_route_at_most_twice_as_long() -> None:
    here = Facts(proof=Proof.HERE, stale_elsewhere=True)
    waiting, _ = settle(machine_in(State.LIVE), here, 100.0, TIMING)
    held, actions = step(waiting, Event(Input.TIMER, waiting.episode), 130.0, TIMING)
    assert (held.state, actions) == (State.TIME_WAIT, (StartTimer(160.0, held.episode),))
    early, _ = settle(held, replace(here, stale_elsewhere=False), 131.0, TIMING)
    assert early.state is State.BASE
    late, actions = step(held, Event(Input.TIMER, held.episode), 160.0, TIMING)
    assert late.state is State.BASE
    assert any(isinstance(one, Warn) for one in actions)


def test_a_changed_convergence_time_moves_a_running_timer() -> None:
    here = Facts(proof=Proof.HERE)
    waiting, _ = settle(machine_in(State.LIVE), here, 100.0, TIMING)
    sooner, actions = settle(waiting, here, 101.0, Timing(5.0))
    assert actions == (StartTimer(105.0, sooner.episode),)
    assert settle(sooner, here, 105.0, Timing(5.0))[0].state is State.BASE


def test_listening_starts_anew_when_signs_begin_to_count() -> None:
    departed = machine_in(State.DEPARTED, facts=Facts(final=False), seen_raise=0, last_raise=1)
    facts = Facts(final=True, raised_elsewhere=1)
    assert settle(departed, facts, 0.0, TIMING)[1] == (StartSniffing(departed.episode),)


@pytest.mark.parametrize(
    ("saved", "raised", "normal", "target", "state"),
    [
        (None, False, False, "", State.BASE),
        (None, False, True, "m1", State.BASE),
        (None, False, False, "m1", State.TARGET),
        (None, True, False, "m1", State.LIVE),
        (State.TARGET, True, False, "m1", State.LIVE),
        (State.SUPPRESSED, True, False, "", State.LIVE),
        (State.BASE, True, False, "", State.BASE),
        (State.SUPPRESSED, False, True, "m1", State.BASE),
        (State.DEPARTED, False, True, "", State.BASE),
        (State.DEPARTED, True, True, "", State.LIVE),
        (State.TIME_WAIT, True, False, "", State.TIME_WAIT),
        (State.SUPPRESSED, False, False, "m1", State.SUPPRESSED),
    ],
)
def test_recovery(
    saved: State | None, raised: bool, normal: bool, target: str, state: State
) -> None:
    machine = recover(
        None if saved is None else machine_in(saved),
        kernel_raised=raised,
        kernel_normal=normal,
        target=target,
    )
    assert machine.state is state
