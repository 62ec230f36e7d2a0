"""Which page is at which path, and a request's answer: HTML, or JSON for `?format=json`.

A wrong request is told what is wrong with it. Nothing is loaded from anywhere else, and no script
runs that is not ours (Content-Security-Policy).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from urllib.parse import unquote

from controllers.page.pages import Pages
from controllers.page.render import document, html
from controllers.page.sheet import MOST_ROWS, PAGE_ROWS, Part, Sheet
from libtortie.errors import InvalidInput, NotFound
from libtortie.serving import Answer, Asked

HTML, JSON = "text/html; charset=utf-8", "application/json"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "private, no-cache",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HERE = files("controllers.page")
STATIC = {
    "/page.css": ("text/css; charset=utf-8", (_HERE / "page.css").read_bytes()),
    "/page.js": ("text/javascript; charset=utf-8", (_HERE / "page.js").read_bytes()),
}
FORMATS = ("html", "json")
ALWAYS = frozenset({"format", "page", "size"})
MOST_SEARCH = 300
PLAIN = {"": Pages.overview, "migrations": Pages.moves, "problems": Pages.problems}


def answer(pages: Pages, asked: Asked) -> Answer:
    """What a request gets."""
    static = STATIC.get(asked.path)
    if static is not None:
        return _answer(asked, static[1], static[0], 200)
    try:
        sheet = _sheet(pages, asked)
    except NotFound as error:
        sheet = Sheet("No such page", notes=(str(error),), wrong=404)
    except InvalidInput as error:
        sheet = Sheet("A wrong address", notes=(str(error),), wrong=400)
    if asked.query.get("format") == "json":
        body = json.dumps(document(sheet), ensure_ascii=True)
        return _answer(asked, f"{body}\n".encode(), JSON, sheet.status)
    text = html(sheet, asked.path).encode(errors="replace")
    return _answer(asked, text, HTML, sheet.status)


def _sheet(pages: Pages, asked: Asked) -> Sheet:
    query = asked.query
    match [unquote(word) for word in asked.path.removeprefix("/").split("/")]:
        case ["vms", namespace, name]:
            return pages.vm(_part(query), namespace, name)
        case ["migrations", namespace, name]:
            return pages.move(_part(query), namespace, name)
        case ["vms"]:
            return pages.vms(_part(query, "q"), query.get("q", ""))
        case ["ipam"]:
            return pages.ipam(_part(query, "pool"), query.get("pool", ""))
        case [name] if name in PLAIN:
            return PLAIN[name](pages, _part(query))
    raise NotFound(f"there is no page {asked.path}")


def _part(query: Mapping[str, str], *known: str) -> Part:
    """The part of a list that is asked for. Raises `InvalidInput`, also for what is not known."""
    allowed = sorted({*ALWAYS, *known})
    for name, value in query.items():
        if name not in allowed:
            raise InvalidInput(f"{name!r} is not known here: known are {', '.join(allowed)}")
        if len(value) > MOST_SEARCH:
            raise InvalidInput(f"{name} is longer than {MOST_SEARCH} characters")
    if query.get("format", "html") not in FORMATS:
        raise InvalidInput(f"format {query['format']!r}: want {' or '.join(FORMATS)}")
    return Part(
        _number(query, "page", default=1, most=10**9),
        _number(query, "size", default=PAGE_ROWS, most=MOST_ROWS),
    )


def _number(query: Mapping[str, str], name: str, *, default: int, most: int) -> int:
    text = query.get(name, str(default))
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
    if not 1 <= number <= most:
        raise InvalidInput(f"{name} {text!r}: want a number from 1 to {most}")
    return number


def _answer(asked: Asked, body: bytes, kind: str, status: int) -> Answer:
    """With a tag of what is in it; 304 without it for who has it already."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    given = asked.headers.get("if-none-match", "")
    had = {one.strip().removeprefix("W/") for one in given.split(",")}
    if status == 200 and had & {tag, "*"}:
        return Answer(b"", kind, 304, headers)
    return Answer(body, kind, status, headers)
