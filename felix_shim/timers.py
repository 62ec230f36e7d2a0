"""Things to do later: a heap that one loop owns. Nothing fires by itself, nothing is cancelled;
whoever takes an entry compares it with the present and drops it when it is out of date."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from felix_shim.model import EndpointId
from libtortie.linux.port import IPNetwork


@dataclass(frozen=True, slots=True)
class Convergence:
    """An endpoint's convergence time ran out, if its episode is still this one."""

    endpoint: EndpointId
    episode: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Try this piece of work again."""

    work: str


@dataclass(frozen=True, slots=True)
class Grace:
    """A route that nobody asks for has had its time: to be claimed by an endpoint, or for another
    way to come in its place."""

    dst: IPNetwork


@dataclass(frozen=True, slots=True)
class Gated:
    """An endpoint's raise has waited for policy long enough."""

    endpoint: EndpointId


@dataclass(frozen=True, slots=True)
class Resync:
    """Compare everything with the outside again."""


Entry = Convergence | Retry | Grace | Gated | Resync


@dataclass(slots=True)
class Timers:
    """Entries by deadline (monotonic seconds); equal deadlines keep their order."""

    _heap: list[tuple[float, int, Entry]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def add(self, deadline: float, entry: Entry) -> None:
        """Have `entry` come due at `deadline`."""
        heapq.heappush(self._heap, (deadline, next(self._order), entry))

    def due(self, now: float) -> Entry | None:
        """The earliest entry that is due, or None."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def patience(self, now: float) -> float | None:
        """Seconds until the next entry is due; None when there is none."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None


@dataclass(slots=True)
class Backoff:
    """Delays that double from `first` to `cap` seconds, for each piece of work by itself."""

    first: float = 0.1
    cap: float = 5.0
    _delays: dict[str, float] = field(default_factory=dict)

    def failed(self, work: str) -> float:
        """The delay before the next attempt."""
        delay = self._delays.get(work, self.first)
        self._delays[work] = min(self.cap, 2 * delay)
        return delay

    def worked(self, work: str) -> bool:
        """Start over; True when there was something to recover from."""
        return self._delays.pop(work, None) is not None
