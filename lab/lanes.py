"""A migration as lanes: what was so, where, from when to when.

Pure. A lane is a row of segments: KubeVirt's phases, where the guest is, which way each kernel
sends its packets, who owns the address in IPAM. Times are ns on CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lab import clock, names
from lab.report import Observed, reverted, routes_seen, zero_ns
from lab.tables import Tables
from libtortie.linux.port import Route, RouteType

SETTLED_NS = 1100 * clock.NS_PER_MS
MARGIN_NS = 100 * clock.NS_PER_MS


@dataclass(frozen=True, slots=True)
class Segment:
    """Something that was so for a while. `node` is whose colour it has; empty: nobody's.

    `kind` is `phase p0`, `phase p1` (by turns), `guest`, `gap`, `route`, `raised`, `owner` or
    `unknown`.
    """

    start_ns: int
    end_ns: int
    text: str
    kind: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row; `role` says in a word or two what the place is. No segments: not measured."""

    name: str
    role: str
    segments: tuple[Segment, ...]


def span(observed: Observed) -> tuple[int, int]:
    """From the migration's creation until everything but the revert is over."""
    zero = zero_ns(observed)
    moments = [at for at, _ in observed.phases]
    moments += [] if zero is None else [zero]
    if not moments:
        return 0, 1
    start = min(moments) - MARGIN_NS
    end = max(moments) if zero is None else max(zero + SETTLED_NS, *moments)
    return start, end + MARGIN_NS


def lanes_of(observed: Observed) -> tuple[Lane, ...]:
    """All lanes, over the whole of the measurement."""
    start, end = span(observed)
    went = reverted(observed)
    if went is not None:
        end = max(end, went.t_ns + 10 * MARGIN_NS)
    others = [name for name in observed.nodes if name not in (observed.source, observed.target)]
    places = [(observed.target, "target"), (observed.source, "source")]
    places += [(name, "other") for name in others] + [(names.TOR, "ToR")]
    return (
        Lane("KubeVirt", "phase", tuple(_phases(observed, end))),
        Lane("guest", observed.vm, tuple(_guest(observed, start, end))),
        *(
            Lane(place, f"route ({role})", tuple(_routes(observed, place, start, end)))
            for place, role in places
        ),
        Lane("IPAM", "active owner", tuple(_owner(observed, start, end))),
    )


def _phases(observed: Observed, end: int) -> Iterator[Segment]:
    marks = [*observed.phases, (max(end, observed.phases[-1][0]) if observed.phases else end, "")]
    for number, ((sooner, phase), (later, _)) in enumerate(pairwise(marks)):
        yield Segment(sooner, later, phase or "created", f"phase p{number % 2}")


def _guest(observed: Observed, start: int, end: int) -> Iterator[Segment]:
    report = observed.cutover
    if report is None:
        return
    away = f"{report.blackout_ms:g} ms"
    yield Segment(start, report.unplugged_ns, f"on {observed.source}", "guest", observed.source)
    yield Segment(report.unplugged_ns, report.plugged_ns, away, "gap")
    yield Segment(report.plugged_ns, end, f"on {observed.target}", "guest", observed.target)


def _owner(observed: Observed, start: int, end: int) -> Iterator[Segment]:
    swaps = [line.t_ns for line in observed.log if line.event == "owner_swapped"]
    if not swaps:
        return
    swap = min(swaps)
    yield Segment(start, swap, f"pod on {observed.source}", "owner", observed.source)
    yield Segment(swap, end, f"pod on {observed.target}", "owner", observed.target)


def _routes(observed: Observed, place: str, start: int, end: int) -> Iterator[Segment]:
    """Which way a kernel sent the guest's packets: its best host route, else its block's."""
    first = next((tables for tables in observed.tables if tables.moment == "before"), None)
    if first is None or place not in first.routes:
        return
    owner = {address: node for node, address in observed.nodes.items()}
    hostlen = 32 if observed.version == 4 else 128
    hosts = {route.priority: _next_hop(route) for route in _hosts(first, place)}
    wider = [
        route for route in first.routes[place] if route.dst.prefixlen < route.dst.max_prefixlen
    ]
    block = _block_words(wider[0], owner) if wider else ("no route", "unknown", "")
    since, now = start, _best(hosts, block, owner, place, hostlen)
    for event in sorted(routes_seen(observed), key=lambda event: event.t_ns):
        if event.where != place:
            continue
        hop = event.gateway or event.ifname
        if event.added:
            hosts[event.metric] = hop
        elif hosts.get(event.metric) == hop:
            del hosts[event.metric]
        then = _best(hosts, block, owner, place, hostlen)
        if then != now:
            yield Segment(since, max(since, event.t_ns), *now)
            since, now = max(since, event.t_ns), then
    yield Segment(since, max(since, end), *now)


def _hosts(tables: Tables, place: str) -> tuple[Route, ...]:
    return tuple(
        route for route in tables.routes[place] if route.dst.prefixlen == route.dst.max_prefixlen
    )


def _next_hop(route: Route) -> str:
    return str(route.gateway) if route.gateway else route.ifname


def _best(
    hosts: dict[int, str],
    block: tuple[str, str, str],
    owner: dict[str, str],
    place: str,
    hostlen: int,
) -> tuple[str, str, str]:
    """Words, kind and colour of what decides."""
    if not hosts:
        return block
    metric = min(hosts)
    hop = hosts[metric]
    raised = "raised" if metric == names.METRIC_ELEVATED else "route"
    if hop not in owner:
        return f"local, metric {metric}", raised, place
    words = f"/{hostlen} via {owner[hop]}"
    return words if place == names.TOR else f"{words}, metric {metric}", "route", owner[hop]


def _block_words(route: Route, owner: dict[str, str]) -> tuple[str, str, str]:
    if route.type is RouteType.BLACKHOLE:
        return f"/{route.dst.prefixlen} blackhole", "unknown", ""
    hop = _next_hop(route)
    node = owner.get(hop, "")
    if not route.dst.prefixlen:
        return f"default via {hop}", "unknown", ""
    return f"/{route.dst.prefixlen} via {node or hop}", "route", node
