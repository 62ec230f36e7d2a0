"""Time and threads that do nothing until they are told to."""

from __future__ import annotations

from dataclasses import dataclass

from felix_shim.events import Done
from felix_shim.lanes import Job, perform


@dataclass
class Clock:
    """Seconds that pass only when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class InlineLane:
    """Does each job at the next `settle`; only the newest, as the real lane."""

    name: str
    waiting: tuple[int, Job] | None = None

    def submit(self, generation: int, job: Job) -> None:
        self.waiting = (generation, job)

    def work(self) -> Done | None:
        if self.waiting is None:
            return None
        (generation, job), self.waiting = self.waiting, None
        return perform(self.name, generation, job)
