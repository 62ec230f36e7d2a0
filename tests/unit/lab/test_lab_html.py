"""report.html: well-formed, self-contained, escaped, honest about what is missing, bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from ipaddress import ip_address, ip_network
from xml.etree import ElementTree

import pytest

from lab.charts import Palette, cutover_chart, run_chart, story_chart, zoom_chart
from lab.clock import NS_PER_MS as MS
from lab.clock import NS_PER_S
from lab.cutover import Report
from lab.html_migration import migration_section, route_words
from lab.html_report import Page, render
from lab.lanes import Lane, lanes_of
from lab.observers import FrameSeen, RouteSeen
from lab.probes import Gap, Series
from lab.promises import checks_of
from lab.report import Act, Check, LogEvent, Observed, row_of
from lab.stream import StreamReport
from lab.tables import Tables
from lab.trace import LOST, Sample, thin
from libtortie.linux.port import Route, RouteProto, RouteType

T = 1000 * NS_PER_S
CALI = "cali0123456789a"
NODES = {"node1": "172.31.0.11", "node2": "172.31.0.12", "node3": "172.31.0.13"}
HOSTILE = "\"><script>alert('x')</script>&amp;\x00\u202e]]>"
GUEST, BLOCK = "10.65.0.2/32", "10.65.0.0/26"


def route(
    dst: str, metric: int, gateway: str = "", dev: str = "", blackhole: bool = False
) -> Route:
    return Route(
        ip_network(dst),
        metric,
        dev,
        ip_address(gateway) if gateway else None,
        RouteProto.BIRD,
        RouteType.BLACKHOLE if blackhole else RouteType.UNICAST,
    )


def seen(at: float, where: str, added: bool, metric: int, gateway: str = "") -> RouteSeen:
    return RouteSeen(T + int(at * MS), where, added, metric, gateway, "" if gateway else CALI, 3)


BEFORE = Tables(
    "before",
    T - 500 * MS,
    {
        "node1": (route(GUEST, 1024, dev=CALI), route(BLOCK, 768, blackhole=True)),
        "node2": (route(BLOCK, 768, NODES["node1"]),),
        "node3": (route("0.0.0.0/0", 0, "172.31.0.1"),),
        "tor": (route(BLOCK, 32, NODES["node1"]),),
    },
)
AT = Tables("at", T + 12 * MS, {**BEFORE.routes, "node2": (route(GUEST, 512, dev=CALI),)})


def samples(first: int = -1000, last: int = 9500) -> tuple[Sample, ...]:
    return tuple(
        Sample(T + at * MS, LOST if -50 <= at < 2 else 90_000) for at in range(first, last)
    )


OBSERVED = Observed(
    vm="vm",
    source="node1",
    target="node2",
    target_address=NODES["node2"],
    target_pod="virt-launcher-vm-2",
    ip_before="10.65.0.2",
    ip_after="10.65.0.2",
    phase="Succeeded",
    stream=StreamReport(
        100, 100, "", 60.0, 40000, (T - 70 * MS, T - 60 * MS, T + 10 * MS, T + 20 * MS)
    ),
    series={"ext": Series(1000, 52, 0.1, 0.2, (Gap(T - 51 * MS, T + 2 * MS, 0, 52),))},
    cutover=Report(T - 50 * MS, T, (T,)),
    seen=(
        FrameSeen(T, "node2", "rarp", CALI),
        seen(1, "node2", True, 512),
        seen(2, "tor", True, 32, NODES["node2"]),
        seen(8, "node1", True, 768, NODES["node2"]),
        seen(10, "node1", False, 1024),
        seen(9000, "node2", True, 1024),
        seen(9001, "node2", False, 512),
    ),
    log=(
        LogEvent(T + 5 * MS, "node2", "owner_swapped"),
        LogEvent(T, "node2", "cni_add", {"pod": "virt-launcher-vm-2", "policy_wait_ms": 9.5}),
    ),
    phases=((T - 400 * MS, "Pending"), (T - 300 * MS, "Running"), (T + 900 * MS, "Succeeded")),
    nodes=NODES,
    traces={"ext": thin(samples(), T)},
    tables=(BEFORE, AT),
    policy_ns=T - 1 * MS,
)
ACTS = (
    Act("VM created", True, "10.65.0.2", "node1", "runs", 1.0),
    Act("live migration", True, "10.65.0.2", "node2", "moved", 10.0),
    Act("VM deleted", True, "", "", "freed", 1.0),
)


def page(
    observed: Sequence[Observed] = (OBSERVED,), acts: Sequence[Act] = ACTS, ok: bool = True
) -> Page:
    pairs = tuple((one, row_of(one)) for one in observed)
    checks = [check for _, row in pairs for check in checks_of(row, 8.0)]
    checks.append(Check("lab down leaves nothing", ok, "nothing"))
    return Page(
        ok=ok,
        started="2025-01-02T03:04:05+00:00",
        convergence="8s",
        checks=checks,
        migrations=pairs,
        acts=acts,
        nodes=tuple(NODES),
        machine={"kernel": "6.1"},
        versions={"bird": "BIRD 2"},
        durations={"lab up": 2.5},
    )


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def words(text: str) -> str:
    return " ".join(" ".join(parsed(text).itertext()).split())


class Names(HTMLParser):
    """Every element a browser would make, with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_is_well_formed_and_tells_the_story() -> None:
    text = words(render(page()))
    for expected in (
        "A VM on the move keeps 10.65.0.2",
        "Every promise was kept: 11 of 11.",
        "2 January 2025, 03:04 UTC",
        "10.65.0.2, unchanged through 2 acts",
        "Migration 1: node1 → node2",
        "local, metric 512, +1.00 ms",
        "/32 via node2, +2.00 ms",
        "52 lost",
        "silent for 53.0 ms",
        "waits 70.0 ms",
        "BIRD 2",
    ):
        assert expected in text


