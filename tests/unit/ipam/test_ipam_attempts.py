"""The compare-and-swap loop of callers that wait for one another."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import pytest

from ipam.attempts import Attempts, Retry
from ipam.transaction import Transaction
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import Unavailable

TIMEOUT = 60.0
ONCE = Retry(attempts=1)


class Watched:
    """A lock that tells who has come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.come = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.come.release()
        self._lock.acquire()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._lock.release()


def test_a_silent_store_is_asked_once_for_all_that_wait() -> None:
    loop = Attempts(MemoryDatastore(), ONCE, time.monotonic, lambda seconds: None)
    lock, asked, told = Watched(), list[str](), list[str]()

    def call(name: str) -> None:
        def decide(tx: Transaction) -> str:
            asked.append(name)
            if len(asked) == 1:
                for _ in range(4):
                    assert lock.come.acquire(timeout=TIMEOUT)
            raise Unavailable("silent")

        with pytest.raises(Unavailable, match="silent"):
            loop.run(name, decide, lock=lock)
        told.append(name)

    threads = [threading.Thread(target=call, args=(f"c{n}",), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert (len(asked), sorted(told)) == (1, ["c0", "c1", "c2", "c3"])
    assert loop.run("later", lambda tx: "asked again", lock=lock) == "asked again"
