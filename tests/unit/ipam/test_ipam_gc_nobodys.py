"""Addresses that are allocated to nobody: what an older Calico leaves of one that cools down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from ipam.block import is_empty
from ipam.check import examine
from ipam.client import AddressRequest
from ipam.gc import Means, Outcome, opinions
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import Unavailable
from libtortie.model.ipam import Attribute, Block, IPAddress
from libtortie.model.keys import BlockKey, Kind, ResourceKey
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.gc_world import GRACE, Town
from tests.fakes.ipam_world import plain_pod
from tests.fakes.mortal_store import Countdown, told

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE
LEAKED = "it has neither handle nor owner: nobody can release it"


@pytest.fixture
def town() -> Town:
    return Town()


def forget(town: Town, change: Callable[[Attribute], Attribute] = lambda _: Attribute()) -> None:
    """What a writer leaves that knows nothing of `releasedAt`: of each that rests, `{}`."""
    for block in town.world.blocks():
        kept = [change(one) if one.released_at else one for one in block.attributes]
        town.world.put(BlockKey(block.cidr), replace(block, attributes=tuple(kept)))


def loose(town: Town, *, beside: bool = True, cooldown: int = 60) -> IPAddress:
    """An address that was released, rested, and is nobody's now."""
    town.world.config(cooldown_seconds=cooldown)
    if beside:
        town.start("lives")
    (address,) = map(ip_address, town.start("web"))
    town.stop("web")
    town.remove_pod("web")
    forget(town)
    return address


def block_of(town: Town, address: IPAddress) -> Block:
    (found,) = [one for one in town.world.blocks() if address in one.cidr]
    return found


def test_two_observations_and_a_grace_free_it_at_once(town: Town) -> None:
    address = loose(town)
    town.sweep()
    assert (town.of(address), town.why(address)) == (WAIT, LEAKED)
    town.sweep(later=GRACE - 1)
    assert town.of(address) is WAIT
    before = block_of(town, address)
    town.sweep(later=1)
    assert town.of(address) is FREE
    after = block_of(town, address)
    assert after.attribute(after.ordinal(address)) is None
    assert after.sequence_number > before.sequence_number
    assert len(town.held) == 1
    town.world.audit()
    want = AddressRequest(addresses=(address,))
    assert town.world.client("n1").assign("net.c9", plain_pod("x"), want)[0].address == address


def test_it_rests_for_as_long_as_it_would_have(town: Town) -> None:
    address = loose(town, cooldown=2000)
    town.sweep()
    town.sweep(later=1999)
    assert town.of(address) is WAIT
    town.sweep(later=1)
    assert town.of(address) is FREE
    assert str(address) not in town.held


def test_the_block_goes_with_its_last_one_as_with_any_last_address(town: Town) -> None:
    address = loose(town, beside=False)
    town.world.put(BlockKey(block_of(town, address).cidr), without_node(block_of(town, address)))
    town.settle(2)
    assert town.world.blocks() == []


def without_node(block: Block) -> Block:
    return replace(block, affinity=None, affinity_claim_time=None)