def test_nothing_is_loaded_and_nothing_runs() -> None:
    text = render(page())
    names = Names(text)
    assert not {"script", "link", "img", "iframe", "object", "a"} & set(names.tags)
    assert not [key for key, _ in names.attributes if key in ("src", "href") or key[:2] == "on"]
    assert not re.search(r"url\(|@import", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in (
        names.attributes
    )


def test_hostile_names_are_only_text() -> None:
    nodes = {f"{HOSTILE}{number}": address for number, address in enumerate(NODES.values())}
    source, target, third = nodes
    observed = replace(
        OBSERVED,
        vm=HOSTILE,
        source=source,
        target=target,
        nodes=nodes,
        target_pod=HOSTILE,
        ip_after=HOSTILE,
        stream=replace(OBSERVED.stream, error=HOSTILE),
        phases=((T - 400 * MS, HOSTILE),),
        series={HOSTILE: OBSERVED.series["ext"]},
        traces={HOSTILE: OBSERVED.traces["ext"]},
        seen=tuple(replace(event, where=target, ifname=HOSTILE) for event in OBSERVED.seen),
        log=(LogEvent(T, HOSTILE, "cni_add", {"pod": HOSTILE}),),
        tables=(Tables("at", T, {target: (route(GUEST, 512, dev=HOSTILE),)}),),
    )
    acts = [Act(HOSTILE, False, HOSTILE, third, HOSTILE, 1.0)]
    hostile = replace(
        page([observed], acts, ok=False),
        started=HOSTILE,
        convergence=HOSTILE,
        nodes=tuple(nodes),
        machine={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        durations={HOSTILE: 1.0},
    )
    text = render(hostile)
    parsed(text)
    assert "script" not in Names(text).tags
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "alert('x')" in words(text)


def test_what_was_not_measured_says_so() -> None:
    bare = replace(
        OBSERVED,
        cutover=None,
        seen=(),
        log=(),
        phases=(),
        series={},
        traces={},
        tables=(),
        stream=StreamReport(0, 0, "not measured", 0.0, 0),
    )
    section = str(migration_section(bare, row_of(bare), 1, Palette(tuple(NODES))))
    text = words(section)
    assert "not measured: no sign and no cut-over was seen" in text
    assert "not measured: no probes were recorded" in text
    assert "The guest itself was away for not measured" in text
    assert text.count("not measured") > 20  # lanes, three moments of four tables, numbers
    assert zoom_chart(bare, Palette()) is None
    assert run_chart(bare) is None


def test_a_page_of_a_demo_that_broke_before_anything() -> None:
    text = words(render(replace(page([], (), ok=False), migrations=())))
    assert "1 of 1 promises broken." in text
    assert "lab down leaves nothing" in text
    assert "The story of the VM not measured" in text


def test_a_broken_promise_and_a_changed_address_are_shown() -> None:
    acts = [*ACTS[:2], Act("reboot", False, "10.65.0.9", "node2", "another address", 1.0)]
    text = render(page(acts=acts, ok=False))
    assert "1 of 11 promises broken." in words(text)
    assert "ribbon changed" in text
    assert "ribbon same" not in text
    assert "stop n1 broken" in text
    assert "2 addresses" in words(text)


def test_the_page_stays_under_two_megabytes() -> None:
    long = tuple(Sample(T + at * MS, LOST if at % 3 else 90_000) for at in range(-600, 600_000))
    observed = replace(
        OBSERVED,
        vm="v" * 100_000,
        traces={"ext": thin(long, T), "client": thin(long, T)},
        stream=replace(OBSERVED.stream, arrivals=[T + at * MS for at in range(-9000, 11_000)]),
        log=tuple(LogEvent(T + at, "node1", "owner_swapped") for at in range(20_000)),
    )
    assert len(render(page([observed] * 3)).encode()) < 2_000_000


def lane(name: str, observed: Observed = OBSERVED) -> Lane:
    return next(one for one in lanes_of(observed) if one.name == name)


def told(name: str) -> list[tuple[str, str, str]]:
    return [(one.text, one.kind, one.node) for one in lane(name).segments]


def test_lanes_say_which_way_each_kernel_sends() -> None:
    assert told("node2") == [
        ("/26 via node1", "route", "node1"),
        ("local, metric 512", "raised", "node2"),
        ("local, metric 1024", "route", "node2"),
    ]
    assert told("node1") == [
        ("local, metric 1024", "route", "node1"),
        ("/32 via node2, metric 768", "route", "node2"),
    ]
    assert told("tor") == [("/26 via node1", "route", "node1"), ("/32 via node2", "route", "node2")]
    assert told("node3") == [("default via 172.31.0.1", "unknown", "")]
    assert told("IPAM") == [("pod on node1", "owner", "node1"), ("pod on node2", "owner", "node2")]


def test_lanes_meet_without_holes() -> None:
    for one in lanes_of(OBSERVED):
        ends = [segment.end_ns for segment in one.segments[:-1]]
        assert ends == [segment.start_ns for segment in one.segments[1:]]


def test_a_place_whose_first_table_is_missing_has_no_lane() -> None:
    assert lane("node2", replace(OBSERVED, tables=(AT,))).segments == ()


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (route(GUEST, 512, dev=CALI), f"10.65.0.2 dev {CALI} metric 512 proto bird"),
        (route(BLOCK, 0, "172.31.0.1", "eth0"), "10.65.0.0/26 via 172.31.0.1 proto bird"),
        (route(BLOCK, 768, blackhole=True), "blackhole 10.65.0.0/26 metric 768 proto bird"),
        (route("0.0.0.0/0", 0, "172.31.0.1"), "default via 172.31.0.1 proto bird"),
        (replace(route(GUEST, 1), proto=99), "10.65.0.2 metric 1 proto 99"),
    ],
)
def test_routes_read_as_ip_route_says_them(one: Route, text: str) -> None:
    assert route_words(one) == text


def test_changes_between_moments_are_marked() -> None:
    section = str(migration_section(OBSERVED, row_of(OBSERVED), 1, Palette(tuple(NODES))))
    fresh = re.findall(r'class="route fresh">([^<]*)<', section)
    gone = re.findall(r'class="route gone">([^<]*)<', section)
    assert fresh == [f"10.65.0.2 dev {CALI} metric 512 proto bird"]
    assert gone == ["10.65.0.0/26 via 172.31.0.11 metric 768 proto bird"]


def test_pictures_stand_without_a_revert() -> None:
    early = replace(OBSERVED, seen=OBSERVED.seen[:5])
    text = words(str(cutover_chart(early, Palette(tuple(NODES)))))
    assert "sign: RARP" in text
    assert "revert" not in text
    assert story_chart((), Palette()) is None
