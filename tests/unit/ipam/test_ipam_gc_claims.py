"""Claims on blocks: removed nodes', false ones, half-finished ones, empty blocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from ipaddress import ip_network
from typing import Any

import pytest

from ipam.block import new_block
from ipam.client import AddressRequest
from ipam.gc import Outcome
from libtortie.errors import Malformed, Unavailable
from libtortie.kube.objects import KubeNode, Meta, VirtualMachine
from libtortie.model.ipam import AffinityState, BlockAffinity
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    IPNetwork,
    Kind,
    ResourceKey,
    Resources,
)
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.gc_world import BOTH, Town
from tests.fakes.ipam_world import vm_pod

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE
CIDR = ip_network("10.65.0.64/30")
HANDLE = "k8s-pod-network.vmi.shop.db"


@pytest.fixture
def town() -> Town:
    return Town()


def claim(
    town: Town, node: str, cidr: IPNetwork = CIDR, state: AffinityState = AffinityState.CONFIRMED
) -> AffinityKey:
    """An affinity's record."""
    key = AffinityKey(node, cidr)
    town.world.put(key, BlockAffinity(state))
    return key


def block(town: Town, node: str | None, cidr: IPNetwork = CIDR, at: datetime | None = None) -> None:
    """An empty block."""
    made = new_block(cidr, node=node, now=at or town.world.now())
    town.world.put(BlockKey(cidr), made)


def blocks_of(town: Town, node: str | None) -> list[IPNetwork]:
    return [one.cidr for one in town.world.blocks() if one.node == node]


# -- removed nodes ------------------------------------------------------------------------------


def test_a_removed_nodes_empty_blocks_go_with_their_affinities(town: Town) -> None:
    town.run("web", want=BOTH)
    town.stop("web")
    assert len(blocks_of(town, "n1")) == 2
    town.remove_node("n1")
    town.sweep()
    assert len(blocks_of(town, "n1")) == 2
    town.sweep()
    assert town.world.blocks() == []
    assert town.world.affinities() == {}


def test_what_a_removed_nodes_pods_had_goes_in_the_same_pass(town: Town) -> None:
    town.start("web", want=BOTH)
    town.remove_pod("web")
    town.remove_node("n1")
    town.settle(2)
    assert (town.held, town.world.blocks(), town.world.affinities()) == (set(), [], {})
    assert town.world.handles() == {}


def test_a_vm_that_was_migrated_away_keeps_its_address_and_the_block_is_free_to_borrow(
    town: Town,
) -> None:
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    (got,) = town.world.client("n1").claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
    target = vm_pod("p2", node="n2", vmim_uid="m1")
    town.world.client("n2").claim_vm_target(HANDLE, target)
    town.world.client("n2").promote(HANDLE, target)
    town.world.client("n1").disown_vm(HANDLE, vm_pod("p1"), vm_deleting=False)
    town.pod("p2", node="n2", uid="u-p2", ips=[got.address])
    town.remove_node("n1")
    town.settle(2)
    (left,) = town.world.blocks()
    assert left.affinity is None
    assert left.affinity_claim_time is None
    assert town.world.affinities() == {}
    assert town.held == {str(got.address)}
    town.world.audit()
    want = AddressRequest(addresses=(left.address((left.ordinal(got.address) + 1) % 4),))
    assert town.world.client("n2").assign("k8s-pod-network.c9", vm_pod("x"), want)
    town.settle(2)
    assert str(got.address) in town.held
    assert town.reason(f"claim {left.cidr} ") == "in use"


