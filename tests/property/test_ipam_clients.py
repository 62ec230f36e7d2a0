"""Several nodes at once, with conflicts, lost answers and deaths: no address has two holders,
and nothing leaks.

An interleaving is drawn as interlopers: whole operations of other nodes that run between a
client's reads and its commit, or (without transactions) between two writes of its commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import AddressRequest, Allocation, IPAMClient, Retry
from libtortie.errors import (
    Conflict,
    InvalidInput,
    MigrationRefused,
    NoFreeAddresses,
    OwnerMismatch,
    Unavailable,
)
from libtortie.model.ipam import IPAddress
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

EXAMPLES = 3000 if os.environ.get("TORTIE_SOAK") else 120
NODES = ["n1", "n2", "n3"]
HANDLES = ["h1", "h2", "h3", "h4"]
VMS = ["vm1", "vm2"]
BRIEF = Retry(attempts=4, seconds=60.0, pause=0.0, longest_pause=0.0)
REFUSALS = (Conflict, Unavailable, NoFreeAddresses, OwnerMismatch, MigrationRefused, InvalidInput)


@dataclass(frozen=True)
class Act:
    """One operation of one node."""

    node: str
    verb: str
    handle: str
    dual: bool


acts = st.one_of(
    st.builds(
        Act,
        st.sampled_from(NODES),
        st.sampled_from(["assign", "assign", "release"]),
        st.sampled_from(HANDLES),
        st.booleans(),
    ),
    st.builds(
        Act,
        st.sampled_from(NODES),
        st.sampled_from(["claim", "target", "promote", "disown", "delete"]),
        st.sampled_from(VMS),
        st.booleans(),
    ),
)
steps = st.lists(
    st.tuples(acts, st.lists(st.sampled_from(Fault), max_size=3), st.lists(acts, max_size=3)),
    max_size=14,
)
configs = st.fixed_dictionaries(
    {
        "strict_affinity": st.booleans(),
        "max_blocks_per_host": st.sampled_from([0, 1]),
        "cooldown_seconds": st.sampled_from([0, 0, 20]),
    }
)


def perform(client: IPAMClient, act: Act) -> tuple[Allocation, ...]:
    """Run one operation; returns what it says the handle now holds."""
    want = AddressRequest(ipv6=act.dual)
    if act.verb == "assign":
        return client.assign(act.handle, plain_pod(act.handle, node=act.node), want)
    if act.verb == "release":
        client.release(act.handle)
        return ()
    owner = vm_pod(f"{act.handle}-{act.node}", node=act.node, vm=act.handle, vm_uid=act.handle)
    if act.verb == "claim":
        return client.claim_vm(act.handle, owner, want)
    if act.verb == "target":
        return client.claim_vm_target(act.handle, owner)
    if act.verb == "promote":
        client.promote(act.handle, owner)
    else:
        client.disown_vm(act.handle, owner, vm_deleting=act.verb == "delete")
    return ()


def cluster(config: dict[str, object]) -> World:
    """Two blocks of four addresses for three nodes, in both families."""
    return cluster_of(World(), config)


def cluster_of(world: World, config: dict[str, object]) -> World:
    """The same in some store."""
    world.pools(pool("a", "10.0.0.0/29", blockSize=30), pool("b", "fd00::/125", blockSize=126))
    return world.config(**config)


def run(
    world: World,
    story: list[tuple[Act, list[Fault], list[Act]]],
    store_for: Callable[[list[Fault], Callable[[], None]], FaultyStore],
    audit: Callable[[], None],
) -> None:
    """Play a story; `audit` judges the store after each of its operations."""
    for act, faults, interlopers in story:
        waiting = list(interlopers)

        def interlope(waiting: list[Act] = waiting) -> None:
            if waiting:
                other = waiting.pop(0)
                attempt(world.client(other.node, retry=BRIEF), other)

        got = attempt(world.client(act.node, store_for(faults, interlope), retry=BRIEF), act)
        audit()
        reread = world.client().by_handle(act.handle)
        if got and not waiting and not interlopers:
            assert {a.address for a in got} == {a.address for a in reread}
        assert len(reread) <= 2
        assert len({a.address.version for a in reread}) == len(reread)
        world.later(15)


def attempt(client: IPAMClient, act: Act) -> tuple[Allocation, ...]:
    try:
        return perform(client, act)
    except (*REFUSALS, Killed):
        return ()


def empty_out(world: World) -> None:
    """Give everything back on a healthy store: then nothing may be left."""
    client = world.client()
    for handle in (*HANDLES, *VMS):
        client.release(handle)
    assert world.allocated() == {}
    assert world.handles() == {}
    world.audit()


def no_two_holders(world: World) -> None:
    seen: dict[IPAddress, str] = {}
    for handle in world.handles():
        for item in world.client().by_handle(handle):
            assert seen.setdefault(item.address, handle) == handle


@settings(max_examples=EXAMPLES, deadline=None)
@given(configs, steps)
def test_with_transactions(
    config: dict[str, object], story: list[tuple[Act, list[Fault], list[Act]]]
) -> None:
    world = cluster(config)

    def audit() -> None:
        world.audit()
        no_two_holders(world)

    def store(faults: list[Fault], interlope: Callable[[], None]) -> FaultyStore:
        return FaultyStore(world.store, faults, before_commit=lambda ops: interlope())

    run(world, story, store, audit)
    empty_out(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(configs, steps, st.integers(1, 40))
def test_without_transactions(
    config: dict[str, object], story: list[tuple[Act, list[Fault], list[Act]]], death: int
) -> None:
    """The nth write of the whole story is the writer's last."""
    world = cluster(config)
    written: list[None] = []

    def audit() -> None:
        world.audit(exact=False)
        no_two_holders(world)

    def store(faults: list[Fault], interlope: Callable[[], None]) -> FaultyStore:
        stepwise = StepwiseStore(world.store, faults)

        def between(_: int) -> None:
            written.append(None)
            if len(written) == death:
                raise Killed
            interlope()

        stepwise.between = between
        return stepwise

    run(world, story, store, audit)
    empty_out(world)
