"""One live migration, watched from everywhere at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lab import clock, control, names
from lab.children import Child
from lab.cluster import until
from lab.cutover import Report, report_from_json
from lab.nodes import in_netns
from lab.objects import LabVMI
from lab.observers import FrameSeen, RouteSeen, Seen
from lab.probes import series_from_json
from lab.report import LogEvent, Observed
from lab.state import StateDir
from lab.stream import StreamReport
from lab.tools import LabError, run
from lab.topology import Topology

BASELINE_S = 0.5
AFTER_REVERT_S = 0.5
REVERT_GRACE_S = 12.0
UNMEASURED = StreamReport(0, 0, "not measured", 0.0, 0)


@dataclass(slots=True)
class Witness:
    """Collects what the observers see, from their thread."""

    seen: list[Seen] = field(default_factory=list)
    changed: threading.Event = field(default_factory=threading.Event)

    def tell(self, data: dict[str, Any]) -> None:
        """Take one line of the observers."""
        kind = FrameSeen if data["kind"] == "frame" else RouteSeen
        self.seen.append(kind(**data))
        self.changed.set()

    def elevated_gone(self, target: str) -> bool:
        """Whether the target's elevated route has come and gone."""
        return any(
            isinstance(event, RouteSeen)
            and (event.where, event.metric) == (target, names.METRIC_ELEVATED)
            and event.ifname
            and not event.added
            for event in list(self.seen)
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """How a migration is to be done."""

    vm: str
    target: str
    blackout_ms: float
    garp: bool = False
    silent: bool = False

    def annotations(self) -> dict[str, str]:
        """As the lab's KubeVirt reads it."""
        found = {names.ANNOTATION_BLACKOUT: f"{self.blackout_ms:g}"}
        if self.garp:
            found[names.ANNOTATION_GARP] = "true"
        if self.silent:
            found[names.ANNOTATION_SILENT] = "true"
        return found


def guest_ip(vmi: LabVMI) -> str:
    """The address a VMI reports."""
    return next((one.ip_address for one in vmi.status.interfaces if one.ip_address), "")


def measure(
    state: StateDir,
    topology: Topology,
    wish: Wish,
    *,
    client_netns: str,
    stream: Child | None,
    convergence_s: float,
    tell: Callable[[str], None],
) -> Observed:
    """Migrate a VM and return when its route is back to normal (or should have been).

    Without a `stream` nothing is claimed about TCP.
    """
    before = control.get(LabVMI, wish.vm)
    address, mac = guest_ip(before), before.status.interfaces[0].mac
    started = clock.monotonic()
    witness = Witness()
    phases: list[tuple[int, str]] = []
    with ExitStack() as stack:
        probes = stack.enter_context(start_probes(state, address, client_netns))
        stack.enter_context(start_observers(state, topology, wish.target, (address, mac), witness))
        threading.Event().wait(BASELINE_S)
        job = control.create_migration(wish.vm, wish.target, wish.annotations())

        def phase(text: str) -> None:
            phases.append((clock.monotonic(), text))

        over = control.await_migration(job.metadata.name, phase)
        tell(f"{over.status.phase}, waiting for the route's return to normal")
        if over.status.phase == "Succeeded":
            _await_revert(witness, wish.target, 2 * convergence_s + REVERT_GRACE_S)
        threading.Event().wait(AFTER_REVERT_S)
        series = series_from_json(probes.ask())
        outcome = StreamReport(**stream.ask()) if stream else UNMEASURED
    after = control.get(LabVMI, wish.vm)
    return Observed(
        vm=wish.vm,
        source=before.status.node_name,
        target=wish.target,
        target_address=next(str(n.address.ip) for n in topology.nodes if n.name == wish.target),
        target_pod=over.status.migration_state.target_pod,
        ip_before=address,
        ip_after=guest_ip(after),
        phase=over.status.phase,
        stream=outcome,
        series=series,
        cutover=_cutover(over.metadata.annotations),
        seen=tuple(witness.seen),
        log=tuple(agent_log(state, topology, started)),
        phases=tuple(phases),
    )


def start_probes(state: StateDir, address: str, client_netns: str) -> Child:
    """Probes from outside the cluster and from a pod in it."""
    places = {names.EXT: names.netns(names.EXT), "client": client_netns}
    arguments = ["lab.probes", "--target", f"{address}:{names.ECHO_PORT}"]
    for place, netns in places.items():
        arguments += ["--from", f"{place}={names.netns_path(netns)}"]
    return Child(state.ledger, arguments)


def start_stream(state: StateDir, address: str) -> Child:
    """A TCP connection from outside the cluster."""
    arguments = ["lab.stream", "--target", f"{address}:{names.ECHO_PORT}"]
    return Child(state.ledger, arguments, netns=names.netns(names.EXT))


def start_observers(
    state: StateDir, topology: Topology, target: str, guest: tuple[str, str], witness: Witness
) -> Child:
    """Frames on the target, routes on all nodes and the ToR."""
    places = {node.name: node.netns for node in topology.nodes}
    places[names.TOR] = names.netns(names.TOR)
    address, mac = guest
    arguments = ["lab.observers", "--address", address, "--mac", mac]
    arguments += ["--frames", f"{target}={names.netns_path(places[target])}"]
    for place, netns in places.items():
        arguments += ["--routes", f"{place}={names.netns_path(netns)}"]
    return Child(state.ledger, arguments, tell=witness.tell)


def _await_revert(witness: Witness, target: str, deadline: float) -> None:
    end = clock.monotonic() + int(deadline * clock.NS_PER_S)
    while not witness.elevated_gone(target) and clock.monotonic() < end:
        witness.changed.wait(0.2)
        witness.changed.clear()


def _cutover(annotations: Mapping[str, str]) -> Report | None:
    text = annotations.get(names.ANNOTATION_CUTOVER, "")
    return report_from_json(text) if text else None


def agent_log(state: StateDir, topology: Topology, since_ns: int) -> Iterator[LogEvent]:
    """Lines of all agents' logs since a moment; a line that is no JSON object is skipped."""
    offset = clock.realtime_offset()
    for node in topology.nodes:
        path = state.node(node.name, "log") / "node.log"
        if path.exists():
            for line in path.read_text().splitlines():
                event = parse_log_line(line, node.name, offset)
                if event is not None and event.t_ns >= since_ns:
                    yield event


def parse_log_line(line: str, node: str, offset: int) -> LogEvent | None:
    """One line of an agent's log, its time brought to CLOCK_MONOTONIC."""
    try:
        data = json.loads(line)
        moment = datetime.fromisoformat(data["time"]).astimezone(UTC)
        event = str(data["event"])
    except (ValueError, KeyError, TypeError):
        return None
    wall = int(moment.timestamp() * 1_000_000) * 1000
    return LogEvent(wall - offset, node, event, data)


def await_echo(address: str, netns: str) -> None:
    """Wait until the guest answers a ping from a namespace. Raises `LabError`."""

    def answers() -> bool:
        try:
            run(in_netns(netns, ["ping", "-c", "1", "-W", "1", address]))
        except LabError:
            return False
        return True

    until(answers, f"{address} does not answer a ping from {netns}", 20)
