"""Eight faults and a clock: which probe each of them fails, from when on, and until when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix_shim.health import (
    LASTING_SECONDS,
    QUIET_SECONDS,
    STALLED_SECONDS,
    WATCH_SECONDS,
    Failing,
    Vitals,
    Watched,
    live,
    ready,
)
from libtortie.errors import Unavailable
from libtortie.kube.follow import Backoff

WELL = Vitals(serving=True, stopping=False, stalled=0.0, away={"datastore": "", "api": ""})
LONG = 3600.0


def wrong(findings: dict[str, str]) -> dict[str, str]:
    return {name: said for name, said in findings.items() if said}


def test_nothing_is_wrong_with_an_agent_that_is_well() -> None:
    assert wrong(live(WELL)) == wrong(ready(WELL, 0.0)) == {}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (replace(WELL, away={"datastore": "etcd: refused"}), "datastore"),
        (replace(WELL, away={"api": "no answer for 3600 s"}), "api"),
        (replace(WELL, away={"state-dir": "[Errno 28] No space left"}), "state-dir"),
        (replace(WELL, works={"bird": Failing(0.0, "BIRD does not answer")}), "bird"),
        (replace(WELL, works={"policy": Failing(0.0, "nft: killed")}), "policy"),
        (replace(WELL, works={"memory": Failing(0.0, "disk full")}), "memory"),
        (replace(WELL, watches={"nodes": Failing(0.0, "refused")}), "watches"),
        (replace(WELL, stopping=True), "stop"),
        (replace(WELL, serving=False), "start"),
    ],
)
def test_what_no_restart_cures_makes_it_unready_and_never_dead(fault: Vitals, check: str) -> None:
    for now in (LASTING_SECONDS, LONG):
        assert list(wrong(ready(fault, now))) == [check]
    assert wrong(live(fault)) == {}


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        (replace(WELL, stalled=STALLED_SECONDS), "reconciler", "at one thing for 8 s"),
        (replace(WELL, socket="cni.sock was removed"), "cni-socket", "cni.sock was removed"),
    ],
)
def test_what_a_restart_cures_fails_both(fault: Vitals, check: str, said: str) -> None:
    assert wrong(live(fault)) == wrong(ready(fault, 0.0)) == {check: said}


def test_before_it_serves_and_when_it_stops_there_need_be_no_socket() -> None:
    for fault in (replace(WELL, serving=False), replace(WELL, stopping=True)):
        assert wrong(live(replace(fault, socket="none"))) == {}


def test_a_moments_failure_is_not_told() -> None:
    fault = replace(WELL, works={"policy": Failing(10.0, "busy")})
    assert wrong(ready(fault, 10.0 + LASTING_SECONDS - 0.1)) == {}
    assert wrong(ready(fault, 10.0 + LASTING_SECONDS)) == {"policy": "busy"}
    assert wrong(ready(replace(WELL, works={"survey": Failing(0.0, "busy")}), LONG)) == {}
    assert wrong(live(replace(WELL, stalled=STALLED_SECONDS - 0.1))) == {}


def losses(clock: list[float], watched: Watched, every: float, event: str) -> list[bool]:
    """A watch that lasts so long each time; whether the agent is ready right before each loss."""
    found = []
    for _ in range(12):
        clock[0] += every
        works, watches = watched.failing()
        found.append(not wrong(ready(replace(WELL, works=works, watches=watches), clock[0])))
        watched.told(event, {"kind": "pods", "scope": "pods", "reason": "cut", "retry_seconds": 1})
        if event == "watch_lost":
            watched.told("watch_found", {"scope": "pods"})
    return found


@pytest.mark.parametrize("event", ["watch_lost", "api_watch_lost"])
@pytest.mark.parametrize("every", [8.0, 15.0])
def test_a_watch_that_never_lasts_makes_it_unready_in_the_end(event: str, every: float) -> None:
    clock = [0.0]
    watched = Watched(lambda: clock[0])
    found = losses(clock, watched, every, event)
    assert found[0]
    assert not any(found[4:])
    clock[0] += QUIET_SECONDS
    works, watches = watched.failing()
    assert wrong(ready(replace(WELL, works=works, watches=watches), clock[0])) == {}


@pytest.mark.parametrize("event", ["watch_lost", "api_watch_lost"])
def test_a_watch_that_is_renewed_now_and_then_does_not(event: str) -> None:
    clock = [0.0]
    assert all(losses(clock, Watched(lambda: clock[0]), 30.0, event))


def test_many_watches_are_told_in_one_line() -> None:
    fault = replace(WELL, watches={str(name): Failing(0.0, "x") for name in range(5)})
    assert wrong(ready(fault, LONG)) == {"watches": "0: x; 1: x; 2: x and 2 more"}


class Told:
    def __init__(self) -> None:
        self.now = 100.0
        self.watched = Watched(lambda: self.now)

    def __call__(self, event: str, **fields: object) -> None:
        self.watched.told(event, fields)

    def wrong(self) -> dict[str, str]:
        works, watches = self.watched.failing()
        return wrong(ready(replace(WELL, works=works, watches=watches), self.now))


def test_work_fails_from_the_first_failure_to_the_recovery() -> None:
    told = Told()
    told("apply_failed", work="policy", reason="first")
    told.now += LASTING_SECONDS
    told("apply_failed", work="policy", reason="second")
    assert told.wrong() == {"policy": "second"}
    told("apply_recovered", work="policy")
    told("apply_recovered", work="policy")
    assert told.wrong() == {}


def test_a_watch_of_the_api_is_well_15_s_after_the_end_of_an_outage_of_any_length() -> None:
    backoff, told = Backoff(rng=lambda: 1.0), Told()
    away = told.now + 3600.0
    while told.now < away:
        delay = backoff.delay(Unavailable("refused"))
        told.now = min(away, told.now + delay)  # the last attempt is just too early
        told("api_watch_lost_still", kind="pods", reason="refused", retry_seconds=delay)
    assert told.wrong() == {"watches": "pods: refused"}
    told.now = away + 15.0
    assert told.wrong() == {}


def test_a_watch_of_the_datastore_is_lost_until_it_is_found() -> None:
    told = Told()
    told("watch_lost", scope="nodes", reason="refused")
    told.now += LONG
    told("watch_lost_still", scope="nodes", reason="refused")
    assert told.wrong() == {"watches": "nodes: refused"}
    told("watch_found", scope="nodes")
    assert told.wrong() == {}


def test_a_watch_of_the_api_is_lost_as_long_as_it_goes_on_failing() -> None:
    told = Told()
    for _ in range(5):
        told("api_watch_lost_still", kind="pods", reason="refused", retry_seconds=2.0)
        told.now += 2.0
    assert told.wrong() == {"watches": "pods: refused"}
    told.now += WATCH_SECONDS
    assert told.wrong() == {}
    told("api_watch_lost", kind="pods", reason="refused", retry_seconds=2.0)
    assert told.wrong() == {}, "it lasts from now on, not from the last time"


def test_no_event_can_make_the_log_fail() -> None:
    told = Told()
    for event in ("apply_failed", "apply_recovered", "watch_lost", "watch_found", "api_watch_lost"):
        told(event, retry_seconds="x")
