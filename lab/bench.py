"""`lab bench`: how long the network adds to a guest's own pause, and what the sign is worth.

Ours is the migration as it is. The peer, in the same run on the same machine, is the same
migration of a guest that makes no sign (no RARP, no GARP, no packet of its own): the network then
learns of the move only from KubeVirt's status and the source pod's end, as a network does that
does not listen. How long KubeVirt's status takes is the lab's choice: `cutover.SETTLE_MS` after the
guest's start, and the API's watch on top.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import control, names
from lab.cluster import bring_up, make_way
from lab.durations import seconds
from lab.interrupts import interruptible, uninterrupted
from lab.measure import Wish, await_echo, guest_ip, measure
from lab.report import Row, row_of
from lab.results import BenchRow, at_most, write
from lab.state import StateDir, lab_lock
from lab.teardown import tear_down
from lab.tools import LabError
from lab.topology import Topology

CONVERGENCE = "1s"
BLACKOUT_MS = 50.0
P50_TARGET_MS = 20.0
MAX_TARGET_MS = 50.0
TOR_TARGET_MS = 20.0
VM, CLIENT = "bench-vm", "client"
Tell = Callable[[str], None]


def downtime_rows(ours: Sequence[float], peer: Sequence[float]) -> tuple[BenchRow, ...]:
    """The rows on network downtimes in ms (neither may be empty)."""
    return (
        _row(
            "network downtime, p50", statistics.median(ours), statistics.median(peer), P50_TARGET_MS
        ),
        _row("network downtime, max", max(ours), max(peer), MAX_TARGET_MS),
    )


def tor_row(ours: Sequence[float], peer: Sequence[float]) -> BenchRow:
    """The row on the ToR's kernel, from times in ms: ours after the sign, the peer's, who makes
    none, after the guest's start on the target."""
    return _row(
        "sign → ToR FIB, p50", statistics.median(ours), statistics.median(peer), TOR_TARGET_MS
    )


def _row(what: str, ours: float, peer: float, target: float) -> BenchRow:
    return at_most(what, ours, peer, "ms", target)


def run_bench(state: StateDir, out: Path, runs: int, tell: Tell) -> bool:
    """Measure `runs` migrations of each kind; True when every row met its target."""
    with lab_lock(), interruptible():
        make_way(state)
        try:
            topology = bring_up(state, 3, CONVERGENCE, tell)
            ours, peer = _migrations(state, topology, runs, tell)
        finally:
            with uninterrupted():
                tear_down(state)
    rows = rows_of(ours, peer)
    write(out, rows, {"ours": list(map(_figures, ours)), "peer": list(map(_figures, peer))})
    for row in rows:
        verdict = "met" if row.met else "NOT met"
        tell(
            f"{row.what}: {row.ours} {row.unit} (target {row.target:g}, {verdict});"
            f" without a sign {row.peer} {row.unit}, {row.ratio} times as long"
        )
    return all(row.met for row in rows)


def _migrations(
    state: StateDir, topology: Topology, runs: int, tell: Tell
) -> tuple[list[Row], list[Row]]:
    """Alternate both kinds, so that whatever the machine does meanwhile happens to both."""
    first, second, third = (node.name for node in topology.nodes)
    control.create_pod(CLIENT, third)
    control.create_vm(VM, first)
    client_netns = names.pod_netns(CLIENT, control.await_pod(CLIENT).metadata.uid)
    address = guest_ip(control.await_vm(VM))
    for netns in (names.netns(names.EXT), client_netns):
        await_echo(address, netns)
    outcomes: dict[bool, list[Row]] = {False: [], True: []}
    for number in range(2 * runs):
        silent = number % 4 in (1, 2)  # each kind in both directions
        target = second if number % 2 == 0 else first
        observed = measure(
            state,
            topology,
            Wish(VM, target, BLACKOUT_MS, silent=silent),
            client_netns=client_netns,
            stream=None,
            convergence_s=seconds(CONVERGENCE),
            tell=lambda _: None,
        )
        row = row_of(observed)
        seen = row.sign_to_tor_fib_ms if not silent else row.start_to_tor_fib_ms
        if row.phase != "Succeeded" or row.network_downtime_ms is None or seen is None:
            raise LabError(f"migration {number + 1} to {target}: {row.phase}, nothing measured")
        kind = "without a sign" if silent else "ours"
        tell(f"{number + 1}/{2 * runs} {kind}: network downtime {row.network_downtime_ms} ms")
        outcomes[silent].append(row)
    return outcomes[False], outcomes[True]


def rows_of(ours: Sequence[Row], peer: Sequence[Row]) -> tuple[BenchRow, ...]:
    """All rows of the result (there must be a migration of each kind)."""
    follows = [row.sign_to_tor_fib_ms for row in ours if row.sign_to_tor_fib_ms is not None]
    late = [row.start_to_tor_fib_ms for row in peer if row.start_to_tor_fib_ms is not None]
    return (*downtime_rows(_downtimes(ours), _downtimes(peer)), tor_row(follows, late))


def _downtimes(rows: Sequence[Row]) -> list[float]:
    return [row.network_downtime_ms for row in rows if row.network_downtime_ms is not None]


def _figures(row: Row) -> dict[str, float | None]:
    """What one migration contributed, in ms."""
    return {
        "network_downtime_ms": row.network_downtime_ms,
        "sign_to_tor_fib_ms": row.sign_to_tor_fib_ms,
        "start_to_tor_fib_ms": row.start_to_tor_fib_ms,
    }
