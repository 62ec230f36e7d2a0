"""The one queue into the reconciler: signs of VMs before everything else, else first come first
served. Any thread may post; only the reconciler takes."""

from __future__ import annotations

import threading
from collections import deque

from felix_shim.events import Event, Sign


class Inbox:
    """Two queues behind one condition."""

    def __init__(self) -> None:
        self._urgent: deque[Sign] = deque()
        self._ordinary: deque[Event] = deque()
        self._condition = threading.Condition(threading.Lock())
        self._closed = False

    def post(self, event: Event) -> None:
        """Queue an event; never blocks."""
        with self._condition:
            if isinstance(event, Sign):
                self._urgent.append(event)
            else:
                self._ordinary.append(event)
            self._condition.notify()

    def take(self, timeout: float | None) -> Event | None:
        """The most urgent event, waiting up to `timeout` seconds (None: until there is one).

        None when there is none in time, or when the inbox is closed.
        """
        with self._condition:
            if not self._urgent and not self._ordinary and not self._closed:
                self._condition.wait(timeout)
            if self._closed:
                return None
            if self._urgent:
                return self._urgent.popleft()
            return self._ordinary.popleft() if self._ordinary else None

    def take_urgent(self) -> Sign | None:
        """A sign, if one is waiting; never blocks."""
        with self._condition:
            return self._urgent.popleft() if self._urgent else None

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
