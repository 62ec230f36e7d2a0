"""What a client remembers may be outdated in every way: that costs a round trip, nothing else.

Each story makes a client warm, changes the store behind its back, and asks for one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network

import pytest

from ipam.block import release
from ipam.cache import BLOCKS, HANDLES, UNKNOWN, Cache
from ipam.client import AddressRequest, IPAMClient
from ipam.settings import NotReady
from libtortie.datastore.port import Record
from libtortie.errors import NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Kind,
    ResourceKey,
)
from libtortie.model.resources import Node, ObjectMeta
from tests.fakes.counting_store import CountingStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

V4 = AddressRequest()


class Warm:
    """A world of one /28 in blocks of four, and a client of n1 that remembers all it can."""

    def __init__(self, **config: object) -> None:
        self.world = World().pools(pool("a", "10.0.0.0/28", blockSize=30))
        self.world.config(**config)
        self.store = CountingStore(self.world.store)
        self.client = self.world.client("n1", self.store)
        (self.first,) = self.client.assign("first", plain_pod("first"), V4)
        self.store.forget()

    def assign(self, handle: str = "h") -> str:
        (got,) = self.client.assign(handle, plain_pod(handle), V4)
        self.world.audit()
        return str(got.address)

    @property
    def block(self) -> Block:
        return self.world.block(self.first.block)


def test_a_warm_allocation_and_its_release_are_one_commit_each_and_no_read() -> None:
    warm = Warm()
    warm.assign()
    assert warm.store.calls == ["commit"]
    warm.client.release("h")
    assert warm.store.calls == ["commit"] * 2
    warm.world.audit()


def test_a_cold_allocation_reads_twice_and_a_cold_release_too() -> None:
    warm = Warm()
    warm.world.client("n1", warm.store).assign("h", plain_pod("h"), V4)
    assert warm.store.calls == ["snapshot", "snapshot", "commit"]
    warm.store.forget()
    warm.world.client("n1", warm.store).release("h")
    assert warm.store.calls == ["snapshot", "snapshot", "commit"]


def test_a_nodes_first_address_comes_with_its_block_in_three_round_trips() -> None:
    warm = Warm()
    warm.world.client("n2", warm.store).assign("h", plain_pod("h", node="n2"), V4)
    assert warm.store.calls == ["snapshot", "names", "commit"]


def test_no_block_is_read_to_claim_one_beside_it() -> None:
    """What is taken is known by name: a large cluster's blocks are not carried over the wire."""
    warm = Warm()
    for number in range(3):
        warm.assign(f"f{number}")
    warm.store.forget()
    warm.assign("in a new block")
    assert warm.store.calls == ["snapshot", "snapshot", "names", "commit"]
    assert warm.store.lists == []


STALE: dict[str, Callable[[World], None]] = {
    "disabled pool": lambda w: _off(w, disabled=True),
    "deleted pool": lambda w: w.store.delete(ResourceKey(Kind.IP_POOL, "a")),
    "pool of other nodes": lambda w: _off(w, nodeSelector="!all()"),
    "pool of other namespaces": lambda w: _off(w, namespaceSelector="has(x)"),
    "manual pool": lambda w: _off(w, assignmentMode="Manual"),
    "pool for other uses": lambda w: _off(w, allowedUses=["Tunnel"]),
    "everything reserved": lambda w: w.resource(
        Kind.IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.0/28"]}
    ),
}


def _off(world: World, **spec: object) -> None:
    world.pools(pool("a", "10.0.0.0/28", blockSize=30, **spec))


@pytest.mark.parametrize("change", STALE)
def test_what_may_not_be_given_any_more_is_not_given(change: str) -> None:
    warm = Warm()
    STALE[change](warm.world)
    with pytest.raises(NoFreeAddresses):
        warm.assign()
    assert warm.world.allocated() == {"first": 1}


def test_a_reservation_of_the_very_next_address_is_seen() -> None:
    warm = Warm()
    following = warm.first.address + 1
    warm.world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": [str(following)]})
    assert warm.assign() == str(following + 1)


def test_a_reservation_that_is_gone_keeps_nothing() -> None:
    warm = Warm(strict_affinity=True, max_blocks_per_host=1)
    warm.world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.0/28"]})
    with pytest.raises(NoFreeAddresses):
        warm.assign()
    warm.world.store.delete(ResourceKey(Kind.IP_RESERVATION, "r"))
    assert warm.assign()


