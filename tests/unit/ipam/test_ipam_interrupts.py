"""Callers that are interrupted, and stores that are closed, while others wait."""

from __future__ import annotations

import signal
import threading
from functools import partial
from types import TracebackType

import pytest

from ipam.batch import Batches, Done
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

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass


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
    tick = threading.Event()
    for _ in range(int(TIMEOUT / 0.001)):
        if len(batches._waiting) >= count:
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
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise Interrupted

    store.before_commit = hold
    others = [
        threading.Thread(target=add, args=(client, f"o{n}"), daemon=True) for n in range(1 + behind)
    ]
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        others[0].start()
        assert committing.wait(TIMEOUT)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(Interrupted):
            add(client, "interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
        gone.set()
    for thread in others:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    in_time(client, "afterwards")
    assert set(world.allocated()) == {"afterwards", *(f"o{n}" for n in range(1 + behind))}
    world.audit()


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
