"""report.html's part for one migration: pictures, route tables, numbers, and every moment as text.

Pure.
"""

from __future__ import annotations

from lab import charts, clock, names
from lab.charts import Palette, prober_name
from lab.report import Observed, Row, zero_ns
from lab.tables import Tables
from lab.timeline import render as timeline
from libtortie.linux.port import Route, RouteProto, RouteType
from libtortie.svg import Markup, join, signed, tag

MISSING = "not measured"
TIMELINE_LINES = 400
MOMENTS = {
    "before": "before the migration",
    "at": "at the cut-over",
    "after": "after the revert",
}


def amount(value: float | None, unit: str, digits: int = 1) -> str:
    """A measured number with its unit, or that there is none."""
    return MISSING if value is None else f"{value:.{digits}f}\u00a0{unit}"


def migration_section(observed: Observed, row: Row, number: int, palette: Palette) -> Markup:
    """One migration: pictures, route tables, numbers, and every moment as text."""
    parts = [
        tag("h2", f"Migration {number}: {row.source_node} → {row.target_node}"),
        tag("p", _summary(row)),
        tag("h3", "From the request to the revert"),
        tag("div", charts.cutover_chart(observed, palette), class_="picture"),
        _legend(palette),
        _phases(observed),
        *_of_family(observed, row, palette, ""),
    ]
    if observed.ipv6 is not None and row.ipv6 is not None:
        parts.append(tag("p", _summary(row.ipv6)))
        parts += _of_family(observed.ipv6, row.ipv6, palette, "IPv6: ")
    return tag("section", *parts, _moments(observed), class_="migration")


def _of_family(observed: Observed, row: Row, palette: Palette, family: str) -> list[Markup]:
    """The cut-over, the whole run, routes and numbers in one family."""
    return [
        tag("h3", f"{family}The cut-over: 150 ms before and after the sign"),
        _picture(charts.zoom_chart(observed, palette), "no sign and no cut-over was seen"),
        _zoom_legend(),
        tag("h3", f"{family}Latency and loss over the whole measurement"),
        _picture(charts.run_chart(observed), "no probes were recorded"),
        tag("h3", f"{family}Routes to the VM, read from the kernels"),
        _tables(observed),
        tag("h3", f"{family}In numbers"),
        _numbers(row),
    ]


def _summary(row: Row) -> str:
    tcp = "its TCP connection survived" if row.tcp_survived else "its TCP connection broke"
    if row.tcp_error:
        tcp = f"its TCP connection: {row.tcp_error}"
    return (
        f"{row.vm} kept {row.ip_after or 'no address'} and {tcp}. The guest itself was away for"
        f" {amount(row.guest_blackout_ms, 'ms')}; the network added"
        f" {amount(row.network_downtime_ms, 'ms')}."
    )


def _picture(chart: Markup | None, otherwise: str) -> Markup:
    if chart is None:
        return tag("p", f"{MISSING}: {otherwise}", class_="note")
    return tag("div", chart, class_="picture")


def _legend(palette: Palette) -> Markup:
    nodes = [
        tag("li", tag("i", "", class_=palette.of(node)), f"leads to {node}")
        for node in palette.nodes
    ]
    raised = tag("li", tag("i", "", class_="raisedkey"), "raised route, metric 512")
    return tag("ul", *nodes, raised, class_="legend")


def _phases(observed: Observed) -> Markup:
    """KubeVirt's phases with their times: some are too short for the picture."""
    zero = zero_ns(observed)
    if zero is None or not observed.phases:
        return tag("p", f"KubeVirt's phases: {MISSING}", class_="note")
    words = (
        f"{phase or 'created'} {signed(clock.ms(at - zero), 0)}\u00a0ms"
        for at, phase in observed.phases
    )
    return tag("p", "KubeVirt's phases: ", " → ".join(words), class_="note")


def _zoom_legend() -> Markup:
    keys = (
        ("lostkey", "a lost probe"),
        ("silencekey", "silence between two answers"),
        ("blackoutkey", "the guest's own pause"),
    )
    return tag(
        "ul", *(tag("li", tag("i", "", class_=key), words) for key, words in keys), class_="legend"
    )


def _tables(observed: Observed) -> Markup:
    """Places across, moments down; what is new since the moment before is marked."""
    others = [name for name in observed.nodes if name not in (observed.source, observed.target)]
    places = {observed.source: "source", observed.target: "target"}
    places |= dict.fromkeys(others, "another node") | {names.TOR: "top of rack"}
    header = tag(
        "tr", tag("th", "moment"), *(tag("th", f"{p} · {role}") for p, role in places.items())
    )
    zero = zero_ns(observed)
    rows, previous = [], None
    for moment, words in MOMENTS.items():
        tables = next((one for one in observed.tables if one.moment == moment), None)
        when = (
            ""
            if tables is None or zero is None
            else f"{signed(clock.ms(tables.t_ns - zero), 1)}\u00a0ms"
        )
        cells = (tag("td", _cell(place, tables, previous)) for place in places)
        rows.append(tag("tr", tag("th", words, tag("div", when, class_="soft")), *cells))
        previous = tables or previous
    table = tag("table", tag("thead", header), tag("tbody", *rows), class_="routes")
    return tag("div", table, class_="scroll")


