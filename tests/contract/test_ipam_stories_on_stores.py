"""Stories of addresses that have to end the same over every datastore, real ones included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from ipam.client import AddressRequest, Allocation, IPAMClient, Retry
from libtortie.datastore.open import open_datastore
from libtortie.datastore.port import Datastore
from libtortie.errors import NoFreeAddresses, OwnerMismatch, TortieError, Unavailable
from libtortie.model.ipam import AffinityState, BlockAffinity
from libtortie.model.keys import AffinityKey, Key, Kind, ResourceKey
from tests.contract.datastore_backends import BACKENDS
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_stores import STORES, Where
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod
from tests.unit.ipam.test_ipam_together import at_once

V4 = AddressRequest()
V6 = AddressRequest(ipv4=False, ipv6=True)
BOTH = AddressRequest(ipv6=True)
SIX = AddressRequest(addresses=(ip_address("10.0.0.6"),))
VM = "k8s-pod-network.vmi.shop.db"
PATIENT = Retry(attempts=500, seconds=60.0)


@pytest.fixture(params=list(BACKENDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with BACKENDS[request.param].open(request) as harness:
        yield World(harness.store)


@pytest.fixture(params=list(STORES))
def where(request: pytest.FixtureRequest) -> Iterator[Where]:
    """A store that processes share."""
    with STORES[request.param](request) as found:
        yield found


# -- claims -------------------------------------------------------------------------------------


class Clinging(FaultyStore):
    """No affinity can be deleted: whoever loses a claim cannot take his back."""

    def delete(self, key: Key, revision: str | None = None) -> None:
        if isinstance(key, AffinityKey):
            raise Unavailable("injected: the claim clings")
        super().delete(key, revision)


def test_of_two_that_claim_the_only_block_at_once_one_has_it(where: Where) -> None:
    """And the other never allocates from it, whatever is left of his claim."""
    with ExitStack() as stack:

        def opened() -> Datastore:
            return stack.enter_context(closing(open_datastore(where.config(""))))

        world = World(opened()).config(strict_affinity=True)
        stores = [Clinging(opened()) for _ in range(2)]
        clients = [world.client(f"n{i}", stores[i], retry=PATIENT) for i in range(2)]
        for turn in range(6):
            cidr = ip_network(f"10.0.{turn}.0/30")
            world.pools(pool(f"p{turn}", str(cidr), blockSize=30))
            want = AddressRequest(ipv4_pools=(f"p{turn}",))

            def add(i: int, name: str, want: AddressRequest = want) -> object:
                return clients[i].assign(name, plain_pod(name, node=f"n{i}"), want)

            first = [f"h{turn}-0", f"h{turn}-1"]
            results = at_once([partial(add, 0, first[0]), partial(add, 1, first[1])])
            (winner,) = [i for i in range(2) if not isinstance(results[i], TortieError)]
            assert isinstance(results[1 - winner], NoFreeAddresses)
            confirmed = [
                key.node
                for key, claim in world.affinities().items()
                if key.cidr == cidr and claim.state is AffinityState.CONFIRMED
            ]
            assert confirmed == [world.block(cidr).node] == [f"n{winner}"]
            with pytest.raises(NoFreeAddresses):
                add(1 - winner, f"late{turn}")
            add(winner, f"next{turn}")
            assert len(world.block(cidr).unallocated) == 2


@pytest.mark.parametrize("state", list(AffinityState))
def test_an_affinity_that_lies_gives_nothing(world: World, state: AffinityState) -> None:
    """What the loser of a claim could not take back, whatever it came to."""
    cidr = ip_network("10.0.0.0/30")
    world.pools(pool("a", str(cidr), blockSize=30)).config(strict_affinity=True)
    world.client("n2").assign("theirs", plain_pod("theirs", node="n2"), V4)
    world.put(AffinityKey("n1", cidr), BlockAffinity(state))
    client = world.client("n1")
    for number in range(2):
        with pytest.raises(NoFreeAddresses):
            client.assign(f"h{number}", plain_pod(f"p{number}"), V4)
    assert world.allocated() == {"theirs": 1}
    world.pools(pool("b", "10.1.0.0/30", blockSize=30))
    client.assign("h", plain_pod("p"), V4)
    assert [str(key.cidr) for key in world.affinities("n1")] == ["10.1.0.0/30"]
    assert AffinityKey("n2", cidr) in world.affinities()
    world.audit()


def test_a_release_that_stopped_half_way_is_in_nobodys_way(world: World) -> None:
    """An affinity that is being deleted, without its block: another node takes the range."""
    cidr = ip_network("10.0.0.0/30")
    world.pools(pool("a", "10.0.0.0/30", blockSize=30))
    world.put(AffinityKey("n1", cidr), BlockAffinity(AffinityState.PENDING_DELETION))
    (got,) = world.client("n2").assign("h", plain_pod("p", node="n2"), V4)
    assert (got.block, world.block(cidr).node) == (cidr, "n2")
    world.pools(pool("b", "10.1.0.0/30", blockSize=30)).config(strict_affinity=True)
    (other,) = world.client("n1").assign("x", plain_pod("x"), V4)
    assert set(world.affinities()) == {AffinityKey("n2", cidr), AffinityKey("n1", other.block)}
    world.audit()


# -- pools --------------------------------------------------------------------------------------


def delete_pool(world: World) -> None:
    world.store.delete(ResourceKey(Kind.IP_POOL, "a"))


def disable_pool(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/24", blockSize=29, disabled=True))


@pytest.mark.parametrize("change", [delete_pool, disable_pool])
@pytest.mark.parametrize("warm", [False, True])
def test_a_replaced_pool_gives_nothing_and_takes_nothing_away(
    world: World, change: Callable[[World], None], warm: bool
) -> None:
    """A VM keeps its address and migrates with it; what runs keeps its own."""
    world.pools(pool("a", "10.0.0.0/24", blockSize=29))
    client = world.client("n1")
    (ran,) = client.assign("runs", plain_pod("runs"), V4)
    (vms,) = client.claim_vm(VM, vm_pod("src"), V4)
    change(world)
    world.pools(pool("b", "10.1.0.0/24", blockSize=29))
    client = client if warm else world.client("n1")
    (new,) = client.assign("new", plain_pod("new"), V4)
    assert new.address in ip_network("10.1.0.0/24")
    assert client.by_handle("runs") == (ran,)
    assert client.assign("runs", plain_pod("runs"), V4) == (ran,)
    target = vm_pod("dst", node="n2", vmim_uid="m-1")
    (moved,) = world.client("n2").claim_vm_target(VM, target)
    assert (moved.address, moved.alternate["pod"]) == (vms.address, "dst")
    assert world.client("n2").promote(VM, target)
    client.disown_vm(VM, vm_pod("src"), vm_deleting=False)
    assert client.by_handle(VM)[0].active["pod"] == "dst"
    assert client.release("runs") == (ran.address,)
    world.audit()


# -- both families or none ----------------------------------------------------------------------


@pytest.mark.parametrize("full", [V4, V6])
def test_a_family_that_is_used_up_leaves_the_other_as_it_was(
    world: World, full: AddressRequest
) -> None:
    world.pools(pool("a", "10.0.0.0/30", blockSize=30), pool("b", "fd00::/126", blockSize=126))
    client = world.client()
    client.assign("warm", plain_pod("w"), BOTH)
    for number in range(3):
        client.assign(f"full-{number}", plain_pod(f"p{number}"), full)

    def state() -> object:
        free = [block.unallocated for block in world.blocks()]
        return free, set(world.handles()), set(world.affinities())

    before = state()
    for assign in (client.assign, client.claim_vm):
        with pytest.raises(NoFreeAddresses):
            assign(VM, vm_pod("p"), BOTH)
        assert state() == before
    assert client.release("full-0")
    assert len(client.claim_vm(VM, vm_pod("p"), BOTH)) == 2
    world.audit()


# -- one address that several ask for -----------------------------------------------------------


def test_a_fixed_address_has_one_owner_whoever_asks(world: World) -> None:
    world.pools(pool("a", "10.0.0.0/29", blockSize=29))
    here, there = world.client("n1"), world.client("n2")
    (mine,) = here.claim_vm(VM, vm_pod("src"), SIX)
    others: list[tuple[IPAMClient, str, dict[str, str]]] = [
        (there, "net.c2", plain_pod("web", node="n2")),
        (here, "net.c3", plain_pod("src")),
    ]
    for client, handle, owner in others:
        with pytest.raises(OwnerMismatch, match=r"10\.0\.0\.6 is not free"):
            client.assign(handle, owner, SIX, previous_owner_gone=lambda _: True)
    for namespace, uid in (("bank", "vm-2"), ("bank", "vm-1")):
        with pytest.raises(OwnerMismatch, match=r"10\.0\.0\.6 is not free"):
            there.claim_vm(f"k8s-pod-network.vmi.{namespace}.db", vm_pod("x", vm_uid=uid), SIX)
    (moved,) = there.claim_vm_target(VM, vm_pod("dst", node="n2", vmim_uid="m-1"))
    assert moved.address == mine.address
    assert world.allocated() == {VM: 1}
    world.audit()


def test_a_fixed_address_of_a_dead_sandbox_has_one_owner_before_and_after(world: World) -> None:
    """Its pod's successor takes it over on proof alone, in one step."""
    world.pools(pool("a", "10.0.0.0/29", blockSize=29))
    client = world.client("n2")
    old = plain_pod("db-0", container="old", uid="u-1")
    new = plain_pod("db-0", container="new", uid="u-2", node="n2")
    world.client("n1").assign("net.old", old, SIX)
    with pytest.raises(OwnerMismatch, match=r"net\.old \(pod shop/db-0 on node n1\)"):
        client.assign("net.new", new, SIX, previous_owner_gone=lambda _: False)
    assert world.allocated() == {"net.old": 1}
    got: tuple[Allocation, ...] = client.assign(
        "net.new", new, SIX, previous_owner_gone=lambda owner: owner == old
    )
    assert [one.active for one in got] == [new]
    assert world.allocated() == {"net.new": 1}
    assert set(world.handles()) == {"net.new"}
    assert client.release("net.old") == ()
    world.audit()
