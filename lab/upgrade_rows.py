"""What upgrades have cost migrations, judged beside the same migrations without one. Pure.

What a migration loses is the guest's own blackout, and the network's part right after it. A probe
that was sent at any other time and lost is lost by something else: an upgrade, if it happens there
alone. How long the network's part may be is the target of cut-overs, or, on a machine that is slow
today, twice what it was without an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from lab import clock
from lab.results import BenchRow, at_least, at_most

NETWORK_MS = 50.0
"""What cut-overs may take of the network, by the bench's target."""
FOLLOWING_MS = 1000.0
"""Until then after a guest's appearance a lost probe is looked for as the network's part."""
UNDERWAY_MS = 5.0
"""A probe may have been on its way for so long when the guest left its cable."""


@dataclass(frozen=True, slots=True)
class Window:
    """A guest was on no cable; CLOCK_MONOTONIC in ns."""

    unplugged_ns: int
    plugged_ns: int

    @property
    def began_ns(self) -> int:
        """From when on a probe may be lost by it."""
        return self.unplugged_ns - round(UNDERWAY_MS * clock.NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Restart:
    """An agent that was replaced by one of another version; times in ms."""

    node: str
    version: str
    leaving_ms: float
    away_ms: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Migrations in a row under probes: by place when each lost probe was sent, in ns, how many
    were sent, and whether its connection lives. `restarts`: agents replaced meanwhile."""

    windows: tuple[Window, ...]
    lost_at: dict[str, tuple[int, ...]]
    sent: dict[str, int]
    survived: dict[str, bool]
    restarts: tuple[Restart, ...] = ()
    leaders: int = 0
    bird_lived: bool = True
    address_kept: bool = True
    moments: dict[str, float] = field(default_factory=dict)

    @property
    def upgraded(self) -> bool:
        """Whether it was an upgrade's."""
        return bool(self.restarts)


def stretch_from(data: Mapping[str, Any]) -> Stretch:
    """A stretch as a result's file has it."""
    return TypeAdapter(Stretch).validate_python(dict(data))


def network_ms(stretch: Stretch) -> list[float]:
    """By migration how long after the guest's appearance probes were still lost, worst place."""
    return [max(_tails(stretch, window), default=0.0) for window in stretch.windows]


def _tails(stretch: Stretch, window: Window) -> Iterable[float]:
    for lost in stretch.lost_at.values():
        for at in lost:
            after = clock.ms(at - window.plugged_ns)
            if 0 <= after < FOLLOWING_MS:
                yield after


def strays(stretch: Stretch, allowed_ms: float) -> dict[str, int]:
    """By place how many probes were lost outside of cut-overs."""
    slack = round(allowed_ms * clock.NS_PER_MS)

    def outside(at: int) -> bool:
        return not any(
            window.began_ns <= at <= window.plugged_ns + slack for window in stretch.windows
        )

    return {place: sum(map(outside, lost)) for place, lost in stretch.lost_at.items()}


def allowance(usual: Sequence[Stretch]) -> float:
    """How long the network's part of a cut-over may be today, in ms."""
    worst = max((one for stretch in usual for one in network_ms(stretch)), default=0.0)
    return max(NETWORK_MS, 2 * worst)


def rows_of(stretches: Sequence[Stretch]) -> tuple[BenchRow, ...]:
    """All rows; the peer is the same migrations without an upgrade."""
    usual = [one for one in stretches if not one.upgraded]
    ours = [one for one in stretches if one.upgraded]
    allowed = allowance(usual)

    def lost(which: Sequence[Stretch]) -> float:
        return float(sum(sum(strays(one, allowed).values()) for one in which))

    def worst(which: Sequence[Stretch]) -> float:
        return max((one for stretch in which for one in network_ms(stretch)), default=0.0)

    alive = [all(one.survived.values()) and one.address_kept for one in ours]
    return (
        at_most("extra lost probes", lost(ours), lost(usual), "probes", 0.0),
        at_most(
            "the network's part of a cut-over, worst", worst(ours), worst(usual), "ms", allowed
        ),
        at_least("upgrades that addresses and connections survived", _share(alive), None, "", 1.0),
        at_least(
            "upgrades with a new leader", _share([one.leaders > 0 for one in ours]), None, "", 1.0
        ),
        at_least(
            "upgrades that BIRD outlived", _share([one.bird_lived for one in ours]), None, "", 1.0
        ),
    )


def _share(kept: Sequence[bool]) -> float:
    return sum(kept) / len(kept) if kept else 0.0
