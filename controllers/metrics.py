"""What Prometheus is told about passes of the collector. Counting fails nothing and frees nothing.

A pass succeeds when it was made and the API, if one is configured, said who lives: an alert on the
time of the last success finds a dead datastore, a dead API and a dead controller alike.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controllers.report import counts
from ipam.gc import Memory, Outcome, Swept
from ipam.pools import Pool, pool_of
from libtortie.metrics import Counter, Gauge, Histogram, Labels, Metric, Readings
from libtortie.model.ipam import Block

BOUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: a pass over 250,000 addresses takes about 40."""

GAUGES = {
    "ipam_allocations_in_use": "Addresses that are allocated.",
    "ipam_allocations_borrowed": "Addresses that are used off their block's node.",
    "ipam_allocations_gc_candidates": "Addresses that were doubted once and wait for the grace.",
    "ipam_blocks": "Blocks.",
}
"""Of the last pass, under the names that `report.counts` has them by."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """Addresses that a pool has and those of them that are used or cooling down; its blocks."""

    capacity: int
    used: int = 0
    blocks: int = 0


POOL_GAUGES: tuple[tuple[str, str, Callable[[PoolState], float]], ...] = (
    ("tortie_ipam_pool_capacity", "Addresses that a pool has.", lambda state: state.capacity),
    ("tortie_ipam_pool_used", "Addresses in use or cooling down.", lambda state: state.used),
    ("tortie_ipam_pool_blocks", "Blocks that a pool is cut into so far.", lambda one: one.blocks),
)

DATASTORE, API = "datastore", "api"


def _kind_counter(name: str, text: str) -> Counter:
    return Counter(name, text, ("kind",))


@dataclass(slots=True)
class PassMetrics:
    """Counters of one process."""

    _passes: Counter = field(
        default_factory=lambda: Counter("tortie_gc_passes_total", "Passes that were made.")
    )
    _failures: Counter = field(
        default_factory=lambda: Counter(
            "tortie_gc_failures_total",
            "Passes not made for the datastore, or made without the API's word on who lives.",
            ("reason",),
        )
    )
    _seen: Counter = field(
        default_factory=lambda: _kind_counter(
            "tortie_gc_leaks_seen_total", "What was doubted, each once until it is settled."
        )
    )
    _freed: Counter = field(
        default_factory=lambda: _kind_counter(
            "tortie_gc_leaks_freed_total", "What was freed, deleted, released or mended."
        )
    )
    _seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_gc_pass_seconds", "Duration of a pass that was made.", bounds=BOUNDS
        )
    )
    _success: float = 0.0
    _last: Mapping[str, int] = field(default_factory=dict)
    _pools: Mapping[Labels, PoolState] = field(default_factory=dict)
    _outcomes: Mapping[Labels, float] = field(default_factory=dict)
    _handles: int = 0

    def failed(self, reason: str) -> None:
        """A pass was not what it should be."""
        self._failures.add(reason)

    def made(self, swept: Swept, before: Memory, seconds: float, *, dry_run: bool) -> None:
        """A pass was made, with what was in doubt before it."""
        self._passes.add()
        self._seconds.observe(seconds)
        self._last = counts(swept)
        inventory = swept.opinions.inventory
        self._pools = pool_states(
            inventory.pools or (), inventory.blocks.values(), inventory.rested
        )
        self._handles = len(inventory.handles)
        self._outcomes = _verdicts(swept)
        doubted = {one.subject.key for one in swept.verdicts if one.outcome is not Outcome.KEEP}
        for kind in _kinds(doubted - before.keys()):
            self._seen.add(kind)
        for kind in () if dry_run else _kinds(_freed(swept)):
            self._freed.add(kind)

    def succeeded(self, now: datetime) -> None:
        """The pass knew who lives."""
        self._success = now.timestamp()

    def all(self) -> tuple[Metric, ...]:
        """Everything, for a scrape."""
        gauges = (self._gauge(name, text) for name, text in GAUGES.items())
        success = Gauge(
            "tortie_gc_last_success_timestamp_seconds",
            "When a pass last knew who lives (Unix time); 0: never.",
            lambda: self._success,
        )
        return (
            self._passes,
            self._failures,
            self._seen,
            self._freed,
            self._seconds,
            success,
            *gauges,
            Gauge("tortie_ipam_handles", "Handles.", lambda: float(self._handles)),
            Readings(
                "tortie_gc_verdicts",
                "What the last pass judged, by kind and outcome: keep, wait, free, or unknown.",
                ("kind", "outcome"),
                lambda: self._outcomes,
            ),
            *(self._of_pools(name, text, value) for name, text, value in POOL_GAUGES),
        )

    def _of_pools(self, name: str, text: str, value: Callable[[PoolState], float]) -> Metric:
        def read() -> dict[Labels, float]:
            return {labels: value(state) for labels, state in self._pools.items()}

        return Readings(name, text, ("pool", "cidr"), read)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, lambda: self._last.get(name, 0))


def pool_states(
    pools: Iterable[Pool], blocks: Iterable[Block], rested: Callable[[Block], Block]
) -> dict[Labels, PoolState]:
    """How full each pool is, by name and CIDR; blocks of no pool are under empty names. Pure."""
    pools = tuple(pools)
    found: dict[Labels, PoolState] = {
        (pool.name, str(pool.cidr)): PoolState(pool.cidr.num_addresses) for pool in pools
    }
    for block in blocks:
        pool = pool_of(pools, block.cidr)
        key = (pool.name, str(pool.cidr)) if pool is not None else ("", "")
        before = found.get(key, PoolState(0))
        taken = sum(one is not None for one in rested(block).allocations)
        found[key] = PoolState(before.capacity, before.used + taken, before.blocks + 1)
    return found


def _verdicts(swept: Swept) -> dict[Labels, float]:
    kinds = Counted(
        (one.subject.key.partition(" ")[0], "unknown" if one.unknown else one.outcome.value)
        for one in swept.verdicts
    )
    return {labels: float(count) for labels, count in kinds.items()}


def _freed(swept: Swept) -> Iterable[str]:
    return (one.subject.key for one in swept.verdicts if one.outcome is Outcome.FREE)


def _kinds(keys: Iterable[str]) -> Iterable[str]:
    """`address`, `vm`, `handle` or `claim`: the first word of a key."""
    return (key.partition(" ")[0] for key in keys)
