"""What allocation does where a stored record cannot be read, or says two things."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network

import pytest

from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import (
    Malformed,
    NoFreeAddresses,
)
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import (
    AffinityKey,
    BlockKey,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    path_of,
)
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod
from tests.fakes.small_world import small, take

V4 = AddressRequest()
V6 = AddressRequest(ipv4=False, ipv6=True)
BOTH = AddressRequest(ipv6=True)


def spoil(world: World, key: Key) -> None:
    """Make a stored record one that cannot be read."""
    assert isinstance(world.store, MemoryDatastore)
    world.store.put_raw(path_of(key), b"{")


def test_what_an_unreadable_reservation_keeps_is_not_given_away() -> None:
    world = small()
    (had,) = world.client().assign("had", plain_pod("had"), V4)
    spoil(world, ResourceKey(Kind.IP_RESERVATION, "r"))
    with pytest.raises(Malformed, match="ipreservations/r"):
        world.client().assign("y", plain_pod("y"), V4)
    assert world.allocated() == {"had": 1}
    assert world.client().assign("had", plain_pod("had"), V4) == (had,), "nothing to allocate"


def test_an_unreadable_pool_gives_nothing_and_others_do() -> None:
    world = small()
    spoil(world, ResourceKey(Kind.IP_POOL, "0"))
    assert len(take(world, "n1", 2)) == 2
    world.audit()


@pytest.mark.parametrize("selector", ["", "all()"])
@pytest.mark.parametrize("warm", [False, True])
def test_an_unreadable_node_is_no_trouble_where_no_pool_chooses_by_labels(
    selector: str, warm: bool
) -> None:
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=30, nodeSelector=selector))
    client = world.client()
    if warm:
        client.assign("before", plain_pod("before"), V4)
    spoil(world, ResourceKey(Kind.NODE, "n1"))
    for number in range(6):
        client.assign(f"h{number}", plain_pod(f"h{number}"), V4)
    for number in range(6):
        assert client.release(f"h{number}")
    world.audit()


def test_an_unreadable_node_gets_nothing_where_a_pool_chooses_by_labels() -> None:
    """It might have to be this one, or must not be: the other would be a guess."""
    world = World().pools(
        pool("a", "10.0.0.0/28", blockSize=30, nodeSelector="zone == 'a'"),
        pool("b", "10.1.0.0/28", blockSize=30),
        pool("c", "fd00::/120", blockSize=122),
        pool("d", "10.2.0.0/28", blockSize=30, nodeSelector="zone == 'a'", disabled=True),
    )
    spoil(world, ResourceKey(Kind.NODE, "n1"))
    client = world.client()
    with pytest.raises(Malformed, match=r"nodes/n1: .* \(nodeSelector\): a$"):
        client.assign("h", plain_pod("h"), V4)
    assert world.allocated() == {}
    assert len(client.assign("six", plain_pod("six"), V6)) == 1, "no pool of the family chooses"
    asked = AddressRequest(ipv4_pools=("a",))
    assert len(client.assign("asked", plain_pod("asked"), asked)) == 1, "that ignores selectors"
    explicit = AddressRequest(addresses=(ip_address("10.0.0.9"),))
    assert len(client.assign("explicit", plain_pod("explicit"), explicit)) == 1


def test_an_unreadable_node_s_empty_block_is_kept_while_its_pool_may_choose_it() -> None:
    world = World().pools(
        pool("a", "10.0.0.0/30", blockSize=30, nodeSelector="zone == 'a'"),
        pool("b", "10.1.0.0/30", blockSize=30),
    )
    client = world.client()
    world.resource(Kind.NODE, "n1", {})
    asked = AddressRequest(ipv4_pools=("a",))
    labelled = world.client(node_labels={"zone": "a"})
    labelled.assign("h", plain_pod("h"), asked)
    spoil(world, ResourceKey(Kind.NODE, "n1"))
    labelled.release("h")
    client.assign("other", plain_pod("other"), AddressRequest(ipv4_pools=("b",)))
    assert AffinityKey("n1", ip_network("10.0.0.0/30")) in world.affinities("n1")


def test_an_unreadable_block_is_left_alone_and_named() -> None:
    world = small().pools(pool("b", "10.1.0.0/30", blockSize=30))
    bad = BlockKey(ip_network("10.1.0.0/30"))
    spoil(world, bad)
    assert len(take(world, "n1", 8)) == 8
    with pytest.raises(NoFreeAddresses, match=r"not readable: \S*10\.1\.0\.0-30"):
        take(world, "n2", 8)
    world.config(max_blocks_per_host=2)
    with pytest.raises(NoFreeAddresses, match=r"not readable: \S*10\.1\.0\.0-30"):
        take(world, "n1", 9)
    with pytest.raises(Malformed):
        world.store.get(bad)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("pool_is_gone", [True, False])
def test_a_node_goes_on_while_a_block_of_its_own_cannot_be_read(
    warm: bool, pool_is_gone: bool
) -> None:
    world = World().pools(
        pool("a", "10.0.0.0/24", blockSize=28), pool("b", "10.1.0.0/24", blockSize=28)
    )
    client = world.client()
    (had,) = client.assign("had", plain_pod("had"), V4)
    spoil(world, BlockKey(had.block))
    if pool_is_gone:
        world.store.delete(ResourceKey(Kind.IP_POOL, "a"))
    client = client if warm else world.client()
    (got,) = client.assign("new", plain_pod("new"), V4)
    assert got.block != had.block
    assert client.release("new") == (got.address,)
    assert client.give_up_stranded() == ()
    for call in (
        lambda: client.assign("had", plain_pod("had"), V4),
        lambda: client.release("had"),
        lambda: client.by_handle("had"),
    ):
        with pytest.raises(Malformed, match=path_of(BlockKey(had.block))):
            call()
    assert AffinityKey("n1", had.block) in world.affinities("n1"), "it may be repaired"


@pytest.mark.parametrize("warm", [True, False])
def test_an_affinity_that_cannot_be_read_is_only_an_index(warm: bool) -> None:
    """Of a block that is there, and after it is gone: its range is then not claimed again."""
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=29))
    client, handle = world.client(), "net.vmi.shop.db"
    (vm,) = client.claim_vm(handle, vm_pod("p1"), V4)
    (had,) = client.assign("had", plain_pod("had"), V4)
    spoil(world, AffinityKey("n1", vm.block))
    client = client if warm else world.client()
    assert client.assign("had", plain_pod("had"), V4) == (had,)
    (again,) = client.claim_vm(handle, vm_pod("p2"), V4)
    assert (again.address, again.active["pod"]) == (vm.address, "p2")
    got = {client.assign(f"h{n}", plain_pod(f"h{n}"), V4)[0].address for n in range(14)}
    assert len(got) == 14, "the whole pool"
    for name in world.handles():
        client.release(name)
    for block in world.blocks():
        world.store.delete(BlockKey(block.cidr))
    client = client if warm else world.client()
    assert len({client.assign(f"h{n}", plain_pod(f"h{n}"), V4)[0].address for n in range(8)}) == 8
    assert vm.block not in {block.cidr for block in world.blocks()}


def test_an_empty_block_is_taken_over_from_an_affinity_that_cannot_be_read() -> None:
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30))
    other = world.client("n2")
    (had,) = other.assign("had", plain_pod("had", node="n2"), V4)
    other.release("had")
    spoil(world, AffinityKey("n2", had.block))
    world.later(120)
    (got,) = world.client().assign("new", plain_pod("new"), V4)
    assert world.block(got.block).node == "n1"


def test_a_vm_keeps_what_cannot_be_read() -> None:
    """No call takes it for a VM without that address, on whatever node."""
    handle, both = "net.vmi.shop.db", BOTH
    world = World().pools(
        pool("a", "10.0.0.0/24", blockSize=28), pool("b", "fd00::/112", blockSize=124)
    )
    _, v6 = world.client().claim_vm(handle, vm_pod("p1"), both)
    stored = world.handles()[handle]
    spoil(world, BlockKey(v6.block))
    target = vm_pod("p2", node="n2", vmim_uid="m")
    calls: list[Callable[[IPAMClient], object]] = [
        lambda client: client.claim_vm(handle, vm_pod("p1"), both),
        lambda client: client.claim_vm(handle, vm_pod("p1"), V4),
        lambda client: client.claim_vm_target(handle, target),
        lambda client: client.promote(handle, target),
        lambda client: client.disown_vm(handle, vm_pod("p1"), vm_deleting=True),
        lambda client: client.release(handle),
    ]
    for number, node in enumerate(("n1", "n2")):
        client = world.client(node)
        for call in calls:
            with pytest.raises(Malformed, match="fd00"):
                call(client)
        assert len(client.assign(f"h{number}", plain_pod(f"p{number}", node=node), both)) == 2
    assert world.handles()[handle] == stored


def test_an_unreadable_block_may_hold_an_address_of_no_pool() -> None:
    world = small()
    client = world.client()
    (got,) = client.assign("h", plain_pod("p"), V4)
    spoil(world, BlockKey(ip_network("10.1.0.0/30")))
    spoil(world, ResourceKey(Kind.IP_POOL, "0"))
    assert client.owner_of(got.address) == got
    with pytest.raises(Malformed, match=r"10\.1\.0\.0-30"):
        client.owner_of(ip_address("10.1.0.1"))


def test_seats_are_not_told_while_a_block_cannot_be_read() -> None:
    world = small()
    spoil(world, BlockKey(ip_network("10.1.0.0/30")))
    with pytest.raises(Malformed, match=r"10\.1\.0\.0-30"):
        world.client().seats_of("c1")


def test_configuration_has_two_places_and_one_meaning() -> None:
    world = World()
    client = world.client()
    assert client.config() == IPAMConfig()
    world.resource(Kind.IPAM_CONFIGURATION, "default", {"strictAffinity": True})
    assert client.config() == IPAMConfig(strict_affinity=True)
    world.resource(
        Kind.IPAM_CONFIGURATION,
        "default",
        {"maxBlocksPerHost": 3, "kubeVirtVMAddressPersistence": "Disabled"},
    )
    assert client.config().max_blocks_per_host == 3
    world.config(max_blocks_per_host=7)
    assert client.config() == IPAMConfig(
        max_blocks_per_host=7, kubevirt_persistence=Persistence.DISABLED
    )
    world.resource(Kind.IPAM_CONFIGURATION, "default", {})
    assert client.config().kubevirt_persistence is Persistence.ENABLED
    world.config(kubevirt_persistence=Persistence.DISABLED)
    assert client.config().kubevirt_persistence is Persistence.DISABLED


@pytest.mark.parametrize("key", [IPAMConfigKey(), ResourceKey(Kind.IPAM_CONFIGURATION, "default")])
def test_unreadable_configuration_is_an_error(key: IPAMConfigKey | ResourceKey) -> None:
    store = MemoryDatastore()
    world = World(store).pools(pool("a", "10.0.0.0/24"))
    store.put_raw(path_of(key), b"{broken")
    with pytest.raises(Malformed):
        world.client().config()
    with pytest.raises(Malformed):
        world.client().assign("h", plain_pod("p"), V4)
    assert world.blocks() == []
