"""From observations to claims: rows, checks, timeline."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.clock import NS_PER_MS as MS
from lab.clock import NS_PER_S
from lab.cutover import Report
from lab.demo import OPENING, Demo, migrated
from lab.measure import Course, parse_log_line
from lab.observers import FrameSeen, RouteSeen
from lab.probes import Gap, Series
from lab.promises import checks_of
from lab.report import (
    Act,
    Check,
    LogEvent,
    Observed,
    prober_detail,
    row_of,
    unanswered_ms,
)
from lab.story import STORY
from lab.stream import StreamReport
from lab.timeline import moments, render

T = 1000 * NS_PER_S
CALI = "cali0123456789a"


def route(at: int, where: str, added: bool, metric: int, gateway: str = "") -> RouteSeen:
    return RouteSeen(T + at, where, added, metric, gateway, "" if gateway else CALI, 3)


SEEN6 = tuple(
    replace(one, version=6)
    for one in (
        route(1 * MS, "node2", True, 512),
        route(3 * MS, "tor", True, 32, "fd00::12"),
        route(9 * MS, "node1", True, 768, "fd00::12"),
        route(9002 * MS, "node2", True, 1024),
        route(9003 * MS, "node2", False, 512),
    )
)
SEEN = (
    FrameSeen(T - 600 * MS, "node2", "other", CALI),
    FrameSeen(T, "node2", "rarp", CALI),
    route(1 * MS, "node2", True, 512),
    route(2 * MS, "tor", True, 32, "172.31.0.12"),
    route(8 * MS, "node1", True, 768, "172.31.0.12"),
    route(10 * MS, "node1", False, 1024),
    route(9000 * MS, "node2", True, 1024),
    route(9001 * MS, "node2", False, 512),
)
LOST = tuple(T + at * MS for at in range(-50, 3))
OBSERVED = Observed(
    vm="vm",
    source="node1",
    target="node2",
    target_address="172.31.0.12",
    target_pod="virt-launcher-vm-2",
    ip_before="10.65.0.2",
    ip_after="10.65.0.2",
    phase="Succeeded",
    stream=StreamReport(100, 100, "", 60.0, 40000),
    series={
        "ext": Series(1000, 52, 0.1, 0.2, (Gap(T - 50 * MS, T + 3 * MS, 0, 52),), LOST),
        "client": Series(1000, 54, 0.1, 3.0, (Gap(T - 51 * MS, T + 6 * MS, 2 * MS, 54),), LOST),
    },
    cutover=Report(T - 50 * MS, T, (T,)),
    seen=SEEN,
    log=(
        LogEvent(
            T - 300 * MS, "node2", "cni_add", {"pod": "virt-launcher-vm-2", "policy_wait_ms": 12.5}
        ),
    ),
    phases=((T - 400 * MS, "Scheduling"), (T + 900 * MS, "Succeeded")),
    policy_ns=T - 310 * MS,
)
OBSERVED6 = replace(
    OBSERVED,
    version=6,
    target_address="fd00::12",
    ip_before="fd00:10:65::2",
    ip_after="fd00:10:65::2",
    seen=(*SEEN, *SEEN6),
)
BOTH = replace(OBSERVED, seen=(*SEEN, *SEEN6), ipv6=OBSERVED6)


def test_row() -> None:
    row = row_of(OBSERVED)
    assert row.sign == "rarp"
    assert row.guest_blackout_ms == 50
    assert row.network_downtime_ms == 5  # the worse prober: 57 ms, 2 of them its own, minus 50
    assert (row.other_holes_ms, row.probes_lost_outside) == (0, 0)
    assert (row.policy_before_add_ms, row.add_before_sign_ms) == (10, 300)
    assert row.start_to_tor_fib_ms == 2
    assert row.probers["ext"]["network_downtime_ms"] == 3
    assert row.sign_to_local_route_ms == 1
    assert row.sign_to_tor_fib_ms == 2
    assert (row.metric_elevated, row.metric_final) == (512, 1024)
    assert row.reverted_after_s == 9
    assert row.policy_wait_ms == 12.5
    assert (row.probes_sent, row.probes_lost) == (2000, 106)
    assert all(check.ok for check in checks_of(row, 8.0))


def test_a_row_tells_of_both_families() -> None:
    row = row_of(BOTH)
    assert row.ipv6 is not None
    assert (row.ip_before, row.ipv6.ip_before) == ("10.65.0.2", "fd00:10:65::2")
    assert (row.sign_to_tor_fib_ms, row.ipv6.sign_to_tor_fib_ms) == (2, 3)
    assert (row.ipv6.metric_elevated, row.ipv6.metric_final) == (512, 1024)
    assert row.ipv6.reverted_after_s == 9.002
    assert all(check.ok for check in checks_of(row, 8.0))
    assert "IPv6 route added: via fd00::12" in render(BOTH)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"ip_after": ""}, "same address"),
        ({"stream": StreamReport(9, 9, "reset", 0, 1)}, "TCP connection survived"),
        ({"seen": SEEN}, "ToR follows"),
        ({"seen": SEEN}, "route raised by the sign, to 512"),
        ({"series": {}}, "network downtime at most 50 ms"),
    ],
)
def test_a_promise_can_break_in_one_family_alone(changes: dict[str, Any], name: str) -> None:
    row = row_of(replace(BOTH, ipv6=replace(OBSERVED6, **changes)))
    found = [check.name for check in checks_of(row, 8.0) if not check.ok]
    assert f"node1 → node2, IPv6: {name}" in found
    assert all(one.startswith("node1 → node2, IPv6: ") for one in found)


def broken(**changes: Any) -> list[str]:
    """Names of the checks that fail for a changed observation, without their prefix."""
    row = row_of(replace(OBSERVED, **changes))
    return [check.name.partition(": ")[2] for check in checks_of(row, 8.0) if not check.ok]


def without(*indices: int) -> tuple[Any, ...]:
    return tuple(event for index, event in enumerate(SEEN) if index not in indices)


PROBES = "probes lost only around the guest's pause"


def added(wait_ms: float, at: int = -300) -> tuple[LogEvent, ...]:
    fields = {"pod": "virt-launcher-vm-2", "policy_wait_ms": wait_ms}
    return (LogEvent(T + at * MS, "node2", "cni_add", fields),)


def prober(
    sent: int = 1000, lost: int = 0, lost_at: tuple[int, ...] = (), gaps: tuple[Gap, ...] = ()
) -> dict[str, Series]:
    return {"ext": Series(sent, lost, 0.1, 0.2, gaps, lost_at)}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"phase": "Failed"}, "migration succeeded"),
        ({"ip_after": "10.65.0.3"}, "same address"),
        ({"ip_before": "", "ip_after": ""}, "same address"),
        ({"stream": StreamReport(100, 99, "", 0, 1)}, "TCP connection survived"),
        ({"stream": StreamReport(9, 9, "reset", 0, 1)}, "TCP connection survived"),
        (
            {"series": {"ext": Series(9, 9, 0, 0, (Gap(T, T + 101 * MS, 0, 99),))}},
            "network downtime at most 50 ms",
        ),
        ({"series": {}}, "network downtime at most 50 ms"),
        ({"seen": without(1)}, "route raised by the sign, to 512"),
        ({"seen": without(2)}, "route raised by the sign, to 512"),
        ({"seen": without(3)}, "ToR follows"),
        ({"seen": without(6)}, "back to 1024 after the convergence time"),
        ({"seen": without(7)}, "back to 1024 after the convergence time"),
        ({"seen": without(1)}, "ToR follows"),
        ({"log": ()}, "policy before success"),
        ({"log": added(10_003)}, "policy before success"),
        ({"log": added(-1)}, "policy before success"),
        ({"policy_ns": None}, "policy before success"),
        ({"policy_ns": T - 299 * MS}, "policy before success"),
        ({"log": added(5, at=1)}, "policy before success"),
        ({"stream": StreamReport(100, 100, "", 401, 1)}, "TCP went on at once"),
        ({"stream": StreamReport(0, 0, "", 0, 1)}, "TCP went on at once"),
        ({"series": {}}, PROBES),
        ({"series": prober(lost=102)}, PROBES),
        ({"series": prober(lost=1, lost_at=(T + 51 * MS,))}, PROBES),
        ({"series": prober(lost=1, lost_at=(T - 56 * MS,))}, PROBES),
        ({"series": prober(sent=50, lost=50)}, PROBES),
    ],
)
def test_each_promise_can_break(changes: dict[str, Any], name: str) -> None:
    assert name in broken(**changes)


def test_what_went_wrong_everywhere_fails_everywhere() -> None:
    found = broken(
        log=added(10_003),
        seen=(
            SEEN[1],
            route(9000 * MS, "node2", True, 512),
            route(-30_000 * MS, "tor", True, 32, "172.31.0.12"),
        ),
        series=prober(100, 99, tuple(T + at * MS for at in range(99)), (Gap(T, T + 99 * MS),)),
        stream=StreamReport(100, 100, "", 45_000, 1),
    )
    assert found == [
        "TCP went on at once",
        "network downtime at most 50 ms",
        PROBES,
        "route raised by the sign, to 512",
        "ToR follows",
        "back to 1024 after the convergence time",
        "policy before success",
    ]


def test_a_route_that_comes_after_its_bound_is_a_broken_promise() -> None:
    late = (*without(2), route(51 * MS, "node2", True, 512))
    assert broken(seen=late) == ["route raised by the sign, to 512"]
    for at in (-1, 101):
        switched = (*without(3), route(at * MS, "tor", True, 32, "172.31.0.12"))
        assert broken(seen=switched) == ["ToR follows"]


def test_the_bounds_themselves_keep_the_promise() -> None:
    lost_at = (T - 55 * MS, T + 50 * MS)
    assert (
        broken(
            log=added(9_999),
            policy_ns=T - 300 * MS,
            stream=StreamReport(100, 100, "", 400, 1),
            series=prober(1000, 100, lost_at, (Gap(T - 50 * MS, T + 50 * MS),)),
        )
        == []
    )


def test_network_downtime_is_the_worst_of_all_silences_without_their_share_of_the_pause() -> None:
    gaps = (
        Gap(T - 200 * MS, T - 190 * MS),
        Gap(T - 60 * MS, T - 20 * MS),  # 10 ms before the pause
        Gap(T - 19 * MS, T + 4 * MS),  # 4 ms after it
        Gap(T + 500 * MS, T + 530 * MS, 1 * MS),
    )
    row = row_of(replace(OBSERVED, series=prober(gaps=gaps)))
    assert row.network_downtime_ms == 29
    assert row.other_holes_ms == 24
    longest_in_pause = (Gap(T - 50 * MS, T + 1 * MS), Gap(T + 5000 * MS, T + 5051 * MS))
    assert "network downtime at most 50 ms" in broken(series=prober(gaps=longest_in_pause))
    whole = row_of(replace(OBSERVED, series=prober(gaps=gaps), cutover=None))
    assert whole.network_downtime_ms == 40


def test_a_status_file_counts_from_its_first_time(tmp_path: Path) -> None:
    course = Course(tmp_path / "status")
    course.entered("Scheduling")
    assert course.policy_ns("web-1") is None
    course.status_dir.mkdir()
    file = course.status_dir / "k8s default%2Fweb-1 eth0"
    file.write_text("first")
    course.entered("Running")
    first = course.policy_ns("web-1")
    assert first is not None and abs(first - course.phases[-1][0]) < 60 * NS_PER_S
    os.utime(file)
    file.write_text("again")
    course.entered("Succeeded")
    assert course.policy_ns("web-1") == first
    assert course.policy_ns("web-2") is None
    assert [phase for _, phase in course.phases] == ["Scheduling", "Running", "Succeeded"]


def test_a_route_that_is_raised_before_the_sign_is_a_broken_promise() -> None:
    early = (route(-5 * MS, "node2", True, 512), *without(2))
    assert broken(seen=early) == ["route raised by the sign, to 512"]


def test_a_route_that_reverts_too_early_is_a_broken_promise() -> None:
    early = (
        *without(6, 7),
        route(3000 * MS, "node2", True, 1024),
        route(3001 * MS, "node2", False, 512),
    )
    assert broken(seen=early) == ["back to 1024 after the convergence time"]


def test_another_metric_than_the_elevated_is_a_broken_promise() -> None:
    wrong = (*without(2, 7), route(1 * MS, "node2", True, 1024))
    assert "route raised by the sign, to 512" in broken(seen=wrong)


def test_timeline_is_relative_to_the_sign_and_in_order() -> None:
    text = render(OBSERVED)
    lines = text.splitlines()
    assert lines[0] == "vm: node1 → node2 (0 = first RARP on node2)"
    assert any("+0.00 ms" in line and "first RARP" in line for line in lines)
    assert any("+1.00 ms" in line and "metric 512" in line for line in lines)
    assert any("-50.00 ms" in line and "blackout begins" in line for line in lines)
    assert any("of which policy 12.5 ms" in line for line in lines)
    times = [moment.t_ns for moment in moments(OBSERVED)]
    assert times == sorted(times)


def test_timeline_without_a_sign_says_so() -> None:
    assert "no sign was seen" in render(replace(OBSERVED, seen=without(1)))


def test_log_lines_are_brought_to_the_one_clock() -> None:
    line = '{"time": "1970-01-01T00:00:05.250000Z", "event": "sign", "kind": "rarp"}'
    event = parse_log_line(line, "node1", 1 * NS_PER_S)
    assert event is not None
    assert (event.t_ns, event.node, event.event) == (4_250 * MS, "node1", "sign")
    assert event.fields["kind"] == "rarp"


@pytest.mark.parametrize("line", ["", "x", "{}", '{"time": 3, "event": "x"}', "[1]"])
def test_a_line_that_is_no_decision_is_skipped(line: str) -> None:
    assert parse_log_line(line, "node1", 0) is None


def test_the_demo_is_not_fine_unless_everything_was_checked() -> None:
    assert not Demo("8s").ok
    demo = Demo("8s")
    demo.rows = [row_of(BOTH)] * 2
    demo.checks = [Check("a", True, "")]
    act = Act("reboot", True, "10.65.0.2", "node1", "", 1.0)
    demo.acts = [act] * (OPENING + len(STORY) - 1)
    assert not demo.ok
    demo.acts.append(act)
    assert demo.to_json()["ok"] is True
    one_family = replace(demo, rows=[row_of(BOTH), row_of(OBSERVED)])
    assert not one_family.ok
    assert demo.to_json()["story"][0] == {
        "act": "reboot",
        "ok": True,
        "address": "10.65.0.2",
        "node": "node1",
        "detail": "",
        "seconds": 1.0,
    }
    demo.checks.append(Check("b", False, ""))
    report = demo.to_json()
    assert report["ok"] is False
    assert report["migrations"][0]["network_downtime_ms"] == 5
    assert report["migrations"][0]["ipv6"]["ip_after"] == "fd00:10:65::2"


def test_a_measured_migration_is_an_act_of_the_story() -> None:
    act = migrated(OBSERVED, row_of(OBSERVED), 9.0)
    assert (act.ok, act.address, act.node) == (True, "10.65.0.2", "node2")
    failed = replace(OBSERVED, phase="Failed")
    assert migrated(failed, row_of(failed), 9.0).node == "node1"
    for broken in (
        failed,
        replace(OBSERVED, ip_after="10.65.0.9"),
        replace(OBSERVED, stream=StreamReport(9, 9, "reset", 0, 1)),
    ):
        assert not migrated(broken, row_of(broken), 9.0).ok
        beside = replace(BOTH, ipv6=replace(broken, version=6))
        kept = migrated(beside, row_of(beside), 9.0).ok
        assert kept is (broken is failed)  # a phase is one of both families


def test_a_qemu_guests_pause_lasts_until_its_kernel_is_heard() -> None:
    """The network is not charged with TCG's waking, nor does what others send end it."""
    report = Report(T - 50 * MS, T - MS, (), 30.0, 300.0)
    frames = (
        FrameSeen(T - 20 * MS, "node2", "ip", CALI),
        FrameSeen(T + 2 * MS, "node1", "ip", CALI),
        FrameSeen(T + 2 * MS, "node2", "other", CALI),
        FrameSeen(T + 3 * MS, "node2", "garp", CALI),
        FrameSeen(T + 5 * MS, "node2", "ip", CALI),
    )
    row = row_of(replace(OBSERVED, cutover=report, seen=(*SEEN, *frames)))
    assert (row.guest_blackout_ms, row.network_downtime_ms) == (53, 2)
    assert [row.qemu_stopped_ms, row.qemu_downtime_ms, row.qemu_total_ms] == [49, 30, 300]
    unheard = row_of(replace(OBSERVED, cutover=report))
    assert unheard.guest_blackout_ms == 49
    packet = row_of(replace(OBSERVED, seen=(*SEEN, *frames)))
    assert [packet.guest_blackout_ms, packet.qemu_stopped_ms] == [50, None]


@pytest.mark.parametrize(
    ("lost_at", "expected"),
    [
        ((), 0),  # all were answered, late
        ((-40, -5), 0),  # the pause's own
        ((-5, 2), 1),
        ((2, 7, 8), 7),
        ((2, 30), 1),  # of another hole
    ],
)
def test_what_is_answered_late_is_told_from_what_is_never_answered(
    lost_at: tuple[int, ...], expected: float
) -> None:
    """The pause ends at T, the silence 20 ms later."""
    times = tuple(T + one * MS for one in lost_at)
    gaps = (Gap(T - 50 * MS, T + 20 * MS), Gap(T + 29 * MS, T + 36 * MS))
    series = Series(1000, len(times), 0.1, 0.2, gaps, times)
    pause = Report(T - 50 * MS, T, (), 30.0, 300.0)
    assert unanswered_ms(series, pause) == expected
    assert prober_detail(series, pause)["unanswered_ms"] == expected
    assert unanswered_ms(series, None) == 0
