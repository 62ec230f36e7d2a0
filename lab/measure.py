"""One live migration, watched from everywhere at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from lab import clock, control, names
from lab.children import Child
from lab.cluster import until
from lab.cutover import Report, report_from_json
from lab.nodes import in_netns
from lab.objects import LabMigration, LabVMI
from lab.observers import FrameSeen, RouteSeen, Seen
from lab.probes import Series, samples_from_json, series_from_json
from lab.report import SIGNS, LogEvent, Observed, zero_ns
from lab.state import StateDir
from lab.stream import StreamReport
from lab.tables import Tables, read_tables
from lab.tools import LabError, run
from lab.topology import Topology
from lab.trace import Sample, thin
from libtortie.errors import TortieError
from libtortie.model.names import status_file_name

T = TypeVar("T")
BASELINE_S = 0.5
AFTER_REVERT_S = 0.5
REVERT_GRACE_S = 30.0
FOLLOWING_S = 0.1
UNMEASURED = StreamReport(0, 0, "not measured", 0.0, 0)


@dataclass(slots=True)
class Witness:
    """Collects what the observers see, from their thread; `target_addresses` are by family."""

    target: str
    target_addresses: Mapping[int, str]
    others: frozenset[str]
    seen: list[Seen] = field(default_factory=list)
    over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, data: dict[str, Any]) -> None:
        """Take one line of the observers."""
        kind = FrameSeen if data["kind"] == "frame" else RouteSeen
        with self._changed:
            self.seen.append(kind(**data))
            self._changed.notify_all()

    def await_(self, happened: Callable[[], bool], deadline: float | None) -> bool:
        """Wait, for seconds or until `close`; whether it happened."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or happened(), deadline)
            return happened()

    def close(self) -> None:
        """Nobody need wait any longer."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def signed(self) -> bool:
        """Whether the guest was heard on the target."""
        return any(isinstance(event, FrameSeen) and event.what in SIGNS for event in self.seen)

    def followed(self) -> bool:
        """Whether every kernel sends to the target, and the source's own routes are gone."""
        return all(map(self._followed, self.target_addresses))

    def _followed(self, version: int) -> bool:
        routes, there = self._routes(version), self.target_addresses[version]
        switched = {r.where for r in routes if r.added and r.gateway == there}
        left = any(not r.added and r.ifname and r.where != self.target for r in routes)
        return left and switched >= self.others

    def elevated_gone(self) -> bool:
        """Whether the target's elevated routes have come and gone."""
        return all(map(self._reverted, self.target_addresses))

    def _reverted(self, version: int) -> bool:
        return any(
            (event.where, event.metric) == (self.target, names.METRIC_ELEVATED)
            and event.ifname
            and not event.added
            for event in self._routes(version)
        )

    def _routes(self, version: int) -> list[RouteSeen]:
        routes = (event for event in self.seen if isinstance(event, RouteSeen))
        return [event for event in routes if event.version == version]


@dataclass(slots=True)
class TableReader:
    """Reads the route tables before, at and after a cut-over; one that fails is left out.

    *At* is when every kernel has followed the guest, or `FOLLOWING_S` after its sign. Its thread
    reads only then, so that it takes no time from the cut-over itself.
    """

    places: Mapping[str, str]
    addresses: Mapping[int, str]
    read: dict[int, list[Tables]] = field(default_factory=dict)

    def take(self, moment: str) -> None:
        """Read them all now."""
        for version, address in self.addresses.items():
            with contextlib.suppress(TortieError):
                found = read_tables(moment, self.places, address)
                self.read.setdefault(version, []).append(found)

    @contextmanager
    def around_cutover(self, witness: Witness) -> Iterator[None]:
        """Read them before the block, and while it runs, when the cut-over happens."""

        def work() -> None:
            if witness.await_(witness.signed, None):
                witness.await_(witness.followed, FOLLOWING_S)
                self.take("at")

        thread = threading.Thread(target=work, name="tables")
        thread.start()
        try:
            threading.Event().wait(BASELINE_S)
            self.take("before")
            yield
        finally:
            witness.close()
            thread.join()


