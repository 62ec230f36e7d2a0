"""A clock that is set in the middle of something changes nothing of it, and is followed later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from libtortie.steady import SteadyClock

START = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Node:
    """A node's two clocks."""

    def __init__(self) -> None:
        self.monotonic, self.wrong = 1000.0, 0.0
        self.clock = SteadyClock(self.wall, lambda: self.monotonic, hold=120.0)

    def wall(self) -> float:
        return START.timestamp() + self.monotonic - 1000.0 + self.wrong

    def after(self, seconds: float) -> datetime:
        self.monotonic += seconds
        return self.clock()


@pytest.mark.parametrize("step", [3600.0, -3600.0, -0.5])
def test_a_step_is_followed_once_it_has_lasted(step: float) -> None:
    node = Node()
    assert node.after(1) == START + timedelta(seconds=1)
    node.wrong = step
    assert node.after(1) == START + timedelta(seconds=2)
    assert node.after(100) == START + timedelta(seconds=102)
    assert node.after(30) == START + timedelta(seconds=132 + step)
    assert node.after(1) == START + timedelta(seconds=133 + step)


def test_a_step_that_is_taken_back_never_was() -> None:
    node = Node()
    node.wrong = 3600.0
    node.after(100)
    node.wrong = 0.0
    node.after(10)
    node.wrong = 3600.0
    assert node.after(100) == START + timedelta(seconds=210)
