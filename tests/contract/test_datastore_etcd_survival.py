"""etcd loses its leader, its links, its history or its answers while four writers write.

What was acknowledged stays, nothing happens twice, and whoever follows ends with what is stored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Datastore
from libtortie.model.keys import Handles
from tests.fakes.datastore_race import FOLLOWER, Race, race
from tests.fakes.etcd_client import BRISK, DEADLINE, store_at
from tests.fakes.etcd_links import Links, linked_members
from tests.fakes.etcd_server import EtcdMember, leader_of
from tests.fakes.tcp_proxy import tcp_proxy

STEPS = 30
"""Acknowledged steps to wait for before and after each blow."""


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """A cluster of three whose links can be cut."""
    with linked_members(tmp_path) as found:
        yield found


@contextmanager
def raced(urls: Sequence[str]) -> Iterator[Race]:
    def open_store() -> Datastore:
        return store_at(*urls, timing=BRISK)

    with closing(store_at(*urls)) as judge, race(open_store, judge) as running:
        running.progress(STEPS)
        yield running
        running.progress(STEPS)


def kill(member: EtcdMember) -> Callable[[], None]:
    member.stop()
    return member.start


def freeze(member: EtcdMember) -> Callable[[], None]:
    member.freeze()
    return member.thaw


@pytest.mark.parametrize("strike", [kill, freeze])
def test_the_leader_stops_and_comes_back(
    trio: list[EtcdMember], strike: Callable[[EtcdMember], Callable[[], None]]
) -> None:
    with raced([one.url for one in trio]) as running:
        for _ in range(2):
            leader = leader_of(trio)
            restore = strike(leader)
            try:
                running.progress(STEPS)
            finally:
                restore()
            leader.wait_healthy()


def test_the_leader_is_cut_off_and_its_clients_are_not(links: Links) -> None:
    """It takes what they say until it notices; what it took alone never was."""
    members = list(links.members)
    with raced([one.url for one in members]) as running:
        for _ in range(2):
            leader = leader_of(members)
            links.isolate(leader)
            others = [one for one in members if one is not leader]
            running.progress(STEPS)
            assert leader_of(others) is not leader
            links.heal()
            leader.wait_healthy()


def test_history_is_compacted_again_and_again(trio: list[EtcdMember]) -> None:
    with raced([one.url for one in trio]) as running:
        for _ in range(10):
            trio[1].compact()
            running.progress(STEPS // 3)


def test_history_is_compacted_while_the_reader_is_cut_off(member: EtcdMember) -> None:
    """It cannot go on from where it was, so it lists, and misses nothing by that."""
    with tcp_proxy(member.port) as proxy, closing(store_at(member.url)) as judge:

        def open_store() -> Datastore:
            follows = threading.current_thread().name == FOLLOWER
            return store_at(proxy.url if follows else member.url, timing=BRISK)

        with race(open_store, judge) as running:
            running.progress(STEPS)
            for _ in range(3):
                listings = running.listings
                proxy.losing_replies.set()
                running.progress(STEPS)
                member.compact()
                proxy.cut()
                running.progress(STEPS)
                proxy.losing_replies.clear()
                proxy.cut()
                running.relisted(listings)


def test_answers_are_lost(member: EtcdMember) -> None:
    """Whatever is answered to whom, each step happens once."""
    armed, losing = threading.Semaphore(0), threading.Event()
    with tcp_proxy(member.port) as proxy, closing(store_at(member.url)) as judge:

        def told(method: str) -> None:
            if method.endswith("Txn") and armed.acquire(blocking=False):  # by one of them
                proxy.losing_replies.set()
                losing.set()

        def open_store() -> Datastore:
            return EtcdDatastore(EtcdConfig(proxy.url), timing=BRISK, on_call=told)

        with race(open_store, judge) as running:
            for _ in range(10):
                running.progress(STEPS // 3)
                losing.clear()
                armed.release()
                assert losing.wait(DEADLINE)
                before = judge.list(Handles()).revision
                with contextlib.closing(judge.watch(Handles(), before)) as watch:
                    threading.Timer(0.3, watch.close).start()  # for a commit that met a conflict
                    next(iter(watch), None)
                proxy.losing_replies.clear()
                proxy.cut()
            running.progress(STEPS)
        assert running.doubtful
        assert set(running.doubtful) & set(running.acknowledged)
