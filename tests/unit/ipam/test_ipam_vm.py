"""A VM's addresses through its life: start, stop, migrate, delete, in any order."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from ipam.client import AddressRequest, Allocation
from ipam.ownership import same_pod
from libtortie.errors import InvalidInput, MigrationRefused, OwnerMismatch
from libtortie.model.ipam import Owner, Persistence
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

HANDLE = "k8s-pod-network.vmi.shop.db"
BOTH = AddressRequest(ipv6=True)
SOURCE = vm_pod("src", node="n1")
TARGET = vm_pod("dst", node="n2", vmim_uid="m-1")
STOPPED = {"namespace": "shop", "node": "n1", "vmi-name": "db", "vm-uid": "vm-1"}


def running() -> World:
    """A dual-stack VM that runs in SOURCE on n1."""
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    world.client("n1").claim_vm(HANDLE, SOURCE, BOTH)
    return world


def migrating() -> World:
    world = running()
    world.client("n2").claim_vm_target(HANDLE, TARGET)
    return world


def owners(world: World) -> tuple[Owner, Owner]:
    """The (active, alternate) that every address of the VM agrees on."""
    found = world.client().by_handle(HANDLE)
    assert len(found) == 2
    assert len({repr((a.active, a.alternate)) for a in found}) == 1
    world.audit()
    return found[0].active, found[0].alternate


def addresses(found: tuple[Allocation, ...]) -> set[str]:
    return {str(a.address) for a in found}


def test_address_stays_through_stop_start_and_eviction() -> None:
    world = running()
    first = addresses(world.client().by_handle(HANDLE))
    assert not world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert owners(world) == (STOPPED, {})
    again = vm_pod("again", node="n3", vmi_uid="vmi-2")
    assert addresses(world.client("n3").claim_vm(HANDLE, again, BOTH)) == first
    assert owners(world) == (again, {})
    evicted = vm_pod("evicted", node="n2", vmi_uid="vmi-2")
    assert addresses(world.client("n2").claim_vm(HANDLE, evicted, BOTH)) == first
    world.client("n3").disown_vm(HANDLE, again, vm_deleting=False)
    assert owners(world) == (evicted, {})


def test_request_of_a_known_vm_changes_nothing() -> None:
    world = running()
    had = world.client().by_handle(HANDLE)
    store = FaultyStore(world.store)
    client = world.client("n1", store)
    one_family = AddressRequest(ipv4_pools=("no such pool",))
    assert client.claim_vm(HANDLE, SOURCE, one_family) == had
    assert store.commits == []


def test_vm_keeps_its_addresses_when_its_pools_are_disabled_or_gone() -> None:
    world = running()
    had = addresses(world.client().by_handle(HANDLE))
    world.pools(pool("a", "10.0.0.0/24", disabled=True), pool("b", "fd00::/64", disabled=True))
    assert addresses(world.client("n2").claim_vm_target(HANDLE, TARGET)) == had
    assert world.client("n2").promote(HANDLE, TARGET)
    restarted = vm_pod("again", vmi_uid="vmi-2")
    assert addresses(world.client().claim_vm(HANDLE, restarted, BOTH)) == had
    assert world.client().owner_of(ip_address(min(had))) is not None
    assert world.client().disown_vm(HANDLE, restarted, vm_deleting=True) is False
    assert world.client().disown_vm(HANDLE, SOURCE, vm_deleting=True) is True
    assert world.allocated() == {}


def test_migration_moves_the_owner_and_the_sources_del_frees_nothing() -> None:
    world = migrating()
    assert owners(world) == (SOURCE, TARGET)
    assert world.client("n2").promote(HANDLE, TARGET)
    former = owners(world)
    assert former == (TARGET, SOURCE)
    assert world.client("n2").promote(HANDLE, TARGET)
    assert owners(world) == former
    assert not world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert owners(world) == (TARGET, {})


def test_sources_del_before_promotion() -> None:
    world = migrating()
    world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert owners(world) == (STOPPED, TARGET)
    assert world.client("n2").promote(HANDLE, TARGET)
    assert owners(world) == (TARGET, {})


def test_failed_migration_leaves_the_source_the_only_owner() -> None:
    world = migrating()
    world.client("n2").disown_vm(HANDLE, TARGET, vm_deleting=False)
    assert owners(world) == (SOURCE, {})
    with pytest.raises(OwnerMismatch, match="alternate owner is empty"):
        world.client("n2").promote(HANDLE, TARGET)


def test_cancelled_target_that_lingers_beside_the_next() -> None:
    world = migrating()
    second = vm_pod("dst2", node="n3", vmim_uid="m-2")
    world.client("n3").claim_vm_target(HANDLE, second)
    assert owners(world) == (SOURCE, second)
    with pytest.raises(OwnerMismatch, match="alternate owner is pod shop/dst2"):
        world.client("n2").promote(HANDLE, TARGET)
    world.client("n3").promote(HANDLE, second)
    world.client("n2").disown_vm(HANDLE, TARGET, vm_deleting=False)
    assert same_pod(owners(world)[0], second)


def test_migrations_in_a_row_with_the_first_sources_events_last() -> None:
    world = migrating()
    third = vm_pod("third", node="n3", vmim_uid="m-2")
    world.client("n2").promote(HANDLE, TARGET)
    world.client("n3").claim_vm_target(HANDLE, third)
    world.client("n3").promote(HANDLE, third)
    with pytest.raises(OwnerMismatch):
        world.client("n2").promote(HANDLE, TARGET)
    world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert same_pod(owners(world)[0], third)
    world.client("n2").disown_vm(HANDLE, TARGET, vm_deleting=False)
    assert owners(world) == (third, {})


@pytest.mark.parametrize("order", [(SOURCE, TARGET), (TARGET, SOURCE)])
@pytest.mark.parametrize("promoted", [False, True])
def test_deleted_vm_is_freed_by_the_last_del(order: tuple[Owner, Owner], promoted: bool) -> None:
    world = migrating()
    if promoted:
        world.client("n2").promote(HANDLE, TARGET)
    assert not world.client().disown_vm(HANDLE, order[0], vm_deleting=True)
    assert len(world.client().by_handle(HANDLE)) == 2
    assert world.client().disown_vm(HANDLE, order[1], vm_deleting=True)
    assert world.allocated() == {}
    assert world.handles() == {}
    assert not world.client().disown_vm(HANDLE, order[1], vm_deleting=True)
    world.audit()


def test_stopped_vm_is_freed_by_a_repeated_del_once_it_is_deleted() -> None:
    world = running()
    assert not world.client().disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert world.client().disown_vm(HANDLE, SOURCE, vm_deleting=True)
    assert world.allocated() == {}


def test_late_del_of_an_older_sandbox_takes_nothing() -> None:
    world = running()
    newer = {**SOURCE, "container-id": "newer"}
    world.client().claim_vm(HANDLE, newer, BOTH)
    assert not world.client().disown_vm(HANDLE, SOURCE, vm_deleting=True)
    assert owners(world) == (newer, {})


def test_vm_of_the_same_name_waits_for_the_old_one_to_be_gone() -> None:
    world = running()
    had = addresses(world.client().by_handle(HANDLE))
    reborn = vm_pod("new", node="n2", vmi_uid="vmi-9", vm_uid="vm-9")
    with pytest.raises(OwnerMismatch, match=r"vm-1.*vm-9"):
        world.client("n2").claim_vm(HANDLE, reborn, BOTH)
    with pytest.raises(MigrationRefused, match=r"vm-1.*vm-9"):
        world.client("n2").claim_vm_target(HANDLE, reborn)
    assert owners(world) == (SOURCE, {})
    asked: list[Owner] = []

    def gone(owner: Owner) -> bool:
        asked.append(owner)
        return True

    client = world.client("n2")
    got = client.claim_vm(HANDLE, reborn, BOTH, previous_owner_gone=gone)
    assert addresses(got) == had
    assert asked == [SOURCE]
    assert owners(world) == (reborn, {})
    assert not world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=True)
    world.client("n2").disown_vm(HANDLE, reborn, vm_deleting=False)
    assert not world.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=True)
    assert addresses(world.client().by_handle(HANDLE)) == had


def test_sandbox_of_the_promoted_pod_may_be_made_again() -> None:
    world = migrating()
    world.client("n2").promote(HANDLE, TARGET)
    again = {**TARGET, "container-id": "c2"}
    world.client("n2").claim_vm_target(HANDLE, again)
    assert owners(world) == (again, SOURCE)
    world.client("n2").claim_vm(HANDLE, {**TARGET, "container-id": "c3"}, BOTH)
    assert owners(world)[0]["container-id"] == "c3"


def test_target_without_a_source_is_refused() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"))
    text = f"^migration target pod but no IP allocated to VM handle {HANDLE}: .*restart it$"
    with pytest.raises(MigrationRefused, match=text):
        world.client().claim_vm_target(HANDLE, TARGET)
    with pytest.raises(OwnerMismatch, match="no address is allocated"):
        world.client().promote(HANDLE, TARGET)
    assert not world.client().disown_vm(HANDLE, TARGET, vm_deleting=True)


def test_whether_addresses_persist_was_decided_before() -> None:
    """The API may say Enabled over a datastore that says Disabled: then IPAM must not refuse."""
    world = running().config(kubevirt_persistence=Persistence.DISABLED)
    world.client("n2").claim_vm_target(HANDLE, TARGET)
    assert owners(world) == (SOURCE, TARGET)


def test_fixed_address_of_a_vm() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    want = AddressRequest(addresses=(ip_address("10.0.0.9"), ip_address("fd00::9")))
    got = world.client("n1").claim_vm(HANDLE, SOURCE, want)
    assert addresses(got) == {"10.0.0.9", "fd00::9"}
    other = "k8s-pod-network.vmi.bank.db"
    with pytest.raises(OwnerMismatch, match=HANDLE):
        world.client("n2").claim_vm(other, vm_pod("x", vm_uid="vm-7"), want)
    with pytest.raises(OwnerMismatch, match=HANDLE):
        world.client("n2").assign(
            "c", plain_pod("src"), want, previous_owner_gone=lambda owner: True
        )
    assert addresses(world.client("n2").claim_vm_target(HANDLE, TARGET)) == addresses(got)
    changed = AddressRequest(addresses=(ip_address("10.0.0.10"),))
    with pytest.raises(InvalidInput, match=r"holds 10\.0\.0\.9"):
        world.client("n1").claim_vm(HANDLE, SOURCE, changed)
    world.audit()


def test_vm_without_a_vm_object() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"))
    bare = vm_pod("src", vm_uid="")
    world.client().claim_vm(HANDLE, bare, AddressRequest())
    world.client().disown_vm(HANDLE, bare, vm_deleting=False)
    (kept,) = world.client().by_handle(HANDLE)
    assert kept.active == {"namespace": "shop", "node": "n1", "vmi-name": "db", "vmi-uid": "vmi-1"}
    assert world.client().disown_vm(HANDLE, bare, vm_deleting=True)
    assert world.allocated() == {}
