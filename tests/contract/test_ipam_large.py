"""What a real etcd refuses for its size never reaches it: long blocks, handles of many blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_address, ip_network

import pytest

from ipam import gc_effects
from ipam.block import set_owners
from ipam.client import AddressRequest
from ipam.gc import Means
from ipam.gc_handles import HandleState, handle_states
from ipam.gc_inventory import read_inventory
from ipam.room import FULL
from ipam.vm_handles import VMHandle, read_vm_handles
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.ipam_codec import block_to_text
from libtortie.errors import InvalidInput, NoFreeAddresses
from libtortie.model.ipam import Handle, Owner
from libtortie.model.keys import BlockKey, HandleKey
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import Fault, FaultyStore, Killed
from tests.fakes.ipam_batches import together
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool, vm_pod
from tests.fakes.large_ipam import LONGEST, REQUEST, long_block, scattered

V4, BOTH = AddressRequest(), AddressRequest(ipv6=True)
NEARLY = REQUEST - 400
"""A block that one more long-named pod makes longer than a request."""
MANY = 300
"""Blocks: more than twice as many as the 128 operations that etcd takes at once."""
HANDLE = "k8s-pod-network.c-many"
VM = "k8s-pod-network.vmi.shop.db"
FIRST4, NEXT4 = ip_network("10.0.0.0/20"), ip_network("10.0.16.0/20")
FIRST6 = ip_network("fd00::/116")


@pytest.fixture
def world(member: EtcdMember) -> Iterator[World]:
    with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
        yield World(store)


def two_families(world: World) -> World:
    """Two blocks of each family at most."""
    return world.pools(
        pool("a", "10.0.0.0/19", blockSize=20), pool("b", "fd00::/115", blockSize=116)
    )


def means(world: World) -> Means:
    return Means(world.store, None, world.now, sleep=lambda _: None, retry=UNHURRIED)


def test_a_block_that_is_as_long_as_a_request_is_full(world: World) -> None:
    two_families(world)
    long_block(world, str(FIRST4), NEARLY)
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    assert got.block != FIRST4


def test_callers_of_one_batch_find_it_full_together(world: World) -> None:
    two_families(world)
    long_block(world, str(FIRST4), NEARLY)
    calls: list[Callable[..., object]] = [
        lambda client, h=f"h{n}": client.assign(h, plain_pod(h), V4) for n in range(4)
    ]
    got = together(world.client(), *calls)
    assert all(isinstance(one, tuple) and one[0].block == NEXT4 for one in got), got


@pytest.mark.parametrize("sizes", [(1_200_000, 1_200_000), (1_200_000, 600_000)])
def test_two_families_whose_blocks_are_together_too_long(
    world: World, sizes: tuple[int, int]
) -> None:
    """Either block alone would do; the second family takes another."""
    two_families(world)
    for cidr, size in zip((FIRST4, FIRST6), sizes, strict=True):
        long_block(world, str(cidr), size, name=LONGEST)
    four, six = world.client().assign("h", plain_pod("p"), BOTH)
    assert four.block == FIRST4
    assert six.block != FIRST6


def test_few_pods_of_the_longest_names_make_long_blocks(world: World) -> None:
    """A quarter of the addresses, half of the text: as with very many pods."""
    world.pools(pool("a", "10.0.0.0/21", blockSize=22), pool("b", "fd00::/117", blockSize=118))
    for text in ("10.0.0.0/22", "fd00::/118"):
        block = long_block(world, text, 800_000, name=LONGEST)
        assert len(block.attributes) <= 1000
    four, six = world.client().assign("h", plain_pod("p"), BOTH)
    assert (str(four.block), str(six.block)) == ("10.0.0.0/22", "fd00::400/118")


def test_without_another_block_for_the_second_family_the_error_says_so(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/22", blockSize=22), pool("b", "fd00::/118", blockSize=118))
    for text in ("10.0.0.0/22", "fd00::/118"):
        long_block(world, text, 800_000, name=LONGEST)
    with pytest.raises(NoFreeAddresses, match=r"fd00::/118 has 79\d{4} bytes, and with the blocks"):
        world.client().assign("h", plain_pod("p"), BOTH)
    assert len(world.client().assign("h", plain_pod("p"), V4)) == 1, "one alone is given"


def test_a_handle_in_several_such_blocks_is_released(world: World) -> None:
    for text in ("10.0.0.0/22", "10.0.4.0/22", "10.0.8.0/22"):
        long_block(world, text, 800_000, handle=HANDLE, name=LONGEST)
    world.config()
    assert len(world.client().release(HANDLE)) == 3
    assert HANDLE not in world.handles()


@pytest.mark.parametrize("by", ["a release", "the collector"])
def test_a_record_that_counts_very_many_full_blocks_wrongly_is_mended(
    world: World, by: str
) -> None:
    """Each block is written, too, and all of them are more than a request."""
    world.pools(pool("a", "10.0.0.0/16", blockSize=26))
    cidrs = [*ip_network("10.0.0.0/20").subnets(new_prefix=26)]
    full = sum(
        len(block_to_text(long_block(world, str(cidr), 2 * REQUEST // len(cidrs), name=LONGEST)))
        for cidr in cidrs
    )
    assert full > REQUEST
    world.put(HandleKey(HANDLE), Handle(dict.fromkeys(cidrs, 1)))
    if by == "a release":
        assert world.client().release(HANDLE) == ()
    else:
        (state,) = (one for one in judged(world) if one.handle_id == HANDLE)
        assert gc_effects.mend_handles(means(world), [state]) == {HANDLE}
    assert HANDLE not in world.handles()


def test_without_another_block_the_error_names_it_and_its_size(world: World) -> None:
    world.pools(pool("a", str(FIRST4), blockSize=20))
    block = long_block(world, str(FIRST4), NEARLY)
    with pytest.raises(NoFreeAddresses, match=rf"block {FIRST4} has 157\d{{4}} bytes"):
        world.client().assign("h", plain_pod("p"), V4)
    free = block.address(block.unallocated[-1])
    with pytest.raises(NoFreeAddresses, match=rf"{free} is not given: block {FIRST4} has 157"):
        world.client().assign("h", plain_pod("p"), AddressRequest(addresses=(free,)))
    assert world.block(FIRST4) == block


def test_a_full_block_gives_again_once_enough_was_released(world: World) -> None:
    world.pools(pool("a", str(FIRST4), blockSize=20))
    long_block(world, str(FIRST4), FULL + 1000)
    client = world.client()
    with pytest.raises(NoFreeAddresses):
        client.assign("h", plain_pod("p"), V4)
    for number in range(3):
        assert client.release(f"k8s-pod-network.{number:064x}") == ()  # no record of it: a handle
        world.put(HandleKey(f"k8s-pod-network.{number:064x}"), Handle({FIRST4: 1}))
        assert client.release(f"k8s-pod-network.{number:064x}") == (FIRST4[number],)
    (got,) = client.assign("h", plain_pod("p"), V4)
    assert got.block == FIRST4


def test_a_dead_sandbox_s_address_is_taken_over_in_a_full_block(world: World) -> None:
    """The block grows by nothing: the same pod had it."""
    world.pools(pool("a", str(FIRST4), blockSize=20))
    block = long_block(world, str(FIRST4), 1_400_000, handle="old")
    mine = dict(block.attributes[0].active)
    (got,) = world.client().assign(
        "new",
        mine | {"container-id": "c"},
        AddressRequest(addresses=(ip_address("10.0.0.0"),)),
        previous_owner_gone=lambda _: True,
    )
    assert (got.handle_id, got.block) == ("new", FIRST4)


def test_a_vm_in_two_long_blocks_is_claimed_promoted_and_freed(world: World) -> None:
    """No request could have both: owners and release go block by block."""
    two_families(world)
    for text in (str(FIRST4), str(FIRST6)):
        long_block(world, text, 1_200_000, handle=VM)
    client = world.client()
    client.claim_vm(VM, vm_pod("src"), BOTH, previous_owner_gone=lambda _: True)
    target = vm_pod("dst", node="n2", vmim_uid="m-1")
    assert len(client.claim_vm_target(VM, target)) == 2
    assert client.promote(VM, target)
    assert {one.active["pod"] for one in client.by_handle(VM)} == {"dst"}
    client.disown_vm(VM, vm_pod("src"), vm_deleting=True)
    assert client.disown_vm(VM, target, vm_deleting=True)
    assert client.by_handle(VM) == ()
    assert VM not in world.handles()


def test_what_is_refused_all_the_same_is_named_with_its_size(world: World) -> None:
    block = long_block(world, str(FIRST4), NEARLY)
    more = {"pod": "x" * 1000}
    wider: dict[int, tuple[Owner, Owner]] = {
        n: ({**block.attributes[n].active, **more}, {}) for n in range(20)
    }
    record = world.store.get(BlockKey(FIRST4))
    with pytest.raises(InvalidInput, match=r"too large.*10\.0\.0\.0-20 has 15\d{5} bytes"):
        world.store.update(record.key, set_owners(block, wider), record.revision)


def test_a_handle_of_very_many_blocks_is_released(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/16", blockSize=32))
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    assert len(set(world.client().release(HANDLE))) == MANY
    assert (world.blocks(), world.handles()) == ([], {})


def test_each_part_of_a_release_leaves_true_counts_and_a_repeat_finishes(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/16", blockSize=32))
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    for part in range(1, 4):
        store = FaultyStore(world.store, [Fault.KILLED_AFTER])
        with pytest.raises(Killed):
            world.client(store=store).release(HANDLE)
        world.audit()
        (state,) = handle_states(read_inventory(world.store, world.now()))
        assert state.counted == state.held
        assert 0 < len(state.held) <= MANY - 40 * part
    world.client().release(HANDLE)
    assert (world.blocks(), world.handles()) == ([], {})


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE_AFTER, Fault.CONFLICT])
@pytest.mark.parametrize("at", [0, 1, 6])
def test_a_part_whose_answer_is_lost_or_that_met_a_conflict(
    world: World, fault: Fault, at: int
) -> None:
    world.pools(pool("a", "10.0.0.0/16", blockSize=32))
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    store = FaultyStore(world.store, [*[Fault.NONE] * at, fault])
    assert len(set(world.client(store=store).release(HANDLE))) == MANY
    assert (world.blocks(), world.handles()) == ([], {})


def test_a_vm_of_very_many_blocks_lives_its_life(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/16", blockSize=32))
    scattered(world, VM, vm_pod("src"), "10.0.0.0/16", MANY)
    client, target = world.client(), vm_pod("dst", node="n2", vmim_uid="m-1")
    assert len(client.claim_vm(VM, vm_pod("src"), V4)) == MANY
    assert len(client.claim_vm_target(VM, target)) == MANY
    assert client.promote(VM, target)
    assert {one.active["pod"] for one in client.by_handle(VM)} == {"dst"}
    assert not client.disown_vm(VM, vm_pod("src"), vm_deleting=False)
    assert client.disown_vm(VM, target, vm_deleting=True)
    assert (world.blocks(), world.handles()) == ([], {})


def test_the_collector_frees_a_vm_of_very_many_blocks(world: World) -> None:
    scattered(world, VM, vm_pod("src"), "10.0.0.0/16", MANY)
    ((judged,), _) = read_vm_handles(world.store)
    assert isinstance(judged, VMHandle)
    assert gc_effects.release_vm(means(world), judged)
    assert (world.blocks(), world.handles()) == ([], {})


def test_the_collector_frees_a_pod_s_very_many_addresses_and_says_which(world: World) -> None:
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    pieces = [one.piece for one in read_inventory(world.store, world.now()).allocated]
    kept = pieces.pop(7)
    freed = gc_effects.release(means(world), HANDLE, pieces)
    assert freed == {one.address for one in pieces}
    assert world.handles() == {HANDLE: Handle({kept.cidr: 1})}
    world.audit()


@pytest.mark.parametrize("record", ["none", "too little", "too much", "other blocks"])
def test_the_collector_mends_a_record_of_very_many_blocks(world: World, record: str) -> None:
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    true = world.handles()[HANDLE]
    if record == "none":
        world.store.delete(HandleKey(HANDLE))
    else:
        others = [ip_network((int(ip_address("10.9.0.0")) + n, 32)) for n in range(MANY)]
        wrong = {
            "too little": dict(list(true.blocks.items())[:7]) | {others[0]: 1},
            "too much": dict.fromkeys(true.blocks, 2),
            "other blocks": dict.fromkeys(others, 1),
        }
        world.put(HandleKey(HANDLE), Handle(wrong[record]))
    (state,) = judged(world)
    assert gc_effects.mend_handles(means(world), [state]) == {HANDLE}
    assert world.handles() == {HANDLE: true}
    world.audit()


def test_a_record_that_one_commit_mends_is_mended_beside_one_that_needs_several(
    world: World,
) -> None:
    scattered(world, HANDLE, plain_pod("many"), "10.0.0.0/16", MANY)
    scattered(world, "few", plain_pod("few"), "10.8.0.0/16", 2)
    for handle_id in (HANDLE, "few"):
        world.store.delete(HandleKey(handle_id))
    states = judged(world)
    assert gc_effects.mend_handles(means(world), states) == {HANDLE, "few"}
    world.audit()


def judged(world: World) -> list[HandleState]:
    return list(handle_states(read_inventory(world.store, world.now())))
