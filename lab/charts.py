"""The report's drawings: a migration's lanes, the moment of the cut-over, a whole run's latency,
and the VM's way through its acts.

Pure. Colours are CSS classes: `n0`, `n1` … for nodes in the order of the page, so that a node has
the same colour everywhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from lab import clock
from lab.lanes import Lane, Segment, lanes_of, span
from lab.probes import Gap
from lab.report import Act, Observed, first_sign, reverted, zero_ns
from lab.trace import WINDOW_NS, Trace, losses
from libtortie.svg import (
    LogScale,
    Markup,
    Scale,
    clean,
    dots,
    drawing,
    fitting,
    join,
    log_scale,
    signed,
    strokes,
    tag,
    ticks,
)

WIDTH = 1120.0
GUTTER = 168.0
ROW = 30.0
BAR = 21.0
MS = clock.NS_PER_MS
TCP_NOTABLE_NS = 25 * MS
PROBERS = {"ext": "client outside", "client": "pod in the cluster"}
SIGN_NAMES = {
    "rarp": "RARP",
    "garp": "gratuitous ARP",
    "ip": "IPv4 packet",
    "na": "neighbour advertisement",
    "ip6": "IPv6 packet",
}


@dataclass(frozen=True, slots=True)
class Palette:
    """Which colour a node has."""

    nodes: Sequence[str] = field(default=())

    def of(self, node: str) -> str:
        """A class; of an unknown node, `nx`."""
        return f"n{list(self.nodes).index(node) % 6}" if node in self.nodes else "nx"


def sign_words(observed: Observed) -> str:
    """By what the guest was heard."""
    sign = first_sign(observed)
    return SIGN_NAMES.get(sign.what, sign.what) if sign else "no sign"


def cutover_chart(observed: Observed, palette: Palette) -> Markup:
    """All lanes from the migration's creation to the revert, with a break before the revert."""
    lanes, (start, end) = lanes_of(observed), span(observed)
    zero, went = zero_ns(observed), reverted(observed)
    origin = start if zero is None else zero
    split = 850.0 if went and went.t_ns > end else WIDTH - 8
    main = Scale(start, end, GUTTER, split)
    windows = [main]
    if split < WIDTH - 8 and went is not None:
        windows.append(Scale(went.t_ns - 150 * MS, went.t_ns + 150 * MS, split + 26, WIDTH - 8))
    top, height = 30.0, 30.0 + ROW * len(lanes)
    parts: list[Markup] = [_names(lanes, top)]
    for scale in windows:
        parts += [_lane(lane, scale, top + ROW * row, palette) for row, lane in enumerate(lanes)]
        parts.append(_time_axis(scale, origin, height, 8 if scale is main else 3))
    if zero is not None and main.holds(zero):
        parts.append(_mark(main.at(zero), top, height, f"sign: {sign_words(observed)}", "sign"))
    if went is not None:
        for scale in windows:
            if scale.holds(went.t_ns):
                parts.append(_mark(scale.at(went.t_ns), top, height, "revert", "revert"))
                break
    if len(windows) == 2:
        parts.append(_break(split + 13, top, height))
    label = f"Migration from {observed.source} to {observed.target}, over time"
    return drawing(WIDTH, height + 34, label, *parts)


def zoom_chart(observed: Observed, palette: Palette) -> Markup | None:
    """±150 ms around the sign: lanes, every probe, the TCP stream. None without a moment."""
    zero = zero_ns(observed)
    if zero is None:
        return None
    scale = Scale(zero - WINDOW_NS, zero + WINDOW_NS, GUTTER, WIDTH - 8)
    lanes = [lane for lane in lanes_of(observed) if lane.name != "KubeVirt"]
    top = 30.0
    parts: list[Markup] = [_names(lanes, top)]
    parts += [_lane(lane, scale, top + ROW * row, palette, zero) for row, lane in enumerate(lanes)]
    y = top + ROW * len(lanes) + 12
    for name, trace in observed.traces.items():
        series = observed.series.get(name)
        parts.append(_probes(name, trace, series.longest if series else None, scale, y))
        y += 118
    parts.append(_stream(observed, scale, y))
    y += 40
    band = _blackout(observed, scale, top - 4, y)
    mark = _mark(scale.at(zero), top, y, f"sign: {sign_words(observed)}", "sign")
    label = f"150 ms before and after the guest was heard on {observed.target}"
    return drawing(WIDTH, y + 34, label, band, *parts, _time_axis(scale, zero, y, 12), mark)


