"""Callers that are interrupted, and stores that are closed, while others wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import ClassVar

import pytest

from ipam import batch
from ipam.batch import Batches, Done, _Ticket
from ipam.cache import Cache
from ipam.client import AddressRequest, IPAMClient
from libtortie.errors import Closed, TortieError
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_batches import captured
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()
TIMEOUT = 60.0


class Interrupted(BaseException):
    """What a signal's handler raises."""


class InterruptedOnce:
    """A lock whose first holder is interrupted while it waits."""

    def __init__(self) -> None:
        self._first = True

    def __enter__(self) -> None:
        if self._first:
            self._first = False
            raise Interrupted

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def interruptible() -> Iterator[None]:
    """The main thread is interrupted by `interrupt_main`."""

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def add(client: IPAMClient, handle: str) -> object:
    return client.assign(handle, plain_pod(handle), V4)


def in_time(client: IPAMClient, handle: str) -> object:
    """The result of an allocation on a thread of its own, which must not hang."""
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(add(client, handle)), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert got, "it waits for somebody who is gone"
    return got[0]


def await_waiting(batches: Batches, count: int) -> None:
    await_that(lambda: len(batches._waiting) >= count)


def await_that(what: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(TIMEOUT / 0.001)):
        if what():
            return
        tick.wait(0.001)
    raise AssertionError("they did not come")


def test_a_leader_that_is_interrupted_before_it_leads() -> None:
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=28))
    batches = Batches(world.store, "n1", Cache("n1"), InterruptedOnce())
    operations = [captured(world.client(), partial(add, handle=n)) for n in ("a", "b")]
    with pytest.raises(Interrupted):
        batches.run(operations[0])
    served: list[object] = []
    thread = threading.Thread(target=lambda: served.append(batches.run(operations[1])), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert [type(one) for one in served] == [Done]
    assert world.allocated() == {"b": 1}, "who was interrupted before anything has nothing"


@pytest.mark.parametrize("behind", [0, 1])
def test_a_follower_that_is_interrupted_while_it_waits(behind: int) -> None:
    """It waits behind a commit; others may wait behind it, whom it would have led."""
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=28))
    store = FaultyStore(world.store)
    client = world.client(store=store)
    committing, gone = threading.Event(), threading.Event()
    batches = client._batches
    assert batches is not None

    def hold(_: object) -> None:
        if not committing.is_set():
            committing.set()
            assert gone.wait(TIMEOUT)

    def interrupt() -> None:
        await_waiting(batches, 1)
        if behind:
            others[1].start()
            await_waiting(batches, 2)
        interrupt_main()

    store.before_commit = hold
    others = [
        threading.Thread(target=add, args=(client, f"o{n}"), daemon=True) for n in range(1 + behind)
    ]
    with interruptible():
        others[0].start()
        assert committing.wait(TIMEOUT)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(Interrupted):
            add(client, "interrupted")
    gone.set()
    for thread in others:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    in_time(client, "afterwards")
    assert set(world.allocated()) == {"afterwards", *(f"o{n}" for n in range(1 + behind))}
    world.audit()


@pytest.mark.parametrize("abreast", [1, 2])
def test_a_follower_that_is_interrupted_while_it_is_served(
    monkeypatch: pytest.MonkeyPatch, abreast: int
) -> None:
    """Those of its batch wake each other: they do not wait for it to do so."""
    monkeypatch.setattr(batch, "ABREAST", abreast)
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=28))
    store = FaultyStore(world.store)
    client = world.client(store=store)
    batches, gone, commits = client._batches, threading.Event(), list[object]()
    assert batches is not None

    def hold(ops: object) -> None:
        commits.append(ops)
        if len(commits) == 1:
            await_waiting(batches, 5)
        elif len(commits) == 2:
            interrupt_main()
            assert gone.wait(TIMEOUT)

    store.before_commit = hold
    others = [threading.Thread(target=add, args=(client, f"o{n}"), daemon=True) for n in range(5)]
    with interruptible():
        others[0].start()
        await_that(lambda: bool(commits))
        others[1].start()
        await_waiting(batches, 1)  # it is the one that leads the batch of all others
        for thread in others[2:]:
            thread.start()
        with pytest.raises(Interrupted):
            add(client, "interrupted")
    gone.set()
    for thread in others:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "it waits for somebody who is gone"
    assert set(world.allocated()) == {"interrupted", *(f"o{n}" for n in range(5))}


