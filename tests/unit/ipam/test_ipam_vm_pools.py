"""A VM's addresses while pools come and go, families are added, and names are long."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

import pytest

from ipam.client import AddressRequest, Allocation, IPAMClient
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Listing
from libtortie.errors import InvalidInput, NoFreeAddresses, TortieError, Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey, Key, Kind, ResourceKey, Scope, path_of
from libtortie.model.names import HANDLE_MAX, vm_handle
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

HANDLE = "k8s-pod-network.vmi.shop.db"
V4, BOTH = AddressRequest(), AddressRequest(ipv6=True)
SOURCE = vm_pod("src", node="n1")
TARGET = vm_pod("dst", node="n2", vmim_uid="m-1")
AGAIN = vm_pod("again", node="n3", vmi_uid="vmi-2")


def running(want: AddressRequest = BOTH) -> World:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    world.client("n1").claim_vm(HANDLE, SOURCE, want)
    return world


def addresses(found: tuple[Allocation, ...]) -> set[str]:
    return {str(one.address) for one in found}


def delete_pools(world: World) -> None:
    for name in ("a", "b"):
        world.store.delete(ResourceKey(Kind.IP_POOL, name))


def spoil_pools(world: World) -> None:
    assert isinstance(world.store, MemoryDatastore)
    for name in ("a", "b"):
        world.store.put_raw(path_of(ResourceKey(Kind.IP_POOL, name)), b"{")


POOLS_GO: dict[str, Callable[[World], object]] = {
    "disabled": lambda world: world.pools(
        pool("a", "10.0.0.0/24", disabled=True), pool("b", "fd00::/64", disabled=True)
    ),
    "deleted": delete_pools,
    "for other nodes": lambda world: world.pools(
        pool("a", "10.0.0.0/24", nodeSelector="!all()"),
        pool("b", "fd00::/64", nodeSelector="!all()"),
    ),
    "replaced by another block size": lambda world: world.pools(
        pool("a", "10.0.0.0/24", blockSize=28), pool("b", "fd00::/64", blockSize=124)
    ),
    "unreadable": spoil_pools,
}


@pytest.mark.parametrize("how", POOLS_GO)
def test_without_its_pools_a_vm_lives_on(how: str) -> None:
    """Restart, migration, promotion, DEL: none of them fails, none frees an address by mistake."""
    world = running()
    had = addresses(world.client().by_handle(HANDLE))
    POOLS_GO[how](world)
    assert addresses(world.client("n2").claim_vm_target(HANDLE, TARGET)) == had
    assert world.client("n2").promote(HANDLE, TARGET)
    assert not world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert not world.client("n2").disown_vm(HANDLE, TARGET, vm_deleting=False)
    assert addresses(world.client("n3").claim_vm(HANDLE, AGAIN, BOTH)) == had
    for address in had:
        found = world.client().owner_of(ip_address(address))
        assert found is not None and found.handle_id == HANDLE
    world.client("n1").give_up_stranded()
    assert addresses(world.client().by_handle(HANDLE)) == had
    world.audit()


@pytest.mark.parametrize("how", POOLS_GO)
@pytest.mark.parametrize("first", [SOURCE, TARGET])
def test_without_its_pools_a_deleted_vm_is_freed_by_its_last_pod(how: str, first: object) -> None:
    world = running()
    world.client("n2").claim_vm_target(HANDLE, TARGET)
    POOLS_GO[how](world)
    order = [SOURCE, TARGET] if first is SOURCE else [TARGET, SOURCE]
    assert not world.client().disown_vm(HANDLE, order[0], vm_deleting=True)
    assert len(world.client().by_handle(HANDLE)) == 2
    assert world.client().disown_vm(HANDLE, order[1], vm_deleting=True)
    assert world.allocated() == {}
    assert world.handles() == {}


def test_a_vm_gains_the_family_it_lacks_when_it_starts_again() -> None:
    world = running(V4)
    (had,) = world.client().by_handle(HANDLE)
    world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    got = world.client("n3").claim_vm(HANDLE, AGAIN, BOTH)
    assert [one.address.version for one in got] == [4, 6]
    assert got[0].address == had.address
    assert [one.active for one in got] == [AGAIN, AGAIN]
    assert world.client("n2").claim_vm_target(HANDLE, TARGET)[1].alternate == TARGET


def test_a_vm_keeps_a_family_nobody_asks_for_any_more() -> None:
    world = running(BOTH)
    assert len(world.client().claim_vm(HANDLE, SOURCE, V4)) == 2


def test_a_family_gained_during_a_migration_has_the_target_as_alternate() -> None:
    """The source's sandbox is made anew; then the target is promoted, on both addresses."""
    world = running(V4)
    world.client("n2").claim_vm_target(HANDLE, TARGET)
    newer = {**SOURCE, "container-id": "newer"}
    got = world.client("n1").claim_vm(HANDLE, newer, BOTH)
    assert [one.alternate for one in got] == [TARGET, TARGET]
    assert world.client("n2").promote(HANDLE, TARGET)
    assert [one.active for one in world.client().by_handle(HANDLE)] == [TARGET, TARGET]
    world.audit()


