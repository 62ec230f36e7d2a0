"""What a bench of cut-overs has measured, and the rows of its result, of each family. Pure.

A migration is told by its figures in ms; what was not seen is None, and stands in no row's favour:
a row of which a figure is missing is not met.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lab import names
from lab.report import Observed, Row, first_sign, routes_seen, row_of
from lab.results import BenchRow, at_least, at_most

NEVER_MS = 1e9
"""Stands for what was awaited and not seen."""
EXT, THIRD, SOURCE = "ToR", "third node", "source's node"
PLACES = (SOURCE, THIRD, EXT)
"""From where the guest is probed."""
LOCAL, FIB, LOSS, KILLED = (2.0, 10.0), (10.0, 50.0), (10.0, 50.0), (100.0, 1000.0)
"""What p50 and p99 may be, in ms."""
ENDED = (100.0, 3000.0)
"""With the keeper: a new process has to import all of the agent, a second of the processor."""


class Sort(StrEnum):
    """Which migrations belong together."""

    PACKET = "packet guest"
    SILENT = "without a sign"
    KILLED = "agent killed"
    ENDED = "agent and keeper killed"
    QEMU = "QEMU"


@dataclass(frozen=True, slots=True)
class Figures:
    """One migration, in ms: FIBs after the sign, of nodes and ToR; loss by place, beyond the
    guest's own blackout; for how long probes after that were never answered; connections by place.

    The two differ where a guest answers late what it got in time: QEMU's under TCG starts cold.
    """

    sort: str
    blackout_ms: float | None
    local_ms: float | None
    fib_ms: dict[str, float] = field(default_factory=dict)
    start_to_tor_ms: float | None = None
    loss_ms: dict[str, float] = field(default_factory=dict)
    unanswered_ms: dict[str, float] = field(default_factory=dict)
    tcp_survived: dict[str, bool] = field(default_factory=dict)
    qemu_stopped_ms: float | None = None
    qemu_downtime_ms: float | None = None
    qemu_total_ms: float | None = None
    killed: str = ""
    ipv6: Figures | None = None
    """The same migration in the other family."""

    def families(self) -> dict[int, Figures]:
        """Its figures by family."""
        return {4: self} if self.ipv6 is None else {4: self, 6: self.ipv6}

    @property
    def worst_loss(self) -> float:
        """From whichever place, in whichever family."""
        return max(
            one.loss_ms.get(place, NEVER_MS) for one in self.families().values() for place in PLACES
        )


def figures_of(
    sort: Sort, observed: Observed, survived: Mapping[tuple[str, int], bool], killed: str
) -> Figures:
    """What a migration has shown; connections were asked apart from it, but those from outside."""
    row: Row = row_of(observed)
    probed = {EXT: names.EXT, THIRD: "client", SOURCE: SOURCE}
    loss = {
        place: float(row.probers[name]["network_downtime_ms"])
        for place, name in probed.items()
        if name in row.probers and row.probers[name]["network_downtime_ms"] is not None
    }
    version = observed.version
    tcp = {place: held for (place, family), held in survived.items() if family == version}
    if observed.stream.sent:
        tcp[EXT] = observed.stream.survived
    return Figures(
        sort=sort.value,
        blackout_ms=row.guest_blackout_ms,
        local_ms=row.sign_to_local_route_ms,
        fib_ms=switches(observed),
        start_to_tor_ms=row.start_to_tor_fib_ms,
        loss_ms=loss,
        unanswered_ms={place: float(row.probers[probed[place]]["unanswered_ms"]) for place in loss},
        tcp_survived=tcp,
        qemu_stopped_ms=row.qemu_stopped_ms,
        qemu_downtime_ms=row.qemu_downtime_ms,
        qemu_total_ms=row.qemu_total_ms,
        killed=killed,
        ipv6=figures_of(sort, observed.ipv6, survived, killed) if observed.ipv6 else None,
    )


def switches(observed: Observed) -> dict[str, float]:
    """How long after the sign each node beside the target, and the ToR, sent to the target."""
    sign = first_sign(observed)
    found: dict[str, float] = {}
    if sign is None:
        return found
    for event in routes_seen(observed):
        if event.added and event.gateway == observed.target_address:
            after = round((event.t_ns - sign.t_ns) / 1e6, 3)
            found[event.where] = min(after, found.get(event.where, NEVER_MS))
    return found


def p99(values: Sequence[float]) -> float:
    """The least of them that 99 % do not exceed (there must be one): of fewer than 100, the worst.

    Nearest rank: no value that was not measured.
    """
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def rows_of(found: Sequence[Figures], nodes: int) -> tuple[BenchRow, ...]:
    """All rows; `nodes` is how many the lab has. A sort without a migration has no rows."""
    by = {sort: [one for one in found if one.sort == sort.value] for sort in Sort}
    rows: list[BenchRow] = []
    for sort in (Sort.PACKET, Sort.QEMU):
        silent = by[Sort.SILENT] if sort is Sort.PACKET else []
        for version, ours in _by_family(by[sort]).items():
            theirs = _by_family(silent).get(version, [])
            rows += _rows(sort.value, version, ours, theirs, nodes)
    for sort, most in ((Sort.KILLED, KILLED), (Sort.ENDED, ENDED)):
        if by[sort] and by[Sort.PACKET]:
            usual = statistics.median(one.worst_loss for one in by[Sort.PACKET])
            extra = [max(0.0, one.worst_loss - usual) for one in by[sort]]
            rows += _pair(f"{sort} at a random moment: extra loss", extra, (), most)
            for version, ours in _by_family(by[sort]).items():
                rows += _connections(sort.value, version, ours)
    return tuple(rows)


def _by_family(found: Sequence[Figures]) -> dict[int, list[Figures]]:
    """Those of each family that any migration has; of one that has not got it, nothing was seen."""
    versions = sorted({version for one in found for version in one.families()})
    return {
        version: [
            one.families().get(version, Figures(one.sort, one.blackout_ms, None)) for one in found
        ]
        for version in versions
    }


def _rows(
    sort: str, version: int, ours: Sequence[Figures], silent: Sequence[Figures], nodes: int
) -> list[BenchRow]:
    prefix = f"{sort}, {names.FAMILIES[version]}: "
    local = [_or_never(one.local_ms) for one in ours]
    others = nodes - 1
    rows = _pair(f"{prefix}sign → local route", local, (), LOCAL)
    mesh = [_worst(_of_nodes(one), others) for one in ours]
    rows += _pair(f"{prefix}sign → other nodes' FIB", mesh, (), FIB)
    tor = [one.fib_ms.get(names.TOR, NEVER_MS) for one in ours]
    late = [_or_never(one.start_to_tor_ms) for one in silent]
    rows += _pair(f"{prefix}sign → ToR FIB", tor, late, FIB)
    for place in PLACES:
        loss = [one.loss_ms.get(place, NEVER_MS) for one in ours]
        theirs = [one.loss_ms.get(place, NEVER_MS) for one in silent]
        what = f"{prefix}loss beyond the guest's own blackout, from the {place}"
        rows += _pair(what, loss, theirs, LOSS)
    return rows + _connections(sort, version, ours)


def _of_nodes(one: Figures) -> list[float]:
    return [after for where, after in one.fib_ms.items() if where != names.TOR]


def _worst(values: Sequence[float], expected: int) -> float:
    return max(values) if len(values) == expected and values else NEVER_MS


def _connections(sort: str, version: int, ours: Sequence[Figures]) -> list[BenchRow]:
    rows = []
    for place in PLACES:
        lived = [one.tcp_survived.get(place, False) for one in ours]
        family = names.FAMILIES[version]
        what = f"{sort}, {family}: TCP connections surviving, from the {place}"
        rows.append(at_least(what, 100.0 * sum(lived) / len(lived), None, "%", 100.0))
    return rows


def _pair(
    what: str, ours: Sequence[float], theirs: Sequence[float], most: tuple[float, float]
) -> list[BenchRow]:
    """The rows of p50 and p99; the peer's, where it has none of its own, is none."""
    peers = (statistics.median(theirs), p99(theirs)) if theirs else (None, None)
    values = (statistics.median(ours), p99(ours))
    named = zip(("p50", "p99"), values, peers, most, strict=True)
    return [
        at_most(f"{what}, {name}", value, peer, "ms", limit) for name, value, peer, limit in named
    ]


def _or_never(value: float | None) -> float:
    return NEVER_MS if value is None else value
