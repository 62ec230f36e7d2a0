"""Watches read on a thread of their own, with deadlines, so that no test hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from libtortie.datastore.port import Datastore, Event, Put, Record, Watch
from libtortie.errors import Compacted, Unavailable

DEADLINE = 90.0
"""Seconds; no test needs them, but the machine may stand still for a while."""


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


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do the work with each number at once; all must come to a good end."""
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
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a thread hangs"
    assert errors == []
