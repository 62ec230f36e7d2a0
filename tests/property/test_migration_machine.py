"""What no sequence of inputs may do to the migration machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.migration import (
    RAISED,
    Event,
    Facts,
    Input,
    Machine,
    StartTimer,
    State,
    settle,
    step,
)
from felix_shim.model import Proof, Role


@dataclass(frozen=True)
class Timing:
    convergence_seconds: float = 30.0


TIMING = Timing()
facts = st.builds(
    Facts,
    role=st.sampled_from(Role),
    final=st.booleans(),
    proof=st.sampled_from(Proof),
    raised_elsewhere=st.integers(0, 4),
    stale_elsewhere=st.booleans(),
    migration_uid=st.sampled_from(["", "m1", "m2"]),
    refused=st.sampled_from([False, False, False, True]),
)
events = st.builds(
    Event, st.sampled_from([Input.SIGN, Input.TIMER, Input.REMOVED]), st.integers(0, 6)
)
signs = st.just(Input.SIGN)
moves = st.lists(st.one_of(facts, events, signs, st.sampled_from([0.5, 29.0, 31.0])), max_size=25)


def play(moves: list[Facts | Event | Input | float]) -> tuple[Machine, float]:
    machine, now = Machine(), 0.0
    for move in moves:
        if isinstance(move, float):
            now += move
        elif isinstance(move, Facts):
            machine, _ = settle(machine, move, now, TIMING)
        elif isinstance(move, Event):
            machine, _ = step(machine, move, now, TIMING)
        else:
            machine, _ = step(machine, Event(move, machine.episode), now, TIMING)
    return machine, now


@given(moves, facts)
def test_settling_ends_and_twice_is_once(
    before: list[Facts | Event | Input | float], last: Facts
) -> None:
    machine, now = play(before)
    settled, _ = settle(machine, last, now, TIMING)
    assert settle(settled, last, now, TIMING) == (settled, ())


@pytest.mark.parametrize(
    ("role", "proof"), [(Role.NONE, Proof.HERE), (Role.SOURCE, Proof.ELSEWHERE)]
)
@given(before=moves, stale=st.booleans())
def test_no_sequence_leaves_a_raise_for_ever_once_the_api_agrees_with_the_vm(
    role: Role, proof: Proof, before: list[Facts | Event | Input | float], stale: bool
) -> None:
    """The VM is here, or was moved away. Until the API knows either, its own frames count more."""
    machine, now = play(before)
    final = Facts(role, final=True, proof=proof, stale_elsewhere=stale)
    for later in (0.0, 30.0, 60.0):
        machine, _ = settle(machine, final, now + later, TIMING)
    assert machine.state not in RAISED


@given(moves)
def test_a_raise_that_is_waiting_always_has_a_timer(
    before: list[Facts | Event | Input | float],
) -> None:
    machine = play(before)[0]
    if machine.state is not State.TIME_WAIT:
        assert machine.deadline is None
        return
    assert machine.since is not None
    assert machine.deadline is not None
    assert machine.deadline <= machine.since + 60.0
    fired, _ = step(machine, Event(Input.TIMER, machine.episode), machine.since + 60.0, TIMING)
    assert fired.state is State.BASE


@given(moves, st.sampled_from([Input.SIGN, Input.TIMER]), st.integers(1, 5), st.floats(0, 1e6))
def test_a_sign_or_timer_of_an_older_episode_changes_nothing(
    before: list[Facts | Event | Input | float], kind: Input, age: int, later: float
) -> None:
    machine, now = play(before)
    late = Event(kind, machine.episode - age)
    assert step(machine, late, now + later, TIMING) == (machine, ())


@given(moves)
def test_every_transition_is_a_new_episode_and_timers_carry_it(
    before: list[Facts | Event | Input | float],
) -> None:
    machine, now = Machine(), 0.0
    for move in before:
        was = machine
        if isinstance(move, float):
            now += move
            continue
        if isinstance(move, Facts):
            machine, actions = settle(machine, move, now, TIMING)
        else:
            event = move if isinstance(move, Event) else Event(move, machine.episode)
            machine, actions = step(machine, event, now, TIMING)
        assert (machine.episode > was.episode) or machine.state is was.state
        timers = [one for one in actions if isinstance(one, StartTimer)]
        assert all(one.episode <= machine.episode for one in timers)
        if machine.state is State.TIME_WAIT and timers:
            assert timers[-1] == StartTimer(machine.deadline or 0.0, machine.episode)


# A migration to here as three streams of news, each in its own order; between them any order.
MIGRATION = ["target", "final"]
PLACE = ["here"]
SIGN = ["sign"]


@st.composite
def interleaved(draw: st.DrawFn) -> list[str]:
    """The streams merged at random, with repetitions."""
    queues = [list(MIGRATION), list(PLACE), list(SIGN)]
    order: list[str] = []
    while any(queues):
        queue = draw(st.sampled_from([one for one in queues if one]))
        order += [queue.pop(0)] * draw(st.integers(1, 2))
    return order


def lives_through(order: list[str]) -> Machine:
    known = Facts(Role.NONE, final=True, proof=Proof.ELSEWHERE)
    machine, _ = settle(Machine(), known, 0.0, TIMING)
    for news in order:
        if news == "target":
            known = replace(known, role=Role.TARGET, final=False, migration_uid="m1")
        elif news == "final":
            known = replace(known, role=Role.NONE, final=True, migration_uid="")
        elif news == "here":
            known = replace(known, proof=Proof.HERE)
        else:
            machine, _ = step(machine, Event(Input.SIGN, machine.episode), 0.0, TIMING)
        machine, _ = settle(machine, known, 0.0, TIMING)
    for later in (30.0, 60.0):
        machine, _ = settle(machine, known, later, TIMING)
    return machine


@given(interleaved())
def test_any_interleaving_of_one_migration_ends_in_the_same_state(order: list[str]) -> None:
    machine = lives_through(order)
    assert machine.state is State.BASE, order
    assert machine.arrived, order


@given(facts, facts, facts)
def test_without_signs_only_the_last_facts_decide_between_route_and_none(
    first: Facts, second: Facts, third: Facts
) -> None:
    """For an endpoint that is no party to a migration and sees no raise."""
    quiet = [
        replace(
            one, role=Role.NONE, final=True, raised_elsewhere=0, migration_uid="", refused=False
        )
        for one in (first, second, third)
    ]
    machine = Machine()
    for known in quiet:
        machine, _ = settle(machine, known, 0.0, TIMING)
    direct, _ = settle(Machine(), quiet[-1], 0.0, TIMING)
    assert machine.state is direct.state


@given(moves, facts, moves)
def test_a_pod_that_was_refused_never_has_a_route_again(
    before: list[Facts | Event | Input | float],
    last: Facts,
    after: list[Facts | Event | Input | float],
) -> None:
    machine, _ = play([*before, replace(last, refused=True)])
    assert machine.state in (State.REFUSED, State.ENDED)
    machine, _ = play([*before, replace(last, refused=True), *after])
    assert machine.state in (State.REFUSED, State.ENDED)
