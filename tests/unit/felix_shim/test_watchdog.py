"""A lane that hangs ends the agent, and one that merely has much to do does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from felix_shim.crew import Crew
from felix_shim.lanes import ThreadLane
from felix_shim.watchdog import STUCK_SECONDS, StuckError, Watchdog
from tests.fakes.agent_world import RecordingLog


@dataclass
class Lane:
    at_work: int = 0


def ticks(many: int, between: Callable[[int], None]) -> Callable[[float], bool]:
    """A wait that takes no time, so often; then the end."""
    numbers: Iterator[int] = iter(range(many))

    def wait(_: float) -> bool:
        number = next(numbers, None)
        if number is None:
            return True
        between(number)
        return False

    return wait


MANY = int(3 * STUCK_SECONDS)


def test_one_job_for_minutes_ends_the_agent() -> None:
    log, lane = RecordingLog(), Lane(7)
    dog = Watchdog({"status": Lane(), "policy": lane}, log, ticks(MANY, lambda _: None))
    with pytest.raises(StuckError, match="policy: one job for 300 s"):
        dog.run()
    assert log.of("lane_stuck") == [{"work": "policy", "seconds": STUCK_SECONDS}]


@pytest.mark.parametrize("job", [lambda number: number // 200 + 1, lambda _: 0])
def test_many_jobs_and_none_are_no_reason(job: Callable[[int], int]) -> None:
    log, lane = RecordingLog(), Lane()

    def between(number: int) -> None:
        lane.at_work = job(number)

    Watchdog({"policy": lane}, log, ticks(MANY, between)).run()
    assert log.lines == []


def test_a_real_lane_that_hangs_fails_the_crew() -> None:
    """And one that is idle again is at no work."""
    log, crew = RecordingLog(), Crew(RecordingLog())
    begun, release = threading.Event(), threading.Event()
    lane = ThreadLane("policy", lambda _: None)
    crew.start("lane", lane.run, lane.stop)

    def job() -> frozenset[str]:
        begun.set()
        release.wait()
        return frozenset()

    lane.submit(1, job)
    begun.wait()
    crew.start("watchdog", Watchdog({"policy": lane}, log, ticks(MANY, lambda _: None)).run)
    crew.over.wait()
    assert crew.failed
    release.set()
    assert crew.dismiss(60) == ()
    assert lane.at_work == 0
