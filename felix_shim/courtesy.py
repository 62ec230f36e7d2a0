"""Work that nobody waits for lets CNI requests pass, for a moment.

All threads of the agent share the interpreter's lock, so what runs beside thirty requests at once
makes each of them later. Before each job a lane waits until no request is at work, but never
longer than `LIMIT` for each of them and `MOST` for all: policy, status and memory come to their
turn under any load, and a crowd's share one. News of what requests do, which come one by one, are
let through in bursts. A request that waits for policy is not at work: what it waits for
begins at once. Nor is anybody let pass while the route of a VM that has come waits for a lane.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from libtortie.metrics import Counter, Metric

T = TypeVar("T")

LIMIT, MOST = 0.010, 0.050
"""Seconds that a job waits at most: for each request at work, and for all of them."""
BURST = 0.002
"""Seconds for which news pass once they have waited."""
PRESSING = 1.0
"""Seconds for which nobody is let pass once a VM's route waits."""


class Courtesy:
    """Who is at work, and who lets them pass; from any thread."""

    def __init__(
        self,
        limit: float = LIMIT,
        monotonic: Callable[[], float] = time.monotonic,
        most: float = MOST,
    ) -> None:
        self._limit = limit
        self._most = max(most, limit)
        self._monotonic = monotonic
        self._at_work = 0
        self._pressing_until: float | None = None
        self._free = threading.Condition()
        self._waits = Counter(
            "tortie_lane_waits_total",
            "Jobs that let CNI requests pass, by whether the time for that ran out.",
            ("lane", "over"),
        )
        self._seconds = Counter(
            "tortie_lane_wait_seconds_total", "Time that jobs let CNI requests pass.", ("lane",)
        )

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is at work."""
        self.count(1)
        try:
            yield
        finally:
            self.count(-1)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """A request that is at work only waits for others."""
        self.count(-1)
        try:
            yield
        finally:
            self.count(1)

    def give_way(self, lane: str, *, briefly: bool = False) -> None:
        """Return when no request is at work, or when the time for that is over; `briefly`: as if
        only one were."""
        with self._free:
            if self._passes():
                return
            limit = self._limit if briefly else min(self._limit * self._at_work, self._most)
            began = self._monotonic()
            free = self._free.wait_for(self._passes, limit)
            took = self._monotonic() - began
        self._waits.add(lane, "no" if free else "yes")
        self._seconds.add(lane, amount=took)

    def press(self) -> None:
        """The route of a VM that has come waits: whoever lets others pass goes on, and for a while
        nobody does."""
        with self._free:
            self._pressing_until = self._monotonic() + PRESSING
            self._free.notify_all()

    def in_bursts(self, name: str, post: Callable[[T], None]) -> Callable[[T], None]:
        """`post`, for one thread's news: what comes while requests are at work waits briefly, and
        what has come meanwhile passes with it."""
        passes_until = 0.0

        def posting(news: T) -> None:
            nonlocal passes_until
            if self._at_work > 0 and self._monotonic() >= passes_until:
                self.give_way(name, briefly=True)
                passes_until = self._monotonic() + BURST
            post(news)

        return posting

    def metrics(self) -> tuple[Metric, ...]:
        """What was waited, to be served."""
        return self._waits, self._seconds

    def _passes(self) -> bool:
        """Whether there is nobody to wait for, or no time. The lock is held."""
        pressing = self._pressing_until
        return self._at_work <= 0 or (pressing is not None and self._monotonic() < pressing)

    def count(self, number: int) -> None:
        """So many more requests are at work."""
        with self._free:
            self._at_work += number
            if self._at_work <= 0:
                self._free.notify_all()
