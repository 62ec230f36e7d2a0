"""A migration's moments from whoever saw them, on one clock. Pure.

KubeVirt's own times are whole seconds; agents' are microseconds, each by its node's clock. The
target's clock is the one: another node's times are moved where they would have an effect before its
cause (the source hears of a cut-over after the target has raised the route, never before). A node
whose clock is so wrong that what it saw of the migration was before or after it by KubeVirt's is
moved to where it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from libtortie.json_lines import objects
from libtortie.kube.migrations import Migration
from libtortie.model.history import Fact, What
from libtortie.timeline import (
    CLUSTER,
    EXACT,
    RAISED,
    SECOND,
    Moment,
    Timeline,
    misfits,
    moment_of,
    moved,
    time_of,
    zero_of,
)

NOTICED = "cut_over_noticed"
MARGIN = timedelta(minutes=2)
"""Log lines so long before a migration's first and after its last time belong to its story."""
_QUIET = frozenset({"time", "level", "event", "node", "endpoint", "migration_uid"})
_SOURCES = {"owner_swapped": "IPAM", "owner_swap_failed": "IPAM"}


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


def of_events(
    events: Iterable[Mapping[str, Any]], subject: Subject, names: frozenset[str]
) -> Iterator[Moment]:
    """Kubernetes Events about the migration, its VM and its pods."""
    for body in events:
        about = body.get("involvedObject")
        if not isinstance(about, Mapping) or about.get("name") not in names | subject.pods:
            continue
        stamp = body.get("lastTimestamp") or body.get("eventTime") or body.get("firstTimestamp")
        when = time_of(str(stamp or ""))
        if when is None:
            continue
        host = body.get("source")
        where = str(host.get("host") or CLUSTER) if isinstance(host, Mapping) else CLUSTER
        text = f"{body.get('reason', '?')}: {body.get('message', '')}"
        yield Moment(when, where, "Event", text, str(body.get("reason", "")), SECOND)


def of_log(text: str, subject: Subject) -> Iterator[Moment]:
    """An agent's: lines that name the migration or one of its pods; others are passed over."""
    for body in objects(text):
        if not _belongs(body, subject):
            continue
        when, event = time_of(str(body.get("time", ""))), str(body.get("event", ""))
        if when is not None and event:
            source = _SOURCES.get(event, "agent")
            words, own = _words(event, body), _names(body, subject)
            yield Moment(when, str(body.get("node", "?")), source, words, event, own=own)


def of_history(facts: Iterable[Fact], subject: Subject, *, steps: bool) -> Iterator[Moment]:
    """The history's: what it has of the migration or its pods. `steps`: what agents saw, too."""
    for fact in facts:
        own = bool(subject.uid) and fact.details.get("migration_uid") == subject.uid
        theirs = fact.namespace == subject.namespace and fact.pod in subject.pods
        if (own or theirs) and (steps or fact.what is not What.MIGRATION):
            yield moment_of(fact)


def _names(body: Mapping[str, Any], subject: Subject) -> bool:
    """Whether a line is of the migration itself; that of a pod's leaving names the one before."""
    of_it = bool(subject.uid) and body.get("migration_uid") == subject.uid
    return of_it and body.get("from") != "base"


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


def timeline(found: Iterable[Moment], subject: Subject, given: Mapping[str, timedelta]) -> Timeline:
    """One clock: the target's, if that fits KubeVirt's. `given` are shifts that the user knows."""
    moments = [replace(one, time=one.time + given.get(one.where, EXACT)) for one in found]
    rough = {node: by for node, by in misfits(moments).items() if node not in given}
    moments = _of_its_time(moved(moments, rough))
    shifts = {**given, **rough}
    lag = _lag(moments)
    source = subject.source_node
    if lag and source and source not in given:
        shifts[source] = shifts.get(source, EXACT) + lag
        moments = [
            replace(one, time=one.time + lag) if one.where == source and not one.precision else one
            for one in moments
        ]
    ordered = tuple(sorted(moments))
    return Timeline(ordered, shifts, zero_of(ordered), rough=frozenset(rough))


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
