"""A VM that moves about a large cluster whose nodes have BGP with two route reflectors only.

Each node is as in any lab: a network namespace with an agent and a BIRD of its own. One observer
with a route monitor in every namespace says when each kernel sends to the new node, by one clock.
It holds back what it has to tell until the kernels are done: a hundred BIRDs share this machine's
processors with it, and on a real node there is none.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab import control, names
from lab.bench_rows import NEVER_MS, p99
from lab.cluster import bring_up
from lab.durations import seconds
from lab.measure import REVERT_GRACE_S, Witness, guest_ips, start_observers
from lab.objects import LabVMI
from lab.observers import FrameSeen, RouteSeen, Seen
from lab.report import SIGNS
from lab.results import BenchRow, at_most
from lab.state import StateDir
from lab.tools import LabError
from lab.topology import Topology

REFLECTORS = 2
CONVERGENCE = "1s"
BLACKOUT_MS = 50.0
COPY_S = 3
"""How long the guest's memory takes to copy. Every agent hears that a migration runs, and here all
of them share two processors: they are to be through with it when the guest moves."""
HOLD_MS = 300
"""How long the observer tells nothing after the first that it saw."""
VM = "fleet-vm"
EVERY_FIB = (50.0, 150.0)
"""What p50 and p99 may be, in ms."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Move:
    """One migration, in ms after the sign: its own node's route, and every other FIB's."""

    source: str
    target: str
    local_ms: float | None
    fib_ms: dict[str, float] = field(default_factory=dict)

    def last_ms(self, expected: int) -> float:
        """When the last of so many FIBs followed; `NEVER_MS` when one did not."""
        return max(self.fib_ms.values()) if len(self.fib_ms) == expected else NEVER_MS

    def told(self, expected: int) -> str:
        """For people."""
        after = sorted(self.fib_ms.values())
        middle = f", median {statistics.median(after)} ms" if after else ""
        return (
            f"{self.source} → {self.target}: own route {self.local_ms} ms, last of {len(after)} of"
            f" {expected} FIBs {after[-1] if after else None} ms{middle}"
        )


def run_fleet(state: StateDir, nodes: int, moves: int, seed: int, tell: Tell) -> list[Move]:
    """Start the cluster and move a VM about it, each time to a node drawn by lot.

    The caller holds the lock and tears the lab down. Raises `LabError` when a migration fails.
    """
    topology = bring_up(state, nodes, CONVERGENCE, tell, reflectors=REFLECTORS)
    everywhere, dice = [node.name for node in topology.nodes], random.Random(seed)
    control.create_vm(VM, everywhere[-1])
    here = control.await_vm(VM).status.node_name
    found = []
    for number in range(1, moves + 1):
        target = dice.choice([name for name in everywhere if name != here])
        move = move_vm(state, topology, VM, target)
        tell(f"{number}/{moves} {move.told(nodes)}")
        found.append(move)
        here = target
    return found


def move_vm(
    state: StateDir,
    topology: Topology,
    vm: str,
    target: str,
    patience_s: float = 2 * seconds(CONVERGENCE) + REVERT_GRACE_S,
) -> Move:
    """One migration, watched until every kernel has followed, for so many seconds after its end.

    Raises `LabError` when it failed.
    """
    before = control.get(LabVMI, vm)
    guest, mac = guest_ips(before), before.status.interfaces[0].mac
    (there,) = (node for node in topology.nodes if node.name == target)
    addresses = {version: str(there.ip(version)) for version in guest}
    everybody = {*(node.name for node in topology.nodes), names.TOR}
    witness = Witness(target, addresses, frozenset(everybody - {target}))
    with start_observers(state, topology, guest, mac, witness, hold_ms=HOLD_MS):
        wishes = {names.ANNOTATION_BLACKOUT: f"{BLACKOUT_MS:g}", names.ANNOTATION_COPY: str(COPY_S)}
        job = control.create_migration(vm, target, wishes)
        over = control.await_migration(job.metadata.name, lambda _: None)
        if over.status.phase != "Succeeded":
            reason = over.status.migration_state.failure_reason
            raise LabError(f"the migration to {target}: {over.status.phase} {reason}")
        witness.await_(lambda: witness.followed() and witness.elevated_gone(), patience_s)
    return move_of(before.status.node_name, target, addresses, witness.seen)


def move_of(here: str, target: str, addresses: Mapping[int, str], seen: Sequence[Seen]) -> Move:
    """What was seen of a migration whose target has these addresses, by family; without a sign
    nothing. A FIB has followed when it has in every family. Pure."""
    heard = [one.t_ns for one in seen if isinstance(one, FrameSeen) and one.what in SIGNS]
    if not heard:
        return Move(here, target, None)
    sign = min(heard)
    after: dict[int, dict[str, float]] = {version: {} for version in addresses}
    local: dict[int, float] = {}
    for event in sorted(seen, key=lambda one: one.t_ns):
        if not isinstance(event, RouteSeen) or not event.added or event.t_ns < sign:
            continue
        ms = round((event.t_ns - sign) / 1e6, 3)
        if event.gateway == addresses[event.version]:
            after[event.version].setdefault(event.where, ms)
        elif event.where == target and event.metric == names.METRIC_ELEVATED:
            local.setdefault(event.version, ms)
    everywhere = set.intersection(*(set(found) for found in after.values()))
    last = {where: max(found[where] for found in after.values()) for where in everywhere}
    return Move(here, target, max(local.values()) if len(local) == len(addresses) else None, last)


def fleet_rows(found: Sequence[Move], nodes: int) -> list[BenchRow]:
    """The rows: of each migration the last FIB counts, the ToR's among them."""
    if not found:
        return []
    last = [move.last_ms(nodes) for move in found]
    what = f"{nodes} nodes by {REFLECTORS} route reflectors: sign → every FIB"
    values = (("p50", statistics.median(last)), ("p99", p99(last)))
    return [
        at_most(f"{what}, {name}", value, None, "ms", limit)
        for (name, value), limit in zip(values, EVERY_FIB, strict=True)
    ]
