"""Watches over a change log: a position, a scope, and a signal to wait on.

The log is the truth and the signal only says "look again", so a lost or spurious signal costs
time, never an event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from libtortie.datastore.port import Event
from libtortie.datastore.records import Change, counted, event_of
from libtortie.errors import Compacted, Unavailable
from libtortie.model.keys import Scope, scope_bounds

BATCH = 256


@dataclass(frozen=True, slots=True)
class History:
    """Changes of a range after a position, and the position a reader has then reached."""

    changes: tuple[Change, ...]
    position: int


class Signal:
    """Says that the log may have grown, or that the store closed or broke."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._generation = 0
        self._failure: str | None = None
        self.closed = False

    @property
    def generation(self) -> int:
        """Read before the log is: a later one means that the log must be read again."""
        with self._condition:
            return self._generation

    def bump(self) -> None:
        """Wake every watch."""
        with self._condition:
            self._generation += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Wake every watch, for the last time: they end."""
        self.closed = True
        self.bump()

    def fail(self, reason: str) -> None:
        """Wake every watch, for the last time: they raise `Unavailable`."""
        self._failure = reason
        self.bump()

    @property
    def failed(self) -> bool:
        """Whether `fail` was called: new watches need another signal."""
        return self._failure is not None

    def check(self) -> None:
        """Raise `Unavailable` if the source of the signal broke."""
        if self._failure is not None:
            raise Unavailable(self._failure)

    def wait(self, seen: int, ended: Callable[[], bool]) -> None:
        """Block until the generation is no longer `seen`, or `ended`."""
        with self._condition:
            self._condition.wait_for(lambda: self._generation != seen or ended())


class LogWatch:
    """The `Watch` of the port: events of a scope after a revision, in commit order."""

    def __init__(
        self,
        scope: Scope,
        revision: str,
        signal: Signal,
        read: Callable[[str, str, int], History],
    ) -> None:
        self._low, self._high = scope_bounds(scope)
        self._position = counted(revision)
        self._signal = signal
        self._read = read
        self._closed = False

    def __iter__(self) -> Iterator[Event]:
        while True:
            seen = self._signal.generation
            if self._ended():
                return
            try:
                self._signal.check()
                history = self._read(self._low, self._high, self._position)
            except Unavailable:
                if self._ended():
                    return  # closed beneath our feet
                raise
            for change in history.changes:
                if self._ended():
                    return
                self._position = change.revision
                yield event_of(change)
            self._position = history.position
            if not history.changes:
                self._signal.wait(seen, self._ended)

    def close(self) -> None:
        """End the watch, from any thread; nothing more is yielded."""
        self._closed = True
        self._signal.bump()

    def _ended(self) -> bool:
        return self._closed or self._signal.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_history(after: int, compacted: int, current: int) -> None:
    """Raise `Compacted` unless the log holds everything after a position."""
    if after < compacted:
        raise Compacted(f"revision {after} is gone, history begins at {compacted}: list again")
    if after > current:
        raise Compacted(f"revision {after} is not of this store, which is at {current}: list again")
