"""A value that is read from outside when somebody asks for it, and kept for some seconds.

However many ask at once, one thread reads. A value is read again at the earliest `fresh` seconds
after the last reading, and never for more than a fifth of the time: what a large cluster's
reading costs is bounded. Nobody asks: nothing is read. A reading that fails or hangs leaves the
last value, with its age and the reason; who asks waits for it a moment and no longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from controllers.page.sheet import FIRST
from libtortie.cycles import unsearched
from libtortie.errors import TortieError, first_line

T = TypeVar("T")

WAIT_SECONDS = 2.0
"""How long who asks waits for a reading that has just begun."""
SHARE = 5.0
"""A reading of n seconds is followed by none for so many times n seconds."""


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """What is known: `value` as it was at `at`; None before the first reading.

    `trouble` is why there is nothing newer, "" when all is well.
    """

    value: T | None
    at: datetime | None
    trouble: str = ""


class Shelf(Generic[T]):
    """One such value. `complain` is told of each trouble once; times are in seconds."""

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        *,
        fresh: float,
        complain: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime],
        wait: float = WAIT_SECONDS,
    ) -> None:
        self.name, self._read, self._fresh, self._complain = name, read, fresh, complain
        self._monotonic, self._now, self._wait = monotonic, now, wait
        self._changed = threading.Condition()
        self._look: Look[T] = Look(None, None, FIRST)
        self._done = 0
        self._due = self._monotonic()
        self._wanted = self._stopped = False
        self._began: float | None = None

    def ask(self) -> None:
        """Have it read if it is due; waits for nothing. Who needs several asks for all first."""
        with self._changed:
            now = self._monotonic()
            if self._began is None and now >= self._due:
                self._wanted, self._began = True, now
                self._changed.notify_all()

    def look(self, *, wait: bool = True) -> Look[T]:
        """What there is; what is being read may come within moments of when that began."""
        with self._changed:
            if self._began is None:
                return self._look
            done, left = self._done, self._began + self._wait - self._monotonic()
            if wait:
                self._changed.wait_for(lambda: self._done != done or self._stopped, max(0.0, left))
            return self._look if self._done != done else self._late()

    def _late(self) -> Look[T]:
        """What there is while a reading takes long, or is not waited for."""
        look, began = self._look, self._began
        waited = 0.0 if began is None else self._monotonic() - began
        if look.value is None or look.trouble or waited < self._wait:
            return look
        return Look(look.value, look.at, "a newer reading has not ended yet")

    def run(self) -> None:
        """The reader thread's body, until `stop`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopped)
                if self._stopped:
                    return
                self._wanted = False
            began, at = self._monotonic(), self._now()
            found = self._attempt(at)
            with self._changed:
                ended = self._monotonic()
                if found.trouble and found.trouble != self._look.trouble:
                    self._complain(f"{self.name}: {found.trouble}")
                self._look, self._began = found, None
                self._due = ended + max(self._fresh, SHARE * (ended - began))
                self._done += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Make `run` return after what it reads now."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _attempt(self, at: datetime) -> Look[T]:
        try:
            with unsearched():
                return Look(self._read(), at)
        except TortieError as error:
            trouble = first_line(error)
        except Exception as error:  # a fault of this page must not end the collector beside it
            trouble = f"cannot be read for a fault of this program: {error!r}"
        return Look(self._look.value, self._look.at, trouble)
