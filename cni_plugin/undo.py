"""Taking back what a failed ADD did, under a deadline of its own.

Each step is tried again while its error may pass; one that is refused, or fails for good, is
logged and does not keep the others from running; the error the caller sees is always the first
one. It waits for the undo: `SECONDS` at most, and what the last attempt takes by itself (another
program's IPAM: `child.SECONDS`). What is still left then is what DEL and GC find.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from cni_plugin.errors import Refusal
from libtortie.errors import first_line

SECONDS = 10.0
_PAUSE = 0.05


class Log(Protocol):
    """A structured log line: an event's name and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


def silent(event: str, /, **fields: object) -> None:
    """A `Log` that says nothing."""


class Undo:
    """Undo steps on an `ExitStack`; they share `SECONDS` from the first that runs."""

    def __init__(
        self,
        stack: ExitStack,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        log: Log,
    ) -> None:
        self._stack = stack
        self._monotonic = monotonic
        self._sleep = sleep
        self._log = log
        self._end: float | None = None

    def push(self, name: str, action: Callable[[], object]) -> None:
        """Run `action` if the story fails from here on."""
        self._stack.callback(self._run, name, action)

    def disarm(self) -> None:
        """The story has succeeded: take nothing back."""
        self._stack.pop_all()

    def _run(self, name: str, action: Callable[[], object]) -> None:
        if self._end is None:
            self._end = self._monotonic() + SECONDS
        pause = _PAUSE
        while True:
            try:
                action()
                return
            except Exception as error:
                last = isinstance(error, Refusal) or self._monotonic() + pause >= self._end
                self._log("undo_failed", step=name, error=first_line(error), final=last)
            if last:
                return
            self._sleep(pause)
            pause *= 2
