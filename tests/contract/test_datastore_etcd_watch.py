"""Watches of etcd, and clusters whose members die, freeze and lose each other."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from libtortie.datastore import etcd_watch
from libtortie.datastore.port import Put
from libtortie.errors import (
    Compacted,
    Unavailable,
)
from libtortie.model.keys import HandleKey, Handles, path_of
from tests.fakes.etcd_client import (
    BRISK,
    DEADLINE,
    KEY,
    add,
    eventually,
    following,
    handle,
    retime,
    store_at,
)
from tests.fakes.etcd_server import EtcdMember, leader_of
from tests.fakes.node_process import until
from tests.fakes.patience import CALM
from tests.fakes.tcp_proxy import tcp_proxy

BREATHING = replace(CALM, progress=BRISK.progress, silence=BRISK.silence)
"""A heart that beats fast, for tests that move its clock themselves."""


def test_the_leader_is_killed_while_writers_write(trio: list[EtcdMember]) -> None:
    """Every acknowledged write is there, and each handle was written once."""
    urls = [one.url for one in trio]
    with closing(store_at(*urls)) as judge, following(judge) as follow:
        acknowledged: list[str] = []
        stop = threading.Event()
        halves = threading.Semaphore(0)

        def write(number: int) -> None:
            with closing(store_at(*urls, timing=BRISK)) as store:
                count = 0
                while not stop.is_set():
                    name = f"w{number}-{count:04}"
                    try:
                        store.create(HandleKey(name), handle())
                        acknowledged.append(name)
                        halves.release()
                    except Unavailable:
                        pass
                    count += 1

        threads = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            assert halves.acquire(timeout=DEADLINE)
        leader = leader_of(trio)
        leader.stop()
        while halves.acquire(blocking=False):
            pass
        for _ in range(40):
            assert halves.acquire(timeout=DEADLINE)  # they write on
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        add(judge, "zz-end")
        end = int(judge.get(HandleKey("zz-end")).revision)
        records = judge.list(Handles()).records
        stored = {record.key for record in records if int(record.revision) <= end}
        assert {HandleKey(name) for name in acknowledged} <= stored
        survivor = next(one for one in trio if one is not leader)
        for key in stored:
            row = survivor.read(path_of(key))
            assert row is not None
            assert row["version"] == 1
        names = sorted(key.handle_id for key in stored if isinstance(key, HandleKey))
        follow.until("zz-end")  # what is seen after it was given up, and carried out all the same
        seen = follow.seen[: follow.seen.index("zz-end") + 1]
        assert sorted(seen) == names, follow.error


def test_a_frozen_member_is_left_for_another(trio: list[EtcdMember]) -> None:
    frozen = trio[0]
    others = [one.url for one in trio[1:]]
    with (
        closing(store_at(frozen.url)) as alone,
        closing(store_at(frozen.url, *others, timing=replace(BRISK, call=DEADLINE))) as store,
    ):
        alone.create(KEY, handle())
        with following(store) as follow:
            add(store, "before")
            follow.expect("before")
            for one in (alone, store):
                retime(one, call=BRISK.call)
            frozen.freeze()
            try:
                with pytest.raises(Unavailable):
                    alone.get(KEY)
                eventually(lambda: store.get(KEY))
                add(store, "during")
                follow.expect("before", "during")
            finally:
                frozen.thaw()
            eventually(lambda: alone.get(HandleKey("during")))
            listed = [eventually(lambda one=one: one.list(Handles())) for one in (alone, store)]  # type: ignore[misc]  # bound in each turn
            assert listed[0].records == listed[1].records


def test_a_member_cut_off_from_the_others_answers_nothing_old(trio: list[EtcdMember]) -> None:
    """Two members stop: the third has no leader. It refuses, and its watches break and recover."""
    third = trio[2]
    with (
        closing(store_at(third.url)) as store,
        closing(store_at(third.url)) as impatient,
        following(store) as follow,
        following(impatient) as broken,
    ):
        add(store, "a")
        follow.expect("a")
        broken.expect("a")
        retime(store, call=BRISK.call)
        retime(impatient, patience=0.5)
        for one in trio[:2]:
            one.freeze()
        error = broken.end()
        assert isinstance(error, Unavailable)
        assert "no leader" in str(error)
        for call in (
            lambda: store.get(HandleKey("a")),
            lambda: store.list(Handles()),
            lambda: store.create(HandleKey("b"), handle()),
        ):
            refused(call, "no leader")
        for one in trio[:2]:
            one.thaw()
        add(store, "c")
        follow.expect("a", "c")


def refused(call: Callable[[], object], why: str) -> None:
    """It is, for that reason; a call whose time is over before it has an answer is made again."""
    end = time.monotonic() + DEADLINE
    while True:
        with pytest.raises(Unavailable) as caught:
            call()
        if why in str(caught.value):
            return
        assert time.monotonic() < end, caught.value


# -- watches


class Clock:
    """The time that watches go by: it stands still unless it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(etcd_watch, "time", self)

    def monotonic(self) -> float:
        return self.now


