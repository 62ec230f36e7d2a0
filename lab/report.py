"""From what was observed to what is claimed: the rows of report.json.

Whether a row keeps the promises is `lab.promises`' to say.

Pure. All times are CLOCK_MONOTONIC in ns until they become milliseconds here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab import clock, names
from lab.cutover import Report
from lab.observers import FrameSeen, RouteSeen, Seen
from lab.probes import Gap, Series
from lab.stream import StreamReport
from lab.tables import Tables
from lab.trace import Trace

DOWNTIME_MAX_MS = 50.0
"""What the network may add to the guest's own pause."""

IN_FLIGHT_NS = 5 * clock.NS_PER_MS
"""A probe sent so long before the guest stops may still be lost with it."""

SIGNS = ("rarp", "garp", "ip", "na", "ip6")
OWN_FRAMES = ("garp", "arp", "ip", "na", "ip6")
"""What a guest's own kernel sends; RARP is QEMU's."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line of an agent's log."""

    t_ns: int
    node: str
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """One migration, as seen from everywhere, in one family. `nodes` gives each node's address.

    A guest with IPv6, too, has `ipv6`: the same migration in that family.

    `policy_ns` is when the target pod's endpoint-status file appeared, by the kernel's time stamp
    (which may be one tick early), None when it was never there.
    """

    vm: str
    source: str
    target: str
    target_address: str
    target_pod: str
    ip_before: str
    ip_after: str
    phase: str
    stream: StreamReport
    series: Mapping[str, Series]
    cutover: Report | None
    seen: tuple[Seen, ...]
    log: tuple[LogEvent, ...]
    phases: tuple[tuple[int, str], ...]
    nodes: Mapping[str, str] = field(default_factory=dict)
    traces: Mapping[str, Trace] = field(default_factory=dict)
    tables: tuple[Tables, ...] = ()
    policy_ns: int | None = None
    version: int = 4
    ipv6: Observed | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A promise and whether it held."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Act:
    """One act of the VM's story: where it was afterwards, and by which address.

    `node` and `address` are empty when it ran nowhere, or had none.
    """

    act: str
    ok: bool
    address: str
    node: str
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of `migrations` in report.json; None where nothing was seen.

    `guest_blackout_ms` is the guest's own pause; of it a QEMU guest's processors stood for
    `qemu_stopped_ms`, and `query-migrate` says `qemu_downtime_ms` and `qemu_total_ms`.
    `network_downtime_ms` is the worst silence of any prober without its overlap with the guest's
    pause, `other_holes_ms` a prober's other silences over 5 ms, counted likewise.
    `probes_lost_outside` were lost neither in the guest's pause nor within `DOWNTIME_MAX_MS` after.
    Addresses, connection, probers and routes are one family's; `ipv6` has the other's.
    """

    vm: str
    source_node: str
    target_node: str
    phase: str
    ip_before: str
    ip_after: str
    tcp_survived: bool
    tcp_lines: int
    tcp_longest_gap_ms: float
    tcp_error: str
    probes_sent: int
    probes_lost: int
    guest_blackout_ms: float | None
    network_downtime_ms: float | None
    other_holes_ms: float
    probes_lost_outside: int
    sign: str
    sign_to_local_route_ms: float | None
    sign_to_tor_fib_ms: float | None
    metric_elevated: int | None
    metric_final: int | None
    reverted_after_s: float | None
    policy_wait_ms: float | None
    policy_before_add_ms: float | None
    add_before_sign_ms: float | None
    start_to_tor_fib_ms: float | None
    probers: Mapping[str, Mapping[str, Any]]
    qemu_stopped_ms: float | None = None
    qemu_downtime_ms: float | None = None
    qemu_total_ms: float | None = None
    ipv6: Row | None = None


def first_sign(observed: Observed) -> FrameSeen | None:
    """The first frame by which the guest made itself heard on the target."""
    frames = (
        event
        for event in observed.seen
        if isinstance(event, FrameSeen) and event.where == observed.target and event.what in SIGNS
    )
    return min(frames, key=lambda frame: frame.t_ns, default=None)


def zero_ns(observed: Observed) -> int | None:
    """The moment everything is told relative to: the sign, else the guest's start, else None."""
    sign = first_sign(observed)
    if sign is not None:
        return sign.t_ns
    return observed.cutover.plugged_ns if observed.cutover else None


