"""How long a live migration will take, and whether it ends by itself. Pure.

Pre-copy sends what the guest dirtied while the last round was sent. With a dirty rate below the
bandwidth each round is shorter by their ratio, until what is left fits into the downtime that is
allowed; at or above it no round is shorter, and only what slows, stops or moves the guest early
(auto-converge, post-copy, a pause) ends it. Copied disks go first and are kept in step by sending
each write a second time, so they count for time and bandwidth, not for the rounds.

KubeVirt gives a migration `completionTimeoutPerGiB` seconds for each GB (decimal) of memory and
copied disks; then it aborts, or with `allowWorkloadDisruption` goes over to post-copy or a pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from libtortie.errors import InvalidInput

DOWNTIME_MS = 300.0
"""QEMU's default: KubeVirt's maxDowntimeMs is applied by an alpha feature only."""
COMPLETION_S_PER_GB = 150.0
_MOST_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be moved and how. Bytes, and bytes a second."""

    memory: float
    bandwidth: float
    dirty_rate: float = 0.0
    disks: float = 0.0
    disk_write_rate: float = 0.0
    downtime_ms: float = DOWNTIME_MS
    completion_s_per_gb: float = COMPLETION_S_PER_GB
    auto_converge: bool = False
    post_copy: bool = False
    disruption: bool = False


class Verdict(StrEnum):
    """How it will end."""

    CONVERGES = "converges"
    THROTTLED = "converges with the guest slowed down"
    DISRUPTED = "ends by post-copy or a pause at the time limit"
    TIMES_OUT = "is aborted at the time limit"
    ENDLESS = "does not end by itself, and no time limit ends it"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Times in seconds; None where it does not end by itself, and for a limit that there is not.
    `rounds` are of memory."""

    verdict: Verdict
    seconds: float | None
    disk_seconds: float
    limit_seconds: float | None
    rounds: int | None
    downtime_ms: float | None
    bytes_sent: float | None
    reason: str


def forecast(load: Load) -> Forecast:
    """What will come of it. Raises `InvalidInput` for a load that cannot be."""
    _require(load)
    limit = load.completion_s_per_gb * (load.memory + load.disks) / 1e9 or None  # KubeVirt: 0, none
    disk_seconds, own = _disks(load)
    if own <= 0:
        why = "the guest writes to its copied disks faster than they can be sent"
        return _never(load, limit, math.inf, why)
    rounds = _rounds(load, own)
    if rounds is None:
        why = "the guest dirties memory as fast as it can be sent, or faster"
        return _never(load, limit, disk_seconds, why)
    count, sent, left = rounds
    seconds = disk_seconds + (sent + left) / own
    pause = left / own * 1000
    if limit is not None and seconds > limit:
        return Forecast(
            Verdict.DISRUPTED if load.disruption or load.post_copy else Verdict.TIMES_OUT,
            None, disk_seconds, limit, count, None, None,
            f"it would take {seconds:.0f} s, and KubeVirt allows {limit:.0f} s",
        )  # fmt: skip
    return Forecast(
        Verdict.CONVERGES, seconds, disk_seconds, limit, count, pause,
        load.disks + load.disk_write_rate * seconds + sent + left,
        f"each round leaves {load.dirty_rate / own:.0%} of the one before",
    )  # fmt: skip


def _require(load: Load) -> None:
    if load.memory <= 0 or load.bandwidth <= 0:
        raise InvalidInput("memory and bandwidth must be more than 0")
    others = (load.dirty_rate, load.disks, load.disk_write_rate, load.completion_s_per_gb)
    if min(others) < 0 or load.downtime_ms <= 0:
        raise InvalidInput("rates, disks and limits must not be negative, downtime more than 0")


def _disks(load: Load) -> tuple[float, float]:
    """Seconds until the disks are in step, and the bandwidth that is left for memory."""
    if not load.disks:
        return 0.0, load.bandwidth
    own = load.bandwidth - load.disk_write_rate
    return (load.disks / own if own > 0 else math.inf), own


def _rounds(load: Load, bandwidth: float) -> tuple[int, float, float] | None:
    """Rounds, bytes sent in them, and bytes left for the pause; None when it never ends."""
    fits = bandwidth * load.downtime_ms / 1000
    left, sent, count = load.memory, 0.0, 0
    while left > fits:
        sent, count = sent + left, count + 1
        dirtied = min(load.memory, load.dirty_rate * left / bandwidth)
        if (dirtied >= left and dirtied > fits) or count >= _MOST_ROUNDS:
            return None
        left = dirtied
    return count, sent, left


def _never(load: Load, limit: float | None, disk_seconds: float, why: str) -> Forecast:
    verdict = Verdict.ENDLESS if limit is None else Verdict.TIMES_OUT
    if load.auto_converge and math.isfinite(disk_seconds):
        verdict = Verdict.THROTTLED
    elif limit is not None and (load.disruption or load.post_copy):
        verdict = Verdict.DISRUPTED
    return Forecast(verdict, None, disk_seconds, limit, None, None, None, why)