def test_the_last_address_of_an_ownerless_block_takes_it_along(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_node("n1")
    town.settle(2)
    assert [one.affinity for one in town.world.blocks()] == [None]
    assert town.held == {str(address)}
    town.remove_pod("web")
    town.settle(2)
    assert town.world.blocks() == []


@pytest.mark.parametrize("where", ["datastore", "api"])
def test_a_node_that_either_knows_exists(town: Town, where: str) -> None:
    town.run("web")
    town.stop("web")
    if where == "api":
        town.world.store.delete(ResourceKey(Kind.NODE, "n1"))
    else:
        town.kube.remove(KubeNode, "n1")
    town.settle()
    assert len(blocks_of(town, "n1")) == 1


def test_a_stored_node_whose_kubernetes_node_is_removed_does_not_exist(town: Town) -> None:
    town.node("rack1", api=False, orchRefs=[{"orchestrator": "k8s", "nodeName": "k1"}])
    town.node("k1", stored=False)
    town.run("web", "rack1")
    town.stop("web")
    town.settle()
    assert len(blocks_of(town, "rack1")) == 1
    town.kube.remove(KubeNode, "k1")
    town.settle(2)
    assert blocks_of(town, "rack1") == []


@pytest.mark.parametrize("error", [Unavailable("away"), Malformed("half a page")])
def test_a_failing_list_of_nodes_gives_nothing_up(town: Town, error: Exception) -> None:
    town.run("web")
    town.stop("web")
    town.remove_node("n1")
    for _ in range(3):
        town.kube.fail(error, verb="list", plural="nodes")
        town.sweep()
    assert len(blocks_of(town, "n1")) == 1
    (cidr,) = blocks_of(town, "n1")
    assert town.reason(f"claim {cidr} n1") == f"unknown: nodes: {error}"


def test_a_node_that_comes_back_at_the_last_moment_keeps_its_block(town: Town) -> None:
    town.run("web")
    town.stop("web")
    town.remove_node("n1")
    town.sweep()

    def register(_: object) -> None:
        store.before_commit = lambda ops: None
        town.world.resource(Kind.NODE, "n1", {})

    store = FaultyStore(town.world.store, before_commit=register)
    town.sweep(store)
    (cidr,) = blocks_of(town, "n1")
    assert town.reason(f"claim {cidr} n1") == "it changed after it was judged"


def test_an_add_that_comes_first_keeps_the_block(town: Town) -> None:
    """A node that is only starting, and has not registered: its agent allocates all the same."""
    town.run("web")
    town.stop("web")
    town.remove_node("n1")
    town.sweep()

    def add(_: object) -> None:
        store.before_commit = lambda ops: None
        town.start("late")

    store = FaultyStore(town.world.store, before_commit=add)
    town.sweep(store)
    assert len(town.held) == 1
    town.world.audit()


# -- claims that stand for nothing --------------------------------------------------------------


@pytest.mark.parametrize("state", list(AffinityState))
@pytest.mark.parametrize("node", ["n1", "removed"])
def test_an_affinity_without_a_block_goes(town: Town, state: AffinityState, node: str) -> None:
    claim(town, node, state=state)
    town.sweep()
    assert town.world.affinities()
    town.sweep()
    assert town.world.affinities() == {}


def test_meanwhile_another_node_may_claim_the_block(town: Town) -> None:
    claim(town, "n2", state=AffinityState.PENDING_DELETION)
    town.sweep()
    want = AddressRequest(addresses=(CIDR.network_address,))
    town.world.client("n1").assign("k8s-pod-network.c1", vm_pod("kube-proxy"), want)
    town.settle(2)
    assert set(town.world.affinities()) == {AffinityKey("n1", CIDR)}
    town.world.audit()


def test_a_claim_that_is_being_made_is_not_disturbed(town: Town) -> None:
    """Its block appears between judgement and effect."""
    claim(town, "n1", state=AffinityState.PENDING)
    town.sweep()

    def finish(_: object) -> None:
        store.before_commit = lambda ops: None
        block(town, "n1")

    store = FaultyStore(town.world.store, before_commit=finish)
    town.sweep(store)
    assert town.world.affinities()
    assert blocks_of(town, "n1") == [CIDR]


def test_a_false_affinity_goes_and_the_true_one_stays(town: Town) -> None:
    town.start("web")
    (cidr,) = blocks_of(town, "n1")
    claim(town, "n2", cidr)
    town.settle(2)
    assert set(town.world.affinities()) == {AffinityKey("n1", cidr)}
    town.world.audit()


def test_a_block_in_use_whose_affinity_was_lost_gets_it_back(town: Town) -> None:
    town.start("web")
    (key,) = town.world.affinities()
    town.world.store.delete(key)
    town.settle(2)
    assert town.world.affinities() == {key: BlockAffinity(AffinityState.CONFIRMED)}
    town.world.audit()


@pytest.mark.parametrize("node", ["n1", None])
def test_an_empty_block_that_no_affinity_names_goes(town: Town, node: str | None) -> None:
    block(town, node)
    town.settle(2)
    assert town.world.blocks() == []


def test_a_virtual_nodes_block_is_kept(town: Town) -> None:
    block(town, None)
    (made,) = town.world.blocks()
    town.world.put(BlockKey(CIDR), replace(made, affinity="virtual:load-balancer"))
    town.settle()
    assert town.reason(f"claim {CIDR} ") == "of virtual:load-balancer, which is no node"
    assert len(town.world.blocks()) == 1


def test_an_affinity_that_cannot_be_read_is_not_taken_for_lost(town: Town) -> None:
    town.start("web")
    (key,) = town.world.affinities()
    block(town, "n1")
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        broken = replace(found, records=(), malformed=("an affinity",))
        return broken if scope == Affinities() else found

    store.list = half  # type: ignore[method-assign]  # the affinities are malformed
    commits = FaultyStore(store)
    town.settle(3, store=commits)
    assert commits.commits == []
    for cidr in (key.cidr, CIDR):
        why = town.reason(f"claim {cidr} n1")
        assert why == "unknown: its affinity may be one that cannot be read"


def test_a_block_that_cannot_be_read_is_not_taken_for_absent(town: Town) -> None:
    claim(town, "n1")
    claim(town, "n2", ip_network("fd65::40/122"))
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        return replace(found, malformed=("a block",)) if scope == Blocks(4) else found

    store.list = half  # type: ignore[method-assign]  # one block is malformed
    town.settle()
    assert set(town.world.affinities()) == {AffinityKey("n1", CIDR)}, "of the other family: judged"
    assert town.reason(f"claim {CIDR} n1") == "unknown: its block may be one that cannot be read"
    assert town.last is not None
    assert "a block" in town.last.opinions.inventory.unreadable


# -- empty blocks of living nodes ---------------------------------------------------------------


def test_a_nodes_only_block_is_kept_empty(town: Town) -> None:
    town.run("web")
    town.stop("web")
    town.settle()
    assert len(blocks_of(town, "n1")) == 1


def fill(town: Town, count: int, node: str = "n1") -> list[str]:
    """So many pods that run on a node: four to a block."""
    return [str(town.start(f"{node}-{number}", node)[0]) for number in range(count)]


def test_an_empty_block_is_released_when_the_node_has_another_with_room(town: Town) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    full, spare = sorted(blocks_of(town, "n1"), key=lambda one: one not in _used(town))
    town.sweep()
    assert town.outcome(f"claim {spare} n1") is WAIT
    town.sweep()
    assert blocks_of(town, "n1") == [full]
    assert set(town.world.affinities()) == {AffinityKey("n1", full)}


def _used(town: Town) -> set[IPNetwork]:
    return {one.cidr for one in town.world.blocks() if any(i is not None for i in one.allocations)}


def test_not_while_the_other_one_is_full(town: Town) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.settle()
    assert len(blocks_of(town, "n1")) == 2


def test_not_while_the_other_ones_room_is_reserved(town: Town) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    used = next(iter(_used(town)))
    town.world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": [str(used)]})
    town.settle()
    assert len(blocks_of(town, "n1")) == 2


def test_of_two_empty_ones_one_stays(town: Town) -> None:
    fill(town, 5)
    for number in range(5):
        town.stop(f"n1-{number}")
        town.remove_pod(f"n1-{number}")
    town.settle()
    assert len(blocks_of(town, "n1")) == 1


def test_used_in_between_it_starts_anew(town: Town) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    town.sweep()
    (spare,) = set(blocks_of(town, "n1")) - _used(town)
    want = AddressRequest(addresses=(spare.network_address,))
    town.world.client("n1").assign("k8s-pod-network.c-x", vm_pod("x"), want)
    town.world.client("n1").release("k8s-pod-network.c-x")
    town.sweep()
    assert town.outcome(f"claim {spare} n1") is WAIT
    town.sweep()
    assert spare not in blocks_of(town, "n1")


def test_an_address_taken_at_the_last_moment_keeps_it(town: Town) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    town.sweep()
    (spare,) = set(blocks_of(town, "n1")) - _used(town)

    def add(_: object) -> None:
        store.before_commit = lambda ops: None
        want = AddressRequest(addresses=(spare.network_address,))
        town.world.client("n1").assign("k8s-pod-network.c-x", vm_pod("x"), want)

    store = FaultyStore(town.world.store, before_commit=add)
    town.sweep(store)
    assert str(spare.network_address) in town.held
    assert town.reason(f"claim {spare} n1") == "it changed after it was judged"
    town.world.audit()


def test_what_cools_down_keeps_its_block_until_it_has(town: Town) -> None:
    town.world.config(cooldown_seconds=600)
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    town.settle()
    assert len(blocks_of(town, "n1")) == 2
    town.world.later(601)
    town.settle(2)
    assert len(blocks_of(town, "n1")) == 1


def test_a_block_of_a_deleted_pool_goes_once_it_is_empty(town: Town) -> None:
    town.start("web", want=BOTH)
    town.world.store.delete(ResourceKey(Kind.IP_POOL, "v4"))
    town.settle()
    assert len(blocks_of(town, "n1")) == 2
    town.stop("web")
    town.settle(2)
    assert [one.version for one in blocks_of(town, "n1")] == [6]


def test_a_release_that_was_not_finished_is(town: Town) -> None:
    town.run("web")
    town.stop("web")
    (key,) = town.world.affinities()
    town.world.put(key, BlockAffinity(AffinityState.PENDING_DELETION))
    town.settle(2)
    assert (town.world.blocks(), town.world.affinities()) == ([], {})


def test_an_unfinished_release_of_a_block_in_use_is_left_to_its_node(town: Town) -> None:
    town.start("web")
    (key,) = town.world.affinities()
    town.world.put(key, BlockAffinity(AffinityState.PENDING_DELETION))
    town.settle()
    assert town.reason(f"claim {key.cidr} n1") == "in use"


@pytest.mark.parametrize("unreadable", [Kind.IP_POOL, Kind.IP_RESERVATION])
def test_a_pool_or_reservation_that_cannot_be_read_keeps_empty_blocks(
    town: Town, unreadable: Kind
) -> None:
    fill(town, 5)
    town.stop("n1-4")
    town.stop("n1-3")
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        broken = replace(found, malformed=("one is broken",))
        return broken if scope == Resources(unreadable) else found

    store.list = half  # type: ignore[method-assign]  # one of them is malformed
    town.settle()
    assert len(blocks_of(town, "n1")) == 2
    assert town.last is not None
    assert any("broken" in text for text in town.last.opinions.inventory.unreadable)
