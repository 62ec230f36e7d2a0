"""report.html: a demo's story on one page that needs nothing but itself.

Pure: values in, text out. Every value passes through `svg.tag`, which escapes it; the page also
forbids itself to load or run anything (Content-Security-Policy). What was not measured says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from typing import Any

from lab import charts
from lab.charts import Palette
from lab.html_migration import MISSING, amount, migration_section
from lab.report import Act, Check, Observed, Row
from libtortie.svg import Markup, join, tag

STYLE = (files("lab") / "report.css").read_text()
CLUSTER = "The cluster"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the page tells. `migrations` pairs what was observed with its row."""

    ok: bool
    started: str
    convergence: str
    checks: Sequence[Check]
    migrations: Sequence[tuple[Observed, Row]]
    acts: Sequence[Act]
    nodes: Sequence[str]
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    durations: Mapping[str, float] = field(default_factory=dict)


def render(page: Page) -> str:
    """The whole file."""
    palette = Palette(page.nodes)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Tortie: one VM, one address"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        _title(page),
        _verdict(page),
        _figures(page),
        _promises(page.checks),
        _story(page, palette),
        *(migration_section(one, row, number, palette) for number, (one, row) in _numbered(page)),
        _machine(page),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _numbered(page: Page) -> Iterable[tuple[int, tuple[Observed, Row]]]:
    return enumerate(page.migrations, 1)


def _title(page: Page) -> Markup:
    address = next((act.address for act in page.acts if act.address), "")
    about = f"A VM on the move keeps {address}" if address else "A VM on the move"
    when = f"{_day(page.started)} · three nodes, a top-of-rack router and a client behind it"
    return tag(
        "header",
        LOGO,
        tag("div", tag("h1", about), tag("div", when, class_="soft")),
    )


def _day(moment: str) -> str:
    """An ISO time as people write it; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(moment):%-d %B %Y, %H:%M} UTC"
    except ValueError:
        return moment


def _verdict(page: Page) -> Markup:
    kept = sum(1 for check in page.checks if check.ok)
    broken = [check for check in page.checks if not check.ok]
    if page.ok:
        words = f"Every promise was kept: {kept} of {len(page.checks)}."
        more = "One address through every act; TCP connections survived every live migration."
    else:
        words = f"{len(broken)} of {len(page.checks)} promises broken."
        more = "; ".join(check.name for check in broken[:3]) or "The demo did not get to its end."
    class_ = "verdict kept" if page.ok else "verdict broken"
    return tag("div", words, tag("small", more), class_=class_)


def _worst(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None


def _figures(page: Page) -> Markup:
    rows = [one for _, row in page.migrations for one in (row, row.ipv6) if one is not None]
    addresses = {act.address for act in page.acts if act.address}
    lines = max((row.tcp_lines for row in rows), default=0)
    tcp = f"{lines:,}" if rows and all(row.tcp_survived for row in rows) else "broken"
    address = next(iter(addresses)) if len(addresses) == 1 else f"{len(addresses)} addresses"
    figures = (
        (address, "the VM's address, from its first act to its last"),
        (
            amount(_worst(row.network_downtime_ms for row in rows), "ms"),
            "the network's own downtime, worst of all migrations and probers",
        ),
        (
            amount(_worst(row.sign_to_tor_fib_ms for row in rows), "ms"),
            "from the VM's first sign to the ToR's kernel, worst",
        ),
        (
            tcp if rows else MISSING,
            "TCP lines echoed in order on one connection through all migrations",
        ),
    )
    return tag(
        "div",
        *(
            tag("div", tag("b", value), tag("span", what), class_="figure")
            for value, what in figures
        ),
        class_="figures",
    )


def _promises(checks: Sequence[Check]) -> Markup:
    """The checks, each migration's together."""
    groups: dict[str, list[tuple[str, Check]]] = {}
    for check in checks:
        subject, name = _parted(check.name)
        groups.setdefault(subject, []).append((name, check))
    rest = groups.pop(CLUSTER, None)
    if rest is not None:
        groups[CLUSTER] = rest
    cards = (
        tag("div", tag("h3", subject), _checklist(items), class_="card")
        for subject, items in groups.items()
    )
    return join((tag("h2", "Promises"), tag("div", *cards, class_="promises")))


