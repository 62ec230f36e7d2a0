"""Lines of JSON are read as they were written, whatever is in them."""

from __future__ import annotations

import json

import pytest

from libtortie.json_lines import objects
from tortiectl.kubevirt.overview import audit_of

ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n"
"""What str.splitlines takes for the end of a line."""


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_with_ends_of_lines_in_it_is_one_value(ascii_only: bool) -> None:
    lines = [{"event": "one", "reason": f"a{end}b"} for end in ENDS] + [{"event": "two"}]
    text = "".join(json.dumps(one, ensure_ascii=ascii_only) + "\n" for one in lines)
    assert list(objects(text)) == lines
    assert list(objects(text.replace("\n", "\r\n"))) == lines


def test_what_is_no_object_is_passed_over() -> None:
    odd = ["", "{", "[]", "1" * 10_000, "[" * 100_000, "null", '"x"', '{"cut": "sho', "\ud800"]
    assert list(objects("\n".join([*odd, '{"good": 1}', *odd]))) == [{"good": 1}]


@pytest.mark.parametrize("event", [[], {}, None, 1, 1.5, True, "unknown"])
@pytest.mark.parametrize("addresses", [["10.65.0.1/32"], None, "x", [{}], {}])
def test_an_odd_line_of_a_log_tells_nothing(event: object, addresses: object) -> None:
    line = json.dumps({"event": event, "addresses": addresses})
    assert list(audit_of(line, ["10.65.0.1"])) == []