def routes_seen(observed: Observed) -> Iterator[RouteSeen]:
    """The changes of the family's routes."""
    for event in observed.seen:
        if isinstance(event, RouteSeen) and event.version == observed.version:
            yield event


def _routes(observed: Observed, where: str, *, added: bool) -> Iterable[RouteSeen]:
    return (
        event for event in routes_seen(observed) if event.where == where and event.added is added
    )


def local_raise(observed: Observed) -> RouteSeen | None:
    """The first local route of the guest on the target."""
    local = (route for route in _routes(observed, observed.target, added=True) if route.ifname)
    return min(local, key=lambda route: route.t_ns, default=None)


def tor_switch(observed: Observed) -> RouteSeen | None:
    """When the ToR's kernel first sent the guest's traffic to the target."""
    via = (
        route
        for route in _routes(observed, names.TOR, added=True)
        if route.gateway == observed.target_address
    )
    return min(via, key=lambda route: route.t_ns, default=None)


def final_metrics(observed: Observed) -> tuple[int, ...]:
    """Metrics of the guest's local routes on the target at the end, best first."""
    present: set[int] = set()
    for event in sorted(routes_seen(observed), key=lambda event: event.t_ns):
        if event.where != observed.target or not event.ifname:
            continue
        if event.added:
            present.add(event.metric)
        else:
            present.discard(event.metric)
    return tuple(sorted(present))


def reverted(observed: Observed) -> RouteSeen | None:
    """When the target's elevated route went."""
    gone = (
        route
        for route in _routes(observed, observed.target, added=False)
        if route.ifname and route.metric == names.METRIC_ELEVATED
    )
    return min(gone, key=lambda route: route.t_ns, default=None)


def add_answered(observed: Observed) -> LogEvent | None:
    """The target's agent saying that ADD of the target pod succeeded."""
    for line in observed.log:
        if line.event == "cni_add" and line.fields.get("pod") == observed.target_pod:
            return line
    return None


def policy_wait(observed: Observed) -> float | None:
    """How long ADD of the target pod waited for policy, by the agent's own log, in ms."""
    line = add_answered(observed)
    value = line.fields.get("policy_wait_ms") if line else None
    return float(value) if isinstance(value, int | float) else None


def pause_of(observed: Observed) -> Report | None:
    """The guest's own pause. A QEMU guest's lasts until its kernel is first heard.

    That a machine was told to go on does not make it run: under TCG it takes tens of ms, more on a
    busy host. Its kernel announces itself (GARP) without having heard of anybody, so that a network
    that is late cannot make this later.
    """
    report = observed.cutover
    if report is None or report.qemu_total_ms is None:
        return report
    heard = (
        event.t_ns
        for event in observed.seen
        if isinstance(event, FrameSeen)
        and event.where == observed.target
        and event.what in OWN_FRAMES
        and event.t_ns >= report.plugged_ns
    )
    return replace(report, plugged_ns=min(heard, default=report.plugged_ns))


def network_part_ns(gap: Gap, cutover: Report | None) -> int:
    """How much of a silence is the network's: neither the prober's own nor the guest's pause."""
    if cutover is None:
        return gap.outage_ns
    begin, end = max(gap.start_ns, cutover.unplugged_ns), min(gap.end_ns, cutover.plugged_ns)
    return max(0, gap.outage_ns - max(0, end - begin))


def unanswered_ms(series: Series, pause: Report | None) -> float:
    """For how long from the end of the guest's pause probes were sent that never were answered.

    What a guest that has just begun to run answers late, the network had brought to it when it was
    sent. From the first such probe to the last, whatever was answered in between.
    """
    if pause is None:
        return 0.0
    ends = [gap.end_ns for gap in series.gaps if gap.start_ns <= pause.plugged_ns < gap.end_ns]
    lost = [at for at in series.lost_at if pause.plugged_ns <= at < max(ends, default=0)]
    return clock.ms(lost[-1] - lost[0] + clock.NS_PER_MS) if lost else 0.0


