"""The live-migration protocol, simulated: nothing that must not be is found in it, and every known
fault that is put into it is. Replay a seed with `python -m lab.simulate --scenario S --seed N`."""

from __future__ import annotations

import os

import pytest

from lab.simulate.protocol import Protocol
from lab.simulate.scenarios import SCENARIOS
from lab.simulate.search import Found, Search
from tests.fakes.mutants import MUTANTS, Mutant

SOAK = bool(os.environ.get("TORTIE_SOAK"))
CLUSTERS = None if SOAK else 2_000
SEEDS = range(5_000) if SOAK else range(12)
MUTANT_CLUSTERS, MUTANT_SEEDS = 4_000, range(150)


def story(found: Found | None) -> str:
    return "" if found is None else f"{found.verdict}: {found.trace}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_up_to_the_bound(name: str) -> None:
    """Breadth first: without the soak, the shortest ones."""
    search = Search(Protocol(SCENARIOS[name].site))
    assert not story(search.exhaust(SCENARIOS[name].bound, most=CLUSTERS))
    assert search.seen > 1_000


@pytest.mark.parametrize("name", SCENARIOS)
def test_random_histories(name: str) -> None:
    search = Search(Protocol(SCENARIOS[name].site))
    for seed in SEEDS:
        assert not story(search.wander(SCENARIOS[name].wide, seed)), seed


# Seeds and scenarios in which the simulator found a fault of the product.
KEPT = (
    ("ping-pong", 412),  # words from before the VM came took its route
    ("killed", 602),  # a normal route that was not saved yet was deleted at the restart
    ("killed", 10593),  # and with it the word that the file had on the VM's place
)


@pytest.mark.parametrize(("name", "seed"), KEPT)
def test_what_was_found_once(name: str, seed: int) -> None:
    search = Search(Protocol(SCENARIOS[name].site))
    assert not story(search.wander(SCENARIOS[name].wide, seed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_known_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    scenario = SCENARIOS[mutant.scenario]
    search = Search(Protocol(scenario.site))
    found = search.exhaust(scenario.bound, most=MUTANT_CLUSTERS)
    seeds = iter(MUTANT_SEEDS)
    while found is None:
        seed = next(seeds, None)
        assert seed is not None, f"nothing found in {search.steps} steps"
        found = search.wander(scenario.wide, seed)


def test_a_seed_is_one_history() -> None:
    told: list[list[str]] = [[], []]
    for lines in told:
        protocol = Protocol(SCENARIOS["lossy"].site)
        Search(protocol).wander(SCENARIOS["lossy"].wide, 7, tell=lines.append)
    assert told[0] == told[1]
    assert len(told[0]) > 10
