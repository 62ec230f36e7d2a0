"""An empty block changes hands: only when it is old enough, and never under its owner's address."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from ipam.client import AddressRequest, IPAMClient
from libtortie.errors import NoFreeAddresses
from libtortie.model.keys import AffinityKey
from tests.fakes.faulty_store import FaultyStore, Killed, StepwiseStore
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()
BLOCK = ip_network("10.0.0.0/30")


def idle(**config: object) -> tuple[World, IPAMClient]:
    """One block, n1's, empty; the clients of n1 remember it as theirs."""
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30))
    world.config(strict_affinity=True, **config)
    owner = world.client("n1")
    owner.assign("h", plain_pod("p"), V4)
    owner.release("h")
    return world, owner


def take(client: IPAMClient, name: str) -> str:
    return str(client.assign(name, plain_pod(name), V4)[0].address)


def test_a_young_block_stays_and_an_old_one_goes_with_its_affinity() -> None:
    world, _ = idle()
    world.later(59)
    with pytest.raises(NoFreeAddresses):
        take(world.client("n2"), "x")
    world.later(1)
    before = world.block(BLOCK).sequence_number
    take(world.client("n2"), "x")
    assert world.block(BLOCK).sequence_number > before
    assert set(world.affinities()) == {AffinityKey("n2", BLOCK)}
    world.audit()


def test_the_owners_first_address_at_the_same_moment_wins_if_it_is_first() -> None:
    world, owner = idle()
    world.later(60)
    late = FaultyStore(world.store)

    def allocate(_: object) -> None:
        late.before_commit = lambda ops: None
        take(owner, "first")

    late.before_commit = allocate
    with pytest.raises(NoFreeAddresses):
        take(world.client("n2", late), "x")
    assert world.allocated() == {"first": 1}
    assert world.block(BLOCK).node == "n1"
    world.audit()


def test_an_owner_that_remembers_the_block_does_not_allocate_from_it() -> None:
    world, owner = idle()
    world.later(60)
    take(world.client("n2"), "x")
    with pytest.raises(NoFreeAddresses):
        take(owner, "late")
    assert world.allocated() == {"x": 1}
    world.client("n2").release("x")
    world.later(60)
    take(owner, "late")
    assert world.block(BLOCK).node == "n1"
    world.audit()


def test_what_cools_down_keeps_the_block() -> None:
    world, _ = idle(cooldown_seconds=600)
    world.later(60)
    with pytest.raises(NoFreeAddresses):
        take(world.client("n2"), "x")
    world.later(541)
    take(world.client("n2"), "x")


def test_killed_after_any_write_of_a_store_without_transactions() -> None:
    """The repeat has the block; its former owner does not allocate from it, whatever it knows."""
    for survived in range(100):
        world, owner = idle()
        world.later(60)
        writes: list[int] = []

        def die(done: int, writes: list[int] = writes, survived: int = survived) -> None:
            writes.append(done)
            if len(writes) > survived:
                raise Killed

        dying = StepwiseStore(world.store)
        dying.between = die
        try:
            take(world.client("n2", dying), "x")
        except Killed:
            take(world.client("n2"), "x")
        else:
            break
        assert world.block(BLOCK).node == "n2"
        with pytest.raises(NoFreeAddresses):
            take(owner, "late")
        assert world.allocated() == {"x": 1}
    assert survived == len(writes) >= 5, "affinity, block, loser's affinity, handle, block"
