"""What the history is told of any story of several nodes gives exactly what the store holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.annals import Annals
from ipam.client import IPAMClient
from libtortie.model.history import Fact, What
from libtortie.model.ipam import IPAddress
from tests.fakes.faulty_store import Fault, FaultyStore, StepwiseStore
from tests.fakes.ipam_world import World
from tests.property.test_ipam_clients import EXAMPLES, Act, acts, cluster_of, configs, run


@dataclass
class ToldWorld(World):
    """Every client's deeds are written down."""

    facts: list[Fact] = field(default_factory=list)

    def client(self, node: str = "n1", *words: Any, **options: Any) -> IPAMClient:
        annals = Annals(node, self.now, self.facts.extend)
        return super().client(node, *words, **{"annals": annals, **options})


Holders = dict[IPAddress, tuple[str, str]]
"""(handle, active pod) of each address that is held."""


def replayed(facts: list[Fact]) -> Holders:
    """What the facts say is held. Each must fit what those before it say."""
    held: Holders = {}
    for fact in facts:
        for address in fact.addresses:
            before = held.get(address)
            if fact.what is What.GRANTED:
                assert before is None, fact
                held[address] = (fact.handle_id, fact.pod)
                continue
            assert before is not None and before[0] == fact.handle_id, fact
            if fact.what is What.RELEASED:
                del held[address]
            elif fact.what is What.TARGETED:
                assert before[1] == fact.before, fact
            else:
                assert fact.before in (before[1], ""), fact
                held[address] = (fact.handle_id, fact.pod)
    return held


def stored(world: World) -> Holders:
    """What the blocks say."""
    return {
        block.address(ordinal): (one.handle_id or "", (one.active or one.alternate).get("pod", ""))
        for block in world.blocks()
        for ordinal in range(len(block.allocations))
        if (one := block.attribute(ordinal)) is not None and one.released_at is None
    }


conflicts = st.lists(st.sampled_from([Fault.NONE, Fault.CONFLICT]), max_size=3)
steps = st.lists(st.tuples(acts, conflicts, st.lists(acts, max_size=3)), max_size=14)


@pytest.mark.parametrize("atomic", [True, False])
@settings(max_examples=EXAMPLES, deadline=None)
@given(configs, steps)
def test_the_facts_of_any_story_are_what_the_store_holds(
    atomic: bool, config: dict[str, object], story: list[tuple[Act, list[Fault], list[Act]]]
) -> None:
    world = ToldWorld()
    cluster_of(world, config)

    def audit() -> None:
        assert replayed(world.facts) == stored(world)

    def store(faults: list[Fault], interlope: Callable[[], None]) -> FaultyStore:
        if atomic:
            return FaultyStore(world.store, faults, before_commit=lambda ops: interlope())
        return StepwiseStore(world.store, faults)

    run(world, story, store, audit)
