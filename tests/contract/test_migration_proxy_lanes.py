"""Threads that turn several streams each: who waits holds up nobody, who fails fails alone."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from migration_proxy.flows import splice_both
from migration_proxy.lanes import Lanes, lanes_here
from migration_proxy.rate import Rate
from migration_proxy.relay import Relay
from tests.fakes.migration_proxies import (
    PATIENCE,
    config,
    descriptors,
    nodes,
    receive,
    sending,
    until,
)


class Word:
    """A load that is over once its socket was told something: that is why."""

    def __init__(self) -> None:
        self.end, self._ours = socket.socketpair()
        self._ours.setblocking(False)
        self._armed = False
        self.due: float | None = None
        self.turns = 0
        self.heard = 0
        self.closed = ""

    def turn(self) -> str | None:
        self.turns += 1
        try:
            said = self._ours.recv(100).decode()
        except BlockingIOError:
            return None
        self._ours.close()
        if said == "fail":
            raise ValueError(said)
        return said

    def arm(self, poll: select.poll) -> None:
        if not self._armed:
            poll.register(self._ours, select.POLLIN)
            self._armed = True

    def hear(self, descriptor: int, event: int) -> None:
        assert descriptor == self._ours.fileno()
        self.heard += 1

    def close(self, why: str) -> None:
        self.closed = why
        self._ours.close()

    def descriptors(self) -> tuple[int, ...]:
        return (self._ours.fileno(),)


class Deaf(Word):
    """A fault of ours in the lane itself."""

    def hear(self, descriptor: int, event: int) -> None:
        raise KeyError(descriptor)

    def close(self, why: str) -> None:
        super().close(why)
        raise OSError("closed before")


Carrying = tuple[Word, Future[str]]


class Site:
    """Loads that are being carried."""

    def __init__(self, most: int, pool: ThreadPoolExecutor) -> None:
        self.lanes, self._pool = Lanes(most), pool

    def carry(self, word: Word | None = None) -> Carrying:
        word = word or Word()
        over = self._pool.submit(self.lanes.carry, word)
        until(lambda: word.turns > 0 or over.done())
        return word, over


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture
def site(pool: ThreadPoolExecutor) -> Site:
    return Site(1, pool)


def lanes_alive() -> int:
    return sum(thread.name == "lane" for thread in threading.enumerate())


def test_each_ends_by_itself_and_the_last_one_ends_the_lane(site: Site) -> None:
    before = lanes_alive()
    carried = [site.carry() for _ in range(5)]
    assert lanes_alive() == before + 1
    for number in (3, 0, 4, 1, 2):
        word, over = carried[number]
        word.end.send(str(number).encode())
        assert over.result(PATIENCE) == str(number)
    until(lambda: lanes_alive() == before)
    word, over = site.carry()
    word.end.send(b"again")
    assert over.result(PATIENCE) == "again"


def test_loads_are_shared_out_evenly(pool: ThreadPoolExecutor) -> None:
    site, before = Site(3, pool), lanes_alive()
    carried = [site.carry() for _ in range(9)]
    assert lanes_alive() == before + 3
    assert sorted(lane.count for lane in site.lanes._lanes) == [3, 3, 3]
    for word, over in carried:
        word.end.send(b"x")
        over.result(PATIENCE)


def test_who_fails_fails_alone(site: Site) -> None:
    (bad, bad_over), (good, good_over) = site.carry(), site.carry()
    bad.end.send(b"fail")
    with pytest.raises(ValueError, match="fail"):
        bad_over.result(PATIENCE)
    good.end.send(b"well")
    assert good_over.result(PATIENCE) == "well"


def test_a_fault_of_the_lanes_own_leaves_nobody_waiting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    before, threads = descriptors(), lanes_alive()
    carried = [site.carry(Deaf()), site.carry()]
    carried[0][0].end.send(b"x")
    for word, over in carried:
        with pytest.raises(KeyError):
            over.result(PATIENCE)
        assert "KeyError" in word.closed
        word.end.close()
    until(lambda: lanes_alive() == threads and descriptors() <= before)
    word, over = site.carry()
    word.end.send(b"next")
    assert over.result(PATIENCE) == "next"


def test_a_moment_comes_without_a_word(site: Site) -> None:
    word, over = site.carry()
    assert word.turns == 1
    word.due = time.monotonic() + 0.05
    site.lanes.rouse()  # the lane reads the moment when it waits next
    until(lambda: word.turns >= 3)
    assert word.heard == 0
    word.due = None
    word.end.send(b"x")
    assert over.result(PATIENCE) == "x"


def test_no_lane_at_all_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, word, before = Lanes(1), Word(), descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: _refuse())
        with pytest.raises(RuntimeError):
            lanes.carry(word)
    assert "new thread" in word.closed
    assert descriptors() == before - 1  # its own end
    word.end.close()
    assert not lanes._lanes


def test_a_second_lane_that_cannot_begin_is_not_needed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.lanes._most = 2
    first, first_over = site.carry()
    with monkeypatch.context() as patch:
        patch.setattr(site.lanes, "_new", _refuse)
        second, second_over = site.carry()
    assert [lane.count for lane in site.lanes._lanes] == [2]
    for word, over in ((first, first_over), (second, second_over)):
        word.end.send(b"x")
        assert over.result(PATIENCE) == "x"


def test_a_limited_stream_asks_for_nothing_until_it_may_go_on() -> None:
    (program, local), (remote, peer) = socket.socketpair(), socket.socketpair()
    rate = Rate(100)
    rate.spend(10_000)  # another stream's
    program.send(b"x" * 1000)
    relay = Relay(local, remote, *splice_both(local, remote), lambda: False, rate)
    poll = select.poll()
    before = time.monotonic()
    for _ in range(2):
        assert relay.turn() is None
        relay.arm(poll)
        assert relay.outward.moved == rate.piece
        assert relay.due is not None
        assert relay.due > before + 90
        assert not poll.poll(0)
    relay.close("")
    program.close()
    peer.close()


def _refuse() -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("streams", [3 * lanes_here()])
def test_a_reader_that_does_not_read_holds_up_no_stream_of_its_lane(streams: int) -> None:
    """Each lane of both proxies has one that is stuck with all its buffers full."""
    data = b"x" * (8 << 20)
    with ExitStack() as stack, nodes(config(None), config(None)) as both:
        stuck = [both.pair() for _ in range(2 * lanes_here())]
        threads = [sending(caller, data) for caller, _ in stuck]
        for caller, program in (both.pair() for _ in range(streams)):
            stack.callback(program.close)
            threads.append(sending(caller, data))
            assert len(receive(program)) == len(data)
        for _, program in stuck:
            assert len(receive(program)) == len(data)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