def test_a_locked_datastore_is_left_alone() -> None:
    warm = Warm()
    warm.world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    for work in (warm.assign, lambda: warm.client.release("first")):
        with pytest.raises(NotReady):
            work()
    assert warm.world.allocated() == {"first": 1}


def test_strict_affinity_is_seen_before_an_address_is_borrowed() -> None:
    warm = Warm(max_blocks_per_host=1)
    for number in range(3):
        warm.assign(f"f{number}")
    warm.world.client("n2").assign("other", plain_pod("o", node="n2"), V4)
    assert warm.assign("borrowed")
    warm.world.config(max_blocks_per_host=1, strict_affinity=True)
    with pytest.raises(NoFreeAddresses, match="strict"):
        warm.assign("too late")


def test_a_cooldown_that_was_set_meanwhile_is_kept() -> None:
    warm = Warm()
    warm.world.config(cooldown_seconds=30)
    warm.client.release("first")
    attribute = warm.block.attribute(warm.block.ordinal(warm.first.address))
    assert attribute is not None
    assert attribute.released_at is not None


def test_a_configuration_that_was_removed_is_seen() -> None:
    warm = Warm(strict_affinity=True, max_blocks_per_host=1)
    for number in range(3):
        warm.assign(f"f{number}")
    warm.world.store.delete(IPAMConfigKey())
    assert warm.assign("in a second block")


def test_a_block_that_another_node_took_over_is_its() -> None:
    warm = Warm(strict_affinity=True)
    warm.client.release("first")
    warm.world.later(61)
    others = warm.world.client("n2")
    taken: set[object] = set()
    for number in range(13):
        (got,) = others.assign(f"o{number}", plain_pod(f"o{number}", node="n2"), V4)
        taken.add(got.block)
    assert warm.first.block in taken
    assert warm.world.block(warm.first.block).node == "n2"
    with pytest.raises(NoFreeAddresses):
        warm.assign()
        warm.assign("h2")
        warm.assign("h3")
        warm.assign("h4")
    assert warm.world.block(warm.first.block).node == "n2"
    warm.world.audit()


def test_addresses_that_others_freed_are_found_before_a_block_is_claimed() -> None:
    warm = Warm()
    for number in range(3):
        warm.assign(f"f{number}")
    freed = release(warm.block, [0], now=warm.world.now(), cooldown=0)
    gone = next(h for h, v in warm.world.handles().items() if v.blocks == {warm.first.block: 1})
    holder = warm.block.attribute(0)
    assert holder is not None
    assert gone
    warm.world.put(BlockKey(warm.first.block), freed)
    warm.world.store.delete(HandleKey(holder.handle_id or ""))
    assert warm.assign() == str(warm.first.block.network_address)
    assert len(warm.world.blocks()) == 1


def test_a_handle_that_another_process_made_is_found() -> None:
    """A repeated ADD, the first of which the fallback answered."""
    warm = Warm()
    (got,) = warm.world.client("n1").assign("h", plain_pod("h"), V4)
    assert warm.assign("h") == str(got.address)
    assert warm.world.allocated()["h"] == 1


def test_a_handle_that_another_process_released_is_not_answered_from_memory() -> None:
    warm = Warm()
    warm.world.client("n2").release("first")
    assert warm.client.release("first") == ()
    warm.world.client("n2").assign("other", plain_pod("o", node="n2"), V4)
    (again,) = warm.client.assign("first", plain_pod("first"), V4)
    assert warm.world.client().by_handle("first") == (again,)
    warm.world.audit()


def test_a_repeated_request_is_answered_by_the_store_not_from_memory() -> None:
    warm = Warm()
    assert warm.client.assign("first", plain_pod("first"), V4) == (warm.first,)
    assert "commit" not in warm.store.calls
    assert "snapshot" in warm.store.calls
    assert warm.world.client().by_handle("first") == (warm.first,)


def test_node_labels_that_changed_choose_another_pool() -> None:
    world = World().pools(
        pool("a", "10.0.0.0/28", blockSize=30, nodeSelector="rack == 'one'"),
        pool("b", "10.1.0.0/28", blockSize=30, nodeSelector="rack == 'two'"),
    )
    one, two = (Node(metadata=ObjectMeta(name="n1", labels={"rack": r})) for r in ("one", "two"))
    world.put(one.key, one)
    client = world.client("n1")
    (before,) = client.assign("before", plain_pod("b"), V4)
    world.put(two.key, two)
    (after,) = client.assign("after", plain_pod("a"), V4)
    assert (str(before.address)[:5], str(after.address)[:5]) == ("10.0.", "10.1.")