def lost_outside(series: Series, cutover: Report | None) -> int:
    """Probes lost when neither the guest's pause nor the promised downtime excuses it."""
    if cutover is None:
        return series.lost
    begin = cutover.unplugged_ns - IN_FLIGHT_NS
    end = cutover.plugged_ns + int(DOWNTIME_MAX_MS * clock.NS_PER_MS)
    return sum(1 for at in series.lost_at if not begin <= at <= end)


def prober_detail(series: Series, cutover: Report | None) -> dict[str, Any]:
    """One prober's part of a row."""
    longest = series.longest
    gap = clock.ms(longest.end_ns - longest.start_ns) if longest else None
    parts = sorted(clock.ms(network_part_ns(one, cutover)) for one in series.gaps)
    return {
        "sent": series.sent,
        "lost": series.lost,
        "rtt_p50_ms": series.rtt_p50_ms,
        "longest_gap_ms": gap,
        "own_stall_ms": clock.ms(longest.own_stall_ns) if longest else None,
        "worst_send_stall_ms": series.worst_stall_ms,
        "network_downtime_ms": parts[-1] if parts else None,
        "unanswered_ms": unanswered_ms(series, cutover),
        "other_holes_ms": round(sum(parts[:-1]), 3),
        "lost_outside": lost_outside(series, cutover),
    }


def row_of(observed: Observed) -> Row:
    """The row that describes a migration."""
    sign, raised, switched = first_sign(observed), local_raise(observed), tor_switch(observed)
    went, metrics, added = reverted(observed), final_metrics(observed), add_answered(observed)
    pause, cutover = pause_of(observed), observed.cutover
    probers = {name: prober_detail(series, pause) for name, series in observed.series.items()}
    downtimes = [detail["network_downtime_ms"] for detail in probers.values()]
    complete = bool(downtimes) and None not in downtimes
    return Row(
        vm=observed.vm,
        source_node=observed.source,
        target_node=observed.target,
        phase=observed.phase,
        ip_before=observed.ip_before,
        ip_after=observed.ip_after,
        tcp_survived=observed.stream.survived,
        tcp_lines=observed.stream.echoed,
        tcp_longest_gap_ms=observed.stream.longest_gap_ms,
        tcp_error=observed.stream.error,
        probes_sent=sum(series.sent for series in observed.series.values()),
        probes_lost=sum(series.lost for series in observed.series.values()),
        guest_blackout_ms=pause.blackout_ms if pause else None,
        network_downtime_ms=max(downtimes) if complete else None,
        other_holes_ms=max((one["other_holes_ms"] for one in probers.values()), default=0.0),
        probes_lost_outside=sum(one["lost_outside"] for one in probers.values()),
        sign=sign.what if sign else "",
        sign_to_local_route_ms=_between(sign, raised),
        sign_to_tor_fib_ms=_between(sign, switched),
        metric_elevated=raised.metric if raised else None,
        metric_final=metrics[0] if len(metrics) == 1 else None,
        reverted_after_s=round((went.t_ns - raised.t_ns) / clock.NS_PER_S, 3)
        if went and raised
        else None,
        policy_wait_ms=policy_wait(observed),
        policy_before_add_ms=clock.ms(added.t_ns - observed.policy_ns)
        if added and observed.policy_ns is not None
        else None,
        add_before_sign_ms=_between(added, sign),
        start_to_tor_fib_ms=clock.ms(switched.t_ns - cutover.plugged_ns)
        if switched and cutover
        else None,
        probers=probers,
        qemu_stopped_ms=cutover.blackout_ms if cutover and cutover.qemu_total_ms else None,
        qemu_downtime_ms=cutover.qemu_downtime_ms if cutover else None,
        qemu_total_ms=cutover.qemu_total_ms if cutover else None,
        ipv6=row_of(observed.ipv6) if observed.ipv6 else None,
    )


def _between(sooner: Seen | LogEvent | None, later: Seen | LogEvent | None) -> float | None:
    return clock.ms(later.t_ns - sooner.t_ns) if sooner and later else None
