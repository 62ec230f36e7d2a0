"""`lab bench`: how long the network adds to a guest's own pause, and what the sign is worth.

Ours is the migration as it is, of the packet guest and of QEMU's, and with an agent killed at a
random moment, alone or with its keeper. The peer, in the same run on the same machine, is the same
migration of a guest that makes no sign (no RARP, no GARP, no packet of its own): the network then
learns of the move only from KubeVirt's status and the source pod's end, as a network does that does
not listen. How long KubeVirt's status takes is the lab's choice: `cutover.SETTLE_MS` after the
guest's start, and the API's watch on top.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import control, names
from lab.agents import end_agent, kill_agent
from lab.bench_rows import EXT, SOURCE, THIRD, Figures, Sort, figures_of, rows_of
from lab.children import Child
from lab.cluster import bring_up, make_way, meshed, start_agent, until
from lab.durations import seconds
from lab.fleet import Move, fleet_rows, run_fleet
from lab.guest_store import PACKET, QEMU
from lab.interrupts import interruptible, uninterrupted
from lab.measure import Wish, await_echo, guest_ips, measure, start_streams
from lab.objects import LabVM, LabVMI
from lab.results import conclude
from lab.state import StateDir, lab_lock
from lab.stream import StreamReport
from lab.teardown import tear_down
from lab.tools import LabError
from lab.topology import Topology

CONVERGENCE = "1s"
BLACKOUT_MS = 50.0
NODES = 3
LATEST_S = 3.0
"""Before this has passed since its beginning, in seconds, a measured migration has ended."""
HOLD_MS = 100
"""How long what is seen of a cut-over is not told: whoever tells has the processor meanwhile."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many migrations of each sort; silence is apart, because connections would break it."""

    packet: int
    silent: int
    killed: int
    qemu: int
    moves: int = 0
    """Of a VM about a large cluster, of `fleet` nodes."""
    fleet: int = 0
    ended: int = 0
    """Like `killed`, with the agent's keeper."""

    def plan(self) -> tuple[Sort, ...]:
        """The packet guest's that is connected, in turns: what the machine does happens to all."""
        left = {Sort.PACKET: self.packet, Sort.KILLED: self.killed, Sort.ENDED: self.ended}
        steps = [
            ((number + 0.5) / count, sort)
            for sort, count in left.items()
            for number in range(count)
        ]
        return tuple(sort for _, sort in sorted(steps))

    @property
    def small(self) -> bool:
        """Whether there is anything to do in the small lab."""
        return any((self.packet, self.silent, self.killed, self.ended, self.qemu))


@dataclass(frozen=True, slots=True)
class Stage:
    """The lab, its client pods by node, and one connection from each place to the guest."""

    state: StateDir
    topology: Topology
    pods: dict[str, str]
    random: random.Random
    tell: Tell

    @property
    def pair(self) -> tuple[str, str]:
        """The nodes between which the guest goes to and fro; the third is never its own."""
        first, second, _ = (node.name for node in self.topology.nodes)
        return first, second

    @property
    def third(self) -> str:
        """The other node."""
        return self.topology.nodes[-1].name


def run_bench(state: StateDir, out: Path, numbers: Numbers, seed: int, tell: Tell) -> bool:
    """Measure; True when every row met its target."""
    found: list[Figures] = []
    moves: list[Move] = []
    with lab_lock(), interruptible():
        if numbers.small:
            with _torn_down(state):
                found += _small(state, numbers, seed, tell)
        if numbers.fleet:
            with _torn_down(state):
                moves += run_fleet(state, numbers.fleet, numbers.moves, seed, tell)
    runs = {
        "convergence": CONVERGENCE,
        "seed": seed,
        "migrations": list(map(asdict, found)),
        "fleet": list(map(asdict, moves)),
    }
    rows = (*rows_of(found, NODES), *fleet_rows(moves, numbers.fleet))
    return conclude(out, rows, runs, tell)


@contextmanager
def _torn_down(state: StateDir) -> Iterator[None]:
    """No lab before, none afterwards."""
    make_way(state)
    try:
        yield
    finally:
        with uninterrupted():
            tear_down(state)


