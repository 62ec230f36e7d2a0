"""Deadlines of waits count the time in which this process could have been answered."""

from __future__ import annotations

import threading

import pytest

from libtortie.errors import Unavailable
from libtortie.kube.transport import MOST_FORGIVEN, STEP, DeadlineError, Limits
from libtortie.linux import netns
from tests.fakes.agent_world import Clock


def waited(limits: Limits, clock: Clock, late: float = 0.0) -> float:
    """Seconds of waiting granted until the deadline; each wait ends by so much too late."""
    granted = 0.0
    while True:
        try:
            step = limits.wait()
        except DeadlineError:
            return granted
        granted += step
        clock.now += step + late


@pytest.mark.parametrize("stop", [None, threading.Event()])
def test_waits_that_end_in_time_add_up_to_the_deadline(stop: threading.Event | None) -> None:
    clock = Clock()
    assert waited(Limits(5.0, stop, clock), clock, late=0.0) == pytest.approx(5.0)
    began = clock.now
    waited(Limits(5.0, stop, clock), clock, late=0.01)
    assert clock.now - began < 5.1


def test_a_wait_in_which_the_process_stood_still_is_granted_again() -> None:
    clock = Clock()
    limits = Limits(5.0, clock=clock)
    limits.wait()
    clock.now += 20
    assert waited(limits, clock) == pytest.approx(5.0)


def test_the_last_wait_is_no_exception_and_neither_is_silence() -> None:
    clock = Clock()
    limits = Limits(0.5, clock=clock)
    limits.stream(100.0, 2.0)
    for _ in range(2):
        clock.now += limits.wait()
    with pytest.raises(DeadlineError, match="silent for 2 s"):
        limits.wait()
    limits.heard()
    limits.wait()
    clock.now += 20
    assert waited(limits, clock) == pytest.approx(2.0)


def test_a_machine_that_hardly_runs_does_not_wait_for_ever() -> None:
    clock = Clock()
    began = clock.now
    waited(Limits(5.0, clock=clock), clock, late=3.0)
    assert clock.now - began <= 5.0 + MOST_FORGIVEN + STEP + 3.0


def test_one_blocking_call_of_the_whole_deadline_is_not_forgiven() -> None:
    clock = Clock()
    limits = Limits(5.0, clock=clock)
    clock.now += limits.left() - 0.1
    assert waited(limits, clock) == pytest.approx(0.1)


def test_work_in_a_namespace_outlives_a_machine_that_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    class Overslept(threading.Thread):
        """Its first waiter gets up late, and before it has run."""

        def join(self, timeout: float | None = None) -> None:
            if go_on.is_set():
                super().join(timeout)
            go_on.set()

    monkeypatch.setattr("libtortie.linux.netns.threading.Thread", Overslept)
    assert netns.on_thread(lambda: go_on.wait(60), 30.0, "work")


def test_work_in_a_namespace_ends_by_its_deadline() -> None:
    over = threading.Event()
    try:
        with pytest.raises(Unavailable, match=r"work did not end within 0\.01 s"):
            netns.on_thread(over.wait, 0.01, "work")
    finally:
        over.set()
