"""Allocation for ordinary attachments, on a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from ipam.block import new_block
from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.port import Create, Delete, Op, Update
from libtortie.errors import (
    Conflict,
    InvalidInput,
    NoFreeAddresses,
    Unavailable,
)
from libtortie.model.ipam import AffinityState, BlockAffinity
from libtortie.model.keys import (
    AffinityKey,
    BlockKey,
    Kind,
)
from libtortie.model.resources import Node, ObjectMeta
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import START, World, plain_pod, pool
from tests.fakes.small_world import small, take

V4 = AddressRequest()
V6 = AddressRequest(ipv4=False, ipv6=True)
BOTH = AddressRequest(ipv6=True)


def test_first_address_claims_a_block_and_confirms_it() -> None:
    world = small()
    (got,) = world.client().assign("net.c1", plain_pod("p"), V4)
    assert got.handle_id == "net.c1"
    assert got.active == plain_pod("p")
    assert got.alternate == {}
    assert got.address in got.block
    key = AffinityKey("n1", got.block)
    assert world.affinities() == {key: BlockAffinity(AffinityState.CONFIRMED)}
    assert world.block(got.block).node == "n1"
    assert world.handles()["net.c1"].blocks == {got.block: 1}
    world.audit()


def test_steady_state_is_one_commit_of_block_and_handle() -> None:
    world = small()
    store = FaultyStore(world.store)
    client = world.client(store=store)
    client.assign("h1", plain_pod("p"), V4)
    store.commits.clear()
    client.assign("h2", plain_pod("q"), V4)
    (ops,) = store.commits
    written = [type(op.key).__name__ for op in ops if isinstance(op, Create | Update | Delete)]
    assert written == ["HandleKey", "BlockKey"]


def test_same_handle_gets_the_same_addresses_and_writes_nothing() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    store = FaultyStore(world.store)
    client = world.client(store=store)
    first = client.assign("h", plain_pod("p"), BOTH)
    assert [a.address.version for a in first] == [4, 6]
    store.commits.clear()
    assert client.assign("h", plain_pod("p"), BOTH) == first
    assert client.by_handle("h") == first
    assert store.commits == []


def test_release_frees_everything_and_absent_is_success() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    client = world.client()
    got = client.assign("h", plain_pod("p"), BOTH)
    assert client.release("h") == tuple(a.address for a in got)
    assert client.release("h") == ()
    assert world.handles() == {}
    assert world.allocated() == {}
    assert client.owner_of(got[0].address) is None
    world.audit()


def test_late_release_of_an_older_sandbox_frees_only_its_own() -> None:
    world = small()
    client = world.client()
    client.assign("net.A", plain_pod("x", container="A"), V4)
    (b,) = client.assign("net.B", plain_pod("x", container="B"), V4)
    client.release("net.A")
    (y,) = client.assign("net.Y", plain_pod("y"), V4)
    assert client.by_handle("net.B") == (b,)
    assert y.address != b.address
    world.audit()


def test_affine_blocks_first_then_a_new_one_then_borrowed() -> None:
    world = small()
    first = take(world, "n1", 4)
    assert len({ip_network(f"{a}/30", strict=False) for a in first}) == 1
    (other,) = take(world, "n2", 1)
    assert other not in first
    borrowed = world.client("n1").assign("n1-x", plain_pod("x"), V4)[0]
    assert world.block(borrowed.block).node == "n2"
    assert set(world.affinities("n1")) == {AffinityKey("n1", ip_network(f"{first[0]}/30", False))}
    world.audit()


def test_strict_affinity_never_borrows() -> None:
    world = small(strict_affinity=True)
    take(world, "n1", 4)
    take(world, "n2", 1)
    with pytest.raises(NoFreeAddresses, match="strict"):
        world.client("n1").assign("x", plain_pod("x"), V4)
    world.audit()


def test_block_limit_borrows_unless_strict() -> None:
    limited = World().pools(pool("a", "10.0.0.0/28", blockSize=30))
    limited.config(max_blocks_per_host=1)
    take(limited, "n2", 1)
    take(limited, "n1", 4)
    borrowed = limited.client("n1").assign("x", plain_pod("x"), V4)[0]
    assert limited.block(borrowed.block).node == "n2"
    assert len(limited.affinities("n1")) == 1

    strict = World().pools(pool("a", "10.0.0.0/28", blockSize=30))
    strict.config(max_blocks_per_host=1, strict_affinity=True)
    take(strict, "n1", 4)
    with pytest.raises(NoFreeAddresses, match="per host block limit"):
        strict.client("n1").assign("x", plain_pod("x"), V4)


def test_default_block_limit_is_twenty_per_family() -> None:
    world = World().pools(pool("a", "10.0.0.0/24", blockSize=32), pool("b", "fd00::/64"))
    world.config(strict_affinity=True)
    take(world, "n1", 20)
    client = world.client("n1")
    with pytest.raises(NoFreeAddresses, match=r"limit \(20\)"):
        client.assign("x", plain_pod("x"), V4)
    assert client.assign("y", plain_pod("y"), V6)


def test_no_new_blocks_when_they_are_not_allocated_automatically() -> None:
    world = small(auto_allocate_blocks=False)
    with pytest.raises(NoFreeAddresses, match="not allocated automatically"):
        world.client().assign("h", plain_pod("p"), V4)
    assert world.blocks() == []


def test_block_that_waits_empty_is_taken_over_after_a_minute() -> None:
    world = small(strict_affinity=True)
    for node in ("n1", "n2"):
        take(world, node, 1)
    world.client("n2").release("n2-0")
    with pytest.raises(NoFreeAddresses):
        take(world, "n3", 1)
    world.later(61)
    (address,) = take(world, "n3", 1)
    block = ip_network(f"{address}/30", strict=False)
    assert world.block(block).node == "n3"
    assert world.affinities("n2") == {}
    with pytest.raises(NoFreeAddresses):
        world.client("n2").assign("late", plain_pod("late"), V4)
    world.audit()


def test_dual_stack_is_both_or_none() -> None:
    for full in (4, 6):
        world = World().pools(
            pool("a", "10.0.0.0/30", blockSize=30), pool("b", "fd00::/126", blockSize=126)
        )
        client = world.client()
        for i in range(4):
            client.assign(f"full-{i}", plain_pod(f"p{i}"), V4 if full == 4 else V6)
        before = [block.unallocated for block in world.blocks()]
        with pytest.raises(NoFreeAddresses, match=f"IPv{full}"):
            client.assign("h", plain_pod("p"), BOTH)
        assert [block.unallocated for block in world.blocks()] == before
        assert "h" not in world.handles()


def test_handle_gains_the_family_it_lacks() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    client = world.client()
    (v4,) = client.assign("h", plain_pod("p"), V4)
    got = client.assign("h", plain_pod("p"), BOTH)
    assert got[0] == v4
    assert got[1].address.version == 6
    world.audit()


def test_requested_pools_in_the_order_asked_for() -> None:
    world = World().pools(
        pool("a", "10.0.0.0/30", blockSize=30, nodeSelector="!all()"),
        pool("b", "10.1.0.0/30", blockSize=30),
        pool("c", "10.2.0.0/30", blockSize=30),
    )
    client = world.client()
    want = AddressRequest(ipv4_pools=("10.2.0.0/30", "a"))
    got = [client.assign(f"h{i}", plain_pod(f"p{i}"), want)[0].address for i in range(8)]
    assert [str(a).split(".")[1] for a in got] == ["2"] * 4 + ["0"] * 4
    with pytest.raises(NoFreeAddresses, match="in pools c, a"):
        client.assign("h8", plain_pod("p"), want)
    with pytest.raises(InvalidInput, match=r"the given pool \(nope\)"):
        client.assign("h9", plain_pod("p"), AddressRequest(ipv4_pools=("nope",)))


def test_selectors_see_node_and_namespace_labels() -> None:
    world = World().pools(
        pool("a", "10.0.0.0/24", nodeSelector="rack == 'r1'"),
        pool("b", "10.1.0.0/24", namespaceSelector="team == 'x'"),
    )
    node = Node(metadata=ObjectMeta(name="n1", labels={"rack": "r1"}))
    with pytest.raises(NoFreeAddresses, match="no IPv4 pool is eligible on node n1"):
        world.client().assign("h", plain_pod("p"), V4)
    told = world.client(node_labels={"rack": "r1"})
    assert str(told.assign("h1", plain_pod("p"), V4)[0].address).startswith("10.0.0.")
    want = AddressRequest(namespace_labels={"team": "x"})
    assert str(world.client().assign("h2", plain_pod("p"), want)[0].address).startswith("10.1.")
    world.put(node.key, node)
    assert str(world.client().assign("h3", plain_pod("p"), V4)[0].address).startswith("10.0.0.")


def test_blocks_of_a_replaced_pool_are_not_used() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"))
    client = world.client()
    (old,) = client.assign("old", plain_pod("p"), V4)
    world.pools(pool("a", "10.0.0.0/24", disabled=True), pool("b", "10.1.0.0/24"))
    (new,) = client.assign("new", plain_pod("q"), V4)
    assert str(new.address).startswith("10.1.")
    assert client.by_handle("old") == (old,)
    assert client.owner_of(old.address) == old
    assert client.release("old") == (old.address,)


def test_pool_disabled_between_decision_and_commit_is_not_used() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "10.1.0.0/24"))
    world.client().assign("warm", plain_pod("w"), V4)
    store = FaultyStore(world.store)

    def disable(_: object) -> None:
        store.before_commit = lambda ops: None
        world.pools(pool("a", "10.0.0.0/24", disabled=True))

    store.before_commit = disable
    (got,) = world.client(store=store).assign("h", plain_pod("p"), V4)
    assert str(got.address).startswith("10.1.")


def test_locked_datastore_is_refused_at_once() -> None:
    world = small()
    client = world.client()
    client.assign("h", plain_pod("p"), V4)
    world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    pauses: list[float] = []
    locked = world.client(sleep=pauses.append)
    text = "^Tortie is currently not ready to process requests$"
    for call in (
        lambda: locked.assign("h2", plain_pod("p"), V4),
        lambda: locked.claim_vm("h2", plain_pod("p"), V4),
        lambda: locked.claim_vm_target("h2", plain_pod("p")),
        lambda: locked.disown_vm("h2", plain_pod("p"), vm_deleting=True),
        lambda: locked.promote("h2", plain_pod("p")),
        lambda: locked.release("h"),
    ):
        with pytest.raises(Unavailable, match=text):
            call()
    assert pauses == []
    assert locked.by_handle("h") == client.by_handle("h") != ()
    world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": True})
    assert client.release("h")


def test_false_affinity_is_never_trusted_and_goes_away() -> None:
    """The claim of a block was lost and its clean-up failed."""
    world = small()
    (theirs,) = take(world, "n2", 1)
    cidr = ip_network(f"{theirs}/30", strict=False)
    for state in AffinityState:
        world.put(AffinityKey("n1", cidr), BlockAffinity(state))
        stubborn = FaultyStore(world.store, before_commit=_refuse_affinity_deletes)
        (got,) = world.client("n1", stubborn).assign(f"s-{state}", plain_pod("p"), V4)
        assert got.block != cidr
        assert AffinityKey("n1", cidr) in world.affinities()
    world.client("n1").assign("h", plain_pod("p"), V4)
    assert AffinityKey("n1", cidr) not in world.affinities()
    assert world.block(cidr).node == "n2"


def _refuse_affinity_deletes(ops: Sequence[Op]) -> None:
    if any(isinstance(op, Delete) and isinstance(op.key, AffinityKey) for op in ops):
        raise Unavailable("injected")


def test_unfinished_claims_are_resumed_and_half_deleted_ones_finished() -> None:
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=30))
    pending, leaving = ip_network("10.0.0.4/30"), ip_network("10.0.0.8/30")
    world.put(AffinityKey("n1", pending), BlockAffinity(AffinityState.PENDING))
    world.put(AffinityKey("n1", leaving), BlockAffinity(AffinityState.PENDING_DELETION))
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    assert got.block == pending
    assert world.affinities() == {AffinityKey("n1", pending): BlockAffinity()}


def test_unfinished_claim_of_a_reserved_block_is_not_resumed() -> None:
    world = World().pools(pool("a", "10.0.0.0/29", blockSize=30)).config(strict_affinity=True)
    pending = ip_network("10.0.0.4/30")
    world.put(AffinityKey("n1", pending), BlockAffinity(AffinityState.PENDING))
    world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": [str(pending)]})
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    assert got.block == ip_network("10.0.0.0/30")


def test_block_that_is_being_deleted_is_left_alone() -> None:
    """Kubernetes deletes in two phases, and a list shows what is between them."""
    world = small()
    doomed = ip_network("10.0.0.4/30")
    for node in (None, "n1", "n2"):
        block = replace(new_block(doomed, node=node, now=START), deleted=True)
        world.put(BlockKey(doomed), block)
        client = world.client(retry=Retry(attempts=3))
        for i in range(4):
            assert client.assign(f"h{i}", plain_pod("p"), V4)[0].block != doomed
        with pytest.raises(NoFreeAddresses):
            client.assign("h4", plain_pod("p"), V4)
        with pytest.raises(Conflict, match="being deleted"):
            want = AddressRequest(addresses=(ip_address("10.0.0.5"),))
            client.assign("h4", plain_pod("p"), want)
        assert world.block(doomed) == block


def test_block_whose_affinity_record_was_lost_is_used_again() -> None:
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30)).config(strict_affinity=True)
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    world.store.delete(AffinityKey("n1", got.block))
    assert world.client().assign("h2", plain_pod("q"), V4)[0].block == got.block
    assert world.affinities() == {AffinityKey("n1", got.block): BlockAffinity()}


def test_empty_block_of_no_node_is_deleted_with_its_last_address() -> None:
    world = small()
    client = world.client()
    (got,) = client.assign("h", plain_pod("p"), V4)
    record = world.store.get(BlockKey(got.block))
    world.put(record.key, replace(world.block(got.block), affinity=None))
    client.release("h")
    assert world.blocks() == []


def test_attachment_must_want_some_family() -> None:
    with pytest.raises(InvalidInput, match="IPv4, IPv6 or both"):
        small().client().assign("h", plain_pod("p"), AddressRequest(ipv4=False))


def test_parallel_attachments_of_one_node_each_get_their_own() -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    client: IPAMClient = world.client()
    got: dict[int, set[str]] = {}

    def one(number: int) -> None:
        found = client.assign(f"h{number}", plain_pod(f"p{number}"), BOTH)
        got[number] = {str(a.address) for a in found}

    threads = [threading.Thread(target=one, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(got) == 40
    assert len(set.union(*got.values())) == 80
    world.audit()
