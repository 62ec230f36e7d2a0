"""A limit of bytes a second that several streams share; safe from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_SECONDS = 0.1


class Rate:
    """A token bucket: `take` first, `give_back` what was not used."""

    def __init__(self, per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(per_second * BURST_SECONDS, 1.0)
        self._now = now
        self._lock = threading.Lock()
        self._level = self._most
        self._at = now()

    def take(self, wanted: int) -> int:
        """How many of so many bytes may go now."""
        with self._lock:
            now = self._now()
            self._level = min(self._most, self._level + (now - self._at) * self._per_second)
            self._at = now
            granted = min(wanted, int(self._level))
            self._level -= granted
            return granted

    def give_back(self, unused: int) -> None:
        """Bytes that were granted and did not go."""
        with self._lock:
            self._level += unused

    @property
    def wait_seconds(self) -> float:
        """After a refusal: when to ask again."""
        return min(BURST_SECONDS / 2, max(0.001, 65536 / self._per_second))
