"""The datastore port's contract, over every backend: watches."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from ipaddress import ip_network

import pytest

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Put,
    Removed,
)
from libtortie.errors import (
    AlreadyExists,
    Closed,
    Compacted,
    Conflict,
    Unavailable,
)
from libtortie.model.ipam import (
    BlockAffinity,
    IPAMConfig,
)
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Handles,
    IPAMConfigKey,
    path_of,
)
from tests.contract.datastore_backends import Harness
from tests.fakes.datastore_values import CIDR, NOT_A_HANDLE, block, called, handle, handle_key
from tests.fakes.followed import DEADLINE, Follow, as_put, following, in_threads


def test_watch_tells_every_change_in_commit_order(harness: Harness) -> None:
    store = harness.store
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as follow:
        a = store.create(handle_key("b"), handle(1))
        b = harness.other.create(handle_key("a"), handle(1))
        c = store.update(handle_key("b"), handle(2), a.revision)
        harness.other.delete(handle_key("a"))
        d = store.create(handle_key("a"), handle(7))
        assert follow.take(5) == [Put(a), Put(b), Put(c), Removed(handle_key("a")), Put(d)]


def test_watch_tells_of_a_commit_in_the_order_of_its_operations(store: Datastore) -> None:
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as follow:
        names = ["z", "m", "a"]
        records = store.commit([Create(handle_key(name), handle()) for name in names])
        assert follow.take(3) == [as_put(record) for record in records]


def test_watch_begins_after_its_revision(store: Datastore) -> None:
    store.create(handle_key("before"), handle())
    start = store.list(Handles()).revision
    first = store.create(handle_key("after"), handle())
    with following(store, Handles(), start) as follow:
        assert follow.next() == Put(first)


def test_watch_resumes_from_an_older_listing(store: Datastore) -> None:
    start = store.list(Handles()).revision
    records = [store.create(handle_key(f"h{i}"), handle()) for i in range(600)]
    middle = store.list(Handles()).revision
    last = store.create(handle_key("last"), handle())
    with following(store, Handles(), start) as follow:
        assert follow.take(601) == [Put(record) for record in [*records, last]]
    with following(store, Handles(), middle) as follow:
        assert follow.next() == Put(last)


def test_watch_sees_its_scope_alone(store: Datastore) -> None:
    start = store.list(Affinities("n1")).revision
    with following(store, Affinities("n1"), start) as follow:
        store.create(handle_key(), handle())
        store.create(AffinityKey("n10", CIDR), BlockAffinity())
        store.create(AffinityKey("n1", ip_network("10.250.0.8/30"), "virtual"), BlockAffinity())
        store.create(BlockKey(CIDR), block())
        mine = store.create(AffinityKey("n1", CIDR), BlockAffinity())
        assert follow.next() == Put(mine)
        assert follow.events == [Put(mine)]


def test_watch_of_the_one_configuration(store: Datastore) -> None:
    start = store.list(IPAMConfigKey()).revision
    with following(store, IPAMConfigKey(), start) as follow:
        store.create(handle_key(), handle())
        record = store.create(IPAMConfigKey(), IPAMConfig(cooldown_seconds=5))
        assert follow.next() == Put(record)


def test_failed_writes_are_not_events(store: Datastore) -> None:
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as follow:
        first = store.create(handle_key(), handle())
        with pytest.raises(AlreadyExists):
            store.create(handle_key(), handle(2))
        with pytest.raises(Conflict):
            store.commit([Create(handle_key("x"), handle()), Check(handle_key(), "0")])
        second = store.create(handle_key("h2"), handle())
        assert follow.take(2) == [Put(first), Put(second)]


def test_two_watches_see_the_same(store: Datastore) -> None:
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as one, following(store, Handles(), start) as two:
        records = [store.create(handle_key(f"h{i}"), handle()) for i in range(10)]
        assert one.take(10) == two.take(10) == [Put(record) for record in records]


def test_watch_from_before_the_compaction_is_compacted(harness: Harness) -> None:
    store = harness.store
    start = store.list(Handles()).revision
    store.create(handle_key(), handle())
    harness.compact()
    with following(store, Handles(), start) as follow:
        assert isinstance(follow.join(), Compacted)
        assert follow.events == []


@pytest.mark.parametrize("revision", ["", "x", "-1"])
def test_watch_from_no_revision_at_all_is_compacted(store: Datastore, revision: str) -> None:
    with following(store, Handles(), revision) as follow:
        assert isinstance(follow.join(), Compacted)


def test_listing_after_a_compaction_starts_a_watch(harness: Harness) -> None:
    store = harness.store
    store.create(handle_key(), handle())
    harness.compact()
    listing = store.list(Handles())
    assert len(listing.records) == 1
    with following(store, Handles(), listing.revision) as follow:
        second = store.create(handle_key("h2"), handle())
        assert follow.next() == Put(second)


def test_watch_that_keeps_up_outlives_compactions(harness: Harness) -> None:
    store = harness.store
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as follow:
        for i in range(5):
            record = store.create(handle_key(f"h{i}"), handle())
            assert follow.next() == Put(record)
            harness.compact()


def test_watch_breaks_at_a_malformed_value_and_the_list_names_it(harness: Harness) -> None:
    store = harness.store
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as follow:
        first = store.create(handle_key(), handle())
        assert follow.next() == Put(first)
        harness.put_raw(path_of(handle_key("bad")), NOT_A_HANDLE)
        error = follow.join()
        assert isinstance(error, Unavailable)
        assert re.search(called(handle_key("bad")), str(error))
    assert store.list(Handles()).malformed


def test_close_from_another_thread_ends_the_watch(store: Datastore) -> None:
    follow = Follow(store.watch(Handles(), store.list(Handles()).revision))
    record = store.create(handle_key(), handle())
    assert follow.next() == Put(record)  # it now waits for the next
    follow.watch.close()
    assert follow.join() is None
    assert list(follow.watch) == []
    follow.watch.close()


def test_a_watch_closed_before_it_began_yields_nothing(store: Datastore) -> None:
    start = store.list(Handles()).revision
    store.create(handle_key(), handle())
    with store.watch(Handles(), start) as watch:
        pass
    assert list(watch) == []


def test_closing_one_watch_leaves_the_others(store: Datastore) -> None:
    start = store.list(Handles()).revision
    with following(store, Handles(), start) as stays:
        with following(store, Handles(), start):
            pass
        record = store.create(handle_key(), handle())
        assert stays.next() == Put(record)


def test_closing_the_store_ends_its_watches_and_its_service(store: Datastore) -> None:
    follow = Follow(store.watch(Handles(), store.list(Handles()).revision))
    store.create(handle_key(), handle())
    follow.next()
    store.close()
    assert follow.join() is None
    for call in (
        lambda: store.get(handle_key()),
        lambda: store.create(handle_key("x"), handle()),
        lambda: store.list(Handles()),
        lambda: list(store.watch(Handles(), "0")),
    ):
        with pytest.raises(Closed, match="closed"):
            call()
    store.close()


def test_watches_of_many_scopes_each_see_their_own_and_all_of_it(harness: Harness) -> None:
    """Two writers in each of two clients, and more watches than writers: none misses or swaps."""
    stores = [harness.store, harness.other]
    nodes = [f"n{number}" for number in range(4)]
    cidrs = [ip_network(f"10.66.{number}.0/26") for number in range(25)]
    starts = [store.list(Affinities(node)).revision for store in stores for node in nodes]
    watches = [(store, node) for store in stores for node in nodes]
    with ExitStack() as stack:
        follows = [
            stack.enter_context(following(store, Affinities(node), start))
            for (store, node), start in zip(watches, starts, strict=True)
        ]

        def write(number: int) -> None:
            for cidr in cidrs:
                key = AffinityKey(nodes[number], cidr)
                stores[number % 2].create(key, BlockAffinity())
                stores[number % 2].delete(key)

        in_threads(len(nodes), write)
        for (_, node), follow in zip(watches, follows, strict=True):
            told = follow.take(2 * len(cidrs))
            keys = [AffinityKey(node, cidr) for cidr in cidrs]
            puts, gone = told[::2], told[1::2]
            assert [one.record.key for one in puts if isinstance(one, Put)] == keys
            assert gone == [Removed(key) for key in keys]


def test_list_then_watch_misses_nothing(harness: Harness) -> None:
    """Listing and events, replayed, give what is stored, whenever the listing was made."""
    stores = [harness.store, harness.other]
    end = handle_key("zz-end")
    writers, readers = 3, 4
    written = threading.Barrier(writers)

    def write(number: int) -> None:
        store = stores[number % 2]
        for i in range(60):
            key = handle_key(f"w{number}-{i % 7}")
            try:
                store.create(key, handle(i))
            except AlreadyExists:
                store.delete(key)
        if written.wait(DEADLINE) == 0:
            store.create(end, handle())

    def read(number: int) -> None:
        store = stores[number % 2]
        listing = store.list(Handles())
        seen = {record.key: record for record in listing.records}
        with following(store, Handles(), listing.revision) as follow:
            while end not in seen:
                match follow.next():
                    case Put(record):
                        seen[record.key] = record
                    case Removed(key):
                        del seen[key]
        assert seen == {record.key: record for record in store.list(Handles()).records}

    in_threads(writers + readers, lambda n: write(n) if n < writers else read(n))
