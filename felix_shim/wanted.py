"""What one thread wants to know, and when another one looks again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Wanted(Generic[T]):
    """Wanted things from any thread; `rounds` is for the one that looks.

    `pause`: seconds between two looks at these; None: until others are wanted.
    """

    pause: Callable[[frozenset[T]], float | None]
    _things: frozenset[T] = frozenset()
    _urgent: bool = False
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def want(self, things: frozenset[T], *, urgent: bool = False) -> None:
        """From now on these matter; they are looked at at once if `urgent` or if any is new."""
        with self._condition:
            self._urgent |= urgent or not things <= self._things
            self._things = things
            if self._urgent:
                self._condition.notify()

    def stop(self) -> None:
        """End `rounds` soon."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def rounds(self) -> Iterator[frozenset[T]]:
        """What is wanted, each time that it is to be looked at, until `stop`."""
        while True:
            with self._condition:
                if not self._urgent and not self._stopped:
                    self._condition.wait(self.pause(self._things))
                if self._stopped:
                    return
                things, self._urgent = self._things, False
            yield things
