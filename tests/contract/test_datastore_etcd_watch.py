"""Watches of etcd, and clusters whose members die, freeze and lose each other."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig, Timing
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
    store_at,
)
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.tcp_proxy import tcp_proxy


def test_the_leader_is_killed_while_writers_write(trio: list[EtcdMember]) -> None:
    """Every acknowledged write is there, and each handle was written once."""
    urls = [one.url for one in trio]
    with closing(store_at(*urls)) as judge, following(judge) as follow:
        acknowledged: list[str] = []
        stop = threading.Event()
        halves = threading.Semaphore(0)

        def write(number: int) -> None:
            with closing(store_at(*urls)) as store:
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
        leader = next(one for one in trio if one.is_leader())
        leader.stop()
        while halves.acquire(blocking=False):
            pass
        for _ in range(40):
            assert halves.acquire(timeout=DEADLINE)  # they write on
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        stored = {record.key for record in judge.list(Handles()).records}
        assert {HandleKey(name) for name in acknowledged} <= stored
        survivor = next(one for one in trio if one is not leader)
        for key in stored:
            row = survivor.read(path_of(key))
            assert row is not None
            assert row["version"] == 1
        names = sorted(key.handle_id for key in stored if isinstance(key, HandleKey))
        add(judge, "zz-end")
        follow.until("zz-end")
        assert sorted(follow.seen) == [*names, "zz-end"], follow.error


def test_a_frozen_member_is_left_for_another(trio: list[EtcdMember]) -> None:
    frozen = trio[0]
    others = [one.url for one in trio[1:]]
    with (
        closing(EtcdDatastore(EtcdConfig(frozen.url), timing=BRISK)) as alone,
        closing(store_at(frozen.url, *others)) as store,
    ):
        alone.create(KEY, handle())
        with following(store) as follow:
            add(store, "before")
            follow.expect("before")
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
            assert alone.list(Handles()).records == store.list(Handles()).records


def test_a_member_cut_off_from_the_others_answers_nothing_old(trio: list[EtcdMember]) -> None:
    """Two members stop: the third has no leader. It refuses, and its watches break and recover."""
    third = trio[2]
    hasty = replace(BRISK, patience=0.5)
    with (
        closing(store_at(third.url)) as store,
        closing(store_at(third.url, timing=hasty)) as impatient,
        following(store) as follow,
        following(impatient) as broken,
    ):
        add(store, "a")
        follow.expect("a")
        broken.expect("a")
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
            with pytest.raises(Unavailable, match="no leader"):
                call()
        for one in trio[:2]:
            one.thaw()
        add(store, "c")
        follow.expect("a", "c")


# -- watches


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
    timing = Timing(progress=0.3, silence=0.5, keepalive=60.0)
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


def test_an_idle_watch_stays_on_its_connection(member: EtcdMember) -> None:
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url)) as store,
        following(store) as follow,
    ):
        add(store, "a")
        follow.expect("a")
        line = follow.watch._line  # type: ignore[attr-defined]  # etcd's
        time.sleep(4 * (BRISK.progress + BRISK.silence))
        assert follow.watch._line is line  # type: ignore[attr-defined]  # etcd's
        assert proxy.accepted == 1
        add(store, "b")
        follow.expect("a", "b")


def test_a_slow_reader_is_no_dead_server(member: EtcdMember) -> None:
    with closing(store_at(member.url)) as store:
        watch = store.watch(Handles(), store.list(Handles()).revision)
        with watch:
            events = iter(watch)
            add(store, "a")
            next(events)
            line = watch._line
            time.sleep(2 * (BRISK.progress + BRISK.silence))
            add(store, "b")
            event = next(events)
            assert isinstance(event, Put)
            assert event.record.key == HandleKey("b")
            assert watch._line is line


def test_patience_begins_with_the_trouble(member: EtcdMember) -> None:
    """A watch that idled for longer than its patience is resumed all the same."""
    timing = Timing(patience=0.4)
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url, timing=timing)) as store,
        closing(store_at(member.url)) as other,
        following(store) as follow,
    ):
        add(other, "a")
        follow.expect("a")
        for name in ("b", "c"):
            time.sleep(3 * timing.patience)
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
    timing = Timing(call=1.0, attempt=0.3, silence=0.3, patience=0.5)
    with (
        closing(store_at(own_member.url, timing=timing)) as store,
        following(store) as follow,
    ):
        add(store, "a")
        follow.expect("a")
        own_member.stop()
        assert isinstance(follow.end(), Unavailable)


@pytest.mark.parametrize("state", ["dead", "silent"])
def test_close_ends_a_watch_that_is_looking_for_its_server(
    own_member: EtcdMember, state: str
) -> None:
    timing = Timing(call=2.0, attempt=0.5, silence=0.5, progress=0.3, patience=3600)
    with closing(store_at(own_member.url, timing=timing)) as store, following(store) as follow:
        add(store, "a")
        follow.expect("a")
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
