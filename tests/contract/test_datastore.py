"""The datastore port's contract: one suite, every backend.

A backend joins by adding a harness to `HARNESSES`: how to open it (twice, as two processes
would), how to store foreign bytes, and how to compact its history.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    Event,
    Put,
    Record,
    Removed,
    Update,
    Watch,
)
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import (
    AlreadyExists,
    Compacted,
    Conflict,
    InvalidInput,
    Malformed,
    NotFound,
    Unavailable,
)
from libtortie.model.ipam import (
    AffinityState,
    Block,
    BlockAffinity,
    Handle,
    IPAMConfig,
)
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    path_of,
)
from libtortie.model.resources import IPPool, Resource, WorkloadEndpoint
from tests.fakes.etcd_server import EtcdMember

DEADLINE = 20.0
CIDR = ip_network("10.250.0.4/30")
NOT_A_HANDLE = b'{"block":5}'


@dataclass
class Harness:
    """One backend under test."""

    store: Datastore
    other: Datastore
    """A second client of the same data."""
    put_raw: Callable[[str, bytes], None]
    compact: Callable[[], None]


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[Harness]:
    with closing(MemoryDatastore()) as store:
        yield Harness(store, store, store.put_raw, store.compact)


@contextmanager
def sqlite(request: pytest.FixtureRequest) -> Iterator[Harness]:
    directory: Path = request.getfixturevalue("tmp_path")
    path = directory / "tortie.db"

    def put_raw(where: str, data: bytes) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            row = raw.execute("INSERT INTO log (path, data) VALUES (?, ?)", (where, data))
            raw.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", (where, row.lastrowid, data))
            raw.execute("COMMIT")

    with closing(SqliteDatastore(path)) as store, closing(SqliteDatastore(path)) as other:
        yield Harness(store, other, put_raw, store.compact)


@contextmanager
def etcd(request: pytest.FixtureRequest) -> Iterator[Harness]:
    member: EtcdMember = request.getfixturevalue("shared_etcd")
    member.remove_all()
    config = EtcdConfig(member.url)
    with closing(EtcdDatastore(config)) as store, closing(EtcdDatastore(config)) as other:
        yield Harness(store, other, member.put, member.compact)


HARNESSES = {"memory": memory, "sqlite": sqlite, "etcd": etcd}


@pytest.fixture(params=list(HARNESSES))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with HARNESSES[request.param](request) as opened:
        yield opened


@pytest.fixture
def store(harness: Harness) -> Datastore:
    return harness.store


def handle_key(name: str = "h1") -> HandleKey:
    return HandleKey(name)


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def block(count: int = 0) -> Block:
    return Block(CIDR, "host:n1", (None,) * 4, (0, 1, 2, 3), sequence_number=count)


def endpoint(name: str, namespace: str, pod: str = "p") -> WorkloadEndpoint:
    return WorkloadEndpoint.model_validate(
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"node": "n1", "pod": pod}}
    )


class Follow:
    """Reads a watch on its own thread; `next` has a deadline, so that no test hangs."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._done = False
        self._taken = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self.watch:
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()
        except (Compacted, Unavailable) as error:
            self.error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def next(self) -> Event:
        with self._changed:
            self._changed.wait_for(lambda: len(self.events) > self._taken or self._done, DEADLINE)
            assert len(self.events) > self._taken, f"no event, watch ended: {self.error}"
            self._taken += 1
            return self.events[self._taken - 1]

    def take(self, count: int) -> list[Event]:
        return [self.next() for _ in range(count)]

    def join(self) -> BaseException | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the watch did not end"
        return self.error


@contextmanager
def following(store: Datastore, *args: object) -> Iterator[Follow]:
    watch = store.watch(*args)  # type: ignore[arg-type]  # passed through as it is
    follow = Follow(watch)
    try:
        yield follow
    finally:
        watch.close()
        follow.join()


def as_put(record: Record | None) -> Put:
    assert record is not None
    return Put(record)


# -- single values


def test_get_of_what_is_not_there(store: Datastore) -> None:
    with pytest.raises(NotFound, match="/calico/ipam/v2/handle/h1"):
        store.get(handle_key())


VALUES: list[tuple[Key, object]] = [
    (handle_key(), handle()),
    (
        BlockKey(CIDR),
        replace(block(2**63 + 5), affinity_claim_time=datetime(2026, 1, 2, tzinfo=UTC)),
    ),
    (AffinityKey("n1", CIDR), BlockAffinity(AffinityState.PENDING)),
    (AffinityKey("n1", ip_network("fd00::/122")), BlockAffinity()),
    (IPAMConfigKey(), IPAMConfig(strict_affinity=True, max_blocks_per_host=3)),
    (ResourceKey(Kind.WORKLOAD_ENDPOINT, "w", "ns"), endpoint("w", "ns")),
]


