"""Death at every call an operation makes of its store, on every store; then kubelet repeats it.

Whatever was half done: no address has two holders, the repeat succeeds with the address that was
stored, and the store ends as if nobody had died. Without a repeat, the sandbox's DEL leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from libtortie.model.ipam import IPAddress
from tests.fakes.faulty_store import Killed
from tests.fakes.ipam_backends import (
    Backend,
    KubernetesBackend,
    MemoryBackend,
    SqliteBackend,
    etcd_backend,
)
from tests.fakes.ipam_operations import (
    BY_NAME,
    CLIENTS,
    EVERYWHERE,
    NO_TUNNELS,
    ORDINARY,
    TUNNELS,
    VM,
    Operation,
    collect_all,
    give_back,
    judge,
    outcome,
    stored,
    veteran,
)
from tests.fakes.ipam_world import World
from tests.fakes.mortal_store import Countdown, told
from tests.property.test_ipam_clients import no_two_holders

FEWEST_STEPS = 4
"""A read and a commit, each before and after."""


ON_KUBERNETES = (
    "dual stack",
    "reclaim",
    "explicit, taken over",
    "claim",
    "claim for a target",
    "promote",
    "release of a block's last",
    "disown of a deleted VM",
    "collector",
)


@pytest.fixture(params=["memory", "stepwise", "sqlite", "etcd"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "sqlite":
        yield SqliteBackend(tmp_path)
    elif request.param == "etcd":
        with etcd_backend(request.getfixturevalue("member")) as made:
            yield made
    else:
        yield MemoryBackend(stepwise=request.param == "stepwise")


def straight(backend: Backend, operation: Operation) -> tuple[int, object]:
    """The steps of an operation nothing happens to, and what it leaves."""
    with backend.prepared(operation) as world:
        before = stored(world, operation.handle)
        countdown = Countdown()
        operation.act(world, backend.mortal(world, countdown))
        judge(operation, world, before if operation.keeps else set())
        return len(countdown.steps), outcome(world)


def deaths(backend: Backend, operation: Operation, steps: int) -> Iterator[World]:
    """The world after a death at each step in turn; ends with a life that ended normally."""
    for die_at in range(1, steps + 2):
        with backend.prepared(operation) as world:
            countdown = Countdown(die_at)
            try:
                operation.act(world, backend.mortal(world, countdown))
            except Killed:
                assert len(countdown.steps) == die_at
                world.audit(exact=backend.exact)
                no_two_holders(world)
                yield world
            else:
                assert die_at == steps + 1 == len(countdown.steps) + 1


@pytest.mark.parametrize("name", EVERYWHERE)
def test_repeated_after_a_death_at_any_call(backend: Backend, name: str) -> None:
    repeat_after_deaths(backend, BY_NAME[name])


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("name", [TUNNELS.name, NO_TUNNELS.name])
def test_tunnels_are_repeated_after_a_death_at_any_call(stepwise: bool, name: str) -> None:
    repeat_after_deaths(MemoryBackend(stepwise), BY_NAME[name])


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_repeated_after_a_death_at_any_write_to_kubernetes(name: str) -> None:
    """What reads leave behind is nothing: each death there is as the one before the next write."""
    repeat_after_deaths(KubernetesBackend(), BY_NAME[name])


def repeat_after_deaths(backend: Backend, operation: Operation) -> None:
    steps, wanted = straight(backend, operation)
    assert steps >= FEWEST_STEPS
    died = 0
    for world in deaths(backend, operation, steps):
        before = stored(world, operation.handle) if operation.gives else set()
        operation.act(world, backend.seen(world))
        judge(operation, world, before)
        if operation.settles:
            assert outcome(world) == wanted
        give_back(world)
        died += 1
    assert died == steps


@pytest.mark.parametrize("name", CLIENTS)
def test_taken_down_after_a_death_at_any_call(name: str) -> None:
    """Nobody repeats it: the DELs come for whatever it was about. A death between two commits is
    among those without transactions."""
    backend, operation = MemoryBackend(stepwise=True), BY_NAME[name]
    steps, _ = straight(backend, operation)
    for world in deaths(backend, operation, steps):
        client = world.client("n1", backend.seen(world))
        for handle in (operation.later or ORDINARY, ORDINARY, VM):
            client.release(handle)
            assert stored(world, handle) == set()
            assert handle not in world.handles()
        world.audit()


@pytest.mark.parametrize("name", CLIENTS)
def test_collected_after_a_death_at_any_call(name: str) -> None:
    """Nobody comes for it but the collector: all is free, and the claims are in order."""
    backend, operation = MemoryBackend(stepwise=True), BY_NAME[name]
    steps, _ = straight(backend, operation)
    for world in deaths(backend, operation, steps):
        collect_all(world, backend.seen(world))
        assert world.handles() == {}
        assert world.allocated() == {}
        blocks = {block.cidr: block.node for block in world.blocks()}
        claims = {key.cidr: key.node for key in world.affinities()}
        assert claims == blocks
        world.audit()


@pytest.mark.parametrize("name", ON_KUBERNETES[:-1])
def test_killed_again_in_the_repeat(name: str) -> None:
    """Without transactions: the second death is at the same step of the repeat."""
    backend, operation = MemoryBackend(stepwise=True), BY_NAME[name]
    steps, wanted = straight(backend, operation)
    for die_at, world in enumerate(deaths(backend, operation, steps), 1):
        before = stored(world, operation.handle) if operation.gives else set()
        again = backend.mortal(world, Countdown(die_at))
        try:
            operation.act(world, again)
        except Killed:
            world.audit(exact=False)
            no_two_holders(world)
            operation.act(world, backend.seen(world))
        judge(operation, world, before)
        assert outcome(world) == wanted


@pytest.mark.parametrize("name", CLIENTS)
def test_killed_and_repeated_by_clients_that_remember(name: str) -> None:
    """What either remembers is out of date: the one that dies, and the one that repeats."""
    backend, operation = MemoryBackend(), BY_NAME[name]

    def play(die_at: int) -> tuple[Countdown, object]:
        with backend.prepared(operation) as world:
            switch = Countdown(die_at)
            switch.counting = False
            dying = veteran(operation, world, told(world.store, switch))
            heir = veteran(operation, world, world.store)
            switch.counting = True
            before: set[IPAddress] = set()
            try:
                operation.work(dying)
            except Killed:
                before = stored(world, operation.handle) if operation.gives else set()
                operation.work(heir)
            judge(operation, world, before)
            found = outcome(world)
            give_back(world)
            return switch, found

    unhurt, wanted = play(0)
    assert unhurt.steps
    for die_at in range(1, len(unhurt.steps) + 1):
        assert play(die_at)[1] == wanted
