"""The wall clock is set, by a day, back or forth, between operations and in the middle of one.

Compare-and-swap rests on revisions and the collector's grace on a monotonic clock, so neither
notices. A cooldown is wall-clock time: it never ends early because the clock was set back, and
after a time that was ahead it lasts one cooldown more from when the address is first wanted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address

import pytest

from ipam.client import AddressRequest
from ipam.cooldown import restart
from libtortie.datastore.port import Record, Value
from libtortie.errors import Conflict, NoFreeAddresses
from libtortie.model.ipam import Block
from libtortie.model.keys import BlockKey, Key
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_operations import BY_NAME, collect_all, judge, outcome
from tests.fakes.ipam_world import World, check_block, plain_pod, pool, vm_pod

DAY = 86_400.0
V4 = AddressRequest()
COOLDOWN = 60


def small(**config: object) -> World:
    """Four addresses for everybody."""
    return World().pools(pool("a", "10.0.0.0/30", blockSize=30)).config(**config)


def full_of_rest(world: World) -> None:
    """Every address was given and released."""
    for number in range(4):
        world.client().assign(f"h{number}", plain_pod(f"p{number}"), V4)
    for number in range(4):
        world.client().release(f"h{number}")


def is_refused(world: World) -> bool:
    try:
        world.client().assign("new", plain_pod("new"), V4)
    except NoFreeAddresses:
        return True
    return False


@pytest.mark.parametrize("jump", [-DAY, DAY])
@pytest.mark.parametrize("name", BY_NAME)
def test_operation_ends_the_same_whatever_the_clock_does(name: str, jump: float) -> None:
    operation = BY_NAME[name]
    straight = World()
    operation.prepare(straight)
    operation.act(straight, straight.store)
    world = World()
    operation.prepare(world)
    if name != "reclaim":  # its block's age is what it is about
        world.later(jump)
    store = FaultyStore(world.store, before_commit=lambda ops: world.later(-jump))
    operation.act(world, store)
    judge(operation, world, set())
    assert _without_times(outcome(world)) == _without_times(outcome(straight))


def _without_times(found: object) -> str:
    return re.sub(r"datetime\.datetime\([^()]*\)", "then", repr(found))


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_numbers_of_a_block_grow_whatever_the_clock_does(jump: float) -> None:
    world = small()
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    last = world.block(got.block).sequence_number
    for number in range(6):
        world.later(jump)
        world.client().assign(f"h{number % 3}", plain_pod(f"p{number}"), V4)
        world.client().release(f"h{number % 3}")
        found = world.block(got.block).sequence_number
        assert found > last
        last = found
    world.audit()


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_stale_writer_fails_whatever_the_clock_does(jump: float) -> None:
    """A block that was deleted and made again has another revision, if no other number."""
    world = small()
    stale = FaultyStore(world.store)

    def another_life(_: object) -> None:
        stale.before_commit = lambda ops: None
        world.later(jump)
        world.client("n2").assign("theirs", plain_pod("theirs", node="n2"), V4)

    stale.before_commit = another_life
    (mine,) = world.client("n1", stale).assign("mine", plain_pod("mine"), V4)
    (theirs,) = world.client().by_handle("theirs")
    assert mine.address != theirs.address
    world.audit()


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_collector_frees_what_it_judged_and_nothing_newer(jump: float) -> None:
    world = small()
    world.client().claim_vm("k8s-pod-network.vmi.shop.db", vm_pod("p"), V4)
    world.later(jump)
    collect_all(world, world.store)
    assert world.allocated() == {}
    world.audit()


def test_clock_set_back_ends_no_rest_early() -> None:
    world = small(cooldown_seconds=COOLDOWN)
    full_of_rest(world)
    world.later(COOLDOWN / 2)
    world.later(-DAY)
    assert is_refused(world)
    world.later(COOLDOWN - 1)
    assert is_refused(world), "less than a cooldown since it was first wanted"


@pytest.mark.parametrize("jump", [-DAY, -3650 * DAY])
def test_rest_that_began_in_the_future_ends_a_cooldown_after_it_was_wanted(jump: float) -> None:
    """However far ahead the clock was."""
    world = small(cooldown_seconds=COOLDOWN)
    full_of_rest(world)
    world.later(jump)
    assert is_refused(world)
    world.later(COOLDOWN + 1)
    assert not is_refused(world)
    world.audit()


def test_explicit_address_that_rests_in_the_future() -> None:
    world = small(cooldown_seconds=COOLDOWN)
    wanted = AddressRequest(addresses=(ip_address("10.0.0.1"),))
    world.client().assign("h", plain_pod("p"), wanted)
    world.client().release("h")
    world.later(-DAY)
    with pytest.raises(NoFreeAddresses, match="cooling down"):
        world.client().assign("h2", plain_pod("q"), wanted)
    world.later(COOLDOWN + 1)
    assert len(world.client().assign("h2", plain_pod("q"), wanted)) == 1


def test_rests_of_the_future_become_one_that_begins_now() -> None:
    world = small(cooldown_seconds=COOLDOWN)
    world.client().assign("keeps", plain_pod("keeps"), V4)
    for number in range(3):
        world.client().assign(f"h{number}", plain_pod(f"p{number}"), V4)
        world.later(1)
        world.client().release(f"h{number}")
    (before,) = world.blocks()
    assert restart(before, world.now()) is before
    after = restart(before, world.now().replace(year=2020))
    check_block(after)
    assert [a.released_at for a in after.attributes if a.released_at] == [
        world.now().replace(year=2020)
    ]
    assert _held(after) == _held(before) == {"keeps": 1}
    assert after.sequence_number == before.sequence_number + 1


def _held(block: Block) -> dict[str, int]:
    names = [block.attributes[i].handle_id for i in block.allocations if i is not None]
    return {name: names.count(name) for name in names if name}


def test_rests_begin_anew_in_spite_of_another_writer() -> None:
    """What resists is left for the next time; nothing is lost by it."""
    world = small(cooldown_seconds=COOLDOWN)
    full_of_rest(world)
    world.later(-DAY)
    with pytest.raises(NoFreeAddresses):
        world.client(store=Refusing(world.store)).assign("new", plain_pod("new"), V4)
    world.audit()
    assert is_refused(world)
    world.later(COOLDOWN + 1)
    assert not is_refused(world)


class Refusing(FaultyStore):
    """Somebody is always faster."""

    def update(self, key: Key, value: Value, revision: str) -> Record:
        raise Conflict("injected")


def test_empty_block_claimed_in_the_future_is_reclaimed() -> None:
    """The node that claimed it had a clock that was ahead, or ours was set back."""
    world = small(strict_affinity=True)
    world.client("n2").assign("gone", plain_pod("gone", node="n2"), V4)
    world.client("n2").release("gone")
    world.later(-DAY)
    (got,) = world.client("n1").assign("h", plain_pod("p"), V4)
    assert world.block(got.block).node == "n1"
    world.audit()


@pytest.mark.parametrize("seconds", [10**11, 10**15, 2**63 - 1], ids=["centuries", "ages", "most"])
def test_a_cooldown_longer_than_all_time_never_ends_and_disturbs_nothing_else(seconds: int) -> None:
    """It is stored by hand: `ipam configure` takes no such number."""
    world = small(cooldown_seconds=seconds)
    client = world.client()
    client.assign("h", plain_pod("p"), V4)
    client.release("h")
    world.later(1000 * DAY)
    got = [client.assign(f"h{n}", plain_pod(f"p{n}"), V4)[0].address for n in range(3)]
    assert ip_address("10.0.0.0") not in got
    assert is_refused(world)
    collect_all(world, world.store)
    assert world.allocated() == {}, "their pods are gone"


@pytest.mark.parametrize("year", [1, 1969, 2600, 9999])
def test_a_clock_that_no_sequence_number_can_be_made_of_gives_addresses(year: int) -> None:
    world = small()
    world.time = datetime(year, 7, 1, tzinfo=UTC)
    client = world.client()
    assert len(client.assign("h", plain_pod("p"), V4)) == 1
    assert len(client.release("h")) == 1


def test_after_the_last_sequence_number_comes_the_first(world_of_one: World) -> None:
    """A block that has it is as good as any."""
    (block,) = world_of_one.blocks()
    world_of_one.put(BlockKey(block.cidr), replace(block, sequence_number=2**64 - 1))
    (got,) = world_of_one.client().assign("h", plain_pod("p"), V4)
    (block,) = world_of_one.blocks()
    assert (block.sequence_number, block.sequence_numbers[1]) == (0, 2**64 - 1)
    assert world_of_one.client().release("h") == (got.address,)


@pytest.fixture
def world_of_one() -> World:
    """One address is given."""
    world = small()
    world.client().assign("first", plain_pod("first"), V4)
    return world
