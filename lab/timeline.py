"""A migration as a person reads it: what happened, where, in ms before and after the sign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lab import clock, names
from lab.observers import FrameSeen, RouteSeen
from lab.probes import Series
from lab.report import LogEvent, Observed, first_sign, zero_ns

LOGGED = {
    "cni_add": "CNI ADD of {pod}: {address}, {duration_ms} ms, of which policy {policy_wait_ms} ms",
    "cni_del": "CNI DEL of {pod}, {duration_ms} ms",
    "migration_transition": "agent: {endpoint} {from} → {to} ({input})",
    "sign": "agent: heard {kind} of {endpoint}",
    "owner_swapped": "agent: IPAM owner swapped to {endpoint}",
}
FRAMES = {
    "rarp": "first RARP of the guest",
    "garp": "first gratuitous ARP of the guest",
    "arp": "first ARP of the guest",
    "ip": "first IPv4 packet of the guest",
    "na": "first unsolicited neighbour advertisement of the guest",
    "ip6": "first IPv6 packet of the guest",
    "other": "first frame of another kind with the guest's MAC (before the sign: the pod's own)",
}


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """One line of a timeline."""

    t_ns: int
    where: str
    text: str


def moments(observed: Observed) -> list[Moment]:
    """Everything that happened, in order of time."""
    found = [Moment(at, "cluster", f"migration {phase}") for at, phase in observed.phases]
    found += [_seen(event) for event in observed.seen]
    found += list(_logged(observed.log))
    if observed.cutover is not None:
        report = observed.cutover
        found.append(Moment(report.unplugged_ns, observed.source, "guest stops (blackout begins)"))
        found.append(
            Moment(
                report.plugged_ns,
                observed.target,
                f"guest runs here (blackout {report.blackout_ms} ms)",
            )
        )
    for name, series in _probers(observed):
        longest = series.longest
        if longest is not None:
            found.append(Moment(longest.start_ns, name, "last probe answered before the gap"))
            text = f"first probe answered again, {longest.lost} lost"
            found.append(Moment(longest.end_ns, name, text))
    return sorted(found)


def _probers(observed: Observed) -> Iterator[tuple[str, Series]]:
    yield from observed.series.items()
    if observed.ipv6 is not None:
        for name, series in observed.ipv6.series.items():
            yield names.prober(name, 6), series


def _seen(event: FrameSeen | RouteSeen) -> Moment:
    if isinstance(event, FrameSeen):
        return Moment(event.t_ns, event.where, f"{FRAMES[event.what]} on {event.ifname}")
    family = "" if event.version == 4 else f"{names.FAMILIES[event.version]} "
    verb = f"{family}route {'added' if event.added else 'removed'}"
    via = f"via {event.gateway}" if event.gateway else f"dev {event.ifname}"
    metric = f" metric {event.metric}" if event.where != names.TOR else ""
    return Moment(event.t_ns, event.where, f"kernel: {verb}: {via}{metric}")


def _logged(lines: tuple[LogEvent, ...]) -> Iterator[Moment]:
    for line in lines:
        form = LOGGED.get(line.event)
        if form is not None:
            yield Moment(line.t_ns, line.node, form.format_map(_Fields(line.fields)))


class _Fields(dict[str, object]):
    """Fields for a format; one that an agent did not log reads `?`."""

    def __missing__(self, key: str) -> str:
        return "?"


def render(observed: Observed) -> str:
    """The timeline as text, times in ms relative to the sign (else to the cut-over)."""
    sign = first_sign(observed)
    zero = zero_ns(observed) or 0
    head = f"{observed.vm}: {observed.source} → {observed.target}"
    what = f"0 = first {sign.what.upper()} on {observed.target}" if sign else "no sign was seen"
    lines = [f"{head} ({what})"]
    for moment in moments(observed):
        at = clock.ms(moment.t_ns - zero)
        lines.append(f"  {at:>+12.2f} ms  {moment.where:<8} {moment.text}")
    return "\n".join(lines)
