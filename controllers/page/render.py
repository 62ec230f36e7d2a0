"""A sheet as HTML and as JSON. Pure; every text passes through `svg.tag`, which escapes it.

The HTML has no style, script or address of anybody else's in it, and works without a script: then
the browser reloads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from controllers.page.sheet import FIRST, Age, Cell, Fact, Link, Plain, Sheet, Table
from libtortie.model.times import rfc3339
from libtortie.svg import Markup, join, tag

PLACES = (
    ("/", "Overview"),
    ("/vms", "VMs"),
    ("/migrations", "Migrations"),
    ("/ipam", "IPAM"),
    ("/problems", "Problems"),
)
NOTHING = "-"


def document(sheet: Sheet) -> dict[str, Any]:
    """For programs."""
    return {
        "title": sheet.title,
        "read": {one.name: {"at": _time(one.at), "trouble": one.trouble} for one in sheet.ages},
        "notes": list(sheet.notes),
        **{one.key: _bare(one.value) for one in sheet.facts},
        **{one.key: _table_document(one) for one in sheet.tables},
    }


def _table_document(table: Table) -> dict[str, Any]:
    keys = [key for key, _ in table.columns]
    return {
        "total": table.total,
        "page": table.part.number,
        "pages": table.pages,
        "items": [
            {key: _bare(cell) for key, cell in zip(keys, row, strict=True)} for row in table.rows
        ],
    }


def _bare(cell: Cell) -> Any:
    match cell:
        case tuple():
            return [_bare(one) for one in cell]
        case Link(text, _):
            return text
        case datetime():
            return _time(cell)
        case _:
            return cell


def _time(at: datetime | None) -> str | None:
    """To the millisecond where there is a fraction."""
    if at is None:
        return None
    if not at.microsecond:
        return rfc3339(at)
    return f"{rfc3339(at)[:-1]}.{at.microsecond // 1000:03d}Z"


def html(sheet: Sheet, path: str) -> str:
    """For people."""
    again = tag("meta", http_equiv="refresh", content=sheet.refresh)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{sheet.title} · Tortie"),
        tag("link", rel="stylesheet", href="/page.css"),
        tag("script", src="/page.js", defer="defer"),
        tag("noscript", again),
    )
    body = tag(
        "body",
        _header(path),
        _search(sheet, path),
        tag("p", id="away", class_="alarm", hidden="hidden"),
        _main(sheet),
    )
    page = tag("html", head, body, lang="en", data_refresh=sheet.refresh)
    return f"<!DOCTYPE html>\n{page}\n"


def _header(path: str) -> Markup:
    here = "/" + path.strip("/").partition("/")[0]
    links = (
        tag("a", name, href=to, aria_current="page" if to == here else None) for to, name in PLACES
    )
    return tag("header", tag("b", "Tortie"), tag("nav", *links))


def _search(sheet: Sheet, path: str) -> Markup:
    if sheet.search is None:
        return Markup("")
    field = tag(
        "input",
        type="search",
        name="q",
        value=sheet.search,
        placeholder="namespace, name, node or address",
        aria_label="search",
    )
    return tag("form", field, tag("button", "Search"), action=path, method="get")


def _main(sheet: Sheet) -> Markup:
    parts: list[object] = [tag("h1", sheet.title), *map(_alarm, sheet.ages)]
    parts += [tag("p", note, class_="note") for note in sheet.notes]
    if sheet.facts:
        parts.append(tag("dl", *(_fact(one) for one in sheet.facts)))
    if sheet.picture is not None:
        parts.append(tag("div", sheet.picture, class_="picture"))
    parts += map(_table, sheet.tables)
    parts.append(_footer(sheet.ages))
    return tag("main", *parts)


def _alarm(age: Age) -> Markup:
    if not age.trouble:
        return Markup("")
    if age.at is None:
        if age.trouble == FIRST:
            return tag("p", f"{age.name}: {FIRST}", class_="note")
        text = f"{age.name}: nothing is known yet: {age.trouble}"
    else:
        text = f"{age.name}: this is of {_time(age.at)}: {age.trouble}"
    return tag("p", text, class_="alarm")


def _footer(ages: Iterable[Age]) -> Markup:
    """Of when all of it is."""
    known = [f"{one.name} {_time(one.at)}" for one in ages if one.at is not None]
    return tag("footer", f"as of: {', '.join(known)}" if known else "")


def _fact(fact: Fact) -> Markup:
    return join((tag("dt", fact.label), tag("dd", _shown(fact.value), id=fact.key)))


def _table(table: Table) -> Markup:
    heading = tag("h2", f"{table.title} ({table.total:,})", id=table.key)
    if not table.rows:
        return join((heading, tag("p", "none", class_="note"), _pager(table)))
    head = tag("tr", *(tag("th", name, scope="col") for _, name in table.columns))
    rows = (
        tag("tr", *(tag("td", _shown(cell), class_=_kind(cell)) for cell in row))
        for row in table.rows
    )
    return join((heading, tag("table", tag("thead", head), tag("tbody", *rows)), _pager(table)))


def _kind(cell: Cell) -> str | None:
    return "number" if isinstance(cell, int | float) and not isinstance(cell, bool) else None


def _pager(table: Table) -> Markup:
    if table.pager is None or (table.pages == 1 and table.part.number == 1):
        return Markup("")
    number, last = table.part.number, table.pages
    steps: Mapping[str, int] = {
        "first": 1,
        "previous": min(number - 1, last),
        "next": number + 1,
        "last": last,
    }
    links = (
        tag("a", word, href=table.pager(to))
        for word, to in steps.items()
        if to != number and 1 <= to <= last
    )
    return tag("p", f"page {number} of {last} ", *_spaced(links), class_="pager")


def _spaced(links: Iterable[Markup]) -> Iterable[object]:
    for link in links:
        yield link
        yield " "


def _shown(cell: Cell) -> object:
    if isinstance(cell, tuple):
        return join(tag("div", _one(one)) for one in cell) if cell else NOTHING
    return _one(cell)


def _one(value: Plain) -> object:
    match value:
        case None | "":
            return NOTHING
        case Link(text, to):
            return tag("a", text, href=to)
        case bool():
            return "yes" if value else "no"
        case datetime():
            return _time(value)
        case _:
            return value
