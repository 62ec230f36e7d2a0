"""The one form of a benchmark's result: rows, the machine, the commit, and each run's figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.machine import commit, machine


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row: `ratio` is how many times better ours is than the peer (None without one)."""

    what: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    target: float
    met: bool


def at_most(what: str, ours: float, peer: float | None, unit: str, target: float) -> BenchRow:
    """A row of which less is better."""
    ratio = None if peer is None else round(peer / ours, 1) if ours else 0.0
    met = ours <= target
    return BenchRow(what, round(ours, 3), _round(peer), unit, ratio, round(target, 3), met)


def at_least(what: str, ours: float, peer: float | None, unit: str, target: float) -> BenchRow:
    """A row of which more is better."""
    ratio = round(ours / peer, 1) if peer else None
    met = ours >= target
    return BenchRow(what, round(ours, 3), _round(peer), unit, ratio, round(target, 3), met)


def write(out: Path, rows: Sequence[BenchRow], figures: Mapping[str, Any]) -> None:
    """Write the result. Raises `OSError`."""
    document = {
        "rows": [asdict(row) for row in rows],
        "machine": machine(),
        "commit": commit(),
        "runs": dict(figures),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def conclude(
    out: Path, rows: Sequence[BenchRow], figures: Mapping[str, Any], tell: Callable[[str], None]
) -> bool:
    """Write the result and tell it; whether every row is met. Raises `OSError`."""
    write(out, rows, figures)
    for row in rows:
        met = "met" if row.met else "NOT met"
        tell(f"{row.what}: {row.ours} {row.unit} (target {row.target:g}, {met}); peer {row.peer}")
    return all(row.met for row in rows)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
