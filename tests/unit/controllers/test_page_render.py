"""A sheet as HTML and JSON: what strangers wrote is text in both, whatever it looks like."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from controllers.page.machines import Instance, Machine, vm_sheet
from controllers.page.moves import Move, move_sheet
from controllers.page.past import Past, Told
from controllers.page.render import document, html
from controllers.page.sheet import Age, Fact, Link, Part, Sheet, Table, migration_link, table_of
from libtortie.timeline import Moment

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></main><script src=//evil.example/x.js>",
    "javascript:alert(1)",
    "//evil.example",
    "../../..//evil.example",
    "a\u202egnp.exe\u0000\u001b[31m",
    "&lt;script&gt;",
    "\ud800 half a character",
)
OUR_TAGS = {
    "html", "head", "meta", "title", "link", "script", "noscript", "body", "header", "b", "nav",
    "a", "form", "input", "button", "p", "main", "h1", "h2", "dl", "dt", "dd", "div", "table",
    "thead", "tbody", "tr", "th", "td", "footer", "svg", "text", "line", "circle",
}  # fmt: skip
LOADS = {"src", "href", "action", "srcset", "data", "formaction", "poster", "xlink:href"}
OUR_FILES = {"/page.js", "/page.css"}


class Markup(HTMLParser):
    """What a browser would make of it: tags, and what they name or do."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: list[tuple[str, str]] = []
        self.handlers: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.names += [(tag, value or "") for name, value in attrs if name in LOADS]

    def handle_data(self, data: str) -> None:
        self.said += data


def sheets(text: str) -> list[Sheet]:
    """Pages with a stranger's text wherever there is one."""
    instance = Instance(text, text, text, text, text, (text, text), text)
    moment = Moment(NOON, text, text, text, text)
    move = Move(text, text, text, text, text, True, text, text, NOON, None, (moment, moment), text)
    past = Past((Told(NOON, text, text, text, text),))
    plain = Sheet(
        text,
        (Fact("fact", "fact", text), Fact("many", "many", (text, Link(text, "/")))),
        (table_of("rows", text, (("a", "A"),), [text], lambda one: (one,)),),
        notes=(text,),
        ages=(Age(text, NOON, text), Age(text, None, text)),
        search=text,
    )
    return [
        plain,
        vm_sheet(Machine(text, text, instance, None), [move], past, Part()),
        move_sheet(move, NOON, Part()),
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_stranger_wrote_is_neither_markup_nor_script(text: str) -> None:
    for sheet in sheets(text):
        page = html(sheet, f"/vms/{text}")
        found = Markup(page.encode(errors="replace").decode())
        assert found.tags <= OUR_TAGS
        assert found.handlers == []
        for tag, name in found.names:
            assert name in OUR_FILES or tag in ("a", "form")
            assert name.startswith("/")
            assert not name.startswith("//")


def test_it_is_shown_as_it_is() -> None:
    text = "<script>\"&amp;'</script>"
    for sheet in sheets(text):
        assert Markup(html(sheet, "/")).said.count(text) > 3


def test_json_has_what_html_has_under_keys_that_stay() -> None:
    move = Move("shop", "m", "u", "web", "Running", True, "n1", "n2", NOON, None, ())
    told = document(move_sheet(move, NOON, Part()))
    assert set(told) == {
        *("title", "read", "notes", "vm", "phase", "running", "source", "target", "began"),
        *("ended", "seconds", "downtime_ms", "sign_to_route_ms", "reason", "uid", "moments"),
    }
    assert told["began"] == "2026-01-01T12:00:00Z"
    assert told["moments"] == {"total": 0, "page": 1, "pages": 1, "items": []}
    machine = Machine("shop", "web", None, None)
    told = document(vm_sheet(machine, [move], Past(), Part()))
    assert set(told) == {
        *("title", "read", "notes", "phase", "node", "addresses", "mac", "uid", "handle"),
        *("owners", "migrations", "history"),
    }


def test_cells_of_each_kind() -> None:
    late = NOON + timedelta(microseconds=1500)
    row = (1, 2.5, "x", None, True, late, Link("web", "/vms/shop/web"), ("a", "b"), ())
    columns = tuple((f"k{number}", f"K{number}") for number in range(len(row)))
    sheet = Sheet("t", tables=(table_of("rows", "R", columns, [row], lambda one: one),))
    (item,) = document(sheet)["rows"]["items"]
    assert list(item.values()) == [
        *(1, 2.5, "x", None, True),
        *("2026-01-01T12:00:00.001Z", "web", ["a", "b"], []),
    ]
    shown = html(sheet, "/")
    assert '<td class="number">1</td>' in shown
    assert "<td>yes</td>" in shown
    assert '<td><a href="/vms/shop/web">web</a></td>' in shown
    assert "<td><div>a</div><div>b</div></td><td>-</td>" in shown


def table(total: int, number: int) -> Table:
    return table_of(
        "rows",
        "Rows",
        (("n", "N"),),
        range(total),
        lambda n: (n,),
        part=Part(number, 10),
        pager=lambda to: f"/vms?page={to}",
    )


@pytest.mark.parametrize(
    ("total", "number", "links"),
    [
        (0, 1, []),
        (10, 1, []),
        (11, 1, [2, 2]),
        (35, 2, [1, 1, 3, 4]),
        (35, 4, [1, 3]),
        (35, 9, [1, 4, 4]),
    ],
)
def test_a_long_list_has_links_to_its_other_parts(
    total: int, number: int, links: list[int]
) -> None:
    sheet = Sheet("t", tables=(table(total, number),))
    names = [name for tag, name in Markup(html(sheet, "/")).names if "page=" in name]
    assert names == [f"/vms?page={to}" for to in links]
    shown = document(sheet)["rows"]["items"]
    assert [one["n"] for one in shown] == [*range(total)][(number - 1) * 10 : number * 10]


def test_without_a_script_the_browser_reloads_it() -> None:
    page = html(Sheet("t", refresh=7), "/")
    assert '<noscript><meta http-equiv="refresh" content="7"/></noscript>' in page
    assert 'data-refresh="7"' in page


def test_the_place_where_one_is_is_marked() -> None:
    for path, name in (("/", "Overview"), ("/vms/shop/web", "VMs"), ("/ipam", "IPAM")):
        (marked,) = [
            part for part in html(Sheet("t"), path).split("<a ") if 'aria-current="page"' in part
        ]
        assert f">{name}</a>" in marked


def test_a_page_of_which_nothing_is_known_is_no_page() -> None:
    blind = Sheet("t", ages=(Age("vms", None, "away"), Age("ipam", None, "away")))
    assert blind.status == 503
    assert replace(blind, ages=(*blind.ages, Age("x", NOON))).status == 200
    assert replace(blind, wrong=404).status == 404


def test_names_in_links_are_quoted() -> None:
    assert migration_link("a/b", "c?d#e").to == "/migrations/a%2Fb/c%3Fd%23e"
