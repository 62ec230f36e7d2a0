"""Passes that fail, die or meet another: the next one finishes, and nothing that lives is freed."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from ipam.block import new_block
from ipam.gc import Outcome
from ipam.gc_claims import Claim, Flaw
from libtortie.model.ipam import BlockAffinity
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork, Kind
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.gc_world import BOTH, Town

KEEP = Outcome.KEEP


@pytest.fixture
def town() -> Town:
    return Town()


def _claim(town: Town, cidr: IPNetwork) -> None:
    town.world.put(AffinityKey("n1", cidr), BlockAffinity())


def _blocks_of(town: Town, node: str) -> list[IPNetwork]:
    return [one.cidr for one in town.world.blocks() if one.node == node]


def mess(town: Town) -> None:
    """Something of each kind of flaw, and one thing that is in order."""
    town.start("keeps", "n2", want=BOTH)
    for number in range(5):
        town.start(f"n1-{number}")
    for number in (3, 4):
        town.stop(f"n1-{number}")
        town.remove_pod(f"n1-{number}")
    town.run("lost", "n3")
    town.node("n3")
    town.start("lives", "n3")
    town.remove_node("n3")
    _claim(town, ip_network("10.65.0.252/30"))
    _claim(town, _blocks_of(town, "n2")[0])
    nobodys = new_block(ip_network("10.65.0.248/30"), node=None, now=town.world.now())
    town.world.put(BlockKey(nobodys.cidr), nobodys)
    town.world.store.delete(AffinityKey("n2", _blocks_of(town, "n2")[1]))


def flaws(town: Town) -> set[Flaw]:
    assert town.last is not None
    subjects = (one.subject for one in town.last.verdicts if one.outcome is not KEEP)
    return {one.flaw for one in subjects if isinstance(one, Claim)}


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