def run_chart(observed: Observed) -> Markup | None:
    """Latency and losses of the whole measurement, in buckets. None without any."""
    buckets = [bucket for trace in observed.traces.values() for bucket in trace.whole]
    if not buckets:
        return None
    zero, went = zero_ns(observed), reverted(observed)
    low, high = min(one.start_ns for one in buckets), max(one.start_ns for one in buckets)
    scale = Scale(low, high + 1, GUTTER, WIDTH - 8)
    y, parts = 26.0, list[Markup]()
    for name, trace in observed.traces.items():
        parts.append(_buckets(name, trace, scale, y))
        y += 88
    origin = low if zero is None else zero
    parts.append(_time_axis(scale, origin, y, 10))
    for at, words, class_ in ((zero, "sign", "sign"), (went.t_ns if went else None, "revert", "")):
        if at is not None and scale.holds(at):
            parts.append(_mark(scale.at(at), 26, y, words, class_ or "revert"))
    return drawing(WIDTH, y + 34, "Latency over the whole measurement", *parts)


def _names(lanes: Sequence[Lane], top: float) -> Markup:
    parts = []
    for row, lane in enumerate(lanes):
        y = top + ROW * row
        if row % 2 == 0:
            parts.append(tag("rect", x=0, y=y, width=WIDTH, height=ROW, class_="stripe"))
        parts.append(tag("text", fitting(lane.name, 70, 7), x=6, y=y + 19, class_="name"))
        role = fitting(lane.role, 92, 5.6)
        parts.append(tag("text", role, x=GUTTER - 10, y=y + 19, class_="role"))
    return join(parts)


def _lane(lane: Lane, scale: Scale, y: float, palette: Palette, zero: int | None = None) -> Markup:
    """One lane's part of a window; with `zero`, each change that lies in it has its time."""
    if not lane.segments:
        return tag("text", "not measured", x=scale.left + 4, y=y + 19, class_="missing")
    middle = y + (ROW - BAR) / 2
    parts = [
        _segment(one, scale, middle, palette, zero)
        for one in lane.segments
        if one.end_ns > scale.low and one.start_ns < scale.high
    ]
    return join(parts)


def _segment(one: Segment, scale: Scale, y: float, palette: Palette, zero: int | None) -> Markup:
    began = zero is not None and one.kind != "gap" and scale.holds(one.start_ns)
    since = f"{signed(clock.ms(one.start_ns - (zero or 0)), 2)} ms" if began else None
    left, right = scale.inside(one.start_ns), scale.inside(one.end_ns)
    class_ = f"seg {one.kind} {palette.of(one.node)}" if one.node else f"seg {one.kind}"
    width = max(1.0, right - left)
    length = clock.ms(one.end_ns - one.start_ns)
    title = tag("title", f"{one.text} ({length:.2f} ms)")
    shape = tag(
        "rect", title, x=left, y=y, width=width, height=BAR, rx=3 if width > 8 else 1, class_=class_
    )
    words = fitting(one.text if since is None else f"{one.text}, {since}", width - 8)
    text = tag("text", words, x=left + 6, y=y + 15, class_="in") if words else ""
    return join((shape, text))


def _time_axis(scale: Scale, zero: float, y: float, about: int) -> Markup:
    low, high = (scale.low - zero) / MS, (scale.high - zero) / MS
    seconds = max(abs(low), abs(high)) >= 3000 and high - low > 1000
    parts = [tag("line", x1=scale.left, x2=scale.right, y1=y, y2=y, class_="axis")]
    unit = 1000.0 if seconds else 1.0
    for tick in ticks(low / unit, high / unit, about):
        x = scale.at(zero + tick * unit * MS)
        parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + 5, class_="axis"))
        words = (f"0 {'s' if seconds else 'ms'}") if tick == 0 else signed(tick)
        if scale.right - x > 12 and x - scale.left > 6:
            parts.append(tag("text", words, x=x, y=y + 19, class_="tick"))
    return join(parts)


def _mark(x: float, top: float, bottom: float, words: str, class_: str) -> Markup:
    line = tag("line", x1=x, x2=x, y1=top - 6, y2=bottom, class_=f"mark {class_}")
    text = tag("text", words, x=x, y=top - 12, class_=f"flag {class_}")
    return join((line, text))


