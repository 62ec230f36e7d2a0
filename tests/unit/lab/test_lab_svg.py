"""Markup is escaped by construction; scales and ticks; what is kept of a prober's run."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.probes import round_trips
from lab.stream import Echoes, StreamReport
from lab.trace import BUCKETS, LOST, WINDOW_NS, Sample, losses, thin
from libtortie.svg import (
    LONGEST,
    Markup,
    Scale,
    clean,
    dots,
    fitting,
    log_scale,
    signed,
    tag,
    ticks,
)

MS = 1_000_000


@given(st.text(alphabet=st.characters(), max_size=300), st.text(max_size=300))
def test_any_text_comes_out_of_a_parser_as_it_went_in(content: str, value: str) -> None:
    element = ElementTree.fromstring(tag("p", content, title=value))
    assert (element.text or "").replace("\r\n", "\n").replace("\r", "\n") == clean(content).replace(
        "\r\n", "\n"
    ).replace("\r", "\n")
    assert len(element) == 0
    assert element.attrib.keys() == {"title"}


def test_markup_is_taken_as_it_is_and_text_is_not() -> None:
    assert tag("b", Markup("<i/>"), "<i/>") == "<b><i/>&lt;i/&gt;</b>"
    assert (
        tag("rect", stroke_width=1.5, class_="x", rx=None) == '<rect stroke-width="1.5" class="x"/>'
    )


def test_long_text_is_cut_visibly() -> None:
    assert clean("x" * (LONGEST + 1)) == "x" * LONGEST + "…"


def test_paths_are_never_cut() -> None:
    text = dots(((float(at), 1.0) for at in range(1000)), "dot")
    assert text.count("M") == 1000


def test_scale_holds_to_its_edges() -> None:
    scale = Scale(0, 10, 100, 200)
    assert (scale.at(5), scale.inside(-5), scale.inside(50)) == (150, 100, 200)
    assert Scale(1, 1, 0, 10).at(1) == 0


@pytest.mark.parametrize(
    ("low", "high", "about", "found"),
    [
        (-150, 150, 6, (-150, -100, -50, 0, 50, 100, 150)),
        (0, 1, 5, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (3, 3, 5, ()),
        (7, 3, 5, ()),
    ],
)
def test_ticks_are_round(low: float, high: float, about: int, found: tuple[float, ...]) -> None:
    assert ticks(low, high, about) == found


def test_log_scale_spans_whole_decades() -> None:
    scale = log_scale([0.05, 3.0, 0.0], 100, 0)
    assert scale.powers() == (0.01, 0.1, 1.0, 10.0)
    assert (scale.at(0.01), scale.at(10), scale.at(0), scale.at(99)) == (100, 0, 100, 0)
    assert log_scale([], 1, 0).powers() == (0.1, 1.0)


def test_words_for_numbers_and_for_little_room() -> None:
    assert (signed(-2), signed(2.5, 2), signed(0.0, 1)) == ("\N{MINUS SIGN}2", "+2.50", "+0.0")
    assert (fitting("abc", 100), fitting("abcdefgh", 31), fitting("abcdefgh", 10)) == (
        "abc",
        "abcd…",
        "",
    )


def run_of(count: int, lost: range = range(0)) -> tuple[Sample, ...]:
    return tuple(Sample(at * MS, LOST if at in lost else 1000 + at) for at in range(count))


def test_near_the_moment_every_probe_is_kept() -> None:
    trace = thin(run_of(10_000), 5000 * MS)
    assert [one.sent_ns for one in trace.near] == [at * MS for at in range(4850, 5151)]
    assert trace.near[-1].sent_ns - 5000 * MS == WINDOW_NS


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_the_rest_is_counted_in_buckets(count: int, lost: int) -> None:
    trace = thin(run_of(count, range(lost)), None)
    assert trace.near == ()
    assert len(trace.whole) <= BUCKETS
    assert sum(bucket.sent for bucket in trace.whole) == count
    assert sum(bucket.lost for bucket in trace.whole) == min(lost, count)
    worst = max((bucket.worst_ns for bucket in trace.whole), default=0)
    assert worst == (999 + count if lost < count else 0)


def test_runs_of_losses() -> None:
    runs = losses(run_of(10, range(3, 6)))
    assert [[one.sent_ns // MS for one in run] for run in runs] == [[3, 4, 5]]


def test_round_trips_of_probes_that_count() -> None:
    sends = [at * MS for at in range(201)]
    receives = [at + 70_000 if at else 0 for at in sends]
    assert round_trips(sends, receives) == [LOST] + [70_000] * 100


def test_arrivals_and_gaps_of_the_stream() -> None:
    echoes = Echoes()
    for at, data in ((10, b"0\n"), (20, b"1"), (25, b"\n2\n"), (95, b"3\n")):
        echoes.feed(data, at)
    assert list(echoes.arrivals) == [10, 25, 95]
    report = StreamReport(4, 4, "", 0.0, 1, list(echoes.arrivals))
    assert report.gaps(15) == ((25, 95),)
    echoes.forget_gap(100)
    assert not echoes.arrivals
