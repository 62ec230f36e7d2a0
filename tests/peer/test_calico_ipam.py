"""Our IPAM and Calico's on one etcd: each reads, keeps and gives back what the other allocated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network

import pytest

from ipam.check import examine
from ipam.client import AddressRequest
from ipam.gc import Means, sweep
from ipam.ownership import pod_owner
from ipam.settings import NotReady
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.errors import NoFreeAddresses, OwnerMismatch
from libtortie.kube.objects import Meta, Pod
from libtortie.model.ipam import Attribute, IPAddress
from tests.fakes.calico import Calicoctl, CalicoError, CalicoNode, on_etcd
from tests.fakes.etcd_client import following
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.ipam_world import START, plain_pod, vm_pod
from tests.fakes.kube import FakeKube
from tests.peer.shared import BOTH, OURS, THEIRS, V4, Shared, distinct


@pytest.fixture
def shared(store: EtcdDatastore, calicoctl: Calicoctl) -> Shared:
    return Shared(store, calicoctl)


@pytest.fixture
def theirs(member: EtcdMember) -> Iterator[CalicoNode]:
    with CalicoNode(on_etcd(member), THEIRS) as node:
        yield node


def attrs(pod: str) -> dict[str, str]:
    return {"namespace": "shop", "node": THEIRS, "pod": pod}


def test_our_allocation_is_calicos_to_read_and_to_release(
    shared: Shared, theirs: CalicoNode
) -> None:
    owner = plain_pod("web", node=OURS)
    held = [one.address for one in shared.client().assign("net.c1", owner, BOTH)]
    shared.audit()
    assert theirs.addresses("net.c1") == held
    found = theirs.ask("attributes", address=str(held[0]))
    assert found["handle"] == "net.c1"
    assert found["attrs"] == owner
    shown = shared.calicoctl.run("ipam", "show", f"--ip={held[0]}")
    assert f"IP {held[0]} is in use" in shown
    assert "pod: web" in shown
    theirs.release("net.c1")
    assert shared.client().by_handle("net.c1") == ()
    assert shared.world.handles() == {}
    again = shared.client().assign("net.c2", owner, BOTH)
    assert not {one.address for one in again} & set(held)  # what was free longest comes first
    shared.audit()


def test_calicos_allocation_is_ours_to_read_and_to_release(
    shared: Shared, theirs: CalicoNode
) -> None:
    held = theirs.assign("net.c1", attrs("web"), ipv4=2, ipv6=1)
    found = shared.client().by_handle("net.c1")
    assert [one.address for one in found] == held
    assert [dict(one.active) for one in found] == [attrs("web")] * 3
    owned = shared.client().owner_of(held[1])
    assert owned is not None
    assert owned.handle_id == "net.c1"
    shared.audit()
    assert sorted(shared.client().release("net.c1"), key=str) == sorted(held, key=str)
    with pytest.raises(CalicoError, match="resource does not exist: IPAMHandleKey"):
        theirs.addresses("net.c1")
    assert not set(theirs.assign("net.c2", attrs("db"), ipv4=2, ipv6=1)) & set(held)
    shared.audit()


def test_an_address_released_by_calicoctl_is_free_for_us(shared: Shared) -> None:
    (got,) = shared.client().assign("net.c1", plain_pod("web"), V4)
    shared.calicoctl.run("ipam", "release", f"--ip={got.address}")
    assert shared.client().by_handle("net.c1") == ()
    assert f"{got.address} is not assigned" in shared.calicoctl.run(
        "ipam", "show", f"--ip={got.address}"
    )
    want = AddressRequest(addresses=(got.address,))
    assert shared.client().assign("net.c2", plain_pod("db"), want)[0].address == got.address
    shared.audit()


def test_an_address_of_the_other_is_refused(shared: Shared, theirs: CalicoNode) -> None:
    (mine,) = shared.client().assign("net.c1", plain_pod("web"), V4)
    with pytest.raises(CalicoError, match=f"resource already exists: {mine.address}"):
        theirs.claim("net.c2", str(mine.address), attrs("db"))
    (other,) = theirs.assign("net.c3", attrs("db"))
    with pytest.raises(OwnerMismatch, match=f"{other} .*net.c3.*pod shop/db on node {THEIRS}"):
        shared.client().assign("net.c4", plain_pod("x"), AddressRequest(addresses=(other,)))
    shared.audit()


@pytest.mark.parametrize("same_node", [False, True], ids=["two nodes", "one node"])
def test_both_allocate_and_release_at_once(
    shared: Shared, member: EtcdMember, theirs: CalicoNode, same_node: bool
) -> None:
    """No address twice; blocks, handles and affinities agree at the end, by Calico's check too."""
    given: dict[str, list[IPAddress]] = {}
    errors: list[BaseException] = []
    node = THEIRS if same_node else OURS

    def ours_assigns(handle: str) -> list[IPAddress]:
        owner = plain_pod(handle, node=node)
        return [one.address for one in shared.client(node).assign(handle, owner, BOTH)]

    def work(
        name: str,
        assign: Callable[[str], list[IPAddress]],
        release: Callable[[str], object],
    ) -> None:
        try:
            for number in range(20):
                handle = f"{name}-{number}"
                given[handle] = assign(handle)
                if number % 4 == 3:
                    release(f"{name}-{number - 2}")
                    del given[f"{name}-{number - 2}"]
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=("o", ours_assigns, shared.client(node).release)),
        threading.Thread(
            target=work,
            args=("t", lambda h: theirs.assign(h, attrs(h), ipv6=1), theirs.release),
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(given) == 30
    held = shared.held()
    assert distinct(given.values()) == set(held)
    assert all(held[one] == handle for handle, each in given.items() for one in each)
    shared.audit()
    for number, handle in enumerate(given):
        (theirs.release if number % 2 else shared.client().release)(handle)
    assert shared.held() == {}
    assert shared.world.handles() == {}
    shared.audit()


@pytest.mark.parametrize("first", [OURS, THEIRS])
def test_a_full_node_borrows_from_the_others_block(
    store: EtcdDatastore, calicoctl: Calicoctl, theirs: CalicoNode, first: str
) -> None:
    """One pool of one block: whoever comes second takes from it, and nobody when strict."""
    shared = Shared(store, calicoctl, size=29)

    def ours(number: int) -> list[IPAddress]:
        got = shared.client().assign(f"o-{number}", plain_pod(f"o-{number}", node=OURS), V4)
        return [one.address for one in got]

    def other(number: int) -> list[IPAddress]:
        return theirs.assign(f"t-{number}", attrs(f"t-{number}"))

    owner, borrower = (ours, other) if first == OURS else (other, ours)
    given = [work(number) for number in range(3) for work in (owner, borrower)]
    assert len(distinct(given)) == 6
    assert shared.affine(first) == {ip_network("10.0.0.0/29")}
    shared.audit()
    calicoctl.run("ipam", "configure", "--strictaffinity=true")
    with pytest.raises((NoFreeAddresses, CalicoError)):
        borrower(3)
    assert len(distinct([*given, owner(3)])) == 7
    shared.audit()


def test_reservations_pools_and_the_lock_bind_both(shared: Shared, theirs: CalicoNode) -> None:
    shared.calicoctl.apply(
        """
        {"apiVersion": "projectcalico.org/v3", "kind": "IPReservation", "metadata": {"name": "r"},
         "spec": {"reservedCIDRs": ["10.0.0.0/27", "10.0.0.32/28", "10.0.0.48/29"]}}
        """
    )
    left = {ip_address(f"10.0.0.{last}") for last in range(56, 64)}
    for number in range(4):
        (got,) = shared.client().assign(f"o-{number}", plain_pod(f"o-{number}"), V4)
        assert {got.address, *theirs.assign(f"t-{number}", attrs("x"))} <= left
    with pytest.raises(NoFreeAddresses):
        shared.client().assign("o-4", plain_pod("o-4"), V4)
    with pytest.raises(CalicoError):
        theirs.assign("t-4", attrs("x"))
    shared.client().release("o-0")
    shared.calicoctl.run("patch", "ippool", "a", "-p", '{"spec": {"disabled": true}}')
    with pytest.raises(NoFreeAddresses):
        shared.client().assign("o-4", plain_pod("o-4"), V4)
    shared.calicoctl.run("patch", "ippool", "a", "-p", '{"spec": {"disabled": false}}')
    shared.calicoctl.run("datastore", "migrate", "lock")
    with pytest.raises(NotReady):
        shared.client().assign("o-4", plain_pod("o-4"), V4)
    shared.calicoctl.run("datastore", "migrate", "unlock")
    assert shared.client().assign("o-4", plain_pod("o-4"), V4)
    shared.audit()


def test_a_node_deleted_by_calicoctl_loses_our_addresses_and_blocks(shared: Shared) -> None:
    shared.client().assign("net.c1", plain_pod("web", node=OURS), BOTH)
    shared.client(THEIRS).assign("net.c2", plain_pod("db", node=THEIRS), V4)
    shared.endpoints()
    shared.calicoctl.run("delete", "node", OURS)
    assert set(shared.held().values()) == {"net.c2"}
    assert shared.affine(OURS) == set()
    assert {key.node for key in shared.world.affinities()} == {THEIRS}


def test_calicos_writes_are_events_of_our_watch(
    store: EtcdDatastore, shared: Shared, theirs: CalicoNode
) -> None:
    with following(store) as watched:
        theirs.assign("net.c1", attrs("web"))
        watched.expect("net.c1")
        theirs.release("net.c1")
        watched.expect("net.c1", "net.c1-")
    assert shared.held() == {}


def test_a_vm_keeps_its_address_while_calico_works_in_its_block(
    shared: Shared, theirs: CalicoNode
) -> None:
    """Both nodes share one block: the VM's is ours, and calicoctl shows its owner."""
    client = shared.client(THEIRS)
    vm = vm_pod("virt-launcher-db", node=THEIRS)
    (got,) = client.claim_vm("k8s-pod-network.vmi.shop.db", vm, V4)
    theirs.assign("net.c1", attrs("web"))
    theirs.release("net.c1")
    assert theirs.addresses("k8s-pod-network.vmi.shop.db") == [got.address]
    (kept,) = client.by_handle("k8s-pod-network.vmi.shop.db")
    assert kept == got
    shown = shared.calicoctl.run("ipam", "show", f"--ip={got.address}")
    assert "pod: virt-launcher-db" in shown
    shared.audit()


def test_this_release_drops_an_alternate_owner_and_the_migration_still_ends(
    shared: Shared, theirs: CalicoNode
) -> None:
    """It rewrites whole blocks with the fields it knows: promotion must not need the lost one."""
    client = shared.client(THEIRS)
    handle = "k8s-pod-network.vmi.shop.db"
    source, target = vm_pod("one", node=THEIRS), vm_pod("two", node=OURS, vmim_uid="m")
    client.claim_vm(handle, source, V4)
    (before,) = shared.client().claim_vm_target(handle, target)
    assert before.alternate["pod"] == "two"
    theirs.assign("net.c1", attrs("web"))
    (after,) = client.by_handle(handle)
    assert after.address == before.address
    assert after.active == before.active
    assert after.alternate == {}
    again = shared.client().claim_vm_target(handle, target)
    assert [one.alternate["pod"] for one in again] == ["two"]
    assert shared.client().promote(handle, target)
    assert [one.active["pod"] for one in client.by_handle(handle)] == ["two"]
    shared.audit()


def test_owner_attributes_that_calico_does_not_know_are_kept_by_it(
    shared: Shared, theirs: CalicoNode
) -> None:
    owner = pod_owner(
        namespace="shop",
        pod="web",
        node=THEIRS,
        timestamp=START,
        container_id="c1",
        pod_uid="u1",
        vmi_name="db",
        vmi_uid="v1",
        vm_uid="w1",
    )
    client = shared.client(THEIRS)
    client.assign("net.c1", owner, V4)
    theirs.assign("net.c2", attrs("db"))
    (kept,) = client.by_handle("net.c1")
    assert dict(kept.active) == owner


def by_calicoctl(shared: Shared, address: IPAddress) -> None:
    shared.calicoctl.run("ipam", "release", f"--ip={address}")


def by_our_collector(shared: Shared, address: IPAddress) -> None:
    """Two observations; the pod that lives is known to the API."""
    kube = FakeKube()
    kube.put(Pod(metadata=Meta(namespace="shop", name="db", uid="u-db")))
    clock = iter(range(0, 100_000, 1000))
    means = Means(
        shared.world.store, kube, lambda: datetime.now(UTC), monotonic=lambda: float(next(clock))
    )
    first = sweep(means, {}, grace=900.0)
    assert address in examine(first.opinions).leaked
    sweep(means, first.memory, grace=900.0)


@pytest.mark.parametrize("free", [by_calicoctl, by_our_collector])
def test_this_release_forgets_when_an_address_was_released(
    shared: Shared, theirs: CalicoNode, free: Callable[[Shared, IPAddress], None]
) -> None:
    """It leaves an address that is nobody's and not free, until somebody looks for such."""
    client = shared.client(THEIRS)
    shared.world.config(cooldown_seconds=1)
    (got,) = client.assign("net.c1", plain_pod("web", node=THEIRS), V4)
    client.release("net.c1")
    theirs.assign("net.c2", attrs("db"))
    (block,) = shared.world.blocks()
    assert block.attribute(block.ordinal(got.address)) == Attribute()
    shared.world.config(cooldown_seconds=0)
    want = AddressRequest(addresses=(got.address,))
    with pytest.raises(OwnerMismatch, match=f"{got.address} is not free: held by handle None"):
        client.assign("net.c3", plain_pod("x", node=THEIRS), want)
    free(shared, got.address)
    assert client.assign("net.c3", plain_pod("x", node=THEIRS), want)[0].address == got.address
    assert len(theirs.addresses("net.c2")) == 1
    shared.audit()


@pytest.mark.parametrize("emptied", [True, False])
def test_a_block_that_calico_gives_up_is_ours(
    store: EtcdDatastore, calicoctl: Calicoctl, theirs: CalicoNode, emptied: bool
) -> None:
    """Empty it is deleted; else it stays without a node, and what is free in it is borrowed."""
    shared = Shared(store, calicoctl, size=29)
    held = theirs.assign("net.c1", attrs("web"))
    if emptied:
        theirs.release("net.c1")
        held = []
    theirs.ask("release-affinities")
    assert shared.world.affinities() == {}
    assert [block.affinity for block in shared.world.blocks()] == [None] * (not emptied)
    (mine,) = shared.client().assign("net.c2", plain_pod("x", node=OURS), V4)
    assert len(distinct([held, [mine.address]])) == 2 - emptied
    shared.audit()
    shared.client().release("net.c2")
    again = theirs.assign("net.c3", attrs("db"))
    assert len(distinct([held, again])) == 2 - emptied
    shared.audit()