class Refusing(FaultyStore):
    """Lists no IPv6 blocks: the second family errs when the first is decided on."""

    def names(self, scope: Scope) -> tuple[Key, ...]:
        self._err(scope)
        return super().names(scope)

    def list(self, scope: Scope) -> Listing:
        self._err(scope)
        return super().list(scope)

    def _err(self, scope: Scope) -> None:
        if getattr(scope, "version", 4) == 6:
            raise Unavailable("the store is away")


SECOND_FAMILY: dict[str, Callable[[World], tuple[IPAMClient, AddressRequest]]] = {
    "no pool": lambda world: (world.client("n2"), BOTH),
    "unknown pool": lambda world: (
        world.client("n2"),
        AddressRequest(ipv6=True, ipv6_pools=("nope",)),
    ),
    "pool of the wrong family": lambda world: (
        world.client("n2"),
        AddressRequest(ipv6=True, ipv6_pools=("a",)),
    ),
    "explicit, in no pool": lambda world: (
        world.client("n2"),
        AddressRequest(addresses=(ip_address("10.0.0.7"), ip_address("fd00::7"))),
    ),
    "the store fails": lambda world: (
        world.pools(pool("b", "fd00::/64")).client("n2", Refusing(world.store)),
        BOTH,
    ),
}


@pytest.mark.parametrize("vm", [False, True])
@pytest.mark.parametrize("why", SECOND_FAMILY)
def test_when_the_second_family_errs_the_first_is_not_kept(why: str, vm: bool) -> None:
    world = World().pools(pool("a", "10.0.0.0/24"))
    client, want = SECOND_FAMILY[why](world)
    with pytest.raises(TortieError):
        if vm:
            client.claim_vm(HANDLE, SOURCE, want)
        else:
            client.assign("h", plain_pod("p"), want)
    assert world.allocated() == {}
    assert world.handles() == {}
    world.pools(pool("b", "fd00::/64"))
    both = world.client("n2").claim_vm(HANDLE, SOURCE, BOTH)
    assert [one.address.version for one in both] == [4, 6]


def test_explicit_addresses_of_both_families_and_a_change_of_one() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    fixed = AddressRequest(addresses=(ip_address("fd00::9"), ip_address("10.0.0.9")))
    got = world.client("n1").claim_vm(HANDLE, SOURCE, fixed)
    assert [str(one.address) for one in got] == ["10.0.0.9", "fd00::9"]
    assert world.client("n1").claim_vm(HANDLE, SOURCE, fixed) == got
    for text, held in (("10.0.0.10", "10.0.0.9"), ("fd00::a", "fd00::9")):
        changed = AddressRequest(addresses=(ip_address(text),))
        with pytest.raises(
            InvalidInput, match=rf"{text} is asked for, but handle \S* holds {held}"
        ):
            world.client("n3").claim_vm(HANDLE, AGAIN, changed)
    assert world.client().by_handle(HANDLE) == got
    assert addresses(world.client("n2").claim_vm_target(HANDLE, TARGET)) == addresses(got)