def _break(x: float, top: float, bottom: float) -> Markup:
    zigzag = "".join(
        f"L{x + (3 if row % 2 else -3):.1f} {top + 8 * row:.1f}"
        for row in range(1, int((bottom - top) / 8) + 1)
    )
    text = tag("text", "later", x=x, y=top - 12, class_="tick")
    return join((tag("path", d=Markup(f"M{x - 3:.1f} {top:.1f}{zigzag}"), class_="break"), text))


def _blackout(observed: Observed, scale: Scale, top: float, bottom: float) -> Markup:
    """The guest's own pause, over everything."""
    report = observed.cutover
    if report is None:
        return Markup("")
    left, right = scale.inside(report.unplugged_ns), scale.inside(report.plugged_ns)
    return tag("rect", x=left, y=top, width=right - left, height=bottom - top, class_="blackout")


def _probes(name: str, trace: Trace, gap: Gap | None, scale: Scale, y: float) -> Markup:
    """Every probe of the window: a dot at its round trip, or a stroke in the row of the lost."""
    parts = _plot_names(name, "round trip, ms", y)
    top, bottom = y + 26, y + 104
    if not trace.near:
        parts.append(tag("text", "not measured", x=scale.left + 4, y=y + 60, class_="missing"))
        return join(parts)
    answered = [one for one in trace.near if not one.lost]
    axis = log_scale((clock.ms(one.rtt_ns) for one in answered), bottom, top)
    parts += _value_axis(axis, scale)
    if gap is not None and gap.lost:
        parts.append(_gap(gap.start_ns, gap.end_ns, scale, y + 2, bottom))
    points = [(scale.at(one.sent_ns), axis.at(clock.ms(one.rtt_ns))) for one in answered]
    parts.append(dots(points, "dot"))
    lost = [(scale.at(one.sent_ns), y + 15, y + 25) for one in trace.near if one.lost]
    parts.append(strokes(lost, "lost"))
    for run in losses(trace.near):
        middle = (scale.at(run[0].sent_ns) + scale.at(run[-1].sent_ns)) / 2
        if len(run) >= 5:
            parts.append(tag("text", f"{len(run)} lost", x=middle, y=y + 11, class_="loss"))
    if gap is not None and gap.lost and scale.holds(gap.start_ns) and scale.holds(gap.end_ns):
        middle = (scale.at(gap.start_ns) + scale.at(gap.end_ns)) / 2
        words = f"silent for {clock.ms(gap.outage_ns):.1f} ms"
        parts.append(tag("text", words, x=middle, y=(top + bottom) / 2 + 4, class_="loss strong"))
    return join(parts)


def _plot_names(name: str, what: str, y: float) -> list[Markup]:
    where = fitting(PROBERS.get(name, name), GUTTER - 16, 6.4)
    return [
        tag("text", where, x=6, y=y + 40, class_="name"),
        tag("text", what, x=6, y=y + 56, class_="role left"),
    ]