@dataclass(slots=True)
class Course:
    """A migration's phases, and when the target's agent first wrote each endpoint-status file.

    Files are looked at whenever the phase changes, so that one written anew later counts from its
    first time; which of them is the target pod's is known only at the end.
    """

    status_dir: Path
    phases: list[tuple[int, str]] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def entered(self, phase: str) -> None:
        """Note a phase, and the files that are there by now."""
        self.phases.append((clock.monotonic(), phase))
        offset = clock.realtime_offset()
        for path in self.status_dir.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                self.files.setdefault(path.name, path.stat().st_ctime_ns - offset)

    def policy_ns(self, pod: str) -> int | None:
        """When a pod's file appeared, on CLOCK_MONOTONIC; None when it was never seen."""
        return self.files.get(status_file_name("k8s", f"{control.NAMESPACE}/{pod}", "eth0"))


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
    """The address a VMI reports, its first."""
    return next((one.ip_address for one in vmi.status.interfaces if one.ip_address), "")


def guest_ips(vmi: LabVMI) -> dict[int, str]:
    """The addresses a VMI reports, by family, IPv4 first."""
    found = {
        ip_address(text).version: text
        for one in vmi.status.interfaces
        for text in reversed(one.ip_addresses)
    }
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Measured:
    """A migration as it was recorded; addresses, nodes, tables and connections are by family,
    probes and samples by prober."""

    wish: Wish
    source: str
    over: LabMigration
    places: Mapping[str, str]
    nodes: Mapping[int, Mapping[str, str]]
    before: Mapping[int, str]
    after: Mapping[int, str]
    streams: Mapping[int, StreamReport]
    series: Mapping[str, Series]
    samples: Mapping[str, Sequence[Sample]]
    tables: Mapping[int, Sequence[Tables]]
    seen: tuple[Seen, ...]
    log: tuple[LogEvent, ...]
    course: Course

    def of_family(self, version: int, ipv6: Observed | None = None) -> Observed:
        """What was seen in a family."""
        pod = self.over.status.migration_state.target_pod
        observed = Observed(
            vm=self.wish.vm,
            source=self.source,
            target=self.wish.target,
            target_address=self.nodes[version][self.wish.target],
            target_pod=pod,
            ip_before=self.before[version],
            ip_after=self.after.get(version, ""),
            phase=self.over.status.phase,
            stream=self.streams.get(version, UNMEASURED),
            series=self._mine(self.series, version),
            cutover=_cutover(self.over.metadata.annotations),
            seen=self.seen,
            log=self.log,
            phases=tuple(self.course.phases),
            nodes=self.nodes[version],
            tables=tuple(self.tables.get(version, ())),
            policy_ns=self.course.policy_ns(pod),
            version=version,
            ipv6=ipv6,
        )
        return with_traces(observed, self._mine(self.samples, version))

    def _mine(self, found: Mapping[str, T], version: int) -> dict[str, T]:
        return {place: found[names.prober(place, version)] for place in self.places}


