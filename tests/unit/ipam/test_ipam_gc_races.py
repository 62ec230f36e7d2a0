"""What changes between judgement and effect, at the last possible moment, is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

import pytest

from ipam.block import claim_for, release
from ipam.client import AddressRequest
from ipam.gc import Outcome
from libtortie.kube.objects import Meta, VirtualMachine
from libtortie.model.ipam import AffinityState, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.gc_world import BOTH, NETWORK, Town
from tests.fakes.ipam_world import plain_pod, pool, vm_pod

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE
WEB = f"{NETWORK}.c-web"
CIDR = ip_network("10.65.0.64/30")
CHANGED = "it changed after it was judged"


@pytest.fixture
def town() -> Town:
    return Town()


def pass_with(town: Town, meanwhile: Callable[[], object]) -> None:
    """A pass during whose first commit something else happens first."""

    def first(_: object) -> None:
        store.before_commit = lambda ops: None
        meanwhile()

    store = FaultyStore(town.world.store, before_commit=first)
    town.sweep(store)


def test_an_address_given_again_under_the_same_handle(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()

    def again() -> None:
        client = town.world.client("n1")
        client.release(WEB)
        want = AddressRequest(addresses=(address,))
        client.assign(WEB, plain_pod("web", uid="u-new"), want)
        town.pod("web", uid="u-new", ips=[address])

    pass_with(town, again)
    assert (town.of(address), town.why(address)) == (KEEP, CHANGED)
    assert town.held == {str(address)}
    town.settle()
    assert town.why(address) == "pod shop/web lives and has it"


def test_an_address_given_to_another_handle(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()

    def to_another() -> None:
        town.world.client("n1").release(WEB)
        want = AddressRequest(addresses=(address,))
        town.world.client("n1").assign(f"{NETWORK}.c-app", plain_pod("app"), want)

    pass_with(town, to_another)
    assert town.why(address) == CHANGED
    assert town.world.allocated() == {f"{NETWORK}.c-app": 1}
    town.world.audit()


def test_one_of_two_addresses_changes_and_the_other_is_freed(town: Town) -> None:
    v4, v6 = town.start("web", want=BOTH)
    town.remove_pod("web")
    town.sweep()

    def rename() -> None:
        town.rewrite(v4, {**plain_pod("kube-proxy", node="n0"), "pod-uid": "u-kube-proxy"})

    pass_with(town, rename)
    assert (town.why(v4), town.of(v6)) == (CHANGED, FREE)
    assert town.held == {str(v4)}
    town.world.audit()


@pytest.mark.parametrize(
    "fault", [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER]
)
def test_what_was_freed_is_told_although_the_answer_was_lost(town: Town, fault: Fault) -> None:
    v4, v6 = town.start("web", want=BOTH)
    town.remove_pod("web")
    town.sweep()
    town.sweep(FaultyStore(town.world.store, [fault]))
    assert (town.of(v4), town.of(v6)) == (FREE, FREE)
    assert town.held == set()


@pytest.mark.parametrize(
    "script",
    [
        [Fault.UNAVAILABLE_BEFORE, Fault.NONE, Fault.UNAVAILABLE_BEFORE],
        [Fault.UNAVAILABLE_AFTER, Fault.UNAVAILABLE_AFTER],
    ],
)
def test_so_is_what_was_released(town: Town, script: list[Fault]) -> None:
    town.world.put(AffinityKey("n1", CIDR), BlockAffinity())
    town.world.store.create(HandleKey("odd"), Handle(blocks={}))
    town.sweep()
    town.sweep(FaultyStore(town.world.store, script))
    assert (town.outcome(f"claim {CIDR} n1"), town.outcome("handle odd")) == (FREE, FREE)
    assert (town.world.affinities(), town.world.handles()) == ({}, {})


def test_once_it_is_told_to_stop_it_begins_nothing_more(town: Town) -> None:
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="x", uid="x")))
    town.start("web")
    town.remove_pod("web")
    town.world.put(AffinityKey("n1", CIDR), BlockAffinity())
    town.world.store.create(HandleKey("odd"), Handle(blocks={}))
    town.world.client().claim_vm("k8s-pod-network.vmi.shop.db", vm_pod("p1"), AddressRequest())
    town.sweep()
    store = FaultyStore(town.world.store)
    town.stopped = True
    town.sweep(store)
    assert store.commits == []
    assert town.last is not None
    due = [one for one in town.last.verdicts if "told to stop" in one.reason]
    assert [one.unknown for one in due] == [True] * 4
    town.stopped = False
    town.sweep(later=0)
    assert (town.held, town.world.handles()) == (set(), {})


def test_a_handles_record_that_is_written_again(town: Town) -> None:
    town.world.store.create(HandleKey("odd"), Handle(blocks={}))
    town.sweep()
    pass_with(town, lambda: town.world.put(HandleKey("odd"), Handle(blocks={}, extra={"x": 1})))
    assert town.reason("handle odd") == CHANGED
    assert "odd" in town.world.handles()
    assert town.outcome("handle odd") is KEEP


def test_a_handle_without_a_record_that_loses_an_address(town: Town) -> None:
    v4, v6 = town.start("web", want=BOTH)
    town.world.store.delete(HandleKey(WEB))
    town.sweep()

    def drop() -> None:
        (block,) = [one for one in town.world.blocks() if v6 in one.cidr]
        left = release(block, [block.ordinal(v6)], now=town.world.now(), cooldown=0)
        town.world.put(BlockKey(block.cidr), left)

    pass_with(town, drop)
    assert town.reason(f"handle {WEB}") == CHANGED
    assert WEB not in town.world.handles()
    town.settle(2)
    assert dict(town.world.handles()[WEB].blocks).keys() == {
        one.cidr for one in town.world.blocks() if v4 in one.cidr
    }


def test_a_claim_that_is_renewed(town: Town) -> None:
    key = AffinityKey("n1", CIDR)
    town.world.put(key, BlockAffinity(AffinityState.PENDING))
    town.sweep()
    pass_with(town, lambda: town.world.put(key, BlockAffinity(AffinityState.CONFIRMED)))
    assert town.reason(f"claim {CIDR} n1") == CHANGED
    assert set(town.world.affinities()) == {key}


def test_a_false_affinity_that_becomes_true(town: Town) -> None:
    town.start("web")
    (block,) = town.world.blocks()
    key = AffinityKey("n2", block.cidr)
    town.world.put(key, BlockAffinity(AffinityState.PENDING))
    town.sweep()
    mine = claim_for(block, "n2", town.world.now())
    pass_with(town, lambda: town.world.put(BlockKey(block.cidr), mine))
    assert town.reason(f"claim {block.cidr} n2") == CHANGED
    assert key in town.world.affinities()


def test_a_lost_affinity_whose_block_goes_to_another_node(town: Town) -> None:
    town.start("web")
    (block,) = town.world.blocks()
    town.world.store.delete(AffinityKey("n1", block.cidr))
    town.sweep()
    theirs = claim_for(block, "n2", town.world.now())
    pass_with(town, lambda: town.world.put(BlockKey(block.cidr), theirs))
    assert town.reason(f"claim {block.cidr} n1") == CHANGED
    assert AffinityKey("n1", block.cidr) not in town.world.affinities()


def test_a_removed_nodes_block_that_another_node_took(town: Town) -> None:
    town.start("web")
    (block,) = town.world.blocks()
    town.remove_node("n1")
    town.sweep()
    theirs = claim_for(block, "n2", town.world.now())
    pass_with(town, lambda: town.world.put(BlockKey(block.cidr), theirs))
    assert town.reason(f"claim {block.cidr} n1") == CHANGED
    assert [one.node for one in town.world.blocks()] == ["n2"]


def test_an_empty_block_that_was_used_and_emptied_again(town: Town) -> None:
    at(town, "stays", "10.65.0.4/32")
    at(town, "goes", "10.65.0.8/32")
    town.stop("goes")
    town.sweep()

    def use() -> None:
        at(town, "brief", "10.65.0.9/32")
        town.stop("brief")

    pass_with(town, use)
    assert town.reason("claim 10.65.0.8/30 n1") == CHANGED
    assert len(town.world.blocks()) == 2


def test_an_empty_block_whose_cooldown_is_made_longer(town: Town) -> None:
    town.world.config(cooldown_seconds=60)
    at(town, "stays", "10.65.0.4/32")
    at(town, "goes", "10.65.0.8/32")
    town.stop("goes")
    town.world.later(61)
    town.sweep()
    pass_with(town, lambda: town.world.config(cooldown_seconds=600))
    assert town.reason("claim 10.65.0.8/30 n1") == CHANGED
    assert len(town.world.blocks()) == 2


# -- which empty block -------------------------------------------------------------------------


def at(town: Town, pod: str, text: str) -> None:
    """A pod that runs on n1 with this address."""
    want = AddressRequest(addresses=(ip_network(text).network_address,))
    (address,) = town.run(pod, want=want)
    town.pod(pod, ips=[address])


@pytest.mark.parametrize("empty", ["10.65.0.0/32", "10.65.0.8/32"])
def test_the_empty_one_goes_wherever_it_lies(town: Town, empty: str) -> None:
    at(town, "stays", "10.65.0.4/32")
    at(town, "goes", empty)
    town.stop("goes")
    town.settle(2)
    assert [str(one.cidr) for one in town.world.blocks()] == ["10.65.0.4/30"]


def test_room_in_another_pool_does_not_count(town: Town) -> None:
    town.world.pools(pool("other", "10.66.0.0/24", blockSize=30))
    at(town, "stays", "10.65.0.4/32")
    at(town, "goes", "10.66.0.4/32")
    town.stop("goes")
    town.settle()
    assert [str(one.cidr) for one in town.world.blocks()] == ["10.65.0.4/30", "10.66.0.4/30"]
    assert {one.node for one in town.world.blocks()} == {"n1"}
