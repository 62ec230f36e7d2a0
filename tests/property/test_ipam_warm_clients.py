"""Clients that live long and remember, while others and the operator change the store beneath.

Each step serves some operations of one node in one batch; operations of other nodes and changes
of pools, reservations and settings come between its reads and its commits, which may conflict or
lose their answer. A judge beside the store looks at every commit that happens: nothing is given
that may not be given at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import IPAMClient
from ipam.settings import read_pools, read_reservations, require_ready
from ipam.transaction import Transaction
from libtortie.datastore.port import Create, Datastore, Op, Record, Update
from libtortie.errors import NotFound
from libtortie.model.ipam import Block, IPAddress
from libtortie.model.keys import Kind
from tests.fakes.faulty_store import Fault, FaultyStore, Killed
from tests.fakes.ipam_batches import Call, outcome, together
from tests.fakes.ipam_world import World, pool
from tests.property.test_ipam_clients import (
    BRIEF,
    NODES,
    REFUSALS,
    Act,
    acts,
    cluster_of,
    configs,
    empty_out,
    no_two_holders,
    perform,
)

EXAMPLES = 3000 if os.environ.get("TORTIE_SOAK") else 150


class Judge(FaultyStore):
    """A store that asserts, of each commit that succeeds, that what it gives may be given."""

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        given = [one for op in ops for one in self._given(op)]
        tx = Transaction(self.inner)
        if given:
            require_ready(tx)
        reserved, (pools, _) = read_reservations(tx), read_pools(tx)
        done = super().commit(ops)
        for address in given:
            assert not reserved.covers(address), f"{address} is reserved"
            assert any(address in one.cidr and one.enabled for one in pools), f"{address}: no pool"
        return done

    def _given(self, op: Op) -> list[IPAddress]:
        """The addresses that a commit takes out of those that are free."""
        if not isinstance(op, Create | Update) or not isinstance(op.value, Block):
            return []
        try:
            before = self.inner.get(op.key).value
        except NotFound:
            before = None
        free = before.unallocated if isinstance(before, Block) else range(len(op.value.allocations))
        taken = set(free) - set(op.value.unallocated)
        return [op.value.address(ordinal) for ordinal in taken]


def _pools(world: World, **spec: object) -> None:
    world.pools(
        pool("a", "10.0.0.0/29", blockSize=30, **spec),
        pool("b", "fd00::/125", blockSize=126, **spec),
    )


def _reserve(world: World, cidrs: list[str]) -> None:
    world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": cidrs})


def _config(world: World, **fields: object) -> None:
    world.config(**fields)


OPERATOR: dict[str, Callable[[World], None]] = {
    "disable": lambda w: _pools(w, disabled=True),
    "enable": _pools,
    "reserve": lambda w: _reserve(w, ["10.0.0.0/30", "fd00::/127"]),
    "reserve more": lambda w: _reserve(w, ["10.0.0.0/29", "fd00::/126"]),
    "reserve nothing": lambda w: _reserve(w, []),
    "strict": lambda w: _config(w, strict_affinity=True),
    "lenient": lambda w: _config(w, strict_affinity=False, cooldown_seconds=20),
    "wait": lambda w: w.later(70),
}


@dataclass
class Cluster:
    """The nodes' clients, each with memory and a store of its own that fails by a script."""

    world: World
    stores: dict[str, FaultyStore] = field(default_factory=dict)
    clients: dict[str, IPAMClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        judged: Datastore = Judge(self.world.store)
        for node in NODES:
            self.stores[node] = FaultyStore(judged)
            self.clients[node] = self.world.client(node, self.stores[node], retry=BRIEF)

    def step(
        self, node: str, group: list[Act], faults: list[Fault], between: list[Act | str]
    ) -> None:
        """Operations of a node in one batch, and what comes in between."""
        store, waiting = self.stores[node], list(between)

        def interlope(_: object) -> None:
            if waiting:
                self.interlope(node, waiting.pop(0))

        store._script = iter(faults)
        store.before_commit = interlope
        calls: list[Call] = [partial(perform, act=_at(node, act)) for act in group]
        try:
            results = together(self.clients[node], *calls)
        except Killed:
            results = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, REFUSALS):
                raise result
        store._script, store.before_commit = iter(()), lambda ops: None

    def interlope(self, node: str, what: Act | str) -> None:
        """The operator, or another node."""
        if isinstance(what, str):
            OPERATOR[what](self.world)
        elif what.node != node:
            result = outcome(lambda: perform(self.clients[what.node], what))
            assert not isinstance(result, AssertionError), result


def _at(node: str, act: Act) -> Act:
    return Act(node, act.verb, act.handle, act.dual)


changes = st.sampled_from(sorted(OPERATOR))
steps = st.lists(
    st.tuples(
        st.sampled_from(NODES),
        st.lists(acts, min_size=1, max_size=4),
        st.lists(st.sampled_from(Fault), max_size=3),
        st.lists(st.one_of(acts, changes), max_size=4),
        st.lists(changes, max_size=1),
    ),
    max_size=14,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(configs, steps)
def test_what_is_remembered_never_gives_what_may_not_be_given(
    config: dict[str, object],
    story: list[tuple[str, list[Act], list[Fault], list[Act | str], list[str]]],
) -> None:
    play(Cluster(cluster_of(World(), config)), story)


def play(
    town: Cluster, story: list[tuple[str, list[Act], list[Fault], list[Act | str], list[str]]]
) -> None:
    """A story, judged after each step; in the end everything can be given back."""
    for node, group, faults, between, after in story:
        town.step(node, group, faults, between)
        town.world.audit()
        no_two_holders(town.world)
        for change in after:
            town.interlope("", change)
        town.world.later(15)
    empty_out(town.world)
