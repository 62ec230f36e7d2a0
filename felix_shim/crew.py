"""The agent's threads: started by name, joined by name, and none may fail unseen.

An exception that leaves a thread's body is a bug; it is logged with its traceback and ends the
process, so that a supervisor restarts it into the same state.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from libtortie.jsonlog import Log


@dataclass(slots=True)
class Crew:
    """`over` is set once a member failed, or when somebody wants the end; `hurry`, at once."""

    log: Log
    over: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    failed: bool = False
    _members: list[tuple[threading.Thread, Callable[[], None] | None]] = field(default_factory=list)

    def start(
        self, name: str, body: Callable[[], None], stop: Callable[[], None] | None = None
    ) -> None:
        """Start a member that lives as long as the agent; `stop` makes its body return."""
        thread = self.spawn(name, body)
        self._members.append((thread, stop))

    def in_haste(self) -> bool:
        """Whether the end must not wait for anything."""
        return self.failed or self.hurry.is_set()

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Start a thread somebody else joins; its failure is the crew's all the same."""
        thread = threading.Thread(target=self._guarded, args=(name, body), name=name, daemon=True)
        thread.start()
        return thread

    def dismiss(self, deadline: float) -> tuple[str, ...]:
        """Stop and join all members, last started first; returns the names of those still there.

        `deadline` is in seconds, for all of them together.
        """
        end = time.monotonic() + deadline
        left = []
        for thread, stop in reversed(self._members):
            if stop is not None:
                stop()
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                left.append(thread.name)
        self._members.clear()
        return tuple(left)

    def _guarded(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # whatever it is, it must end the process
            self.failed = True
            self.log.error(
                "thread_failed", thread=name, reason=repr(error), traceback=traceback.format_exc()
            )
            self.over.set()
