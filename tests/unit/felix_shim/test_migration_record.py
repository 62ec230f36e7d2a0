"""Machines and raises on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from felix_shim.migration import Facts, Machine, StartTimer, State, settle
from felix_shim.migration_record import dump_machine, load_machine
from felix_shim.model import Proof, Role
from felix_shim.raises import Raises, load_raises
from libtortie.errors import Malformed


@dataclass(frozen=True)
class Timing:
    convergence_seconds: float = 30.0


TIMING = Timing()
HERE = Facts(Role.NONE, final=True, proof=Proof.HERE)
ONE, TWO = ip_address("10.65.0.2"), ip_address("fd00::2")


def stored(machine: Machine, now: float, wall: float) -> dict[str, object]:
    text = json.dumps(dump_machine(machine, now=now, wall=wall))
    return dict(json.loads(text))


def test_a_waiting_machine_keeps_its_deadline_over_a_restart_and_a_new_clock() -> None:
    waiting, _ = settle(Machine(State.LIVE, episode=4, arrived=True), HERE, 100.0, TIMING)
    data = stored(waiting, 110.0, 5000.0)
    machine = load_machine(data, now=7.0, wall=5008.0, settings=TIMING)
    assert machine.since == pytest.approx(7.0 - 18.0)
    assert machine.episode > waiting.episode
    machine, actions = settle(machine, HERE, 7.0, TIMING)
    (timer,) = actions
    assert isinstance(timer, StartTimer)
    assert timer.deadline == pytest.approx(19.0)
    assert timer.episode == machine.episode


@pytest.mark.parametrize("wall", [-1e9, 0.0, 4999.0, 1e12])
def test_a_clock_that_was_set_cannot_hold_a_raised_route(wall: float) -> None:
    waiting, _ = settle(Machine(State.LIVE), HERE, 100.0, TIMING)
    data = stored(waiting, 110.0, 5000.0)
    machine = load_machine(data, now=0.0, wall=wall, settings=TIMING)
    assert settle(machine, HERE, 60.0, TIMING)[0].state is State.BASE


@pytest.mark.parametrize("state", [state for state in State if state is not State.TIME_WAIT])
def test_everything_else_comes_back_as_it_was(state: State) -> None:
    facts = Facts(Role.TARGET, final=False, proof=Proof.ELSEWHERE, migration_uid="m2", word="m1")
    machine = Machine(state, 4, facts, 3, 5, arrived=True, migration_uid="m1")
    machine = replace(machine, told=True, unproved=True)
    loaded = load_machine(stored(machine, 1.0, 2.0), now=0.0, wall=2.0, settings=TIMING)
    assert loaded == replace(machine, episode=5)


def test_a_file_of_an_older_agent_is_read() -> None:
    data = stored(Machine(State.LIVE, migration_uid="m1"), 1.0, 2.0)
    for name in ("facts_word", "told", "unproved"):
        del data[name]
    loaded = load_machine(data, now=0.0, wall=2.0, settings=TIMING)
    assert (loaded.state, loaded.told, loaded.unproved) == (State.LIVE, False, False)


@pytest.mark.parametrize("change", [{"state": "alive"}, {"proof": "MAYBE"}, {"seen_raise": -1}])
def test_nonsense_is_refused(change: dict[str, object]) -> None:
    data = stored(Machine(), 0.0, 0.0) | change
    with pytest.raises(Malformed):
        load_machine(data, now=0.0, wall=0.0, settings=TIMING)


def test_a_raise_is_numbered_when_first_seen_and_keeps_its_number() -> None:
    raises = Raises().observe([ONE], {ONE: "172.31.0.12"})
    assert raises.number([ONE]) == 1
    again = raises.observe([ONE, TWO], {ONE: "172.31.0.12"})
    assert again.number([ONE, TWO]) == 1
    second = again.observe([ONE], {ONE: "172.31.0.12,172.31.0.13"})
    assert second.number([ONE]) == 2
    assert second.observe([ONE], {ONE: "172.31.0.12"}).number([ONE]) == 1


def test_a_raise_that_went_and_came_is_new_and_one_not_asked_for_stays() -> None:
    raises = Raises().observe([ONE, TWO], {ONE: "a", TWO: "a"})
    assert raises.observe([TWO], {}).number([ONE]) == 1
    gone = raises.observe([ONE], {})
    assert gone.number([ONE]) == 0
    assert gone.observe([ONE], {ONE: "a"}).number([ONE]) == 3


def test_raises_survive_a_restart() -> None:
    raises = Raises().observe([ONE, TWO], {ONE: "a", TWO: "fe80::1"})
    assert load_raises(json.loads(json.dumps(raises.dump()))) == raises


@pytest.mark.parametrize("data", [{}, {"last": 1, "numbers": []}, {"last": "x", "numbers": {}}])
def test_a_broken_ledger_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        load_raises(data)
