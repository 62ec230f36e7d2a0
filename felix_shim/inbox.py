"""The one queue into the reconciler: signs of VMs before everything else, else first come first
served. Any thread may post; only the reconciler takes.

It knows how long each event waited, and whether the reconciler still comes to take any."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from felix_shim.events import Event, Sign


class Inbox:
    """Two queues behind one condition. `waited(urgent, seconds)` is told of each event taken."""

    def __init__(
        self,
        waited: Callable[[bool, float], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waited, self._monotonic = waited, monotonic
        self._urgent: deque[tuple[float, Sign]] = deque()
        self._ordinary: deque[tuple[float, Event]] = deque()
        self._called: float | None = None
        self._condition = threading.Condition(threading.Lock())
        self._closed = False

    def post(self, event: Event) -> None:
        """Queue an event; never blocks."""
        with self._condition:
            if isinstance(event, Sign):
                self._urgent.append((self._monotonic(), event))
            else:
                self._ordinary.append((self._monotonic(), event))
            self._condition.notify()

    def take(self, timeout: float | None) -> Event | None:
        """The most urgent event, waiting up to `timeout` seconds (None: until there is one).

        None when there is none in time, or when the inbox is closed.
        """
        with self._condition:
            self._called = None
            if not self._urgent and not self._ordinary and not self._closed:
                self._condition.wait(timeout)
            if self._closed:
                return None
            urgent = bool(self._urgent)
            queue = self._urgent or self._ordinary
            if not queue:
                return None
            since, event = queue.popleft()
        self._tell(since, urgent=urgent)
        return event

    def take_urgent(self) -> Sign | None:
        """A sign, if one is waiting; never blocks."""
        with self._condition:
            if not self._urgent:
                return None
            since, event = self._urgent.popleft()
        self._tell(since, urgent=True)
        return event

    def call(self) -> float:
        """Call the reader; for how many seconds it has not come to any call since. Any thread.

        A reader that is well comes at once, whatever it waits for.
        """
        with self._condition:
            now = self._monotonic()
            self._called = now if self._called is None else self._called
            self._condition.notify()
            return now - self._called

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ordinary)

    def _tell(self, since: float, *, urgent: bool) -> None:
        if self._waited is not None:
            self._waited(urgent, self._monotonic() - since)

    def close(self) -> None:
        """Wake the reader for good."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        with self._condition:
            return self._closed
