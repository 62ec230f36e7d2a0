"""Passes that fail, die or meet another: the next one finishes, and nothing that lives is freed."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from ipam.gc import Outcome
from ipam.gc_claims import Flaw
from libtortie.model.keys import Kind
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.gc_world import Town, flaws, mess

KEEP = Outcome.KEEP


@pytest.fixture
def town() -> Town:
    return Town()


def test_every_kind_of_flaw_in_one_pass(town: Town) -> None:
    mess(town)
    town.sweep()
    assert flaws(town) == set(Flaw) - {Flaw.NONE}
    town.sweep()
    town.sweep()
    assert flaws(town) == set()
    town.world.audit()


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.NONE])
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("stepwise", [False, True])
def test_whatever_befalls_a_pass_the_next_one_finishes(
    town: Town, fault: Fault, at: int, stepwise: bool
) -> None:
    mess(town)
    town.sweep()
    memory, held = town.memory, town.held
    kind = StepwiseStore if stepwise else FaultyStore
    try:
        town.sweep(kind(town.world.store, [*[Fault.NONE] * at, fault]))
    except Killed:
        town.memory = memory
    town.sweep(later=0)
    town.settle(2)
    assert flaws(town) == set()
    assert town.held == held - {str(one) for one in _leaked(town, held)}
    town.world.audit()


def _leaked(town: Town, held: set[str]) -> list[object]:
    """What the mess had of no pod: one address."""
    left = [ip_address(text) for text in held - town.held]
    assert len(left) == 1
    return list(left)


@pytest.mark.parametrize("done", range(1, 5))
@pytest.mark.parametrize("nth", range(4))
def test_killed_between_two_writes_of_a_store_without_transactions(
    town: Town, done: int, nth: int
) -> None:
    mess(town)
    town.sweep()
    memory = town.memory
    store = StepwiseStore(town.world.store)
    commits = iter(range(1000))

    def die(written: int) -> None:
        if written == done and next(commits) == nth:
            raise Killed

    store.between = die
    try:
        town.sweep(store)
    except Killed:
        town.memory = memory
    town.settle(3)
    assert flaws(town) == set()
    town.world.audit()


def test_two_collectors_at_once(town: Town) -> None:
    mess(town)
    other = Town(town.world, town.kube)
    town.sweep()
    other.sweep()

    def rival(_: object) -> None:
        store.before_commit = lambda ops: None
        other.sweep()

    store = FaultyStore(town.world.store, before_commit=rival)
    town.sweep(store)
    town.settle(1)
    assert flaws(town) == set()
    town.world.audit()


def test_a_locked_datastore_is_waited_for(town: Town) -> None:
    mess(town)
    town.sweep()
    town.world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    store = FaultyStore(town.world.store)
    town.sweep(store)
    assert store.commits == []
    assert town.last is not None
    assert any("not ready" in one.reason for one in town.last.verdicts)
