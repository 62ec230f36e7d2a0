"""Blocks of pools that are gone or have other nodes now: empty ones are given up, others kept."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network, ip_network
from typing import Any

import pytest

from ipam.client import AddressRequest
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import NoFreeAddresses
from libtortie.model.keys import AffinityKey, BlockKey, Kind, ResourceKey, path_of
from libtortie.model.resources import Node, ObjectMeta
from tests.fakes.faulty_store import Fault, FaultyStore, Killed
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()
POOL = ResourceKey(Kind.IP_POOL, "a")
NODE = ResourceKey(Kind.NODE, "n1")


def label(world: World, **labels: str) -> None:
    world.put(NODE, Node(metadata=ObjectMeta(name="n1", labels=labels)))


def one_block(held: int = 1) -> World:
    """A node of rack r1 with one block of pool `a`, which is for racks, beside pool `b`."""
    world = World()
    label(world, rack="r1")
    world.pools(pool("a", "10.0.0.0/24", blockSize=30, nodeSelector="has(rack)"))
    client = world.client()
    for number in range(max(held, 1)):
        client.assign(f"h{number}", plain_pod(f"p{number}"), V4)
    world.pools(pool("b", "10.1.0.0/24", blockSize=30))
    if not held:
        client.release("h0")
    return world


CHANGES: dict[str, Callable[[World], object]] = {
    "the pool selects other nodes": lambda world: world.pools(
        pool("a", "10.0.0.0/24", blockSize=30, nodeSelector="rack == 'r2'")
    ),
    "the node's label went": label,
    "the pool's selector cannot be read": lambda world: world.pools(
        pool("a", "10.0.0.0/24", blockSize=30, nodeSelector="rack ==")
    ),
    "the pool was deleted": lambda world: world.store.delete(POOL),
    "the pool has blocks of another size now": lambda world: world.pools(
        pool("a", "10.0.0.0/24", blockSize=28, nodeSelector="has(rack)")
    ),
}


def of_pool_a(world: World) -> list[str]:
    """Blocks and affinities that are left in the range of pool `a`."""
    blocks = [str(block.cidr) for block in world.blocks()]
    found = blocks + [f"{key.node} {key.cidr}" for key in world.affinities()]
    return [text for text in found if "10.0.0." in text]


@pytest.mark.parametrize("change", CHANGES)
def test_an_empty_block_is_given_up_by_the_next_allocation(change: str) -> None:
    world = one_block(held=0)
    CHANGES[change](world)
    want = AddressRequest(ipv4_pools=("b",))
    world.client().assign("next", plain_pod("q"), want)
    assert of_pool_a(world) == []
    world.audit()


@pytest.mark.parametrize("change", CHANGES)
def test_an_empty_block_is_given_up_when_the_agent_says_so(change: str) -> None:
    world = one_block(held=0)
    assert world.client().give_up_stranded() == ()
    CHANGES[change](world)
    (cidr,) = world.client().give_up_stranded()
    assert cidr.subnet_of(pool_range())
    assert of_pool_a(world) == []
    assert world.client().give_up_stranded() == ()


def pool_range() -> Any:
    return ip_network("10.0.0.0/24")


@pytest.mark.parametrize("change", CHANGES)
def test_a_block_goes_with_its_last_address(change: str) -> None:
    """In the same commit, by a client that allocates and so remembers the pools."""
    world = one_block(held=2)
    CHANGES[change](world)
    client = world.client()
    client.assign("elsewhere", plain_pod("q"), AddressRequest(ipv4_pools=("b",)))
    client.release("h0")
    assert len(of_pool_a(world)) == 2, "h1 is still there"
    client.release("h1")
    assert of_pool_a(world) == []
    world.audit()


@pytest.mark.parametrize("change", CHANGES)
def test_a_block_in_use_goes_on(change: str) -> None:
    world = one_block(held=2)
    had = world.client().by_handle("h0")
    CHANGES[change](world)
    client = world.client()
    assert client.give_up_stranded() == ()
    (got,) = client.assign("next", plain_pod("q"), AddressRequest(ipv4_pools=("b",)))
    assert str(got.address).startswith("10.1.")
    assert client.assign("h0", plain_pod("p0"), V4) == had
    assert client.owner_of(had[0].address) == had[0]
    assert len(of_pool_a(world)) == 2
    world.audit()


def test_what_rests_keeps_the_block_until_it_has_rested() -> None:
    world = one_block(held=1).config(cooldown_seconds=60)
    world.client().release("h0")
    label(world)
    assert world.client().give_up_stranded() == ()
    world.later(61)
    assert len(world.client().give_up_stranded()) == 1
    assert of_pool_a(world) == []


def test_a_disabled_pool_may_come_back() -> None:
    world = one_block(held=0)
    world.pools(pool("a", "10.0.0.0/24", blockSize=30, nodeSelector="has(rack)", disabled=True))
    assert world.client().give_up_stranded() == ()
    world.client().assign("next", plain_pod("q"), V4)
    assert len(of_pool_a(world)) == 2


def test_while_a_pool_cannot_be_read_nothing_is_given_up() -> None:
    world = one_block(held=0)
    assert isinstance(world.store, MemoryDatastore)
    world.store.put_raw(path_of(POOL), b"{")
    assert world.client().give_up_stranded() == ()
    world.client().assign("next", plain_pod("q"), V4)
    assert len(of_pool_a(world)) == 2


def test_blocks_of_other_nodes_are_theirs_to_give_up() -> None:
    world = one_block(held=0)
    label(world)
    assert world.client("n2").give_up_stranded() == ()
    assert len(of_pool_a(world)) == 2


def test_an_unfinished_claim_of_a_deleted_pool_goes() -> None:
    world = one_block(held=0)
    (cidr,) = (block.cidr for block in world.blocks())
    world.store.delete(BlockKey(cidr))
    world.store.delete(POOL)
    world.client().give_up_stranded()
    assert world.affinities() == {}


def test_an_allocation_at_the_same_moment_keeps_the_block() -> None:
    """Both decided on the empty block; the allocation, which still saw the pool, was first."""
    world = one_block(held=0)
    (cidr,) = (block.cidr for block in world.blocks())
    late = FaultyStore(world.store)

    def allocate(_: object) -> None:
        pools = pool("a", "10.0.0.0/24", blockSize=30, nodeSelector="has(rack)")
        world.pools(pools)
        label(world, rack="r1")
        world.client().assign("first", plain_pod("q"), AddressRequest(ipv4_pools=("a",)))

    late.before_commit = allocate
    label(world)
    world.client(store=late).give_up_stranded()
    assert world.allocated() == {"first": 1}
    assert AffinityKey("n1", cidr) in world.affinities()
    world.audit()


@pytest.mark.parametrize("death", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_killed_while_giving_up(death: Fault) -> None:
    world = one_block(held=0)
    label(world)
    with pytest.raises(Killed):
        world.client(store=FaultyStore(world.store, [death])).give_up_stranded()
    world.client().give_up_stranded()
    assert of_pool_a(world) == []


def test_the_range_is_free_for_those_whom_the_pool_selects() -> None:
    world = World().config(strict_affinity=True)
    world.pools(pool("a", "10.0.0.0/30", blockSize=30))
    world.client().assign("h", plain_pod("p"), V4)
    world.client().release("h")
    label(world)
    world.pools(pool("a", "10.0.0.0/30", blockSize=30, nodeSelector="rack == 'r2'"))
    n2 = world.client("n2", node_labels={"rack": "r2"})
    with pytest.raises(NoFreeAddresses):
        n2.assign("x", plain_pod("x"), V4)
    world.client().give_up_stranded()
    (got,) = n2.assign("x", plain_pod("x"), V4)
    assert got.address in IPv4Network("10.0.0.0/30")
