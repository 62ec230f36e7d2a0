"""The few threads that move the bytes of all streams.

A stream has a thread of its own until both its sides are open; then a lane turns it, beside others,
and that thread waits for its end. So no more threads fight for the interpreter's lock than there
are cores, however many streams there are. Nothing that a lane does may block but its `poll`. A lane
is there while it has streams.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

MOST_LANES = 8


class Load(Protocol):
    """What a lane moves. `due`: when it is to be turned also if nothing was heard of it."""

    due: float | None

    def turn(self) -> str | None:
        """Move what can be moved now; None if that was not all, else why it is over.

        It is over, too, when this raises; everything of it is closed then.
        """

    def arm(self, poll: select.poll) -> None:
        """Ask for what it has to hear now."""

    def hear(self, descriptor: int, event: int) -> None:
        """Take what was asked for."""

    def close(self, why: str) -> None:
        """Give it up; nothing of it is left."""

    def descriptors(self) -> tuple[int, ...]:
        """All that it may ever ask for, the same as long as it is not over."""


def lanes_here() -> int:
    """One for each core that we may use: with more they fight for the interpreter's lock."""
    return min(MOST_LANES, len(os.sched_getaffinity(0)))


class Lanes:
    """Safe from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lanes: list[_Lane] = []

    def carry(self, load: Load) -> str:
        """Have something moved to its end; why it is over.

        Raises what the load does, and OSError and RuntimeError when there is no lane for it and
        may be no more descriptors or threads.
        """
        over: Future[str] = Future()
        try:
            with self._lock:
                self._lane().put(load, over)
        except BaseException as error:
            load.close(repr(error))
            raise
        return over.result()

    def rouse(self) -> None:
        """Have everything turned: what it waits for may be something that `poll` cannot see."""
        with self._lock:
            for lane in self._lanes:
                lane.ring()

    def _lane(self) -> _Lane:
        """A new one while there are few, else the one with the least to do."""
        if len(self._lanes) < self._most:
            try:
                return self._new()
            except (OSError, RuntimeError):
                if not self._lanes:
                    raise
        return min(self._lanes, key=lambda lane: lane.count)

    def _new(self) -> _Lane:
        lane = _Lane(self)
        try:
            threading.Thread(target=lane.run, name="lane", daemon=True).start()
        except BaseException:
            lane.close()
            raise
        self._lanes.append(lane)
        return lane

    def leave(self, lane: _Lane, count: int) -> bool:
        """Note that so many of a lane's loads are over; False once it has none and is to end."""
        with self._lock:
            lane.count -= count
            if lane.count:
                return True
            self._lanes.remove(lane)
            lane.close()
            return False

    def abandon(self, lane: _Lane, error: BaseException) -> None:
        """A lane has failed: what it had is over."""
        with self._lock:
            self._lanes.remove(lane)
            lane.give_up(error)
            lane.close()


class _Lane:
    """A thread's loads. `count` is the owner's, and so is what was put and not yet taken."""

    def __init__(self, owner: Lanes) -> None:
        self.count = 0
        self._owner = owner
        self._put: list[tuple[Load, Future[str]]] = []
        self._loads: dict[Load, Future[str]] = {}
        self._by_descriptor: dict[int, Load] = {}
        self._poll = select.poll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.POLLIN)

    def put(self, load: Load, over: Future[str]) -> None:
        """Hand something to the thread; under the owner's lock."""
        self.count += 1
        self._put.append((load, over))
        self.ring()

    def ring(self) -> None:
        """Wake the thread; under the owner's lock."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Give back the bell; under the owner's lock."""
        os.close(self._bell)

    def run(self) -> None:
        """The thread's body."""
        try:
            going = True
            while going:
                over = sum(not self._turn(load) for load in self._wait())
                going = not over or self._owner.leave(self, over)
        except BaseException as error:  # a fault of ours must leave nobody waiting
            self._owner.abandon(self, error)
            raise

    def give_up(self, error: BaseException) -> None:
        """End everything; under the owner's lock. What fails to close leaves nobody waiting."""
        for load, over in (*self._loads.items(), *self._put):
            with suppress(Exception):
                load.close(repr(error))
            over.set_exception(error)

    def _wait(self) -> Iterable[Load]:
        """Who has something to do; there is somebody at last."""
        ready: dict[Load, None] = {}
        timed = [(load.due, load) for load in self._loads if load.due is not None]
        first = min(due for due, _ in timed) if timed else 0.0
        left = max(0.0, first - time.monotonic()) * 1000 if timed else None
        for descriptor, event in self._poll.poll(left):
            if descriptor == self._bell:
                self._take_in()
                ready |= dict.fromkeys(self._loads)
                continue
            load = self._by_descriptor[descriptor]
            load.hear(descriptor, event)
            ready[load] = None
        if timed:
            now = time.monotonic()
            ready |= dict.fromkeys(load for due, load in timed if due <= now)
        return ready

    def _take_in(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._put:  # one end of a list for each thread
            load, over = self._put.pop(0)
            self._loads[load] = over
            self._by_descriptor |= dict.fromkeys(load.descriptors(), load)

    def _turn(self, load: Load) -> bool:
        """Whether it goes on."""
        descriptors = load.descriptors()
        try:
            why = load.turn()
            if why is None:
                load.arm(self._poll)
                return True
        except Exception as error:  # of this load alone
            self._forget(load, descriptors).set_exception(error)
        else:
            self._forget(load, descriptors).set_result(why)
        return False

    def _forget(self, load: Load, descriptors: tuple[int, ...]) -> Future[str]:
        """Before anybody has the same numbers for something else."""
        for descriptor in descriptors:
            del self._by_descriptor[descriptor]
            with suppress(KeyError):
                self._poll.unregister(descriptor)
        return self._loads.pop(load)
