"""A time of day that does not jump while something goes on.

A node's clock may be set in the middle of a migration (NTP after a boot, a person, a hypervisor).
What is written down then keeps its order and distances: this clock runs on with the monotonic one,
and follows the node's new time only once that has been so for a while. NTP's slow corrections
change both alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

HOLD_SECONDS = 120.0
"""For so long it keeps to the time it had; it has to be read now and then meanwhile."""
STEP_SECONDS = 0.02
"""A smaller difference is how late one of two readings was."""


@dataclass(slots=True)
class SteadyClock:
    """Safe from any thread. `wall` in seconds since 1970, `monotonic` in seconds."""

    wall: Callable[[], float]
    monotonic: Callable[[], float]
    hold: float = HOLD_SECONDS
    _offset: float = field(init=False)
    _stepped: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._offset = self.wall() - self.monotonic()

    def __call__(self) -> datetime:
        """Now."""
        with self._lock:
            now = self.monotonic()
            offset = self.wall() - now
            if abs(offset - self._offset) < STEP_SECONDS:
                self._stepped = None
            elif self._stepped is None:
                self._stepped = now
            elif now - self._stepped >= self.hold:
                self._offset, self._stepped = offset, None
            return datetime.fromtimestamp(0, UTC) + timedelta(seconds=now + self._offset)
