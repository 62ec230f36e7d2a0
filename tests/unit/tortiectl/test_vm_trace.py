"""A migration as one timeline on one clock, from KubeVirt, Events and agents' logs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

from libtortie.kube.migrations import Migration
from libtortie.timeline import Timeline, of_migration, picture
from tortiectl.trace.moments import of_events, of_log, subject_of, timeline
from tortiectl.trace.render import document, lines, page

MOVE = Migration.model_validate(
    {
        "metadata": {
            "name": "move", "namespace": "shop", "uid": "job",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"vmiName": "web"},
        "status": {
            "phase": "Succeeded",
            "phaseTransitionTimestamps": [
                {"phase": "Running", "phaseTransitionTimestamp": "2026-01-01T00:00:05Z"},
                {"phase": "Succeeded", "phaseTransitionTimestamp": "2026-01-01T00:00:09Z"},
            ],
            "migrationState": {
                "sourceNode": "n1", "targetNode": "n2", "sourcePod": "old", "targetPod": "new",
                "startTimestamp": "2026-01-01T00:00:05Z", "endTimestamp": "2026-01-01T00:00:08Z",
            },
        },
    }
)  # fmt: skip


def line(event: str, node: str, second: float, **fields: Any) -> str:
    time = f"2026-01-01T00:00:{second:09.6f}Z"
    return json.dumps({"time": time, "level": "info", "event": event, "node": node, **fields})


TARGET = "\n".join(
    [
        line("sign", "n2", 7.0, endpoint="shop/new/eth0", kind="rarp"),
        line("route_raised", "n2", 7.002, endpoint="shop/new/eth0", latency_ms=1.9),
        line("owner_swapped", "n2", 7.2, endpoint="shop/new/eth0", handle_id="h"),
        line("sign", "n2", 7.0, endpoint="shop/stranger/eth0"),
        line("sign", "n2", 7.0, endpoint="other/new/eth0"),
        "no JSON",
        "[1]",
    ]
)
SOURCE = line("cut_over_noticed", "n1", 6.5, migration_uid="job")
EVENTS: list[dict[str, Any]] = [
    {
        "involvedObject": {"name": "web"}, "reason": "Migrated", "message": "gone",
        "lastTimestamp": "2026-01-01T00:00:08Z", "source": {"host": "n1"},
    },
    {"involvedObject": {"name": "stranger"}, "lastTimestamp": "2026-01-01T00:00:08Z"},
    {"involvedObject": {"name": "web"}, "lastTimestamp": None},
]  # fmt: skip


def told(*logs: str, **shifts: timedelta) -> Timeline:
    about = subject_of(MOVE)
    found = [*of_migration(MOVE), *of_events(EVENTS, about, frozenset({"web"}))]
    for log in logs:
        found += of_log(log, about)
    return timeline(found, about, shifts)


def test_one_order_from_all_who_saw_it() -> None:
    found = told(TARGET, SOURCE)
    assert [(one.where, one.source, one.event) for one in found.moments] == [
        ("cluster", "KubeVirt", "created"),
        ("cluster", "KubeVirt", "phase"),
        ("n1", "KubeVirt", "state"),
        ("n2", "agent", "sign"),
        ("n1", "agent", "cut_over_noticed"),
        ("n2", "agent", "route_raised"),
        ("n2", "IPAM", "owner_swapped"),
        ("n1", "Event", "Migrated"),
        ("n2", "KubeVirt", "state"),
        ("cluster", "KubeVirt", "phase"),
    ]


def test_an_effect_before_its_cause_moves_the_sources_clock() -> None:
    assert told(TARGET, SOURCE).shifts == {"n1": timedelta(milliseconds=502)}
    late = line("cut_over_noticed", "n1", 7.004, migration_uid="job")
    assert told(TARGET, late).shifts == {}
    given = timedelta(milliseconds=600)
    assert told(TARGET, SOURCE, n1=given).shifts == {"n1": given}


def test_zero_is_the_first_sign() -> None:
    shown = [" ".join(line.split()) for line in lines(told(TARGET, SOURCE), "title")]
    assert "+0.000 ms n2 agent sign: kind rarp" in shown
    assert "+2.000 ms n2 agent route raised: latency_ms 1.9" in shown
    assert "~-2000.000 ms cluster KubeVirt migration Running" in shown
    assert "the clock of n1 was moved by +502.000 ms" in shown


def test_lines_of_another_time_are_left_out() -> None:
    later = line("sign", "n2", 7, endpoint="shop/new/eth0").replace("T00:00", "T05:00")
    assert all(one.event != "sign" for one in told(later).moments)


def set_to(text: str, hours: int) -> str:
    """A log by a clock that is so wrong."""
    day = "2026-01-01" if hours > 0 else "2025-12-31"
    return text.replace("2026-01-01T00:00", f"{day}T{hours % 24:02d}:00")


BEGUN = line("migration_begun", "n2", 6, endpoint="shop/new/eth0", migration_uid="job")


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("both", [False, True])
def test_nodes_whose_clocks_are_an_hour_wrong_fit_into_the_migration(
    hours: int, *, both: bool
) -> None:
    target = set_to(f"{BEGUN}\n{TARGET}", hours)
    found = told(target, set_to(SOURCE, hours) if both else SOURCE)
    seen = [one.event for one in found.moments if one.source in ("agent", "IPAM")]
    assert [one for one in seen if one != "cut_over_noticed"] == [
        "migration_begun",
        "sign",
        "route_raised",
        "owner_swapped",
    ]
    times = {one.event: one.time for one in found.moments}
    assert times["cut_over_noticed"] >= times["route_raised"], "never before its cause"
    first, last = found.moments[0].time, found.moments[-1].time
    assert timedelta(0) <= last - first < timedelta(seconds=20)
    (note,) = [one for one in lines(found, "t") if "clock of n2" in one]
    assert note.endswith("to fit KubeVirt's times; seconds are uncertain")
    assert found.rough >= {"n2"}
    ms = [each["ms"] for each in document(found, "m")["moments"] if each["event"] == "route_raised"]
    assert ms == [2.0], "what one node saw keeps its distances"


def test_a_shift_that_the_user_knows_is_not_guessed() -> None:
    target = set_to(f"{BEGUN}\n{TARGET}", 1)
    found = told(target, n2=timedelta(hours=-1))
    assert (found.shifts, found.rough) == ({"n2": timedelta(hours=-1)}, frozenset())


def test_that_a_pod_leaves_by_the_next_migration_says_nothing_of_a_clock() -> None:
    left = line("migration_transition", "n2", 7, migration_uid="job", **{"from": "base"})
    found = told(left.replace("T00:00", "T05:00"))
    assert found.shifts == {}
    assert all(one.source != "agent" for one in found.moments)


def test_json_and_page_are_whole_whatever_the_texts_are() -> None:
    hostile = line("sign", "n2", 7, endpoint="shop/new/eth0", kind="<script>&")
    found = told(hostile)
    assert document(found, "shop/move")["moments"][3]["ms"] == 0
    assert "<script>" not in page(found, "<b>")
    ElementTree.fromstring(picture(found, "<b>"))
    empty = timeline([], subject_of(MOVE), {})
    assert "<table>" in page(empty, "nothing")
