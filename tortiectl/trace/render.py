"""A timeline as text, JSON and a page of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libtortie.svg import Markup, tag
from libtortie.timeline import Timeline, at, ms_of, picture

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Markup(
    "body{font:14px sans-serif;color:#222;margin:2em;max-width:70em}text{font:12px sans-serif}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2em .8em;vertical-align:top}"
    "td:first-child{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    "tr:nth-child(even){background:#f4f4f4}.lane{stroke:#ccc}.zero{stroke:#e45756}"
    ".KubeVirt{fill:#4c78a8}.agent{fill:#f58518}.IPAM{fill:#54a24b}.Event{fill:#b279a2}"
)


def notes(timeline: Timeline) -> Iterator[str]:
    """What is to be known of the clock."""
    yield f"0 is {timeline.zero:%Y-%m-%d %H:%M:%S.%f} UTC; ~ are times in whole seconds"
    for node, shift in sorted(timeline.shifts.items()):
        yield f"the clock of {node} was moved by {ms_of(shift):+.3f} ms{_why(node, timeline)}"


def _why(node: str, timeline: Timeline) -> str:
    return " to fit KubeVirt's times; seconds are uncertain" if node in timeline.rough else ""


def lines(timeline: Timeline, title: str) -> Iterator[str]:
    """For people."""
    yield title
    yield from (f"  {note}" for note in notes(timeline))
    wide = max((len(one.where) for one in timeline.moments), default=0)
    for one in timeline.moments:
        yield f"  {at(one, timeline):>18}  {one.where:<{wide}}  {one.source:<8}  {one.text}"


def document(timeline: Timeline, migration: str) -> dict[str, Any]:
    """For programs."""
    return {
        "migration": migration,
        "zero": timeline.zero.isoformat(),
        "shifts_ms": {node: ms_of(shift) for node, shift in sorted(timeline.shifts.items())},
        "moments": [
            {
                "time": one.time.isoformat(),
                "ms": round(ms_of(one.time - timeline.zero), 3),
                "precision_ms": ms_of(one.precision),
                "where": one.where,
                "source": one.source,
                "event": one.event,
                "text": one.text,
            }
            for one in timeline.moments
        ],
    }


def page(timeline: Timeline, title: str) -> str:
    """One HTML page that needs nothing but itself: a lane for each place, and every moment."""
    rows = [
        tag(
            "tr",
            *(tag("td", cell) for cell in (at(one, timeline), one.where, one.source, one.text)),
        )
        for one in timeline.moments
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", _STYLE),
    )
    headings = tag("tr", *(tag("th", name) for name in ("time", "where", "by", "what")))
    body = tag(
        "body",
        tag("h1", title),
        *(tag("p", note) for note in notes(timeline)),
        picture(timeline, title),
        tag("table", headings, *rows),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
