"""A migration's moments from whoever saw them, on one clock. Pure.

KubeVirt's own times are whole seconds; agents' are microseconds, each by its node's clock. The
target's clock is the one: another node's times are moved where they would have an effect before its
cause (the source hears of a cut-over after the target has raised the route, never before).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from libtortie.model.times import parse_rfc3339
from tortiectl.kubevirt.objects import Migration

CLUSTER, SECOND, EXACT = "cluster", timedelta(seconds=1), timedelta(0)
RAISED, NOTICED = "route_raised", "cut_over_noticed"
MARGIN = timedelta(minutes=2)
"""Log lines so long before a migration's first and after its last time belong to its story."""
_QUIET = frozenset({"time", "level", "event", "node", "endpoint", "migration_uid"})
_SOURCES = {"owner_swapped": "IPAM", "owner_swap_failed": "IPAM"}


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Something that happened; `precision` is how exact its time is."""

    time: datetime
    where: str
    source: str
    text: str
    event: str = ""
    precision: timedelta = EXACT


@dataclass(frozen=True, slots=True)
class Subject:
    """What of a log belongs to a migration."""

    namespace: str
    uid: str
    pods: frozenset[str]
    source_node: str
    target_node: str


def subject_of(migration: Migration) -> Subject:
    """The migration's pods and nodes."""
    state = migration.status.migration_state
    pods = frozenset(filter(None, (state.source_pod, state.target_pod)))
    return Subject(
        migration.metadata.namespace, migration.metadata.uid, pods, state.source_node,
        state.target_node,
    )  # fmt: skip


def of_migration(migration: Migration) -> Iterator[Moment]:
    """KubeVirt's: phases, and the times of its state."""
    created = _time(migration.metadata.creation_timestamp)
    if created is not None:
        yield Moment(created, CLUSTER, "KubeVirt", "migration created", "created", SECOND)
    for one in migration.status.phase_transition_timestamps:
        when = _time(one.phase_transition_timestamp)
        if when is not None:
            text = f"migration {one.phase}"
            yield Moment(when, CLUSTER, "KubeVirt", text, "phase", SECOND)
    state = migration.status.migration_state
    for text, where, stamp in (
        ("copying begins", state.source_node, state.start_timestamp),
        ("the guest runs here", state.target_node, state.target_node_domain_ready_timestamp),
        ("migration ends", state.target_node, state.end_timestamp),
    ):
        when = _time(stamp)
        if when is not None:
            yield Moment(when, where or CLUSTER, "KubeVirt", text, "state", SECOND)


def of_events(
    events: Iterable[Mapping[str, Any]], subject: Subject, names: frozenset[str]
) -> Iterator[Moment]:
    """Kubernetes Events about the migration, its VM and its pods."""
    for body in events:
        about = body.get("involvedObject")
        if not isinstance(about, Mapping) or about.get("name") not in names | subject.pods:
            continue
        stamp = body.get("lastTimestamp") or body.get("eventTime") or body.get("firstTimestamp")
        when = _time(str(stamp or ""))
        if when is None:
            continue
        host = body.get("source")
        where = str(host.get("host") or CLUSTER) if isinstance(host, Mapping) else CLUSTER
        text = f"{body.get('reason', '?')}: {body.get('message', '')}"
        yield Moment(when, where, "Event", text, str(body.get("reason", "")), SECOND)


def of_log(text: str, subject: Subject) -> Iterator[Moment]:
    """An agent's: lines that name the migration or one of its pods; others are passed over."""
    for line in text.splitlines():
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(body, dict) or not _belongs(body, subject):
            continue
        when, event = _time(str(body.get("time", ""))), str(body.get("event", ""))
        if when is not None and event:
            source = _SOURCES.get(event, "agent")
            yield Moment(when, str(body.get("node", "?")), source, _words(event, body), event)


def _belongs(body: Mapping[str, Any], subject: Subject) -> bool:
    if subject.uid and body.get("migration_uid") == subject.uid:
        return True
    namespace, _, rest = str(body.get("endpoint", "")).partition("/")
    return namespace == subject.namespace and rest.partition("/")[0] in subject.pods


def _words(event: str, body: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key} {value}"
        for key, value in body.items()
        if key not in _QUIET and value not in ("", None)
    )
    return f"{event.replace('_', ' ')}{': ' + fields if fields else ''}"


def _time(text: str) -> datetime | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Moments in order; `shifts` are what nodes' clocks were moved by."""

    moments: tuple[Moment, ...]
    shifts: Mapping[str, timedelta]
    zero: datetime


def timeline(found: Iterable[Moment], subject: Subject, given: Mapping[str, timedelta]) -> Timeline:
    """One clock: the target's. `given` are shifts that the user knows."""
    moments = [replace(one, time=one.time + given.get(one.where, EXACT)) for one in found]
    moments = _of_its_time(moments)
    shifts = dict(given)
    lag = _lag(moments)
    source = subject.source_node
    if lag and source and source not in given:
        shifts[source] = lag
        moments = [
            replace(one, time=one.time + lag) if one.where == source and not one.precision else one
            for one in moments
        ]
    ordered = tuple(sorted(moments))
    return Timeline(ordered, shifts, _zero(ordered))


def _of_its_time(moments: Sequence[Moment]) -> list[Moment]:
    """Without log lines of the same pods from long before or after."""
    own = [one.time for one in moments if one.source == "KubeVirt"]
    if not own:
        return list(moments)
    first, last = min(own) - MARGIN, max(own) + MARGIN
    return [one for one in moments if first <= one.time <= last]


def _lag(moments: Iterable[Moment]) -> timedelta:
    """How much the source's clock is behind, as far as an effect came before its cause."""
    raised = min((one.time for one in moments if one.event == RAISED), default=None)
    noticed = min((one.time for one in moments if one.event == NOTICED), default=None)
    if raised is None or noticed is None or noticed >= raised:
        return EXACT
    return raised - noticed


def _zero(moments: Sequence[Moment]) -> datetime:
    """The VM's first sign on the target, else its route there, else the first moment."""
    for event in ("sign", RAISED):
        for one in moments:
            if one.event == event:
                return one.time
    return moments[0].time if moments else datetime.fromtimestamp(0, UTC)
