"""Calico's selector language: grammar, meaning, refusals."""

from __future__ import annotations

import pytest

from libtortie.errors import InvalidInput
from libtortie.model.selectors import DEPTH_MAX, parse

LABELS = {"app": "web", "zone": "a1", "kubernetes.io/os": "linux", "in": "x", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t ",
        "all()",
        "all( )",
        "global()",
        "has(app)",
        "has( kubernetes.io/os )",
        "app == 'web'",
        "app=='web'",
        'app == "web"',
        "app != 'db'",
        "missing != 'x'",
        "app in {'db', 'web'}",
        "app in{'web'}",
        "app not in {'db'}",
        "app notin {'db'}",
        "app not  in {}",
        "missing not in {'x'}",
        "zone contains '1'",
        "zone starts with 'a'",
        "zone starts\twith 'a'",
        "zone ends with '1'",
        "empty == ''",
        "in == 'x'",
        "in in {'x'}",
        "!has(missing)",
        "!!has(app)",
        "! (app == 'db')",
        "app == 'db' || app == 'web'",
        "app == 'web' && zone == 'a1' || missing == 'x'",
        "missing == 'x' && missing == 'y' || app == 'web'",
        "app == 'web' && (zone == 'b' || has(in))",
    ],
)
def test_selects(text: str) -> None:
    assert parse(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "!all()",
        "has(missing)",
        "app == 'db'",
        "app != 'web'",
        "missing == ''",
        "missing in {''}",
        "app in {}",
        "app not in {'web'}",
        "missing contains ''",
        "missing starts with ''",
        "missing ends with ''",
        "app == 'web' && (missing == 'x' || zone == 'b')",
        "!(app == 'web' || has(missing))",
    ],
)
def test_does_not_select(text: str) -> None:
    assert not parse(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "app",
        "app =",
        "app == web",
        "app == 'web",
        "app == 'it's'",
        "== 'web'",
        "app == 'web' &&",
        "app == 'web' & has(app)",
        "(app == 'web'",
        "app == 'web')",
        "app in 'web'",
        "app in {'web',}",
        "app in {'web'",
        "app inside {'web'}",
        "has()",
        "has(a b)",
        "any()",
        "all",
        "app == 'a'\n|| app == 'b'",
        "!",
        f"has({'k' * 513})",
    ],
)
def test_refuses_what_is_no_selector(text: str) -> None:
    with pytest.raises(InvalidInput, match="selector"):
        parse(text)


def test_longest_key_is_allowed() -> None:
    key = "k" * 512
    assert parse(f"has({key})").matches({key: ""})


def test_deep_nesting_is_an_error_and_not_the_end_of_the_process() -> None:
    deepest = "(" * DEPTH_MAX + "all()" + ")" * DEPTH_MAX
    assert parse(deepest).matches({})
    with pytest.raises(InvalidInput, match="nested"):
        parse(f"({deepest})")
    assert parse("!" * 10_000 + "all()").matches({})
