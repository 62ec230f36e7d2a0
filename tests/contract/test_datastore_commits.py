"""The datastore port's contract, over every backend: commits of several operations."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    Op,
    Record,
    Unchanged,
    Update,
)
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
)
from libtortie.model.ipam import (
    Block,
)
from libtortie.model.keys import (
    BlockKey,
    Blocks,
    Handles,
    IPAMConfigKey,
    Kind,
    Resources,
    path_of,
)
from tests.contract.datastore_backends import Harness
from tests.fakes.datastore_values import (
    CIDR,
    NOT_A_HANDLE,
    block,
    called,
    handle,
    handle_key,
    network_set,
    set_key,
)
from tests.fakes.followed import in_threads


def test_commit_writes_several_keys_and_returns_a_record_for_each_write(store: Datastore) -> None:
    old = store.create(handle_key("old"), handle(1))
    gone = store.create(handle_key("gone"), handle(1))
    records = store.commit(
        [
            Create(BlockKey(CIDR), block()),
            Check(handle_key("absent"), None),
            Update(handle_key("old"), handle(2), old.revision),
            Delete(handle_key("gone"), gone.revision),
        ]
    )
    assert records == (store.get(BlockKey(CIDR)), None, store.get(handle_key("old")), None)
    assert store.get(handle_key("old")).value == handle(2)
    with pytest.raises(NotFound):
        store.get(handle_key("gone"))


def test_commit_of_nothing_and_of_checks_alone(store: Datastore) -> None:
    assert store.commit([]) == ()
    first = store.create(handle_key(), handle())
    before = store.list(Handles())
    checks = [Check(handle_key(), first.revision), Check(handle_key("absent"), None)]
    assert store.commit(checks) == (None, None)
    assert store.list(Handles()) == before


def failing_ops(stale: str, fresh: str) -> dict[str, Op]:
    return {
        "create of what is there": Create(handle_key("there"), handle(9)),
        "stale update": Update(handle_key("there"), handle(9), stale),
        "update of what is not": Update(handle_key("absent"), handle(9), fresh),
        "stale delete": Delete(handle_key("there"), stale),
        "delete of what is not": Delete(handle_key("absent"), fresh),
        "stale check": Check(handle_key("there"), stale),
        "check for absence": Check(handle_key("there"), None),
        "check of what is not": Check(handle_key("absent"), fresh),
        "a scope that has changed": Unchanged(Handles(), stale),
    }


@pytest.mark.parametrize("case", list(failing_ops("", "")))
@pytest.mark.parametrize("last", [True, False])
def test_commit_is_all_or_nothing(atomic_store: Datastore, case: str, last: bool) -> None:
    store = atomic_store
    stale = store.create(handle_key("there"), handle(1)).revision
    fresh = store.update(handle_key("there"), handle(2), stale).revision
    victim = store.create(handle_key("victim"), handle(1))
    before = store.list(Handles())
    good: list[Op] = [
        Create(handle_key("new"), handle(5)),
        Delete(handle_key("victim"), victim.revision),
        Create(BlockKey(CIDR), block()),
    ]
    failing = failing_ops(stale, fresh)[case]
    with pytest.raises(Conflict):
        store.commit([*good, failing] if last else [failing, *good])
    after = store.list(Handles())
    assert after.records == before.records
    assert store.list(Blocks(4)).records == ()
    assert store.create(handle_key("new"), handle(1)).value == handle(1)


def test_commit_names_each_key_once(store: Datastore) -> None:
    with pytest.raises(InvalidInput, match="once"):
        store.commit([Create(handle_key(), handle(1)), Check(handle_key(), None)])
    assert store.list(Handles()).records == ()


def test_commit_with_a_value_that_cannot_be_stored_writes_nothing(store: Datastore) -> None:
    dangling = replace(block(), allocations=(0, None, None, None))
    with pytest.raises(InvalidInput):
        store.commit([Create(handle_key(), handle()), Create(BlockKey(CIDR), dangling)])
    assert store.list(Handles()).records == ()


# -- scopes that must not have changed


def test_an_unchanged_scope_lets_a_commit_through(store: Datastore) -> None:
    store.create(handle_key("old"), handle())
    gone = store.create(handle_key("gone"), handle())
    listing = store.list(Handles())
    store.create(BlockKey(CIDR), block())  # of another scope
    store.delete(handle_key("gone"), gone.revision)  # what is gone does not count
    guard = Unchanged(Handles(), listing.revision)
    unseen = Unchanged(Resources(Kind.IP_POOL), listing.revision)
    made = store.commit([guard, unseen, Create(handle_key("new"), handle())])
    assert made == (None, None, store.get(handle_key("new")))


def test_the_newest_value_of_a_scope_is_as_good_a_guard(store: Datastore) -> None:
    empty = store.list(Handles())
    store.create(handle_key("a"), handle())
    last = store.create(handle_key("b"), handle()).revision
    store.create(BlockKey(CIDR), block())  # of another scope
    listing = store.snapshot([], [Handles()]).listings[Handles()]
    if not listing.newest:  # Kubernetes' revisions are texts, of no order it promises
        assert not store.atomic
        return
    assert (empty.newest, listing.newest) == ("0", last)
    guard = Unchanged(Handles(), listing.newest)
    with pytest.raises(Conflict, match=called(handle_key("a"))):
        store.commit([Unchanged(Handles(), empty.newest), Create(handle_key("c"), handle())])
    store.commit([guard, Create(handle_key("c"), handle())])
    with pytest.raises(Conflict, match=called(handle_key("c"))):
        store.commit([guard, Create(handle_key("d"), handle())])


@pytest.mark.parametrize("how", ["created", "replaced", "created again"])
def test_a_changed_scope_stops_a_commit_and_is_named(store: Datastore, how: str) -> None:
    old = store.create(handle_key("old"), handle(1))
    listing = store.list(Handles())
    name = "new" if how == "created" else "old"
    match how:
        case "created":
            store.create(handle_key("new"), handle())
        case "replaced":
            store.update(handle_key("old"), handle(2), old.revision)
        case _:
            store.delete(handle_key("old"))
            store.create(handle_key("old"), handle(1))
    guard = Unchanged(Handles(), listing.revision)
    with pytest.raises(Conflict, match=called(handle_key(name))):
        store.commit([guard, Create(BlockKey(CIDR), block())])
    assert store.list(Blocks(4)).records == ()
    again = Unchanged(Handles(), store.list(Handles()).revision)
    store.commit([again, Create(BlockKey(CIDR), block())])
    assert len(store.list(Blocks(4)).records) == 1


def test_a_malformed_newcomer_counts_as_a_change(harness: Harness) -> None:
    revision = harness.store.list(Handles()).revision
    harness.put_raw(path_of(handle_key("bad")), NOT_A_HANDLE)
    with pytest.raises(Conflict, match=called(handle_key("bad"))):
        harness.store.commit([Unchanged(Handles(), revision)])


@pytest.mark.parametrize("revision", ["", "-1", "x", "٣", str(2**63), str(2**64), "9" * 5000])
def test_a_revision_of_no_listing_is_a_change(store: Datastore, revision: str) -> None:
    with pytest.raises(Conflict, match="handle"):
        store.commit([Unchanged(Handles(), revision), Create(handle_key(), handle())])
    assert store.list(Handles()).records == ()


def test_one_value_is_a_scope_too(store: Datastore) -> None:
    key = set_key("w")
    revision = store.list(key).revision
    store.create(set_key("w2"), network_set(set_key("w2")))
    store.create(handle_key(), handle())
    guards = [Unchanged(key, revision), Unchanged(IPAMConfigKey(), revision)]
    store.commit(guards)
    store.create(key, network_set(key))
    with pytest.raises(Conflict, match=called(key)):
        store.commit(guards)


def test_commit_names_each_scope_once(store: Datastore) -> None:
    revision = store.list(Handles()).revision
    twice = [Unchanged(Handles(), revision), Unchanged(Handles(), revision)]
    with pytest.raises(InvalidInput, match="once"):
        store.commit(twice)
    key = IPAMConfigKey()
    assert store.commit([Unchanged(key, revision), Check(key, None)]) == (None, None)


# -- concurrency


def sequence(record: Record) -> int:
    assert isinstance(record.value, Block)
    return record.value.sequence_number


def test_compare_and_swap_loses_no_increment(harness: Harness) -> None:
    harness.store.create(BlockKey(CIDR), block(0))
    stores = [harness.store, harness.other]

    def work(number: int) -> None:
        store = stores[number % 2]
        for _ in range(25):
            while True:
                now = store.get(BlockKey(CIDR))
                try:
                    store.update(BlockKey(CIDR), block(sequence(now) + 1), now.revision)
                    break
                except Conflict:
                    continue

    in_threads(6, work)
    assert sequence(harness.store.get(BlockKey(CIDR))) == 150


def test_one_of_many_creators_wins(harness: Harness) -> None:
    winners: list[int] = []
    stores = [harness.store, harness.other]

    def work(number: int) -> None:
        try:
            stores[number % 2].create(handle_key(), handle(number))
            winners.append(number)
        except AlreadyExists:
            pass

    in_threads(8, work)
    assert len(winners) == 1
    assert harness.store.get(handle_key()).value == handle(winners[0])


def test_no_reader_sees_half_a_commit(atomic_harness: Harness) -> None:
    """Two handles always hold the same count, also while they are being rewritten."""
    names = ["left", "right"]
    atomic_harness.store.commit([Create(handle_key(name), handle(0)) for name in names])
    done = threading.Event()

    def work(number: int) -> None:
        if number:
            while not done.is_set():
                records = atomic_harness.other.list(Handles()).records
                assert len({str(record.value) for record in records}) == 1
            return
        try:
            for count in range(1, 100):
                old = [atomic_harness.store.get(handle_key(name)) for name in names]
                atomic_harness.store.commit([Update(r.key, handle(count), r.revision) for r in old])
        finally:
            done.set()

    in_threads(3, work)