@pytest.mark.parametrize(("key", "value"), VALUES, ids=[type(key).__name__ for key, _ in VALUES])
def test_every_kind_of_value_is_kept(store: Datastore, key: Key, value: object) -> None:
    created = store.create(key, value)  # type: ignore[arg-type]  # one of the port's values
    assert created.key == key
    if not isinstance(value, Resource):
        assert created.value == value
    assert store.get(key) == created
    updated = store.update(key, created.value, created.revision)
    assert updated.value == created.value
    assert updated.revision != created.revision
    assert store.get(key) == updated
    store.delete(key, updated.revision)
    with pytest.raises(NotFound):
        store.get(key)


def test_what_a_write_returns_is_what_is_stored(store: Datastore) -> None:
    claimed = replace(
        block(), affinity_claim_time=datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC)
    )
    created = store.create(BlockKey(CIDR), claimed)
    assert created == store.get(BlockKey(CIDR))
    assert isinstance(created.value, Block)
    assert created.value.affinity_claim_time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_create_of_what_is_there(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    with pytest.raises(AlreadyExists, match="handle/h1"):
        store.create(handle_key(), handle(2))
    assert store.get(handle_key()) == first


def test_update_needs_the_revision_that_is_stored(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    second = store.update(handle_key(), handle(2), first.revision)
    with pytest.raises(Conflict, match="handle/h1"):
        store.update(handle_key(), handle(3), first.revision)
    with pytest.raises(Conflict):
        store.update(handle_key(), handle(3), "no-revision")
    assert store.get(handle_key()) == second
    store.delete(handle_key())
    with pytest.raises(NotFound):
        store.update(handle_key(), handle(3), second.revision)


def test_delete_with_and_without_a_revision(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    second = store.update(handle_key(), handle(2), first.revision)
    with pytest.raises(Conflict):
        store.delete(handle_key(), first.revision)
    assert store.get(handle_key()) == second
    store.delete(handle_key())
    with pytest.raises(NotFound):
        store.delete(handle_key())
    with pytest.raises(NotFound):
        store.delete(handle_key(), second.revision)


def test_a_recreated_value_has_a_revision_of_its_own(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    store.delete(handle_key())
    again = store.create(handle_key(), handle(1))
    assert again.revision != first.revision
    with pytest.raises(Conflict):
        store.update(handle_key(), handle(2), first.revision)


def test_a_value_under_the_wrong_key_is_refused(store: Datastore) -> None:
    with pytest.raises(InvalidInput):
        store.create(handle_key(), block())
    with pytest.raises(InvalidInput):
        store.create(BlockKey(ip_network("10.0.0.0/30")), block())
    with pytest.raises(NotFound):
        store.get(handle_key())


def test_resources_get_a_uid_and_a_birthday_and_keep_them(store: Datastore) -> None:
    key = ResourceKey(Kind.WORKLOAD_ENDPOINT, "w", "ns")
    born = store.create(key, endpoint("w", "ns"))
    assert isinstance(born.value, WorkloadEndpoint)
    marks = (born.value.metadata.uid, born.value.metadata.creation_timestamp)
    assert all(marks)
    rebuilt = store.update(key, endpoint("w", "ns", pod="q"), born.revision)
    assert isinstance(rebuilt.value, WorkloadEndpoint)
    assert (rebuilt.value.metadata.uid, rebuilt.value.metadata.creation_timestamp) == marks
    assert rebuilt.value.spec.pod == "q"
    store.delete(key)
    reborn = store.create(key, endpoint("w", "ns"))
    assert isinstance(reborn.value, WorkloadEndpoint)
    assert reborn.value.metadata.uid != marks[0]


def test_a_callers_uid_survives_a_create(store: Datastore) -> None:
    metadata = {"name": "p", "uid": "u-1", "creationTimestamp": "2020-01-01T00:00:00Z"}
    pool = IPPool.model_validate({"metadata": metadata, "spec": {"cidr": "10.0.0.0/16"}})
    assert store.create(pool.key, pool).value == pool
    assert store.get(pool.key).value == pool


# -- lists


def test_list_scopes_hold_their_own_and_nothing_else(store: Datastore) -> None:
    v6 = ip_network("fd00:10::/122")
    keys: dict[str, Key] = {
        "b4": BlockKey(CIDR),
        "b6": BlockKey(v6),
        "a1": AffinityKey("n1", CIDR),
        "a16": AffinityKey("n1", v6),
        "a10": AffinityKey("n10", CIDR),
        "av": AffinityKey("n1", CIDR, "virtual"),
        "h": handle_key(),
        "c": IPAMConfigKey(),
        "w1": ResourceKey(Kind.WORKLOAD_ENDPOINT, "w", "ns"),
        "w2": ResourceKey(Kind.WORKLOAD_ENDPOINT, "w", "ns2"),
    }
    v6_block = Block(v6, None, (None,) * 64, tuple(range(64)))
    for name, key in keys.items():
        match key:
            case BlockKey():
                store.create(key, block() if name == "b4" else v6_block)
            case AffinityKey():
                store.create(key, BlockAffinity())
            case HandleKey():
                store.create(key, handle())
            case IPAMConfigKey():
                store.create(key, IPAMConfig())
            case ResourceKey():
                store.create(key, endpoint("w", key.namespace))

    def listed(scope: object) -> set[Key]:
        listing = store.list(scope)  # type: ignore[arg-type]  # one of the scopes
        assert listing.malformed == ()
        assert [path_of(r.key) for r in listing.records] == sorted(
            path_of(r.key) for r in listing.records
        )
        assert all(store.get(record.key) == record for record in listing.records)
        return {record.key for record in listing.records}

    assert listed(Blocks(4)) == {keys["b4"]}
    assert listed(Blocks(6)) == {keys["b6"]}
    assert listed(Affinities()) == {keys["a1"], keys["a16"], keys["a10"]}
    assert listed(Affinities("n1")) == {keys["a1"], keys["a16"]}
    assert listed(Handles()) == {keys["h"]}
    assert listed(IPAMConfigKey()) == {keys["c"]}
    assert listed(Resources(Kind.WORKLOAD_ENDPOINT)) == {keys["w1"], keys["w2"]}
    assert listed(Resources(Kind.WORKLOAD_ENDPOINT, "ns")) == {keys["w1"]}
    assert listed(Resources(Kind.IP_POOL)) == set()


def test_list_skips_malformed_values_and_names_them(harness: Harness) -> None:
    good = harness.store.create(handle_key("good"), handle())
    bad = path_of(handle_key("bad"))
    harness.put_raw(bad, NOT_A_HANDLE)
    listing = harness.store.list(Handles())
    assert listing.records == (good,)
    assert len(listing.malformed) == 1
    assert listing.malformed[0].startswith(f"{bad}: block")
    with pytest.raises(Malformed, match=bad):
        harness.store.get(handle_key("bad"))


def test_a_malformed_value_can_be_deleted(harness: Harness) -> None:
    harness.put_raw(path_of(handle_key("bad")), NOT_A_HANDLE)
    harness.store.delete(handle_key("bad"))
    assert harness.store.list(Handles()).malformed == ()


# -- commits


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


def failing_ops(stale: str, fresh: str) -> dict[str, Create | Update | Delete | Check]:
    return {
        "create of what is there": Create(handle_key("there"), handle(9)),
        "stale update": Update(handle_key("there"), handle(9), stale),
        "update of what is not": Update(handle_key("absent"), handle(9), fresh),
        "stale delete": Delete(handle_key("there"), stale),
        "delete of what is not": Delete(handle_key("absent"), fresh),
        "stale check": Check(handle_key("there"), stale),
        "check for absence": Check(handle_key("there"), None),
        "check of what is not": Check(handle_key("absent"), fresh),
    }


@pytest.mark.parametrize("case", list(failing_ops("", "")))
@pytest.mark.parametrize("last", [True, False])
def test_commit_is_all_or_nothing(store: Datastore, case: str, last: bool) -> None:
    stale = store.create(handle_key("there"), handle(1)).revision
    fresh = store.update(handle_key("there"), handle(2), stale).revision
    victim = store.create(handle_key("victim"), handle(1))
    before = store.list(Handles())
    good: list[Create | Update | Delete | Check] = [
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


# -- watches


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
        store.create(AffinityKey("n1", CIDR, "virtual"), BlockAffinity())
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
        assert "handle/bad" in str(error)
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
        with pytest.raises(Unavailable, match="closed"):
            call()
    store.close()


# -- concurrency


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert errors == []


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


def test_no_reader_sees_half_a_commit(harness: Harness) -> None:
    """Two handles always hold the same count, also while they are being rewritten."""
    names = ["left", "right"]
    harness.store.commit([Create(handle_key(name), handle(0)) for name in names])
    done = threading.Event()

    def work(number: int) -> None:
        if number:
            while not done.is_set():
                records = harness.other.list(Handles()).records
                assert len({str(record.value) for record in records}) == 1
            return
        try:
            for count in range(1, 100):
                old = [harness.store.get(handle_key(name)) for name in names]
                harness.store.commit([Update(r.key, handle(count), r.revision) for r in old])
        finally:
            done.set()

    in_threads(3, work)


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