def test_an_explicit_address_of_the_family_it_lacks_is_added() -> None:
    world = running(V4)
    want = AddressRequest(addresses=(ip_address("fd00::9"),))
    got = world.client("n1").claim_vm(HANDLE, SOURCE, want)
    assert [one.address.version for one in got] == [4, 6]
    assert str(got[1].address) == "fd00::9"


def test_an_explicit_address_that_is_taken_leaves_the_vm_as_it_was() -> None:
    world = running(V4)
    world.client().assign("x", plain_pod("x"), AddressRequest(addresses=(ip_address("fd00::9"),)))
    had = world.client().by_handle(HANDLE)
    want = AddressRequest(addresses=(had[0].address, ip_address("fd00::9")))
    with pytest.raises(TortieError, match=r"fd00::9 is not free: held by handle x"):
        world.client("n1").claim_vm(HANDLE, SOURCE, want)
    assert world.client().by_handle(HANDLE) == had


def test_one_address_a_family_whatever_the_handle_says() -> None:
    """A handle with a count and no address; one with more than its blocks have."""
    world = running()
    world.client().disown_vm(HANDLE, SOURCE, vm_deleting=True)
    (first, second) = world.blocks()
    for counts in ({first.cidr: 1}, {first.cidr: 1, second.cidr: 1}, {first.cidr: 7}):
        world.put(HandleKey(HANDLE), Handle(blocks=counts))
        for _ in range(2):
            got = world.client("n1").claim_vm(HANDLE, SOURCE, BOTH)
            assert [one.address.version for one in got] == [4, 6]
        world.audit()
        world.client().disown_vm(HANDLE, SOURCE, vm_deleting=True)


def test_names_too_long_for_a_handle() -> None:
    """Calico panics at 109 characters of namespace and name; 63 and 253 are what there may be."""
    space, name = "n" * 63, "v" * 253
    handle = vm_handle("", space, name)
    assert len(handle) <= HANDLE_MAX
    assert handle != vm_handle("", space, "v" * 252)
    world = World().pools(pool("a", "10.0.0.0/24"))
    owner = {**SOURCE, "namespace": space, "vmi-name": name}
    (got,) = world.client("n1").claim_vm(handle, owner, V4)
    target = {**TARGET, "namespace": space, "vmi-name": name}
    world.client("n2").claim_vm_target(handle, target)
    assert world.client("n2").promote(handle, target)
    world.client("n1").disown_vm(handle, owner, vm_deleting=False)
    assert world.client().by_handle(handle)[0].address == got.address
    assert world.client("n2").disown_vm(handle, target, vm_deleting=True)
    assert world.allocated() == {}


def test_a_full_pool_does_not_keep_a_vm_from_its_address() -> None:
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30))
    (had,) = world.client("n1").claim_vm(HANDLE, SOURCE, V4)
    for number in range(3):
        world.client("n1").assign(f"h{number}", plain_pod(f"p{number}"), V4)
    with pytest.raises(NoFreeAddresses):
        world.client("n1").assign("more", plain_pod("more"), V4)
    assert world.client("n3").claim_vm(HANDLE, AGAIN, V4)[0].address == had.address


def test_strict_affinity_does_not_keep_a_vm_from_its_address() -> None:
    """It is the VM's on every node; only new addresses are bound to the node's own blocks."""
    world = running(V4).config(strict_affinity=True)
    (had,) = world.client().by_handle(HANDLE)
    assert addresses(world.client("n2").claim_vm_target(HANDLE, TARGET)) == {str(had.address)}
    world.client("n2").promote(HANDLE, TARGET)
    world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    (got,) = world.client("n3").claim_vm(HANDLE, AGAIN, V4)
    assert got.address == had.address
    (block,) = world.blocks()
    assert block.node == "n1"
    world.client("n3").assign("c", plain_pod("p"), V4)
    assert {b.node for b in world.blocks()} == {"n1", "n3"}
