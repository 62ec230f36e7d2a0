"""A datastore whose user dies at a chosen call: before it is made, or after it was answered.

Every method of the port is told of, whatever the port has, so that a sweep over `Countdown`
meets each call an operation makes, reads included. Below a `StepwiseStore` that is also each
single write of a commit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from libtortie.datastore.port import Datastore
from libtortie.errors import Unavailable
from tests.fakes.faulty_store import Killed

Tell = Callable[[str], None]
QUIET = ("close", "atomic", "rewinds")
"""What is no step of an operation."""


def told(store: Datastore, tell: Tell) -> Datastore:
    """The same store; `tell` hears of each call before it is made and after it was answered."""
    return cast(Datastore, _Told(store, tell))


class _Told:
    def __init__(self, inner: Datastore, tell: Tell) -> None:
        self._inner = inner
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in QUIET or not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **options: Any) -> Any:
            self._tell(f"before {name}")
            try:
                return found(*args, **options)
            finally:  # an error is an answer, too
                self._tell(f"after {name}")

        return call


def killed() -> None:
    """Die as far as one process can: nothing catches it, nothing cleans up after it."""
    raise Killed


class Countdown:
    """Counts steps and dies at one of them (from 1; 0: never). The dead take no further step.

    Nothing counts while `counting` is off: what goes before the operation that is meant.
    """

    def __init__(self, die_at: int = 0, die: Callable[[], None] = killed) -> None:
        self.steps: list[str] = []
        self.counting = True
        self._die_at = die_at
        self._die = die

    def __call__(self, what: str) -> None:
        if not self.counting:
            return
        if not self._die_at or len(self.steps) < self._die_at:
            self.steps.append(what)
        if len(self.steps) == self._die_at:
            self._die()


WRITES = ("after commit", "after create", "after update", "after delete")


class Outage:
    """The answer of write number `nth` is lost; with `lasting`, nobody answers from then on."""

    def __init__(self, nth: int = 0, *, lasting: bool = False) -> None:
        self.writes = 0
        self._nth = nth
        self._lasting = lasting
        self._silent = False

    def __call__(self, what: str) -> None:
        if self._silent and what.startswith("before"):
            raise Unavailable("injected: nobody answers")
        if what in WRITES and not self._silent:
            self.writes += 1
            if self.writes == self._nth:
                self._silent = self._lasting
                raise Unavailable("injected: the answer was lost")
