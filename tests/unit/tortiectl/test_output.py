"""Text as `get` writes it: JSON as Python's own, in pieces of some size."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tortiectl.commands.get import WRITE, gathered
from tortiectl.output import readable_json

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\"\\é"), inner),
    max_leaves=12,
)  # fmt: skip


@given(JSON, st.booleans())
def test_readable_json_is_pythons(body: Any, sort_keys: bool) -> None:
    wanted = json.dumps(body, indent=2, sort_keys=sort_keys, ensure_ascii=False)
    said = readable_json(body, sort_keys=sort_keys)
    assert json.loads(said) == json.loads(wanted)
    if wanted.replace("\n", "").isprintable():
        assert said == wanted
        margin = readable_json(body, sort_keys=sort_keys, margin="  ")
        assert margin == wanted.replace("\n", "\n  ")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    said = readable_json({"a": "\x1b[2J\u202e"})
    assert said == '{\n  "a": "\\u001b[2J\\u202e"\n}'


@given(st.lists(st.text("ab", max_size=5)), st.integers(1, 3))
def test_pieces_are_gathered_and_none_is_lost(pieces: list[str], times: int) -> None:
    many = pieces * times
    assert "\n".join(gathered(many)) == "\n".join(many)


def test_no_text_is_much_longer_than_a_write() -> None:
    texts = list(gathered("x" * 1000 for _ in range(1000)))
    assert len(texts) > 10
    assert max(map(len, texts)) < WRITE + 2000
