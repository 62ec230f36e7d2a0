"""RFC 7386 and RFC 6902, by their own examples and by what goes wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from libtortie.errors import InvalidInput
from tortiectl.patches import json_patched, merged


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merges(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merged(target, patch) == result
    assert target == before


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": [1]}], {"a": [1]}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": {"c": 1}}, [{"op": "copy", "from": "/a", "path": "/b"}],
         {"a": {"c": 1}, "b": {"c": 1}}),
        ({"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}], {"m~n": 2}),
        ({"m~n": 2}, [{"op": "replace", "path": "/m~0n", "value": 3}], {"m~n": 3}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": 7}], 7),
    ],
)  # fmt: skip
def test_json_patches(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert json_patched(target, patch) == result
    assert target == before


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({}, "is a list of operations"),
        ([7], "operation 1: is not an object"),
        ([{"op": "add", "path": "/a", "value": 1}, {"op": "go", "path": ""}], "operation 2 (go "),
        ([{"op": "add", "path": "a", "value": 1}], "begins with /"),
        ([{"op": "add", "path": "/a"}], "value is missing"),
        ([{"op": "add", "path": "/list/7", "value": 1}], "the list has no place 7"),
        ([{"op": "add", "path": "/list/01", "value": 1}], "is not a place in a list"),
        ([{"op": "add", "path": "/x/y", "value": 1}], "there is no 'x'"),
        ([{"op": "replace", "path": "/x", "value": 1}], "there is no 'x'"),
        ([{"op": "remove", "path": "/x"}], "there is no 'x'"),
        ([{"op": "remove", "path": ""}], "the whole object cannot be removed"),
        ([{"op": "move", "path": "/x"}], "is not a JSON pointer"),
        ([{"op": "test", "path": "/text", "value": "u"}], "the value is 't'"),
        ([{"op": "add", "path": "/text/x", "value": 1}], "nothing can be put into 't'"),
    ],
)
def test_patches_that_do_not_apply(patch: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        json_patched({"list": [1], "text": "t"}, patch)
    assert words in str(caught.value)
