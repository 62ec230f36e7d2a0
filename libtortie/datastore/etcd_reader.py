"""Reading etcd: several keys and ranges at one revision, in as few round trips as it allows.

What does not fit into one answer is read on at the revision of the first. When that was compacted
meanwhile all is read anew, and at last in answers without a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.codec import name_of
from libtortie.datastore.etcd_answers import Outcome, outcome_of, range_of
from libtortie.datastore.etcd_cluster import EtcdCluster
from libtortie.datastore.records import Stored
from libtortie.errors import Compacted, Unavailable
from libtortie.model.keys import Key, Scope, path_of, scope_bounds

PAGE = 500
"""Rows of one range of a first answer, and the fewest of a later one."""

ANSWER = 4 << 20
"""Bytes of values that a later answer is meant to have: for each, etcd counts all that is left."""

PAGE_OF_NAMES = 10_000
"""The same where values are left out."""

RESTARTS = 3
"""Readings begun anew because their revision was compacted, before one without a limit."""


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of keys, or, without a `high`, the one key `low`."""

    low: bytes
    high: bytes = b""


@dataclass(frozen=True, slots=True)
class Reading:
    """The rows of each span asked for, as they were at one revision of the store."""

    rows: tuple[tuple[Stored, ...], ...]
    revision: int


def span_of(key: Key) -> Span:
    """The span of one key. `InvalidInput` for a path that is no text."""
    return Span(name_of(path_of(key)))


def span_of_scope(scope: Scope) -> Span:
    """The span of a scope. `InvalidInput` for a path that is no text."""
    low, high = scope_bounds(scope)
    return Span(name_of(low), name_of(high))


def read(cluster: EtcdCluster, spans: Sequence[Span], *, keys_only: bool = False) -> Reading:
    """All rows of some spans at one revision."""
    page = PAGE_OF_NAMES if keys_only else PAGE
    for _ in range(RESTARTS):
        try:
            return _read(cluster, spans, page, keys_only)
        except Compacted:
            continue
    return _read(cluster, spans, 0, keys_only)


def read_on(cluster: EtcdCluster, span: Span) -> Iterator[Reading]:
    """The rows of a span, an answer at a time, each as it is then."""
    cluster.require_open()
    limit, more = PAGE, True
    while more:
        outcome = _ask(cluster, [messages.scan(span.low, span.high, limit)])
        (page,) = outcome.pages
        yield Reading((page.rows,), outcome.revision)
        more, span = page.more, Span(page.last + b"\0", span.high)
        limit = max(limit, _fitting(page.rows))


def _read(cluster: EtcdCluster, spans: Sequence[Span], page: int, keys_only: bool) -> Reading:
    cluster.require_open()
    found: list[list[Stored]] = [[] for _ in spans]
    revision = 0
    left = [(place, span, page) for place, span in enumerate(spans)]
    while left:
        now, left = left[: messages.MAX_OPS], left[messages.MAX_OPS :]
        requests = [
            messages.scan(span.low, span.high, limit, revision=revision, keys_only=keys_only)
            for _, span, limit in now
        ]
        outcome = _ask(cluster, requests)
        revision = revision or outcome.revision
        for (place, span, limit), answer in zip(now, outcome.pages, strict=True):
            found[place] += answer.rows
            if answer.more:
                rest = Span(answer.last + b"\0", span.high)
                left.append((place, rest, max(limit, _fitting(answer.rows))))
    return Reading(tuple(map(tuple, found)), revision)


def _fitting(rows: Sequence[Stored]) -> int:
    """How many rows like these make an answer of the size that is meant."""
    return ANSWER * len(rows) // max(sum(len(row.data) for row in rows), 100 * len(rows), 1)


def _ask(cluster: EtcdCluster, requests: Sequence[bytes]) -> Outcome:
    if len(requests) == 1:
        return range_of(cluster.read("range", requests[0]))
    outcome = outcome_of(cluster.read("txn", messages.reading(requests)))
    if len(outcome.pages) != len(requests):
        raise Unavailable(
            f"etcd answered {len(outcome.pages)} of {len(requests)} reads: read again"
        )
    return outcome
