"""What is wrong: `ipam check`'s findings, and what the collector beside the page does. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from threading import Lock

from controllers import report
from controllers.page.sheet import Part, Table, table_of
from ipam.check import Examination, Problem
from ipam.gc import Swept

MOST_LINES = 500
"""Lines of a pass that are kept."""
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `kind` is `leaked`, `unallocated`, `disputed`, `handle`, `claim`, `block` or
    `unreadable`."""

    kind: str
    text: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """All problems, and why of so many addresses nothing could be said."""

    findings: tuple[Finding, ...] = ()
    unjudged: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """What the collector's last pass said."""

    at: datetime
    lines: tuple[str, ...]
    more: int = 0


class LastPass:
    """Where the collector leaves it for the page; safe among threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: Pass | None = None

    def keep(self, swept: Swept, at: datetime, *, dry_run: bool) -> None:
        """A pass was made."""
        lines = report.text(swept, dry_run=dry_run)
        first = tuple(islice(lines, MOST_LINES))
        made = Pass(at, first, sum(1 for _ in lines))
        with self._lock:
            self._last = made

    def last(self) -> Pass | None:
        """The last one, if any was."""
        with self._lock:
            return self._last


def health_of(found: Examination) -> Health:
    """What is shown of an examination."""
    kinds: tuple[tuple[str, Iterable[Problem]], ...] = (
        ("leaked", (Problem(why, one) for one, why in found.leaked.items())),
        ("unallocated", found.unallocated),
        ("disputed", found.disputed),
        ("handle", found.handles),
        ("claim", found.claims),
        ("block", found.blocks),
        ("unreadable", found.unreadable),
    )
    findings = (
        Finding(kind, one.text, "" if one.address is None else str(one.address))
        for kind, problems in kinds
        for one in problems
    )
    reasons = Counter(found.unjudged.values()).most_common(MOST_REASONS)
    return Health(tuple(findings), tuple(reasons))


def problems_table(
    found: Sequence[Finding], part: Part | None, pager: Callable[[int], str] | None = None
) -> Table:
    """A row for each problem of a part of the list."""
    columns = (("kind", "Kind"), ("address", "Address"), ("text", "What"))
    return table_of(
        "problems",
        "Problems",
        columns,
        found,
        lambda one: (one.kind, one.address, one.text),
        part=part,
        pager=pager,
    )


def unjudged_table(found: Sequence[tuple[str, int]]) -> Table:
    """Why nothing could be said about addresses."""
    columns = (("reason", "Why"), ("addresses", "Addresses"))
    return table_of(
        "unjudged", "Not known", columns, found, lambda one: one, part=Part(size=MOST_REASONS)
    )


def pass_table(last: Pass | None) -> Table:
    """What the collector did last."""
    lines = last.lines if last else ()
    if last and last.more:
        lines += (f"and {last.more:,} lines more",)
    columns = (("text", "What"),)
    part = Part(size=MOST_LINES + 1)
    return table_of(
        "collector", "The collector's last pass", columns, lines, lambda one: (one,), part=part
    )
