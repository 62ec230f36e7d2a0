"""Lanes let CNI requests pass, for a bounded time, and do what is due then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_plugin.policy_gate import FilePolicyGate
from felix_shim.courtesy import BURST, LIMIT, PRESSING, Courtesy
from felix_shim.events import Done
from felix_shim.lanes import ThreadLane
from tests.fakes.followed import DEADLINE


def test_nobody_at_work_is_no_reason_to_wait() -> None:
    courtesy = Courtesy(limit=DEADLINE, monotonic=lambda: 0.0)
    with courtesy.request():
        pass
    courtesy.give_way("policy")
    waits, _ = courtesy.metrics()
    assert [line for line in waits.lines() if not line.startswith("#")] == []


def passed(courtesy: Courtesy) -> tuple[threading.Thread, threading.Event]:
    """A thread that gives way, and what it sets when it has."""
    done = threading.Event()

    def run() -> None:
        courtesy.give_way("policy")
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def told(courtesy: Courtesy) -> list[str]:
    waits, _ = courtesy.metrics()
    return [line for line in waits.lines() if not line.startswith("#")]


def test_a_job_waits_until_the_last_request_is_done() -> None:
    courtesy = Courtesy(limit=DEADLINE)
    with courtesy.request():
        with courtesy.request():
            thread, done = passed(courtesy)
        assert not done.is_set()
    thread.join(DEADLINE)
    assert told(courtesy) == ['tortie_lane_waits_total{lane="policy",over="no"} 1']


def test_a_request_that_waits_for_policy_does_not_hold_it_up(tmp_path: Path) -> None:
    courtesy = Courtesy(limit=DEADLINE)

    class Applied:
        """The directory: the policy lane passes while the request waits for its file."""

        def __init__(self, directory: Path) -> None:
            self.directory = directory

        def wait(self, seconds: float) -> None:
            courtesy.give_way("policy")
            (self.directory / "pod").write_text('{"containerID": "c1"}')

        def close(self) -> None:
            pass

    gate = FilePolicyGate(tmp_path, lambda: True, watch=Applied, at_rest=courtesy.at_rest)
    with courtesy.request():
        assert gate.wait("pod", "c1", DEADLINE)
        assert told(courtesy) == []
        thread, done = passed(courtesy)  # it is at work again
        assert not done.is_set()
    thread.join(DEADLINE)
    assert done.is_set()


def test_a_job_comes_to_its_turn_under_any_load_and_that_is_counted() -> None:
    clock = iter((1.0, 1.25))
    courtesy = Courtesy(limit=0.001, monotonic=lambda: next(clock))
    with courtesy.request():
        courtesy.give_way("status")
    waits, seconds = courtesy.metrics()
    assert 'tortie_lane_waits_total{lane="status",over="yes"} 1' in list(waits.lines())
    assert 'tortie_lane_wait_seconds_total{lane="status"} 0.25' in list(seconds.lines())


def test_a_lane_that_let_others_pass_does_the_newest_job() -> None:
    done: list[int] = []
    posted = threading.Event()

    def post(event: Done) -> None:
        posted.set()

    def job(number: int) -> Callable[[], frozenset[str]]:
        def run() -> frozenset[str]:
            done.append(number)
            return frozenset()

        return run

    def give_way(name: str) -> None:
        if not done:
            lane.submit(2, job(2))  # it came meanwhile

    lane = ThreadLane("policy", post, give_way)
    thread = threading.Thread(target=lane.run, daemon=True)
    lane.submit(1, job(1))
    thread.start()
    assert posted.wait(DEADLINE)
    lane.stop()
    thread.join(DEADLINE)
    assert done == [2]


@pytest.mark.parametrize(("at_work", "seconds"), [(1, 0.01), (3, 0.03), (30, 0.05)])
def test_a_crowd_is_let_pass_for_longer_but_not_for_ever(
    at_work: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    courtesy = Courtesy(monotonic=lambda: 0.0)
    limits = waited_limits(courtesy, monkeypatch)
    with ExitStack() as stack:
        for _ in range(at_work):
            stack.enter_context(courtesy.request())
        courtesy.give_way("policy")
        courtesy.give_way("kernel", briefly=True)
    courtesy.give_way("policy")
    assert limits == [pytest.approx(seconds), 0.01]


def test_who_lets_others_pass_goes_on_at_once_when_a_vms_route_waits() -> None:
    courtesy = Courtesy(limit=DEADLINE)
    with courtesy.request():
        thread, done = passed(courtesy)
        assert not done.is_set()
        courtesy.press()
        thread.join(DEADLINE)
        assert done.is_set()


class Postman:
    """Who posts news by `courtesy` at a time `now`; `limits`: for how long each waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.passed_on: list[int] = []
        self.courtesy = Courtesy(monotonic=lambda: self.now)
        self.limits = waited_limits(self.courtesy, monkeypatch)
        self.post = self.courtesy.in_bursts("kernel", self.passed_on.append)


def test_for_a_while_nobody_is_let_pass_and_then_they_are_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Postman(monkeypatch)
    with one.courtesy.request():
        one.courtesy.press()
        one.courtesy.give_way("policy")
        one.post(1)
        assert (one.limits, one.passed_on) == ([], [1])
        one.now += PRESSING
        one.courtesy.give_way("policy")
        one.post(2)
    assert (one.limits, one.passed_on) == ([LIMIT, LIMIT], [1, 2])


def waited_limits(courtesy: Courtesy, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long it would have waited; nobody is kept waiting."""
    limits: list[float] = []

    def wait_for(free: Callable[[], bool], limit: float) -> bool:
        limits.append(limit)
        return free()

    monkeypatch.setattr(courtesy._free, "wait_for", wait_for)
    return limits


def test_news_wait_once_for_each_burst_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Postman(monkeypatch)
    one.post(1)
    assert one.limits == [], "nobody is at work"
    with one.courtesy.request():
        one.post(2)
        one.post(3)  # has come meanwhile
        assert one.limits == [LIMIT]
        one.now += BURST
        one.post(4)
        assert one.limits == [LIMIT, LIMIT]
    one.post(5)
    assert one.limits == [LIMIT, LIMIT]
    assert one.passed_on == [1, 2, 3, 4, 5]
