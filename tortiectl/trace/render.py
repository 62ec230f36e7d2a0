"""A timeline as text, JSON and a page of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from libtortie.svg import Markup, Scale, drawing, join, shown, tag, ticks
from tortiectl.trace.moments import Moment, Timeline

_WIDTH, _LEFT, _RIGHT, _LANE = 960.0, 130.0, 940.0, 34.0
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Markup(
    "body{font:14px sans-serif;color:#222;margin:2em;max-width:70em}text{font:12px sans-serif}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2em .8em;vertical-align:top}"
    "td:first-child{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    "tr:nth-child(even){background:#f4f4f4}.lane{stroke:#ccc}.zero{stroke:#e45756}"
    ".KubeVirt{fill:#4c78a8}.agent{fill:#f58518}.IPAM{fill:#54a24b}.Event{fill:#b279a2}"
)


def _ms(span: timedelta) -> float:
    return span.total_seconds() * 1000


def at(one: Moment, timeline: Timeline) -> str:
    """`+12.345 ms`, and `about` what KubeVirt tells in whole seconds."""
    text = f"{_ms(one.time - timeline.zero):+.3f} ms"
    return f"~{text}" if one.precision else text


def notes(timeline: Timeline) -> Iterator[str]:
    """What is to be known of the clock."""
    yield f"0 is {timeline.zero:%Y-%m-%d %H:%M:%S.%f} UTC; ~ are times in whole seconds"
    for node, shift in sorted(timeline.shifts.items()):
        yield f"the clock of {node} was moved by {_ms(shift):+.3f} ms"


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
        "shifts_ms": {node: _ms(shift) for node, shift in sorted(timeline.shifts.items())},
        "moments": [
            {
                "time": one.time.isoformat(),
                "ms": round(_ms(one.time - timeline.zero), 3),
                "precision_ms": _ms(one.precision),
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


def picture(timeline: Timeline, title: str) -> Markup:
    """Lanes of dots over time."""
    places = list(dict.fromkeys(one.where for one in timeline.moments))
    height = _LANE * len(places) + 40
    times = [_ms(one.time - timeline.zero) for one in timeline.moments] or [0.0]
    scale = Scale(min(times), max(times), _LEFT, _RIGHT)
    drawn: list[object] = []
    for number, place in enumerate(places):
        y = _LANE * (number + 0.5)
        drawn.append(tag("text", place, x=8, y=y + 4))
        drawn.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="lane"))
        for one, ms in zip(timeline.moments, times, strict=False):
            if one.where == place:
                words = tag("title", f"{at(one, timeline)} {one.text}")
                drawn.append(tag("circle", words, cx=scale.at(ms), cy=y, r=5, class_=one.source))
    x = scale.inside(0.0)
    drawn.append(tag("line", x1=x, x2=x, y1=0, y2=_LANE * len(places), class_="zero"))
    for value in ticks(scale.low, scale.high, 8):
        place_x, y = scale.at(value), _LANE * len(places) + 16
        drawn.append(tag("text", shown(value), x=place_x, y=y, text_anchor="middle"))
    drawn.append(tag("text", "ms", x=8, y=_LANE * len(places) + 16))
    return drawing(_WIDTH, height, title, join(drawn))
