"""Keys to work on, by several threads, never the same key twice at once.

As a Kubernetes controller's queue: a key added while it is being worked on is worked on once
more afterwards; adding it many times before that is the same as once.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from libtortie.errors import TortieError, first_line

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)


class WorkQueue:
    """Runs `work(key)`; after a `TortieError` or `OSError` the key is tried again later."""

    def __init__(
        self, work: Callable[[str], None], log: Callable[[str], None], *, workers: int = 4
    ) -> None:
        self._work = work
        self._log = log
        self._due: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._active: set[str] = set()
        self._failures: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(workers)]

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the workers finish what they do, and end them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def add(self, key: str, *, delay: float = 0.0) -> None:
        """Work on a key, `delay` seconds from now at the latest."""
        with self._changed:
            when = time.monotonic() + delay
            if self._queued.get(key, when + 1) > when:
                self._queued[key] = when
                heapq.heappush(self._due, (when, key))
                self._changed.notify()

    def _run(self) -> None:
        while (key := self._take()) is not None:
            delay: float | None = None
            try:
                self._work(key)
                self._failures.pop(key, None)
            except (TortieError, OSError) as error:
                failures = self._failures.get(key, 0)
                self._failures[key] = failures + 1
                delay = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                self._log(f"{key}: {first_line(error)}; again in {delay:g} s")
            with self._changed:
                self._active.discard(key)
                self._changed.notify_all()
            if delay is not None:
                self.add(key, delay=delay)

    def _take(self) -> str | None:
        with self._changed:
            while not self._stopped:
                key, wait = self._next(time.monotonic())
                if key is not None:
                    return key
                self._changed.wait(wait)
            return None

    def _next(self, now: float) -> tuple[str | None, float | None]:
        """A key that is due and idle, else how long to wait (None: for a change)."""
        busy: list[tuple[float, str]] = []
        found: str | None = None
        wait: float | None = None
        while self._due and found is None:
            when, key = self._due[0]
            if when > now:
                wait = when - now
                break
            heapq.heappop(self._due)
            if self._queued.get(key) != when:
                continue
            if key in self._active:
                busy.append((when, key))
                continue
            found = key
        for item in busy:
            heapq.heappush(self._due, item)
        if found is not None:
            del self._queued[found]
            self._active.add(found)
        return found, wait