class Ticks(threading.Event):
    """What a watch's heartbeat waits for, counted: it looks at its watch between two waits."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


def test_watches_outlive_a_restart_of_the_server(own_member: EtcdMember) -> None:
    with (
        closing(store_at(own_member.url)) as store,
        following(store) as one,
        following(store) as two,
    ):
        add(store, "a")
        one.expect("a")
        for turn in range(2):
            own_member.stop()
            own_member.start()
            own_member.wait_healthy()
            add(store, f"b{turn}")
        for follow in (one, two):
            follow.expect("a", "b0", "b1")


def test_a_watch_misses_nothing_that_was_written_while_it_was_cut_off(member: EtcdMember) -> None:
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url)) as store,
        closing(store_at(member.url)) as other,
        following(store) as follow,
    ):
        names = []
        for turn in range(30):
            name = f"h{turn:02}"
            other.create(HandleKey(name), handle())
            names.append(name)
            if turn % 10 == 5:
                proxy.cut()
        follow.expect(*names)


def test_a_watch_whose_server_says_nothing_more_moves_on(member: EtcdMember) -> None:
    """The connection stays up and answers nothing: only asking for progress finds that out."""
    timing = replace(CALM, progress=0.3, silence=0.5, attempt=0.7)
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url, member.url, timing=timing)) as store,
        closing(store_at(member.url)) as other,
        following(store) as follow,
    ):
        other.create(HandleKey("a"), handle())
        follow.expect("a")
        proxy.losing_replies.set()
        other.create(HandleKey("b"), handle())
        follow.expect("a", "b")


def test_an_idle_watch_stays_on_its_connection(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for progress whenever nothing was heard for a while, and is answered."""
    clock, timing = Clock(monkeypatch), BREATHING
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url, timing=timing)) as store,
        following(store) as follow,
    ):
        add(store, "a")
        follow.expect("a")
        line = follow.watch._line  # type: ignore[attr-defined]  # etcd's
        for _ in range(9):
            clock.now += timing.progress + timing.silence / 2
            until("it was answered", lambda: line._waiting_since == clock.now)
        assert follow.watch._line is line  # type: ignore[attr-defined]  # etcd's
        assert proxy.accepted == 1
        add(store, "b")
        follow.expect("a", "b")


def test_a_slow_reader_is_no_dead_server(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with closing(store_at(member.url, timing=BREATHING)) as store:
        watch = store.watch(Handles(), store.list(Handles()).revision)
        with watch:
            events = iter(watch)
            add(store, "a")
            next(events)
            line = watch._line
            assert line is not None
            clock.now += 3600
            line._over = ticks = Ticks()
            until("its heartbeat looked", lambda: ticks.waits >= 2)
            add(store, "b")
            event = next(events)
            assert isinstance(event, Put)
            assert event.record.key == HandleKey("b")
            assert watch._line is line


def test_patience_begins_with_the_trouble(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that idled for longer than its patience is resumed all the same."""
    clock, timing = Clock(monkeypatch), replace(CALM, patience=0.4, progress=1e6)
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url, timing=timing)) as store,
        closing(store_at(member.url)) as other,
        following(store) as follow,
    ):
        add(other, "a")
        follow.expect("a")
        for name in ("b", "c"):
            clock.now += 3 * timing.patience
            proxy.cut()
            add(other, name)
            follow.until(name)


def test_compaction_under_a_watch_that_was_cut_off(member: EtcdMember) -> None:
    """It is told to list again, and never that anything was removed."""
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url)) as store,
        closing(store_at(member.url)) as other,
        following(store) as follow,
    ):
        add(store, "a")
        follow.expect("a")
        proxy.losing_replies.set()
        proxy.cut()
        other.create(HandleKey("b"), handle())
        other.delete(HandleKey("b"))
        other.create(HandleKey("c"), handle())
        member.compact()
        proxy.losing_replies.clear()
        proxy.cut()
        assert isinstance(follow.end(), Compacted)
        assert follow.seen == ["a"]
        listing = store.list(Handles())
        assert [r.key for r in listing.records] == [HandleKey("a"), HandleKey("c")]
        with following(store, listing.revision) as again:
            add(store, "d")
            again.expect("d")


def test_a_store_that_was_wiped_is_not_the_one_that_was_listed(own_member: EtcdMember) -> None:
    with closing(store_at(own_member.url)) as store:
        for i in range(5):
            add(store, f"h{i}")
        with following(store) as follow:
            add(store, "last")
            follow.expect("last")
            own_member.stop()
            shutil.rmtree(own_member.directory / own_member.name)
            own_member.start()
            assert isinstance(follow.end(), Compacted)
        own_member.wait_healthy()
        assert store.list(Handles()).records == ()


def test_a_watch_gives_up_when_its_patience_is_over(own_member: EtcdMember) -> None:
    with closing(store_at(own_member.url)) as store, following(store) as follow:
        add(store, "a")
        follow.expect("a")
        retime(store, patience=0.5)
        own_member.stop()
        assert isinstance(follow.end(), Unavailable)


@pytest.mark.parametrize("state", ["dead", "silent"])
def test_close_ends_a_watch_that_is_looking_for_its_server(
    own_member: EtcdMember, state: str
) -> None:
    timing = replace(CALM, attempt=0.5, silence=0.5, progress=0.3, patience=3600)
    with closing(store_at(own_member.url, timing=timing)) as store, following(store) as follow:
        add(store, "a")
        follow.expect("a")
        retime(store, call=2.0)
        if state == "dead":
            own_member.stop()
        else:
            own_member.freeze()
        with pytest.raises(Unavailable):
            store.get(KEY)
        follow.watch.close()
        assert follow.end() is None


def test_no_thread_outlives_its_store(member: EtcdMember) -> None:
    before = threading.active_count()
    for _ in range(10):
        with closing(store_at(member.url)) as store, following(store) as follow:
            add(store, "x")
            follow.expect("x")
            store.delete(HandleKey("x"))
    end = time.monotonic() + DEADLINE
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert threading.active_count() <= before