def _cell(place: str, tables: Tables | None, previous: Tables | None) -> Markup:
    if tables is None or place not in tables.routes:
        return tag("span", MISSING, class_="note")
    now = [route_words(route) for route in tables.routes[place]]
    before = (
        None if previous is None else [route_words(one) for one in previous.routes.get(place, ())]
    )
    lines = [
        tag("code", words, class_="route" if before is None or words in before else "route fresh")
        for words in now
    ]
    lines += [tag("code", words, class_="route gone") for words in before or () if words not in now]
    return join(lines) if lines else tag("span", "no route", class_="note")


def route_words(route: Route) -> str:
    """A route as `ip route` would say it."""
    kind = "blackhole " if route.type is RouteType.BLACKHOLE else ""
    hop = f" via {route.gateway}" if route.gateway else ""
    dev = f" dev {route.ifname}" if route.ifname and not (hop or kind) else ""
    known = {int(proto): proto.name.lower() for proto in RouteProto}
    proto = known.get(int(route.proto), str(int(route.proto)))
    metric = f" metric {route.priority}" if route.priority else ""
    dst = str(route.dst).removesuffix(f"/{route.dst.max_prefixlen}")
    dst = dst if route.dst.prefixlen else "default"
    return f"{kind}{dst}{hop}{dev}{metric} proto {proto}"


def _numbers(row: Row) -> Markup:
    rows = (
        tag("tr", tag("td", what), tag("td", value, class_="value"), tag("td", meaning))
        for what, value, meaning in _figures_of(row)
    )
    header = tag("tr", *(tag("th", one) for one in ("what", "measured", "what it means")))
    return tag("div", tag("table", tag("thead", header), tag("tbody", *rows)), class_="scroll")


def _of_qemu(row: Row) -> list[tuple[str, str, str]]:
    """What QEMU itself says, of a guest that is one."""
    if row.qemu_total_ms is None:
        return []
    stopped = amount(row.qemu_stopped_ms, "ms")
    said = f"{amount(row.qemu_downtime_ms, 'ms')} of {amount(row.qemu_total_ms, 'ms')}"
    return [
        ("QEMU stopped", stopped, "From STOP to RESUME; the rest of the pause is TCG's waking."),
        ("QEMU's downtime", said, "By query-migrate: the last phase, and the whole migration."),
    ]


def _figures_of(row: Row) -> list[tuple[str, str, str]]:
    metric = f"{_or_missing(row.metric_elevated)} → {_or_missing(row.metric_final)}"
    return [
        (
            "guest's own pause",
            amount(row.guest_blackout_ms, "ms"),
            "How long the guest ran nowhere: QEMU's part, which no network can shorten.",
        ),
        *_of_qemu(row),
        (
            "network downtime",
            amount(row.network_downtime_ms, "ms"),
            "The worst silence any prober saw, without that pause: what the network added.",
        ),
        ("sign", row.sign or MISSING, "By what the guest was first heard on its new node."),
        (
            "sign → local route",
            amount(row.sign_to_local_route_ms, "ms", 2),
            "Until the target's kernel had the raised route.",
        ),
        (
            "sign → ToR",
            amount(row.sign_to_tor_fib_ms, "ms", 2),
            "Until the top-of-rack router's kernel sent to the target: BGP's whole way.",
        ),
        (
            "longest wait of TCP",
            amount(row.tcp_longest_gap_ms, "ms") if row.tcp_lines else MISSING,
            "Between two echoed lines; TCP's own retransmission timer is part of it.",
        ),
        (
            "probes lost",
            f"{row.probes_lost:,} of {row.probes_sent:,}" if row.probes_sent else MISSING,
            "One a millisecond from each place; during the guest's pause they must be lost.",
        ),
        (
            "route's metric",
            metric,
            "Raised at the sign, normal again afterwards: the smaller wins.",
        ),
        (
            "raised for",
            amount(row.reverted_after_s, "s"),
            "The convergence time, for which the raised route stays.",
        ),
        (
            "ADD waited for policy",
            amount(row.policy_wait_ms, "ms"),
            "The target pod was not reported ready before its rules were in the kernel.",
        ),
        *_prober_figures(row),
    ]


def _or_missing(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _prober_figures(row: Row) -> list[tuple[str, str, str]]:
    return [
        (
            prober_name(name),
            amount(detail.get("network_downtime_ms"), "ms"),
            f"Its own network downtime; {detail.get('lost')} of {detail.get('sent')} probes lost,"
            f" median round trip {detail.get('rtt_p50_ms')} ms.",
        )
        for name, detail in row.probers.items()
    ]


def _moments(observed: Observed) -> Markup:
    lines = timeline(observed).splitlines()
    kept = lines[:TIMELINE_LINES]
    if len(lines) > len(kept):
        kept.append(f"… and {len(lines) - len(kept)} more")
    text = join(join((line, "\n")) for line in kept)
    return tag("details", tag("summary", "Every moment, as text"), tag("pre", text))
