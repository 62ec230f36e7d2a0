"""Conflicts, lost answers, half commits and sudden death at every step."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

import pytest

from ipam.client import AddressRequest, IPAMClient, Retry
from ipam.transaction import Transaction
from libtortie.datastore.port import Create, Delete, Update
from libtortie.errors import Conflict, Malformed, NoFreeAddresses, Unavailable
from libtortie.model.ipam import AffinityState, Block, Handle
from libtortie.model.keys import BlockKey, HandleKey
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

V4 = AddressRequest()
BOTH = AddressRequest(ipv6=True)
HANDLE = "k8s-pod-network.vmi.shop.db"
SOURCE, TARGET = vm_pod("src"), vm_pod("dst", node="n2", vmim_uid="m-1")


def dual() -> World:
    return World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))


def test_lost_answer_finds_its_own_claim() -> None:
    world = dual()
    world.client().assign("warm", plain_pod("w"), BOTH)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER])
    got = world.client(store=store).assign("h", plain_pod("p"), BOTH)
    assert len(got) == 2
    assert len(store.commits) == 1
    other = world.client().assign("h2", plain_pod("q"), BOTH)
    assert {a.address for a in got}.isdisjoint(a.address for a in other)
    world.audit()


def test_lost_answer_of_a_caller_that_gave_up() -> None:
    world = dual()
    world.client().assign("warm", plain_pod("w"), V4)
    once = Retry(attempts=1, seconds=1.0)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER, Fault.UNAVAILABLE_BEFORE] * 6)
    with pytest.raises(Unavailable, match="allocate for h: gave up"):
        world.client(store=store, retry=once).assign("h", plain_pod("p"), V4)
    world.audit()
    assert world.allocated()["h"] in (0, 1)
    got = world.client().assign("h", plain_pod("p"), V4)
    assert world.allocated()["h"] == 1
    assert world.client().release("h") == (got[0].address,)


def test_failed_allocation_gives_back_what_it_stored() -> None:
    world = dual()
    world.client().assign("warm", plain_pod("w"), V4)
    once = Retry(attempts=1, seconds=1.0)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER])
    with pytest.raises(Unavailable):
        world.client(store=store, retry=once).assign("h", plain_pod("p"), V4)
    assert world.allocated()["h"] == 0
    assert "h" not in world.handles()


def test_undo_leaves_what_the_vm_had_before() -> None:
    world = dual()
    (v4,) = world.client().claim_vm(HANDLE, SOURCE, V4)
    once = Retry(attempts=1, seconds=1.0)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER])
    with pytest.raises(Unavailable):
        world.client(store=store, retry=once).claim_vm(HANDLE, SOURCE, BOTH)
    assert world.client().by_handle(HANDLE) == (v4,)
    world.audit()


def test_undo_leaves_what_another_pod_of_the_vm_got_meanwhile() -> None:
    world = dual()
    world.client().assign("warm", plain_pod("w"), V4)
    other = vm_pod("other", node="n2")
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_BEFORE])

    def other_first(_: object) -> None:
        world.client("n2").claim_vm(HANDLE, other, V4)

    store.before_commit = other_first
    with pytest.raises(Unavailable):
        world.client(store=store, retry=Retry(attempts=1)).claim_vm(HANDLE, SOURCE, V4)
    (kept,) = world.client().by_handle(HANDLE)
    assert kept.active == other


def test_lost_answer_of_the_del_that_freed_a_vm() -> None:
    world = dual()
    world.client().claim_vm(HANDLE, SOURCE, BOTH)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER])
    assert world.client(store=store).disown_vm(HANDLE, SOURCE, vm_deleting=True)
    assert world.allocated() == {}


def test_lost_answer_of_a_release_still_names_the_addresses() -> None:
    world = dual()
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    store = FaultyStore(world.store, [Fault.UNAVAILABLE_AFTER])
    assert world.client(store=store).release("h") == (got.address,)


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE])
def test_bounded_by_attempts(fault: Fault) -> None:
    world = dual()
    store = FaultyStore(world.store, [fault] * 100)
    pauses: list[float] = []
    client = world.client(store=store, retry=Retry(attempts=5), sleep=pauses.append)
    expected = Conflict if fault is Fault.CONFLICT else Unavailable
    with pytest.raises(expected):
        client.claim_vm(HANDLE, SOURCE, V4)
    assert len(pauses) == 4
    assert pauses[0] < pauses[3] <= 0.25
    assert world.blocks() == []


def test_bounded_by_a_clock_that_starts_behind_the_lock() -> None:
    world = dual()
    clock = [0.0]
    store = FaultyStore(world.store, [Fault.CONFLICT] * 100)
    client = IPAMClient(
        store,
        "n1",
        now=world.now,
        retry=Retry(attempts=1000, seconds=10.0, pause=1.0, longest_pause=1.0),
        monotonic=lambda: clock[0],
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
    )
    with pytest.raises(Conflict):
        client.assign("h", plain_pod("p"), V4)
    assert 10.0 <= clock[0] < 12.0


def test_handle_that_names_an_address_it_has_not_is_healed() -> None:
    world = dual()
    (got,) = world.client().claim_vm(HANDLE, SOURCE, V4)
    record = world.store.get(HandleKey(HANDLE))
    nowhere = ip_network("10.0.0.192/26")
    lies = Handle(blocks={got.block: 3, nowhere: 1})
    calls: list[Callable[[IPAMClient], object]] = [
        lambda client: client.claim_vm(HANDLE, SOURCE, V4),
        lambda client: client.claim_vm_target(HANDLE, TARGET),
        lambda client: client.disown_vm(HANDLE, TARGET, vm_deleting=False),
    ]
    for call in calls:
        world.put(record.key, lies)
        call(world.client())
        assert world.handles()[HANDLE].blocks == {got.block: 1}
        world.audit()


def test_a_handle_that_names_more_blocks_than_a_commit_can_have_is_healed() -> None:
    """No operation of it has to be given up, and none takes what a commit of etcd has not."""
    world = World().pools(pool("a", "10.0.0.0/16", blockSize=28))
    (got,) = world.client().claim_vm(HANDLE, SOURCE, V4)
    nowhere = {ip_network(f"10.{n // 256}.{n % 256}.0/28"): 1 for n in range(500)}
    store = FaultyStore(world.store)
    calls: list[Callable[[IPAMClient], object]] = [
        lambda client: client.claim_vm(HANDLE, SOURCE, V4),
        lambda client: client.disown_vm(HANDLE, SOURCE, vm_deleting=True),
    ]
    for call in calls:
        world.put(HandleKey(HANDLE), Handle(blocks={got.block: 1, **nowhere}))
        call(world.client(store=store))
        world.audit()
    assert not world.allocated()
    assert max(map(len, store.commits)) <= 128


def test_handle_without_any_address_does_not_keep_a_vm_from_starting() -> None:
    world = dual()
    nowhere = ip_network("10.0.0.192/26")
    world.put(HandleKey(HANDLE), Handle(blocks={nowhere: 1}))
    assert world.client().by_handle(HANDLE) == ()
    assert len(world.client().claim_vm(HANDLE, SOURCE, BOTH)) == 2
    world.audit()
    world.put(HandleKey("empty"), Handle(blocks={}))
    world.put(HandleKey("lost"), Handle(blocks={nowhere: 1}))
    assert world.client().release("empty") == ()
    assert world.client().release("lost") == ()
    assert set(world.handles()) == {HANDLE}


def test_healing_stops_the_writer_that_had_only_written_the_handle() -> None:
    """Without transactions: a writer stands between handle and block while another heals."""
    world = dual()
    world.client("n1").assign("warm", plain_pod("w"), V4)
    store = StepwiseStore(world.store)
    healed: list[int] = []

    def heal_meanwhile(done: int) -> None:
        if not healed:
            healed.append(done)
            world.client("n2").claim_vm(HANDLE, SOURCE, V4)

    store.between = heal_meanwhile
    world.client("n1", store).claim_vm(HANDLE, SOURCE, V4)
    assert healed == [1]
    assert world.allocated()[HANDLE] == 1
    world.audit()


STORIES: dict[str, Callable[[IPAMClient], object]] = {
    "assign": lambda c: c.assign("h", plain_pod("p"), BOTH),
    "claim": lambda c: c.claim_vm(HANDLE, vm_pod("again"), BOTH),
    "new claim": lambda c: c.claim_vm(HANDLE + "2", SOURCE, BOTH),
    "target": lambda c: c.claim_vm_target(HANDLE, vm_pod("dst2", vmim_uid="m-2")),
    "promote": lambda c: c.promote(HANDLE, TARGET),
    "disown": lambda c: c.disown_vm(HANDLE, SOURCE, vm_deleting=False),
    "release": lambda c: c.release("other"),
    "vm release": lambda c: c.disown_vm("doomed", vm_pod("x"), vm_deleting=True),
}


def migrating() -> World:
    world = dual()
    world.client("n1").assign("other", plain_pod("o"), BOTH)
    world.client("n1").claim_vm("doomed", vm_pod("x"), BOTH)
    world.client("n1").claim_vm(HANDLE, SOURCE, BOTH)
    world.client("n2").claim_vm_target(HANDLE, TARGET)
    return world


def outcome(world: World) -> object:
    """What is stored, without sequence numbers and claim times."""
    return (
        world.handles(),
        sorted(
            (str(b.cidr), b.affinity, repr(b.allocations), repr(b.attributes))
            for b in world.blocks()
        ),
        sorted(map(repr, world.affinities().items())),
    )


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_repeating_after_death_at_any_commit_ends_the_same(story: str, fault: Fault) -> None:
    straight = migrating()
    counter = FaultyStore(straight.store)
    STORIES[story](straight.client("n3", counter))
    assert counter.commits
    for step in range(len(counter.commits)):
        world = migrating()
        store = FaultyStore(world.store, [Fault.NONE] * step + [fault])
        with pytest.raises(Killed):
            STORIES[story](world.client("n3", store))
        world.audit()
        STORIES[story](world.client("n3"))
        assert outcome(world) == outcome(straight)
        world.audit()


@pytest.mark.parametrize("story", STORIES)
def test_repeating_after_death_between_any_two_writes_ends_the_same(story: str) -> None:
    """The same on a store without transactions."""
    straight = migrating()
    steps: list[int] = []
    store = StepwiseStore(straight.store)
    store.between = steps.append
    STORIES[story](straight.client("n3", store))
    straight.audit()
    for step in range(len(steps)):
        world = migrating()
        store = StepwiseStore(world.store)
        store.between = _die_after(step)
        with pytest.raises(Killed):
            STORIES[story](world.client("n3", store))
        world.audit(exact=False)
        STORIES[story](world.client("n3", StepwiseStore(world.store)))
        world.audit()
        assert outcome(world) == outcome(straight)


def _die_after(step: int) -> Callable[[int], None]:
    seen: list[int] = []

    def between(done: int) -> None:
        seen.append(done)
        if len(seen) > step:
            raise Killed

    return between


def test_half_a_dual_stack_commit_is_undone_when_the_rest_is_impossible() -> None:
    world = World().pools(
        pool("a", "10.0.0.0/30", blockSize=30), pool("b", "fd00::/126", blockSize=126)
    )
    world.client("n2").assign("warm", plain_pod("w"), BOTH)
    store = StepwiseStore(world.store)

    def take_all_of_v6(done: int) -> None:
        store.between = lambda done: None
        only_v6 = AddressRequest(ipv4=False, ipv6=True)
        for i in range(3):
            world.client("n2").assign(f"t{i}", plain_pod(f"t{i}"), only_v6)

    store.between = take_all_of_v6
    with pytest.raises(NoFreeAddresses, match="IPv6"):
        world.client("n1", store).assign("h", plain_pod("p"), BOTH)
    assert world.allocated()["h"] == 0
    world.audit()


def test_two_nodes_that_claim_one_block_at_once() -> None:
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30)).config(strict_affinity=True)
    store = StepwiseStore(world.store)
    raced: list[object] = []

    def other_first(done: int) -> None:
        if not raced:
            raced.extend(world.client("n2").assign("theirs", plain_pod("q", node="n2"), V4))

    store.between = other_first
    with pytest.raises(NoFreeAddresses):
        world.client("n1", store).assign("mine", plain_pod("p"), V4)
    (block,) = world.blocks()
    assert block.node == "n2"
    assert world.allocated() == {"theirs": 1}
    world.audit()


def test_two_nodes_start_one_vm_at_the_same_instant() -> None:
    for make in (FaultyStore, StepwiseStore):
        world = dual()
        store = make(world.store)
        raced: list[object] = []

        def other_first(_: object, world: World = world, raced: list[object] = raced) -> None:
            if not raced:
                raced.append(None)
                raced.extend(world.client("n2").claim_vm(HANDLE, vm_pod("p2", node="n2"), BOTH))

        if isinstance(store, StepwiseStore):
            store.between = other_first
        else:
            store.before_commit = other_first
        got = world.client("n1", store).claim_vm(HANDLE, vm_pod("p1"), BOTH)
        assert len(got) == 2
        assert world.allocated() == {HANDLE: 2}
        world.audit()


class StoreWithoutTransactions(FaultyStore):
    """It says so, whatever it does."""

    @property
    def atomic(self) -> bool:
        return False


def test_blocks_are_written_after_the_handle_and_freed_before_it() -> None:
    """The order that a store without transactions can break anywhere."""
    world = dual()
    store = StoreWithoutTransactions(world.store)
    world.client(store=store).assign("h", plain_pod("p"), BOTH)
    assert _order(store) == ["HandleKey", "BlockKey", "BlockKey", "AffinityKey", "AffinityKey"]
    world.client(store=store).release("h")
    assert _order(store) == ["BlockKey", "BlockKey", "HandleKey"]


def test_a_claim_is_part_of_the_allocation_where_commits_are_atomic() -> None:
    world = dual()
    store = FaultyStore(world.store)
    world.client(store=store).assign("h", plain_pod("p"), BOTH)
    assert len(store.commits) == 1
    kinds = ["AffinityKey", "BlockKey"] * 2
    assert _order(store) == [*kinds, "HandleKey"]
    assert {claim.state for claim in world.affinities().values()} == {AffinityState.CONFIRMED}
    world.audit()


def _order(store: FaultyStore) -> list[str]:
    last = store.commits[-1]
    return [type(op.key).__name__ for op in last if isinstance(op, Create | Update | Delete)]


def test_transactions_read_a_key_once_and_refuse_foreign_values() -> None:
    world = dual()
    (got,) = world.client().assign("h", plain_pod("p"), V4)
    tx = Transaction(world.store)
    first = tx.block(got.block)
    world.client().release("h")
    assert tx.block(got.block) is first
    with pytest.raises(Malformed, match="holds a Block"):
        tx.value(BlockKey(got.block), Handle)
    tx.put(BlockKey(got.block), first or pytest.fail("no block"))
    with pytest.raises(Conflict):
        tx.commit()
    assert isinstance(tx.value(BlockKey(got.block), Block), Block)
