"""Whether the collector does its work, as its probes are told. Judges values; no I/O.

Alive is a loop that turns: a datastore or an API that is away is nothing that a restart cures.
Ready is a last pass that knew who lives, with datastore and API at hand for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PASS_SECONDS = 3600.0
"""A pass over 250,000 addresses takes about 40; one that takes this long does not end."""
LATE_SECONDS = 60.0
"""How far behind its time a pass may begin."""
NONE_YET = "no pass was made yet"


@dataclass(slots=True)
class Course:
    """Where the loop is: in a pass, or before one that is due. Monotonic seconds.

    Written by the loop, read by any thread: each field stands for itself.
    """

    monotonic: Callable[[], float] = time.monotonic
    since: float | None = None
    due: float | None = None
    wrong: str = NONE_YET

    def begin(self) -> None:
        """A pass is under way."""
        self.since, self.due = self.monotonic(), None

    def end(self, wrong: str, pause: float) -> None:
        """It is over, with what was wrong with it; the next one is due in `pause` seconds."""
        self.wrong, self.due, self.since = wrong, self.monotonic() + pause, None

    def leave(self) -> None:
        """No pass is to be made until another loop begins: another instance leads."""
        self.since = self.due = None
        self.wrong = NONE_YET

    def stalled(self) -> str:
        """Why the loop does not turn; empty if it does."""
        now, since, due = self.monotonic(), self.since, self.due
        if since is not None and now - since > PASS_SECONDS:
            return f"a pass has been under way for {now - since:.0f} s"
        if due is not None and now - due > LATE_SECONDS:
            return f"a pass was due {now - due:.0f} s ago"
        return ""