def _value_axis(axis: LogScale, scale: Scale) -> list[Markup]:
    parts = []
    for power in axis.powers():
        y = axis.at(power)
        parts.append(tag("line", x1=scale.left, x2=scale.right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", f"{power:g}", x=scale.left - 6, y=y + 4, class_="value"))
    return parts


def _gap(start: int, end: int, scale: Scale, top: float, bottom: float) -> Markup:
    left, right = scale.inside(start), scale.inside(end)
    return tag(
        "rect",
        x=left,
        y=top,
        width=max(1.0, right - left),
        height=bottom - top,
        class_="silence",
    )


def _stream(observed: Observed, scale: Scale, y: float) -> Markup:
    """The TCP connection: a stroke for each moment at which lines came back."""
    parts = [
        tag("text", "TCP connection", x=6, y=y + 15, class_="name"),
        tag("text", "lines that came back", x=6, y=y + 30, class_="role left"),
    ]
    arrivals = [at for at in observed.stream.arrivals if scale.holds(at)]
    if not arrivals:
        parts.append(tag("text", "not measured", x=scale.left + 4, y=y + 21, class_="missing"))
        return join(parts)
    for start, end in observed.stream.gaps(TCP_NOTABLE_NS):
        if end > scale.low and start < scale.high:
            parts.append(_gap(start, end, scale, y + 4, y + 32))
            words = f"waits {clock.ms(end - start):.1f} ms"
            middle = (scale.inside(start) + scale.inside(end)) / 2
            shown = fitting(words, scale.inside(end) - scale.inside(start))
            parts.append(tag("text", shown, x=middle, y=y + 22, class_="loss strong"))
    parts.append(strokes(((scale.at(at), y + 8, y + 28) for at in arrivals), "line"))
    return join(parts)


def _buckets(name: str, trace: Trace, scale: Scale, y: float) -> Markup:
    """Best to worst round trip of each bucket; losses as strokes above."""
    top, bottom = y + 16, y + 76
    parts = _plot_names(name, "best to worst, ms", y)
    worst = [clock.ms(one.worst_ns) for one in trace.whole]
    best = [clock.ms(one.best_ns) for one in trace.whole]
    axis = log_scale((*worst, *best), bottom, top)
    parts += _value_axis(axis, scale)
    bars = [
        (
            scale.at(one.start_ns),
            axis.at(clock.ms(one.best_ns)) + 0.8,
            axis.at(clock.ms(one.worst_ns)),
        )
        for one in trace.whole
        if one.worst_ns
    ]
    parts.append(strokes(bars, "span"))
    lost = [(scale.at(one.start_ns), y + 4, y + 14) for one in trace.whole if one.lost]
    parts.append(strokes(lost, "lost"))
    return join(parts)


def story_chart(acts: Sequence[Act], palette: Palette) -> Markup | None:
    """The VM's way from node to node, act by act, over the ribbon of its address."""
    if not acts:
        return None
    column = min(240.0, (WIDTH - 90) / len(acts))
    lanes = {node: 84.0 + 40 * row for row, node in enumerate(palette.nodes)}
    nowhere = 84.0 + 40 * len(lanes)
    bottom = nowhere + (34 if any(not act.node for act in acts) else 0)
    parts = [
        part
        for node, y in lanes.items()
        for part in (
            tag("line", x1=84, x2=WIDTH, y1=y, y2=y, class_="grid"),
            tag("text", fitting(node, 72, 7.5), x=6, y=y + 5, class_="name"),
        )
    ]
    places = [
        (84 + column * (index + 0.5), lanes.get(act.node, nowhere))
        for index, act in enumerate(acts)
    ]
    for (x, y), (then_x, then_y) in pairwise(places):
        half = (x + then_x) / 2
        way = (
            f"M{x:.1f} {y:.1f}C{half:.1f} {y:.1f} {half:.1f} {then_y:.1f} {then_x:.1f} {then_y:.1f}"
        )
        parts.append(tag("path", d=way, class_="way"))
    for index, (act, (x, y)) in enumerate(zip(acts, places, strict=True), 1):
        hue = palette.of(act.node) if act.node else "nowhere"
        fate = "" if act.ok else " broken"
        title = tag("title", f"{act.act}: {act.detail}")
        lines = wrapped(act.act, int(column / 5.9), 4)
        parts += [tag("text", line, x=x, y=13 + 13 * n, class_="act") for n, line in lines]
        parts.append(tag("circle", title, cx=x, cy=y, r=13, class_=f"stop {hue}{fate}"))
        parts.append(tag("text", index if act.ok else "!", x=x, y=y + 4.5, class_="number"))
    parts.append(_ribbon(acts, column, bottom + 2))
    return drawing(WIDTH, bottom + 44, "The VM's way from node to node", *parts)


def wrapped(text: str, width: int, most: int) -> list[tuple[int, str]]:
    """Numbered lines of at most so many characters; what does not fit is cut, visibly."""
    lines = textwrap.wrap(clean(text), max(4, width), max_lines=most, placeholder="…")
    return list(enumerate(lines))


def _ribbon(acts: Sequence[Act], column: float, y: float) -> Markup:
    """The address, one unbroken band for as long as it is the same."""
    parts, index = [], 0
    addresses = {act.address for act in acts if act.address}
    for address, group in groupby(acts, key=lambda act: act.address):
        count = len(list(group))
        left, width = 84 + column * index + 6, column * count - 12
        index += count
        kind = ("same" if len(addresses) == 1 else "changed") if address else "freed"
        words = fitting(address or "freed", width, 7)
        if kind == "same" and width > 300:
            words = f"{address}, unchanged through {count} acts"
        parts.append(
            tag("rect", x=left, y=y, width=width, height=28, rx=14, class_=f"ribbon {kind}")
        )
        middle = left + width / 2
        parts.append(tag("text", words, x=middle, y=y + 19, class_=f"ribbontext {kind}"))
    label = tag("text", "address", x=6, y=y + 19, class_="name")
    return join((label, *parts))


def prober_name(name: str) -> str:
    """A prober in words."""
    return PROBERS.get(name, name)
