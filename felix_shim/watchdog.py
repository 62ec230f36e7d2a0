"""Ends an agent whose work has stopped: a lane that is at one job for minutes will not end it.

Every job has deadlines of its own (nft's, the API's, the datastore's); this is for what none of
them covers, a call into the kernel that does not return. The supervisor starts the agent again,
and what the kernel has stays. Only time in which this process ran is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from libtortie.errors import TortieError
from libtortie.jsonlog import Log

STEP_SECONDS = 1.0
STUCK_SECONDS = 300.0


class StuckError(TortieError):
    """A lane does not come to the end of its job."""


class Working(Protocol):
    """A lane as it is watched."""

    @property
    def at_work(self) -> int:
        """The number of the job that it is at; 0: none."""
        ...


@dataclass(slots=True)
class Watchdog:
    """`run` is a thread's body; it raises `StuckError`, which ends the agent."""

    lanes: Mapping[str, Working]
    log: Log
    wait: Callable[[float], bool] | None = None
    limit: float = STUCK_SECONDS
    _stop: threading.Event = field(default_factory=threading.Event)
    _since: dict[str, tuple[int, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Look once a second until `stop`."""
        wait = self.wait or self._stop.wait
        while not wait(STEP_SECONDS):
            for name, lane in self.lanes.items():
                self._look(name, lane.at_work)

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def _look(self, name: str, job: int) -> None:
        """A step is a second of this process's time, however late it ends."""
        known, spent = self._since.get(name, (0, 0.0))
        spent = spent + STEP_SECONDS if job and job == known else 0.0
        self._since[name] = (job, spent)
        if spent >= self.limit:
            self.log.error("lane_stuck", work=name, seconds=spent)
            raise StuckError(f"{name}: one job for {spent:g} s")
