"""A trouble that lasts is told once, not at every attempt."""

from __future__ import annotations

from dataclasses import dataclass

from libtortie.errors import TortieError, first_line
from libtortie.jsonlog import Log


@dataclass(slots=True)
class Complaint:
    """What one part of a daemon has to complain of, as warnings under one event's name."""

    log: Log
    event: str
    _last: str = ""

    def about(self, reason: str, **more: object) -> None:
        """Tell a reason, unless it was told last; an empty one says that the trouble is over."""
        if reason and reason != self._last:
            self.log.warning(self.event, **more, reason=reason)
        elif reason or self._last:
            self.log.debug(f"{self.event}_{'still' if reason else 'over'}", **more, reason=reason)
        self._last = reason

    def watch_lost(self, kind: str, error: TortieError, delay: float) -> None:
        """A watch of the API broke; `delay` seconds until it is tried again."""
        reason = f"{type(error).__name__}: {first_line(error)}"
        self.about(reason, kind=kind, retry_seconds=round(delay, 1))