def _small(state: StateDir, numbers: Numbers, seed: int, tell: Tell) -> Iterator[Figures]:
    """All migrations of the small lab."""
    topology = bring_up(state, NODES, CONVERGENCE, tell)
    stage = Stage(state, topology, _clients(topology), random.Random(seed), tell)
    yield from _migrations(stage, "bench-vm", PACKET, numbers.plan())
    yield from _migrations(stage, "bench-silent", PACKET, (Sort.SILENT,) * numbers.silent)
    yield from _migrations(stage, "bench-qemu", QEMU, (Sort.QEMU,) * numbers.qemu)


def _clients(topology: Topology) -> dict[str, str]:
    """A client pod on every node; their namespaces by node."""
    found = {}
    for node in topology.nodes:
        name = f"client-{node.name}"
        control.create_pod(name, node.name)
        found[node.name] = names.pod_netns(name, control.await_pod(name).metadata.uid)
    return found


def _migrations(stage: Stage, vm: str, guest: str, plan: Sequence[Sort]) -> Iterator[Figures]:
    """A VM's migrations, to and fro; with one that makes no sign nobody is connected."""
    if not plan:
        return
    control.create_vm(vm, stage.pair[0], guest)
    addresses = guest_ips(control.await_vm(vm))
    silent = Sort.SILENT in plan
    with _connections(stage, addresses, kept=not silent) as streams:
        for number, sort in enumerate(plan):
            here = control.get(LabVMI, vm).status.node_name
            there = next(node for node in stage.pair if node != here)
            figures = _one(
                stage, Wish(vm, there, BLACKOUT_MS, silent=sort is Sort.SILENT), here, sort, streams
            )
            loss = {
                names.prober(place, version): round(value, 1)
                for version, found in figures.families().items()
                for place, value in found.loss_ms.items()
            }
            stage.tell(f"{number + 1}/{len(plan)} {sort}: beyond the guest's blackout, ms: {loss}")
            yield figures
    control.delete(LabVM, vm)
    control.await_gone(LabVMI, vm)


@contextmanager
def _connections(
    stage: Stage, addresses: Mapping[int, str], *, kept: bool
) -> Iterator[dict[str, dict[int, Child]]]:
    """In each family one from outside, and one from a pod on each node, by node, if there are to be
    any."""
    places = {EXT: names.netns(names.EXT), **stage.pods}
    with ExitStack() as stack:
        for netns in places.values():
            for address in addresses.values():
                await_echo(address, netns)
        found = {}
        for place, netns in places.items() if kept else ():
            found[place] = start_streams(stage.state, addresses, netns)
            for stream in found[place].values():
                stack.enter_context(stream)
        yield found


def _one(
    stage: Stage, wish: Wish, here: str, sort: Sort, streams: dict[str, dict[int, Child]]
) -> Figures:
    """One migration, measured. Raises `LabError` when it failed."""
    with _death(stage, (here, wish.target), sort) as killed:
        observed = measure(
            stage.state,
            stage.topology,
            wish,
            client_netns=stage.pods[stage.third],
            streams=streams.get(EXT, {}),
            convergence_s=seconds(CONVERGENCE),
            tell=lambda _: None,
            others={SOURCE: stage.pods[here]},
            hold_ms=HOLD_MS,
        )
    if observed.phase != "Succeeded":
        raise LabError(f"the migration to {wish.target}: {observed.phase}")
    asked = {THIRD: streams.get(stage.third, {}), SOURCE: streams.get(here, {})}
    survived = {
        (place, version): StreamReport(**stream.ask()).survived
        for place, found in asked.items()
        for version, stream in found.items()
    }
    return figures_of(sort, observed, survived, killed())


@contextmanager
def _death(stage: Stage, nodes: Sequence[str], sort: Sort) -> Iterator[Callable[[], str]]:
    """The agent of one of the nodes is killed at a random moment, and followed by its keeper's
    next; or killed with its keeper, and started at once. Afterwards every agent serves again."""
    if sort not in (Sort.KILLED, Sort.ENDED):
        yield lambda: ""
        return
    node, moment = stage.random.choice(nodes), stage.random.uniform(0, LATEST_S)

    def work() -> None:
        over.wait(moment)
        if sort is Sort.KILLED:
            kill_agent(stage.state, node)
        else:
            end_agent(stage.state, node)
            start_agent(stage.state, node)

    over = threading.Event()
    thread = threading.Thread(target=work, name="death")
    thread.start()
    try:
        yield lambda: f"{sort}: of {node} after {moment:.3f} s"
    finally:
        over.set()
        thread.join()
        until(lambda: meshed(stage.state, NODES), "not every BGP session is established")