def _parted(name: str) -> tuple[str, str]:
    subject, colon, rest = name.partition(": ")
    return (subject, rest) if colon else (CLUSTER, name)


def _checklist(items: Iterable[tuple[str, Check]]) -> Markup:
    lines = (
        tag("li", name, tag("small", check.detail), class_="kept" if check.ok else "broken")
        for name, check in items
    )
    return tag("ul", *lines, class_="checks")


def _story(page: Page, palette: Palette) -> Markup:
    chart = charts.story_chart(page.acts, palette)
    if chart is None:
        return tag("section", tag("h2", "The story of the VM"), tag("p", MISSING, class_="note"))
    header = tag(
        "tr", *(tag("th", one) for one in ("", "act", "node", "address", "took", "what was seen"))
    )
    rows = (
        tag(
            "tr",
            tag("td", number if act.ok else f"{number} broken"),
            tag("td", act.act),
            tag("td", _chip(act.node, palette) if act.node else ""),
            tag("td", act.address, class_="mono address"),
            tag("td", f"{act.seconds:.1f}\u00a0s", class_="value"),
            tag("td", act.detail, class_="detail"),
            class_=None if act.ok else "broken",
        )
        for number, act in enumerate(page.acts, 1)
    )
    table = tag("table", tag("thead", header), tag("tbody", *rows))
    return tag(
        "section",
        tag("h2", "The story of the VM"),
        tag(
            "p",
            "Each stop is an act, each line a node. The band below is the VM's address.",
            class_="note",
        ),
        tag("div", chart, class_="picture"),
        tag("div", table, class_="scroll"),
    )


def _chip(node: str, palette: Palette) -> Markup:
    return tag("span", node, class_=f"chip {palette.of(node)}")


def _machine(page: Page) -> Markup:
    facts = {**page.machine, **page.versions, "convergence time": page.convergence}
    rows = (
        tag("tr", tag("td", name), tag("td", value, class_="mono")) for name, value in facts.items()
    )
    took = (
        tag("tr", tag("td", what), tag("td", f"{spent:.1f}\u00a0s", class_="value"))
        for what, spent in page.durations.items()
    )
    cards = (
        tag(
            "div",
            tag("h3", "Machine and versions"),
            tag("table", tag("tbody", *rows)),
            class_="card",
        ),
        tag("div", tag("h3", "How long it took"), tag("table", tag("tbody", *took)), class_="card"),
    )
    words = (
        "All times are of one clock (CLOCK_MONOTONIC): the namespaces share one kernel. Frames"
        " and answers carry the kernel's time stamp, routes the moment the kernel told of them."
    )
    return tag(
        "section",
        tag("h2", "Where the numbers come from"),
        tag("p", words, class_="note"),
        tag("div", *cards, class_="promises"),
    )


LOGO = tag(
    "svg",
    tag("title", "Tortie"),
    tag("path", d="M10 6 24 18H40L54 6 58 34C58 50 46 60 32 60S6 50 6 34Z", fill="#f4ead9"),
    tag("path", d="M10 6 24 18H32V36C24 40 14 38 6.400 30Z", fill="#d97a1f"),
    tag("path", d="M54 6 40 18H32V26C38 34 50 34 57.600 31Z", fill="#2b2622"),
    tag(
        "path",
        d="M8 42C14 38 22 42 24 50 25 54 24 58 23.500 58.600 15 56 9.500 50 8 42Z",
        fill="#2b2622",
    ),
    tag("circle", cx=21, cy=35, r=4.2, fill="#7fae3a"),
    tag("circle", cx=43, cy=35, r=4.2, fill="#7fae3a"),
    tag("circle", cx=21, cy=35, r=1.9, fill="#1c1815"),
    tag("circle", cx=43, cy=35, r=1.9, fill="#1c1815"),
    tag("path", d="M29 44H35L32 47.500Z", fill="#c9675f"),
    tag(
        "path",
        d="M32 47.500V50M32 50C30 53 27 53 26 51.500M32 50C34 53 37 53 38 51.500",
        fill="none",
        stroke="#8a5a4a",
        stroke_width=1.4,
    ),
    viewBox="0 0 64 64",
    xmlns="http://www.w3.org/2000/svg",
    role="img",
)
