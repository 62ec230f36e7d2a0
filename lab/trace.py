"""What is kept of a prober's run for a picture: every probe near a moment, the rest in buckets.

Pure, and of bounded size: a run of any length gives at most `BUCKETS` buckets and the probes of
one window. Times are ns on CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lab import clock

LOST = -1
"""The round trip of a probe that was never answered."""

WINDOW_NS = 150 * clock.NS_PER_MS
BUCKETS = 500


@dataclass(frozen=True, slots=True)
class Sample:
    """One probe: when it was sent, and its round trip in ns or `LOST`."""

    sent_ns: int
    rtt_ns: int

    @property
    def lost(self) -> bool:
        """Whether no answer came."""
        return self.rtt_ns == LOST


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some probes in a row; round trips are 0 when all were lost."""

    start_ns: int
    sent: int
    lost: int
    best_ns: int
    worst_ns: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One prober's run; `near` is empty when there was no moment to look at."""

    near: tuple[Sample, ...] = field(default=())
    whole: tuple[Bucket, ...] = field(default=())


def thin(samples: Sequence[Sample], around_ns: int | None) -> Trace:
    """All probes sent within `WINDOW_NS` of a moment, and the whole run in `BUCKETS` buckets."""
    near = (
        ()
        if around_ns is None
        else tuple(one for one in samples if abs(one.sent_ns - around_ns) <= WINDOW_NS)
    )
    size = max(1, -(-len(samples) // BUCKETS))
    chunks = (samples[start : start + size] for start in range(0, len(samples), size))
    return Trace(near, tuple(_bucket(chunk) for chunk in chunks))


def _bucket(samples: Sequence[Sample]) -> Bucket:
    answered = [one.rtt_ns for one in samples if not one.lost]
    return Bucket(
        start_ns=samples[0].sent_ns,
        sent=len(samples),
        lost=len(samples) - len(answered),
        best_ns=min(answered, default=0),
        worst_ns=max(answered, default=0),
    )


def losses(samples: Iterable[Sample]) -> tuple[tuple[Sample, ...], ...]:
    """Runs of lost probes, in order."""
    runs: list[list[Sample]] = []
    before_lost = False
    for one in samples:
        if one.lost and before_lost:
            runs[-1].append(one)
        elif one.lost:
            runs.append([one])
        before_lost = one.lost
    return tuple(tuple(run) for run in runs)
