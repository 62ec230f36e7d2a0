"""Slow work beside the reconciler: each lane is one thread that does one job at a time.

A job carries a whole desired state, so only the newest waiting one matters: an older one that
has not begun is forgotten. The end of each job comes back as `Done`. A lane may let others pass
before it begins a job; which one that is, is decided then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from felix_shim.events import Done
from libtortie.errors import TortieError, first_line

Job = Callable[[], frozenset[str]]
"""Does the work; returns what it had to leave undone. Raises `TortieError` when it failed."""


class Lane(Protocol):
    """Where the reconciler sends jobs."""

    def submit(self, generation: int, job: Job) -> None:
        """Do this job next, instead of one that still waits."""
        ...


def perform(lane: str, generation: int, job: Job) -> Done:
    """Do a job; any `TortieError` or OSError becomes the text of `Done.error`."""
    try:
        return Done(lane, generation, excepted=job())
    except (TortieError, OSError) as error:
        return Done(lane, generation, error=f"{type(error).__name__}: {first_line(error)}")


def at_once(lane: str) -> None:
    """Lets nobody pass."""


class ThreadLane:
    """A lane on a thread of its own; `run` is the thread's body. `give_way` returns soon."""

    def __init__(
        self,
        name: str,
        post: Callable[[Done], None],
        give_way: Callable[[str], None] = at_once,
    ) -> None:
        self.name = name
        self._post = post
        self._give_way = give_way
        self._waiting: tuple[int, Job] | None = None
        self._stopped = False
        self._jobs = 0
        self.at_work = 0
        """The number of the job that is being done; 0: none."""
        self._condition = threading.Condition()

    def submit(self, generation: int, job: Job) -> None:
        """Do this job next, instead of one that still waits."""
        with self._condition:
            self._waiting = (generation, job)
            self._condition.notify()

    def run(self) -> None:
        """Jobs until `stop`; a job that waits then is still done."""
        while True:
            with self._condition:
                while self._waiting is None and not self._stopped:
                    self._condition.wait()
                if self._waiting is None:
                    return
            self._give_way(self.name)
            with self._condition:
                generation, job = self._waiting
                self._waiting = None
                self._jobs += 1
                self.at_work = self._jobs
            self._post(perform(self.name, generation, job))
            self.at_work = 0

    def stop(self) -> None:
        """Let `run` return once nothing waits."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
