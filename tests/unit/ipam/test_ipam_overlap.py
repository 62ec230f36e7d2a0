"""Pools that overlap, or took the place of others: no address is ever in two blocks in use."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from ipam.client import AddressRequest
from libtortie.errors import InvalidInput, NoFreeAddresses
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()


# The store gives both the same creationTimestamp, so that the names decide which is the older.


def wide(**spec: Any) -> Any:
    return pool("a-wide", "10.0.0.0/28", blockSize=28, **spec)


def narrow(**spec: Any) -> Any:
    return pool("b-narrow", "10.0.0.0/29", blockSize=30, **spec)


def take(world: World, node: str, name: str, *pools: str) -> str:
    want = AddressRequest(ipv4_pools=pools)
    return str(world.client(node).assign(name, plain_pod(name), want)[0].address)


def explicit(text: str) -> AddressRequest:
    return AddressRequest(addresses=(ip_address(text),))


def disjoint(world: World) -> None:
    blocks = [block.cidr for block in world.blocks()]
    assert not [(a, b) for a in blocks for b in blocks if a != b and a.overlaps(b)]
    world.audit()


def test_the_younger_of_two_gives_nothing_and_the_error_names_both() -> None:
    world = World().pools(wide(), narrow())
    assert take(world, "n1", "h")
    with pytest.raises(InvalidInput, match=r"pool \(b-narrow\).*overlaps older pool a-wide"):
        take(world, "n1", "x", "b-narrow")
    disjoint(world)


def test_the_error_of_an_exhausted_node_says_why_a_pool_is_not_used() -> None:
    world = World().pools(pool("off", "10.1.0.0/24", disabled=True))
    with pytest.raises(NoFreeAddresses, match=r"\(pools: off \(disabled\)\)"):
        world.client().assign("h", plain_pod("p"), V4)


def replaced() -> World:
    """The place of a pool with big blocks, one of them in use, is taken by one with small ones."""
    world = World().pools(wide())
    world.client().assign("old", plain_pod("old"), explicit("10.0.0.9"))
    world.pools(wide(disabled=True), narrow())
    return world


def test_no_block_is_made_over_one_of_another_size() -> None:
    world = replaced()
    with pytest.raises(NoFreeAddresses, match=r"another size are in the way: 10\.0\.0\.0/28"):
        take(world, "n1", "new")
    with pytest.raises(InvalidInput, match=r"block 10\.0\.0\.4/30 of pool b-narrow would overlap"):
        world.client().assign("new", plain_pod("new"), explicit("10.0.0.5"))
    disjoint(world)


def test_its_addresses_stay_with_their_holders_until_they_are_released() -> None:
    world = replaced()
    (had,) = world.client().by_handle("old")
    assert world.client().assign("old", plain_pod("old"), V4) == (had,)
    assert world.client().owner_of(had.address) == had
    world.client().release("old")
    world.store.delete(ResourceKey(Kind.IP_POOL, "a-wide"))
    assert world.client().give_up_stranded()
    assert int(ip_address(take(world, "n1", "new"))) < int(ip_address("10.0.0.8"))
    disjoint(world)


def test_the_old_pool_back_again_does_not_cover_the_new_ones_blocks() -> None:
    world = World().pools(narrow())
    taken = take(world, "n2", "small")
    world.pools(narrow(disabled=True), wide())
    with pytest.raises(NoFreeAddresses, match=r"another size are in the way"):
        take(world, "n1", "big")
    with pytest.raises(InvalidInput, match=r"would overlap block"):
        world.client().assign("big", plain_pod("big"), explicit(taken))
    disjoint(world)


def test_a_pool_of_the_other_size_meanwhile_ends_a_claim() -> None:
    """The claimant of a small block saw the other pool disabled; a big block was made meanwhile."""
    world = World().pools(wide(disabled=True), narrow())
    slow = FaultyStore(world.store)

    def change_places(_: object) -> None:
        slow.before_commit = lambda ops: None
        world.pools(narrow(disabled=True), wide())
        take(world, "n2", "big")
        world.pools(wide(disabled=True), narrow())

    slow.before_commit = change_places
    with pytest.raises(NoFreeAddresses, match="another size are in the way"):
        world.client("n1", store=slow).assign("small", plain_pod("small"), V4)
    disjoint(world)
    assert world.allocated() == {"big": 1}


def test_a_pool_that_wins_an_overlap_meanwhile_ends_a_claim_in_the_other() -> None:
    """The older pool comes back between decision and commit; the younger is as it was."""
    world = World().pools(wide(disabled=True))
    world.pools(narrow())
    slow = FaultyStore(world.store)

    def come_back(_: object) -> None:
        slow.before_commit = lambda ops: None
        world.pools(wide())
        for number in range(4):
            take(world, "n2", f"big{number}", "a-wide")

    slow.before_commit = come_back
    world.client("n1", store=slow).assign("small", plain_pod("small"), V4)
    disjoint(world)
    held = [
        str(one.address) for handle in world.handles() for one in world.client().by_handle(handle)
    ]
    assert len(set(held)) == len(held) == 5
