"""Followers survive everything the outside does, and lose nothing by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.events import (
    Done,
    Event,
    InSync,
    Listed,
    Lost,
    Migration,
    RaisesSeen,
    Seen,
    Stored,
    Vanished,
)
from felix_shim.events import Unstored as Deleted
from felix_shim.sources import LONGEST_PAUSE, KubeSource, RaisesSource, StoreSource
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Listing
from libtortie.datastore.watching import LogWatch
from libtortie.errors import Compacted, Unavailable
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey, Resources, Scope
from tests.fakes.agent_world import (
    ADDRESS,
    RecordingLog,
    endpoint_record,
    migration,
    resource_record,
)
from tests.fakes.kube import FakeKube


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)
    return value


class Running:
    """A source on a thread, and what it posted."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.thread = threading.Thread(target=source.run)
        self.thread.start()

    def stop(self) -> None:
        self.source.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


class BrittleStore(MemoryDatastore):
    """Raises what it is told to, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.list_errors: list[Exception] = []
        self.watch_errors: list[Exception] = []

    def list(self, scope: Scope) -> Listing:
        if self.list_errors:
            raise self.list_errors.pop(0)
        return super().list(scope)

    def watch(self, scope: Scope, revision: str) -> LogWatch:
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        return super().watch(scope, revision)


@pytest.fixture
def posted() -> list[Event]:
    return []


@pytest.fixture
def store() -> Iterator[BrittleStore]:
    made = BrittleStore()
    yield made
    made.close()


def test_list_then_changes(store: BrittleStore, posted: list[Event]) -> None:
    first, second = endpoint_record("one"), endpoint_record("two")
    store.create(first.key, first.value)
    running = Running(StoreSource(store, ENDPOINTS, posted.append, RecordingLog()))
    wait_for(lambda: posted)
    store.create(second.key, second.value)
    store.delete(first.key)
    wait_for(lambda: len(posted) >= 3)
    running.stop()
    listed, put, removed = posted
    assert isinstance(listed, Listed) and [r.key for r in listed.records] == [first.key]
    assert isinstance(put, Stored) and put.record.key == second.key
    assert removed == Deleted(ENDPOINTS, first.key)


@pytest.mark.parametrize("error", [Unavailable("away"), Compacted("gone")])
def test_a_lost_watch_lists_again_and_deletes_nothing(
    store: BrittleStore, posted: list[Event], error: Exception
) -> None:
    store.list_errors = [Unavailable("away")]
    store.watch_errors = [error]
    running = Running(StoreSource(store, ENDPOINTS, posted.append, RecordingLog()))
    wait_for(lambda: sum(isinstance(event, Listed) for event in posted) >= 2)
    running.stop()
    assert posted[0] == Lost(ENDPOINTS)
    assert all(isinstance(event, Listed | Lost) for event in posted)


def test_a_lost_watch_is_told_until_there_is_a_list(
    store: BrittleStore, posted: list[Event]
) -> None:
    """Policy may be old meanwhile; a compacted history is listed again at once."""
    store.watch_errors = [Compacted("gone"), Unavailable("away")]
    running = Running(StoreSource(store, ENDPOINTS, posted.append, RecordingLog()))
    wait_for(lambda: sum(isinstance(event, Listed) for event in posted) >= 3)
    running.stop()
    assert [type(event) for event in posted[:4]] == [Listed, Listed, Lost, Listed]


def test_a_store_without_a_history_is_not_listed_without_a_pause(
    store: BrittleStore, posted: list[Event]
) -> None:
    store.watch_errors = [Compacted("gone") for _ in range(10_000)]
    running = Running(StoreSource(store, ENDPOINTS, posted.append, RecordingLog()))
    wait_for(lambda: len(posted) >= 3)
    running.stop()
    assert len(store.watch_errors) > 9_900


def test_a_lost_watch_of_an_api_is_told_to_nobody(store: BrittleStore, posted: list[Event]) -> None:
    """Its absence delays no raise."""
    store.list_errors = [Unavailable("away")]
    store.watch_errors = [Unavailable("away")]
    log = RecordingLog()
    running = Running(StoreSource(store, ENDPOINTS, posted.append, log, of_api=True))
    wait_for(lambda: sum(isinstance(event, Listed) for event in posted) >= 2)
    running.stop()
    assert {type(event) for event in posted} == {Listed}
    assert [len(log.of(event)) for event in ("watch_lost", "watch_lost_still")] == [1, 1]


class RefusingStore(MemoryDatastore):
    """Can be listed; each watch ends after a time."""

    def __init__(self, *lives: float) -> None:
        super().__init__()
        self.now = 0.0
        self._lives = list(lives)

    def watch(self, scope: Scope, revision: str) -> LogWatch:
        self.now += self._lives.pop(0)
        raise Unavailable("away")


def test_a_watch_that_never_lasts_is_told_of_once_and_looked_for_more_and_more_rarely(
    posted: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = (0.0,) * 7 + (LONGEST_PAUSE, 0.0)
    store, log, pauses = RefusingStore(*lives), RecordingLog(), list[float]()
    source = StoreSource(store, ENDPOINTS, posted.append, log, monotonic=lambda: store.now)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(lives):
            source.stop()

    monkeypatch.setattr(source._stop, "wait", pause)
    source.run()
    store.close()
    longer = [0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses == pytest.approx([*longer, *longer[:2]]), "one that lasted is another one"
    assert [len(log.of(event)) for event in ("watch_lost", "watch_lost_still")] == [2, 7]


class HalfReadableStore(MemoryDatastore):
    """Cannot read what is called `bad`."""

    def list(self, scope: Scope) -> Listing:
        found = super().list(scope)
        records = tuple(one for one in found.records if getattr(one.key, "name", "") != "bad")
        return replace(found, records=records, malformed=("bad: not JSON",))


@pytest.mark.parametrize(
    ("kind", "broken"), [(Kind.GLOBAL_NETWORK_SET, True), (Kind.BGP_PEER, False)]
)
def test_what_policy_is_made_of_is_known_by_its_key_although_it_cannot_be_read(
    posted: list[Event], kind: Kind, broken: bool
) -> None:
    store = HalfReadableStore()
    for name in ("bad", "good"):
        spec: dict[str, Any] = {"peerIP": "192.0.2.1"} if kind is Kind.BGP_PEER else {"nets": []}
        record = resource_record(kind, name, spec)
        store.create(record.key, record.value)
    running = Running(StoreSource(store, Resources(kind), posted.append, RecordingLog()))
    wait_for(lambda: posted)
    running.stop()
    store.close()
    assert isinstance(posted[0], Listed)
    assert [str(one.key) for one in posted[0].records] == [str(ResourceKey(kind, "good"))]
    assert posted[0].broken == ((ResourceKey(kind, "bad"),) if broken else ())


def test_stop_ends_a_source_that_cannot_reach_its_store(
    store: BrittleStore, posted: list[Event]
) -> None:
    store.list_errors = [Unavailable("away")] * 100_000
    running = Running(StoreSource(store, ENDPOINTS, posted.append, RecordingLog()))
    running.stop()
    assert set(posted) <= {Lost(ENDPOINTS)}


def test_only_the_last_list_says_what_exists(posted: list[Event]) -> None:
    """A migration that went while nobody watched is not in the next list, and so not delivered."""
    api = FakeKube(migration("m1"))
    running = Running(KubeSource(api, Migration, posted.append, RecordingLog()))
    wait_for(lambda: any(isinstance(event, InSync) for event in posted))
    api.put(migration("m2"))
    wait_for(lambda: any(isinstance(e, Seen) and name_of(e) == "migration-m2" for e in posted))
    api.fail(Unavailable("away"), verb="watch")
    api.fail(Unavailable("away"), verb="list")
    api.cut_watches(Unavailable("cut"))
    api.remove(Migration, "migration-m1", "default")
    api.compact()
    api.heal()
    wait_for(lambda: len([e for e in posted if isinstance(e, InSync | Vanished)]) >= 2)
    running.stop()
    last = [event for event in posted if isinstance(event, InSync | Vanished)][-1]
    if isinstance(last, InSync):
        assert last.delivered == {("default", "migration-m2")}
    else:
        assert last.object.metadata.name == "migration-m1"


def name_of(event: Seen) -> str:
    return event.object.metadata.name


VM_ADDRESS = ip_address(ADDRESS)


class Bgp:
    """BIRD as the source sees it."""

    def __init__(self) -> None:
        self.up = True
        self.raised: dict[IPAddress, str] = {}

    def ask(
        self, addresses: frozenset[IPAddress]
    ) -> tuple[dict[IPAddress, str], frozenset[IPAddress]]:
        if not self.up:
            raise Unavailable("no BIRD")
        return self.raised, frozenset(self.raised)

    def alive(self) -> bool:
        return self.up


def test_raises_are_asked_for_when_wanted_urgently(
    posted: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.sources.RAISES_SECONDS", 3600)  # none in between by itself
    bgp = Bgp()
    running = Running(RaisesSource(bgp.ask, bgp.alive, posted.append, RecordingLog()))
    running.source.want(frozenset({VM_ADDRESS}), True)
    wait_for(lambda: posted)
    bgp.raised = {VM_ADDRESS: "192.0.2.3"}
    running.source.want(frozenset({VM_ADDRESS}), True)
    wait_for(lambda: len(posted) >= 2)
    running.stop()
    assert posted[0] == RaisesSeen(frozenset({VM_ADDRESS}))
    assert posted[1] == RaisesSeen(
        frozenset({VM_ADDRESS}), {VM_ADDRESS: "192.0.2.3"}, frozenset({VM_ADDRESS})
    )


def test_raises_are_asked_for_again_while_wanted(
    posted: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.sources.RAISES_SECONDS", 0.01)
    running = Running(RaisesSource(Bgp().ask, Bgp().alive, posted.append, RecordingLog()))
    running.source.want(frozenset({VM_ADDRESS}), False)
    wait_for(lambda: len(posted) >= 3)
    running.stop()
    assert all(event == RaisesSeen(frozenset({VM_ADDRESS})) for event in posted)


def test_a_silent_bird_is_reported_once_and_raises_nothing(posted: list[Event]) -> None:
    bgp = Bgp()
    bgp.up = False
    source = RaisesSource(bgp.ask, bgp.alive, posted.append, RecordingLog())
    for addresses in (frozenset({VM_ADDRESS}), frozenset(), frozenset({VM_ADDRESS})):
        source.look(addresses)
    assert posted == [Done("bird", 0, error="BIRD does not answer")]
    bgp.up = True
    source.look(frozenset())
    bgp.up = False
    source.look(frozenset())
    assert len(posted) == 2