@pytest.mark.parametrize(
    "said",
    [
        {"handle_id": "net.c1"},
        {"active": {"note": "mine"}},
        {"alternate": {"pod": "x", "namespace": "shop"}},
        {"extra": {"reservedUntil": "2099-01-01T00:00:00Z"}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_an_attribute_that_says_anything_is_somebodys(town: Town, said: dict[str, Any]) -> None:
    """A field of a younger Calico may be what keeps it."""
    town.world.config(cooldown_seconds=60)
    (address,) = town.start("web")
    town.stop("web")
    town.remove_pod("web")
    forget(town, lambda _: Attribute(**said))
    town.settle()
    assert town.of(address) is KEEP
    assert town.why(address) != LEAKED
    assert town.held == {str(address)}


def a_pod(town: Town, address: IPAddress) -> None:
    town.pod("other", ips=[address])


def an_endpoint(town: Town, address: IPAddress) -> None:
    town.endpoint("elsewhere", address)


def a_tunnel(town: Town, address: IPAddress) -> None:
    town.node("n2", ipv4VXLANTunnelAddr=str(address))


@pytest.mark.parametrize("uses", [a_pod, an_endpoint, a_tunnel])
def test_who_uses_it_keeps_it(town: Town, uses: Callable[[Town, IPAddress], None]) -> None:
    address = loose(town)
    town.sweep()
    if uses is a_tunnel:
        town.world.store.delete(ResourceKey(Kind.NODE, "n2"))
    uses(town, address)
    town.settle()
    assert town.of(address) is KEEP
    assert town.why(address) == "it has neither handle nor owner, but is in use"
    assert str(address) in town.held


def test_a_finished_pod_does_not(town: Town) -> None:
    address = loose(town)
    town.pod("done", ips=[address], phase="Succeeded")
    town.settle(2)
    assert town.of(address) is FREE


def test_while_pods_are_not_known_it_stays(town: Town) -> None:
    address = loose(town)
    town.sweep()
    town.kube.fail(Unavailable("no route"), plural="pods")
    town.sweep()
    assert town.of(address) is KEEP
    assert "pods are not known" in town.why(address)
    assert str(address) in town.held


def test_without_an_api_it_stays(town: Town) -> None:
    address = loose(town)
    town.reader = None
    town.settle()
    assert town.of(address) is KEEP


def test_while_an_endpoint_cannot_be_read_it_stays(town: Town) -> None:
    address = loose(town)
    path = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/x"
    store = town.world.store
    assert isinstance(store, MemoryDatastore)
    store.put_raw(path, b"{")
    town.settle()
    assert town.of(address) is KEEP
    assert "cannot be read" in town.why(address)


def meanwhile(town: Town, change: Callable[[], object]) -> None:
    """A pass during whose first commit something else happens first."""

    def first(_: object) -> None:
        store.before_commit = lambda ops: None
        change()

    store = FaultyStore(town.world.store, before_commit=first)
    town.sweep(store)


def test_given_to_somebody_at_the_last_moment_it_is_his(town: Town) -> None:
    address = loose(town)
    town.sweep()

    def given() -> None:
        block = block_of(town, address)
        attributes = [one if one.handle_id else Attribute("net.c7") for one in block.attributes]
        town.world.put(BlockKey(block.cidr), replace(block, attributes=tuple(attributes)))

    meanwhile(town, given)
    assert (town.of(address), town.why(address)) == (KEEP, "it changed after it was judged")
    assert str(address) in town.held


def test_freed_and_lost_again_meanwhile_it_is_another(town: Town) -> None:
    address = loose(town)
    town.sweep()

    def again() -> None:
        block = block_of(town, address)
        numbers = {**block.sequence_numbers, block.ordinal(address): block.sequence_number}
        changed = replace(
            block, sequence_numbers=numbers, sequence_number=block.sequence_number + 1
        )
        town.world.put(BlockKey(block.cidr), changed)

    meanwhile(town, again)
    assert (town.of(address), town.why(address)) == (KEEP, "it changed after it was judged")
    assert str(address) in town.held


def test_a_cooldown_that_is_made_longer_meanwhile_is_kept(town: Town) -> None:
    address = loose(town)
    town.sweep()
    meanwhile(town, lambda: town.world.config(cooldown_seconds=int(GRACE) + 1))
    assert town.of(address) is KEEP
    assert str(address) in town.held


@pytest.mark.parametrize("fault", [f for f in Fault if f.name.startswith(("CONFLICT", "UNAV"))])
def test_whatever_becomes_of_the_commit_the_next_pass_finishes(town: Town, fault: Fault) -> None:
    address = loose(town)
    town.sweep()
    town.sweep(FaultyStore(town.world.store, script=[fault]))
    town.settle(2)
    assert str(address) not in town.held
    town.world.audit()


@pytest.mark.parametrize("stepwise", [False, True])
def test_killed_at_every_call_the_next_passes_finish(stepwise: bool) -> None:
    """Without transactions between any two writes, too; what lives is never touched."""
    calls = dying_pass(0, stepwise=stepwise)
    assert calls > 10
    for number in range(1, calls + 1):
        dying_pass(number, stepwise=stepwise)


def dying_pass(die_at: int, *, stepwise: bool) -> int:
    """A pass that is to free an address of nobody dies at a call; how many calls it makes."""
    town = Town()
    address = loose(town)
    town.sweep()
    countdown = Countdown(die_at)
    store = told(town.world.store, countdown)
    try:
        town.sweep(StepwiseStore(store) if stepwise else store)
    except Killed:
        town.memory = {}
    town.settle(2)
    assert str(address) not in town.held, die_at
    assert len(town.held) == 1, die_at
    town.world.audit()
    return len(countdown.steps)


def test_check_names_it(town: Town) -> None:
    address = loose(town)
    found = examine(opinions(Means(town.world.store, town.reader, town.world.now)))
    assert dict(found.leaked) == {address: LEAKED}
    assert [one.text for one in found.problems] == [f"{address} is leaked: {LEAKED}"]


def test_check_says_who_uses_what_is_nobodys(town: Town) -> None:
    address = loose(town)
    town.pod("other")
    town.endpoint("other", address)
    found = examine(opinions(Means(town.world.store, town.reader, town.world.now)))
    user = "Workload (n1/shop/other)"
    assert [one.text for one in found.problems] == [
        f"{address} is allocated to nobody, and used by {user}"
    ]


def test_what_is_only_beside_it_is_untouched(town: Town) -> None:
    address = loose(town)
    (kept,) = [one for one in town.held if one != str(address)]
    town.settle()
    assert town.held == {kept}
    assert not is_empty(block_of(town, address))
    assert town.of(kept) is KEEP
