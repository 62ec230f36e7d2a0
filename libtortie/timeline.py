"""A migration's moments and their picture: lanes of places over one clock. Pure.

KubeVirt's own times are whole seconds; agents' are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from libtortie.history import sentence
from libtortie.kube.migrations import Migration
from libtortie.model.history import Fact, Step
from libtortie.model.times import parse_rfc3339
from libtortie.svg import Markup, Scale, drawing, join, shown, tag, ticks

CLUSTER, SECOND, EXACT = "cluster", timedelta(seconds=1), timedelta(0)
KUBEVIRT = "KubeVirt"
SLACK = timedelta(seconds=5)
"""So long after KubeVirt's success an agent may hear the VM: its times are coarse."""
RAISED = "route_raised"
_WIDTH, _LEFT, _RIGHT, _LANE = 960.0, 130.0, 940.0, 34.0
_IN_MS = 10_000.0
"""The longest span, in ms, whose axis is written in ms; a longer one's is in seconds."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Something that happened; `precision` is how exact its time is. `own`: it names the migration,
    so it happened between its beginning and its end, whatever a node's clock said."""

    time: datetime
    where: str
    source: str
    text: str
    event: str = ""
    precision: timedelta = EXACT
    own: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Moments in order; `shifts` are what nodes' clocks were moved by, those of `rough` to fit
    KubeVirt's times, by which seconds are uncertain.

    `now` is what a picture goes up to while the migration runs.
    """

    moments: tuple[Moment, ...]
    shifts: Mapping[str, timedelta]
    zero: datetime
    now: datetime | None = None
    rough: frozenset[str] = frozenset()


def time_of(text: str) -> datetime | None:
    """A time as KubeVirt and agents write it; None for anything else."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None


def of_migration(migration: Migration) -> Iterator[Moment]:
    """KubeVirt's: phases, and the times of its state."""
    created = time_of(migration.metadata.creation_timestamp)
    if created is not None:
        yield Moment(created, CLUSTER, KUBEVIRT, "migration created", "created", SECOND)
    for one in migration.status.phase_transition_timestamps:
        when = time_of(one.phase_transition_timestamp)
        if when is not None:
            text = f"migration {one.phase}"
            yield Moment(when, CLUSTER, KUBEVIRT, text, "phase", SECOND)
    state = migration.status.migration_state
    for text, where, stamp in (
        ("copying begins", state.source_node, state.start_timestamp),
        ("the guest runs here", state.target_node, state.target_node_domain_ready_timestamp),
        ("migration ends", state.target_node, state.end_timestamp),
    ):
        when = time_of(stamp)
        if when is not None:
            yield Moment(when, where or CLUSTER, KUBEVIRT, text, "state", SECOND)


def moment_of(fact: Fact) -> Moment:
    """A fact of the history."""
    event = _STEPS.get(fact.details.get("step", ""), fact.what.value)
    own = bool(fact.details.get("migration_uid"))
    return Moment(fact.at, fact.by, "history", sentence(fact), event, own=own)


_STEPS = {Step.HEARD.value: "sign", Step.RAISED.value: RAISED}


def misfits(moments: Sequence[Moment]) -> dict[str, timedelta]:
    """By how much a node's clock has to be moved, at least, to fit KubeVirt's times: no agent knows
    of a migration before it is created, or hears of it for the first time when it has succeeded."""
    told = [one for one in moments if one.source == KUBEVIRT and one.where == CLUSTER]
    created = min((one.time for one in told if one.event == "created"), default=None)
    over = max((one.time for one in told if one.text == _SUCCEEDED), default=None)
    found: dict[str, timedelta] = {}
    for node in {one.where for one in moments if one.own}:
        own = [one for one in moments if one.own and one.where == node]
        first = min(one.time for one in own)
        came = min((one.time for one in own if one.event in ("sign", RAISED)), default=first)
        if created is not None and first < created - SECOND:
            found[node] = created - first
        elif over is not None and came > over + SLACK:
            found[node] = over - came
    return found


def moved(moments: Iterable[Moment], shifts: Mapping[str, timedelta]) -> list[Moment]:
    """With nodes' times moved; what KubeVirt says of a node has the API's clock."""
    return [
        one
        if one.source == KUBEVIRT or one.where not in shifts
        else replace(one, time=one.time + shifts[one.where])
        for one in moments
    ]


_SUCCEEDED = "migration Succeeded"


def zero_of(moments: Sequence[Moment]) -> datetime:
    """The VM's first sign on the target, else its route there, else the first moment."""
    for event in ("sign", RAISED):
        for one in moments:
            if one.event == event:
                return one.time
    return moments[0].time if moments else datetime.fromtimestamp(0, UTC)


def ms_of(span: timedelta) -> float:
    """A span in ms."""
    return span.total_seconds() * 1000


def at(one: Moment, timeline: Timeline) -> str:
    """`+12.345 ms`, and `~` before what KubeVirt tells in whole seconds."""
    text = f"{ms_of(one.time - timeline.zero):+.3f} ms"
    return f"~{text}" if one.precision else text


def picture(timeline: Timeline, title: str) -> Markup:
    """Lanes of dots over time, up to `now` where there is one."""
    places = list(dict.fromkeys(one.where for one in timeline.moments))
    height, foot = _LANE * len(places) + 40, _LANE * len(places)
    times = [ms_of(one.time - timeline.zero) for one in timeline.moments]
    ends = [] if timeline.now is None else [ms_of(timeline.now - timeline.zero)]
    known = [*times, *ends] or [0.0]
    scale = Scale(min(known), max(known), _LEFT, _RIGHT)
    drawn: list[object] = []
    for number, place in enumerate(places):
        y = _LANE * (number + 0.5)
        drawn.append(tag("text", place, x=8, y=y + 4))
        drawn.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="lane"))
        for one, ms in zip(timeline.moments, times, strict=True):
            if one.where == place:
                words = tag("title", f"{at(one, timeline)} {one.text}")
                drawn.append(tag("circle", words, cx=scale.at(ms), cy=y, r=5, class_=one.source))
    marks = [(scale.inside(0.0), "zero"), *((scale.at(end), "now") for end in ends)]
    drawn += [tag("line", x1=x, x2=x, y1=0, y2=foot, class_=name) for x, name in marks]
    unit, size = ("ms", 1.0) if scale.high - scale.low <= _IN_MS else ("s", 1000.0)
    for value in ticks(scale.low / size, scale.high / size, 8):
        place_x = scale.at(value * size)
        drawn.append(tag("text", shown(value), x=place_x, y=foot + 16, text_anchor="middle"))
    drawn.append(tag("text", unit, x=8, y=foot + 16))
    return drawing(_WIDTH, height, title, join(drawn))