def test_a_pool_that_was_added_can_be_asked_for() -> None:
    warm = Warm()
    warm.world.pools(pool("new", "10.9.0.0/28", blockSize=30))
    want = AddressRequest(ipv4_pools=("new",))
    (got,) = warm.client.assign("h", plain_pod("h"), want)
    assert str(got.address).startswith("10.9.")
    warm.store.forget()
    warm.client.assign("next", plain_pod("next"), want)
    assert warm.store.calls == ["commit"]


def test_an_older_pool_that_was_enabled_takes_the_range_over() -> None:
    world = World().pools(
        pool("0", "10.0.0.0/28", blockSize=29, disabled=True),
        pool("a", "10.0.0.0/28", blockSize=30),
    )
    client = world.client()
    (before,) = client.assign("before", plain_pod("b"), V4)
    world.pools(pool("0", "10.0.0.0/28", blockSize=29))
    (after,) = client.assign("after", plain_pod("a"), V4)
    assert (before.block.prefixlen, after.block.prefixlen) == (30, 29)
    assert not before.block.overlaps(after.block)
    world.audit()


def test_an_affinity_that_is_gone_is_not_gone_by() -> None:
    warm = Warm()
    warm.world.store.delete(AffinityKey("n1", warm.first.block))
    address = ip_address(warm.assign())
    (claim,) = warm.world.affinities("n1")
    assert address in claim.cidr
    assert warm.world.block(claim.cidr).node == "n1"


def test_owners_that_changed_elsewhere_are_seen() -> None:
    warm = Warm()
    other = vm_pod("other", node="n2", vmi_uid="vmi-2", vm_uid="vm-2")
    warm.client.claim_vm("vm", vm_pod("mine"), V4)
    warm.world.client("n2").release("vm")
    warm.world.client("n2").claim_vm("vm", other, V4)
    with pytest.raises(OwnerMismatch, match="vm-2"):
        warm.client.claim_vm("vm", vm_pod("mine"), V4)
    assert warm.client.disown_vm("vm", vm_pod("mine"), vm_deleting=True) is False
    (kept,) = warm.world.client().by_handle("vm")
    assert kept.active == other


def test_clients_of_another_patience_know_the_same() -> None:
    warm = Warm()
    warm.client.claim_vm("vm", vm_pod("src"), V4)
    target = vm_pod("dst", node="n2", vmim_uid="m")
    warm.client.claim_vm_target("vm", target)
    warm.store.forget()
    assert warm.client.with_retry(warm.client._loop.retry).promote("vm", target)
    assert warm.store.calls == ["commit"]


def test_a_store_without_transactions_is_always_read() -> None:
    warm = Warm()
    warm.store.atomic = False
    client: IPAMClient = warm.world.client("n1", warm.store)
    client.assign("h", plain_pod("h"), V4)
    warm.store.forget()
    client.assign("h2", plain_pod("h2"), V4)
    assert warm.store.calls.count("get") > 1


# -- the cache itself --------------------------------------------------------------------------


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = Cache("n1")
    handles = [HandleKey(str(number)) for number in range(HANDLES + 2)]
    for key in handles[:-2]:
        cache.learn(key, Record(key, Handle(blocks={}), "1"))
    assert cache.record(handles[0]) is not UNKNOWN
    for key in handles[-2:]:
        cache.learn(key, None)
    assert cache.record(handles[0]) is not UNKNOWN
    assert [cache.record(key) is UNKNOWN for key in handles[1:3]] == [True, True]
    assert cache.record(handles[-1]) is None
    blocks = [
        BlockKey(ip_network((int(ip_address("10.0.0.0")) + n, 32))) for n in range(BLOCKS + 1)
    ]
    for block in blocks:
        cache.learn(block, None)
    assert cache.record(blocks[0]) is UNKNOWN
    assert cache.record(handles[-1]) is None, "many blocks displace no handle"


def test_the_cache_forgets_the_affinities_with_any_of_them() -> None:
    warm = Warm()
    cache = Cache("n1")
    cache.learn_listing(Affinities("n1"), warm.world.store.list(Affinities("n1")))
    cache.learn(AffinityKey("n2", warm.first.block), None)
    cache.learn(AffinityKey("n1", ip_network("10.0.0.64/30")), None)
    assert cache.listing(Affinities("n1")) is not None
    cache.forget([AffinityKey("n1", warm.first.block)], ())
    assert cache.listing(Affinities("n1")) is None
