"""An agent whose time can run: while the file `hurry` is there a second takes a hundredth of one.

Run as `python -m tests.fakes.hasty_agent`, as the agent is; `HASTY` names the directory. All waits
for conditions and events, and the monotonic clock, keep to that time; sockets and the kernel do
not. `elapsed` in the directory says how many seconds have passed by it.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from pathlib import Path

DIRECTORY = Path(os.environ["HASTY"])
RATE = 100.0
STEP = 0.02
"""Real seconds between two looks of who waits."""


class Clock:
    """Seconds that run as the file says."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self._lock = threading.Lock()
        self._began = self._seen = self._now = self._real()

    def now(self) -> float:
        """In place of `time.monotonic`."""
        with self._lock:
            real = self._real()
            rate = RATE if (DIRECTORY / "hurry").exists() else 1.0
            self._now += rate * (real - self._seen)
            self._seen = real
            return self._now

    def tell(self) -> None:
        """Keep `elapsed` up to date, for ever."""
        while True:
            (DIRECTORY / "elapsed.new").write_text(f"{self.now() - self._began:.0f}")
            (DIRECTORY / "elapsed.new").rename(DIRECTORY / "elapsed")
            time.sleep(STEP)


def hurry() -> Clock:
    """Put the clock in place of the machine's, before anybody has looked at that."""
    clock = Clock()
    wait = threading.Condition.wait

    def waited(self: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is None:
            return wait(self)
        end = clock.now() + timeout
        while (left := end - clock.now()) > 0:
            if wait(self, min(left, STEP)):
                return True
        return wait(self, 0)

    threading.Condition.wait = waited  # type: ignore[method-assign]  # what this module is for
    threading._time = clock.now  # type: ignore[attr-defined]  # `wait_for`'s
    time.monotonic = clock.now
    return clock


if __name__ == "__main__":
    threading.Thread(target=hurry().tell, daemon=True).start()
    importlib.import_module("felix_shim.agent").main()