def measure(
    state: StateDir,
    topology: Topology,
    wish: Wish,
    *,
    client_netns: str,
    streams: Mapping[int, Child],
    convergence_s: float,
    tell: Callable[[str], None],
    others: Mapping[str, str] | None = None,
    hold_ms: int = 0,
) -> Observed:
    """Migrate a VM and return when its routes are back to normal (or should have been).

    It is probed in each of its families, from outside and from a client pod, and from `others`:
    name and namespace. Without a stream nothing is claimed about a family's TCP.
    """
    before = control.get(LabVMI, wish.vm)
    addresses, mac = guest_ips(before), before.status.interfaces[0].mac
    started = clock.monotonic()
    nodes = {v: {one.name: str(one.ip(v)) for one in topology.nodes} for v in addresses}
    there = {version: found[wish.target] for version, found in nodes.items()}
    everybody = {*(node.name for node in topology.nodes), names.TOR}
    witness = Witness(wish.target, there, frozenset(everybody - {wish.target}))
    tables = TableReader(netns_paths(topology), addresses)
    course = Course(state.node(wish.target, "run") / "endpoint-status")
    places = {names.EXT: names.netns(names.EXT), "client": client_netns, **(others or {})}
    with (
        start_probes(state, addresses, places) as probes,
        start_observers(state, topology, addresses, mac, witness, hold_ms=hold_ms),
        tables.around_cutover(witness),
    ):
        job = control.create_migration(wish.vm, wish.target, wish.annotations())
        over = control.await_migration(job.metadata.name, course.entered)
        tell(f"{over.status.phase}, waiting for the route's return to normal")
        if over.status.phase == "Succeeded":
            witness.await_(witness.elevated_gone, 2 * convergence_s + REVERT_GRACE_S)
        threading.Event().wait(AFTER_REVERT_S)
        tables.take("after")
        probed = probes.ask()
        reports = {version: StreamReport(**one.ask()) for version, one in streams.items()}
    measured = Measured(
        wish,
        before.status.node_name,
        over,
        places,
        nodes,
        addresses,
        guest_ips(control.get(LabVMI, wish.vm)),
        reports,
        series_from_json(probed["series"]),
        samples_from_json(probed["samples"]),
        tables.read,
        tuple(witness.seen),
        tuple(agent_log(state, topology, started)),
        course,
    )
    return measured.of_family(4, measured.of_family(6) if 6 in addresses else None)


def with_traces(observed: Observed, samples: Mapping[str, Sequence[Sample]]) -> Observed:
    """Of each prober, what its pictures need: everything near the sign, the rest thinned."""
    zero = zero_ns(observed)
    return replace(observed, traces={name: thin(all_, zero) for name, all_ in samples.items()})


def netns_paths(topology: Topology) -> dict[str, str]:
    """Nodes and the ToR, each with its namespace's path."""
    places = {node.name: str(names.netns_path(node.netns)) for node in topology.nodes}
    places[names.TOR] = str(names.netns_path(names.netns(names.TOR)))
    return places


def start_probes(state: StateDir, addresses: Mapping[int, str], places: Mapping[str, str]) -> Child:
    """Probes of each address, from namespaces."""
    arguments = ["lab.probes"]
    for address in addresses.values():
        arguments += ["--target", f"{address}:{names.ECHO_PORT}"]
    for place, netns in places.items():
        arguments += ["--from", f"{place}={names.netns_path(netns)}"]
    return Child(state.ledger, arguments)


def start_stream(state: StateDir, address: str, netns: str = "") -> Child:
    """A TCP connection from a namespace, or else from outside the cluster."""
    arguments = ["lab.stream", "--target", f"{address}:{names.ECHO_PORT}"]
    return Child(state.ledger, arguments, netns=netns or names.netns(names.EXT))


def start_streams(
    state: StateDir, addresses: Mapping[int, str], netns: str = ""
) -> dict[int, Child]:
    """A TCP connection to each address, by family."""
    return {version: start_stream(state, one, netns) for version, one in addresses.items()}


def start_observers(
    state: StateDir,
    topology: Topology,
    addresses: Mapping[int, str],
    mac: str,
    witness: Witness,
    *,
    hold_ms: int = 0,
) -> Child:
    """Frames on the target, routes on all nodes and the ToR; told at once, or held back."""
    places = netns_paths(topology)
    arguments = ["lab.observers", "--mac", mac, "--hold-ms", str(hold_ms)]
    for address in addresses.values():
        arguments += ["--address", address]
    arguments += ["--frames", f"{witness.target}={places[witness.target]}"]
    for place, path in places.items():
        arguments += ["--routes", f"{place}={path}"]
    return Child(state.ledger, arguments, tell=witness.tell)


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

    until(answers, f"{address} does not answer a ping from {netns}", 60)