def test_in_whatever_order_those_of_a_batch_go_all_are_woken() -> None:
    """Those that were woken, and those that were interrupted before or while they waited."""
    world = World()
    operation = captured(world.client(), partial(add, handle="h"))
    orders = 0

    def play(turns: list[int]) -> list[int]:
        """The tickets that are left after these turns. Who leaves is woken, or interrupted."""
        batches = Batches(world.store, "n1", Cache("n1"), threading.Lock())
        tickets = [_Ticket(operation, threading.Lock(), Done(None)) for _ in range(5)]
        for ticket in tickets:
            ticket.called.acquire()
        tickets[0].led = tickets
        for turn in turns:
            batches._leave(tickets[turn])
        left = [number for number in range(5) if number not in turns]
        awake = [number for number in left if not tickets[number].called.locked()]
        assert awake or not left or 0 not in turns, f"after {turns} {left} sleep for ever"
        return left

    def explore(turns: list[int]) -> None:
        nonlocal orders
        orders += 1
        for turn in play(turns):
            explore([*turns, turn])

    explore([])
    assert orders == 326


def test_who_completes_the_crowd_leads_it_and_who_waited_for_it_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "LINGER", 10 * TIMEOUT)
    world, store, batches, waiter = lingering()
    leaders: list[int] = []
    store.before_commit = lambda _: leaders.append(threading.get_ident())
    assert isinstance(batches.run(captured(world.client(), partial(add, handle="b"))), Done)
    waiter.join(TIMEOUT)
    assert not waiter.is_alive()
    assert leaders == [threading.get_ident()]
    assert world.allocated() == {"a": 1, "b": 1}


def test_who_waited_for_the_crowd_leads_when_the_one_that_completed_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "LINGER", 10 * TIMEOUT)
    world, _, batches, waiter = lingering(InterruptedOnce())
    monkeypatch.setattr(batch, "LINGER", 0.001)  # from now on: the crowd is not to be had again
    with pytest.raises(Interrupted):
        batches.run(captured(world.client(), partial(add, handle="b")))
    waiter.join(TIMEOUT)
    assert not waiter.is_alive()
    assert world.allocated() == {"a": 1}


def test_who_ran_out_of_patience_as_another_completed_the_crowd_waits_to_be_served() -> None:
    world = World()
    batches = Batches(world.store, "n1", Cache("n1"), threading.Lock())
    operation = captured(world.client(), partial(add, handle="h"))
    batches._crowd = 2

    class Late:
        """Not had in time, because just then the other comes."""

        waits: ClassVar[list[float]] = []

        def acquire(self, timeout: float = -1) -> bool:
            self.waits.append(timeout)
            return timeout < 0 or not batches._enter(_Ticket(operation, threading.Lock()))

    late = _Ticket(operation, Late())  # type: ignore[arg-type]  # as much of a lock as is used
    assert batches._enter(late)
    assert not batches._await_crowd(late)
    assert Late.waits == [batch.LINGER, -1]


def lingering(
    lock: AbstractContextManager[object] | None = None,
) -> tuple[World, FaultyStore, Batches, threading.Thread]:
    """A leader that waits for the second of a crowd of two, for longer than the test lasts."""
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=28))
    store = FaultyStore(world.store)
    batches = Batches(store, "n1", Cache("n1"), lock or threading.Lock())
    batches._crowd = 2
    operation = captured(world.client(), partial(add, handle="a"))
    waiter = threading.Thread(target=batches.run, args=(operation,), daemon=True)
    waiter.start()
    await_that(lambda: batches._leader is not None and batches._leader.lingers)
    return world, store, batches, waiter


def test_whoever_waits_when_the_store_is_closed_is_told_at_once() -> None:
    world = World().pools(pool("a", "10.0.0.0/28", blockSize=28))
    store, pauses = FaultyStore(world.store), list[float]()
    client = world.client(store=store, sleep=pauses.append)
    batches = client._batches
    assert batches is not None

    def close(_: object) -> None:
        await_waiting(batches, 3)
        world.store.close()

    store.before_commit = close
    told: list[BaseException] = []

    def work(handle: str) -> None:
        try:
            add(client, handle)
        except TortieError as error:
            told.append(error)

    threads = [threading.Thread(target=work, args=(f"h{n}",), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert [type(error) for error in told] == [Closed] * 4
    assert pauses == []
