"""A limit of bytes a second that several streams share; safe from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_SECONDS = 0.1
PIECE_SECONDS = 0.02


class Rate:
    """Whoever has sent a piece waits until all that was sent is paid, also what others sent.

    So streams have equal shares whatever their order, and send few large pieces.
    """

    def __init__(self, per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(per_second * BURST_SECONDS, 1.0)
        self._now = now
        self._lock = threading.Lock()
        self._level = self._most
        self._at = now()
        self.piece = max(1, int(per_second * PIECE_SECONDS))
        """Bytes that may go at once, at most."""

    def spend(self, count: int) -> float:
        """Note that so many bytes went; how many seconds who sent them has to wait."""
        with self._lock:
            now = self._now()
            level = self._level + (now - self._at) * self._per_second
            self._level = min(self._most, level) - count
            self._at = now
            return max(0.0, -self._level / self._per_second)
