"""RFC 7386 and RFC 6902, by their own examples and by what goes wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from libtortie.patches import PatchError, PatchMalformed, json_patch, merge_patch


# The examples of RFC 7386, appendix A.
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
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == result
    assert (target, patch) == before


def op(verb: str, path: str, origin: str = "", **more: Any) -> dict[str, Any]:
    return {"op": verb, "path": path, **({"from": origin} if origin else {}), **more}


# Most are the examples of RFC 6902, appendix A.
@pytest.mark.parametrize(
    ("target", "operation", "result"),
    [
        ({"foo": "bar"}, op("add", "/baz", value="qux"), {"foo": "bar", "baz": "qux"}),
        ({"foo": ["a", "b"]}, op("add", "/foo/1", value="x"), {"foo": ["a", "x", "b"]}),
        ({"foo": ["a"]}, op("add", "/foo/-", value=["b"]), {"foo": ["a", ["b"]]}),
        ({"foo": ["a"]}, op("add", "/foo/1", value="b"), {"foo": ["a", "b"]}),
        ({"a": 1}, op("add", "/a", value=None), {"a": None}),
        ({"a": 1}, op("add", "", value=7), 7),
        ({"a": 1, "b": 2}, op("remove", "/a"), {"b": 2}),
        ({"foo": ["a", "b", "c"]}, op("remove", "/foo/1"), {"foo": ["a", "c"]}),
        ({"foo": ["a", "b"]}, op("remove", "/foo/0"), {"foo": ["b"]}),
        ({"": 1}, op("remove", "/"), {}),
        ({"a/b": 1, "m~n": 2}, op("remove", "/a~1b"), {"m~n": 2}),
        ({"m~n": 2}, op("replace", "/m~0n", value=3), {"m~n": 3}),
        ({"a": 1}, op("replace", "/a", value=[1]), {"a": [1]}),
        ({"a": [1, 2]}, op("replace", "/a/1", value=3), {"a": [1, 3]}),
        ({"a": 1}, op("replace", "", value=[]), []),
        ({"a": 1}, op("move", "/b", "/a"), {"b": 1}),
        ({"a": 1}, op("move", "/a", "/a"), {"a": 1}),
        ({"a": {"x": 1}, "b": {}}, op("move", "/b/y", "/a/x"), {"a": {}, "b": {"y": 1}}),
        ({"a": [1, 2, 3]}, op("move", "/a/2", "/a/0"), {"a": [2, 3, 1]}),
        ({"a": [1]}, op("copy", "/b", "/a"), {"a": [1], "b": [1]}),
        ({"a": {"c": 1}}, op("copy", "/a/b", "/a"), {"a": {"c": 1, "b": {"c": 1}}}),
        ({"/": 9, "~1": 10}, op("test", "/~01", value=10), {"/": 9, "~1": 10}),
        ({"a": None}, op("test", "/a", value=None), {"a": None}),
        ({"a": 1}, op("test", "/a", value=1.0), {"a": 1}),
        ({"a": [{"b": True}]}, op("test", "", value={"a": [{"b": True}]}), {"a": [{"b": True}]}),
    ],
)
def test_json_patch(target: Any, operation: Any, result: Any) -> None:
    before = copy.deepcopy((target, operation))
    assert json_patch(target, [operation]) == result
    assert (target, operation) == before


def test_a_patch_is_not_changed_by_its_later_operations() -> None:
    patch = [op("add", "/b", value={}), op("add", "/b/c", value=1)]
    before = copy.deepcopy(patch)
    assert json_patch({}, patch) == {"b": {"c": 1}}
    assert patch == before


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (op("add", "/x/y", value=1), "there is no 'x'"),
        (op("add", "/text/x", value=1), "nothing can be put into 't'"),
        (op("add", "/list/2", value=1), "the list has no place 2"),
        (op("add", f"/list/{'9' * 5000}", value=1), "the list has no place 9"),
        (op("add", "/list/01", value=1), "is not a place in a list"),
        (op("replace", "/x", value=1), "there is no 'x'"),
        (op("replace", "/text/x", value=1), "there is no 'x'"),
        (op("replace", "/list/-", value=1), "is not a place in a list"),
        (op("remove", "/x"), "there is no 'x'"),
        (op("remove", "/list/1"), "the list has no place 1"),
        (op("remove", "/list/01"), "is not a place in a list"),
        (op("remove", "/list/-"), "is not a place in a list"),
        (op("remove", "/list/-1"), "is not a place in a list"),
        (op("remove", "/list/²"), "is not a place in a list"),
        (op("remove", "/none/0"), "the list has no place 0"),
        (op("remove", ""), "the whole object cannot be removed"),
        (op("move", "/map/b", "/map"), "cannot move into itself"),
        (op("test", "/x", value=None), "there is no 'x'"),
        (op("test", "/text", value="u"), "the value is 't'"),
        (op("test", "/list/0", value="1"), "the value is 1"),
        (op("test", "/list/0", value=True), "the value is 1"),
        (op("test", "/map", value={"b": True}), "the value is {'b': 1}"),
        (op("test", "/map", value={"b": 1, "c": 1}), "the value is {'b': 1}"),
        (op("test", "/list", value=[True]), "the value is [1]"),
        (op("test", "/list", value=[1, 1]), "the value is [1]"),
    ],
)
def test_operations_that_fail(operation: Any, words: str) -> None:
    target = {"list": [1], "none": [], "text": "t", "map": {"b": 1}}
    before = copy.deepcopy(target)
    first = op("add", "/list", value=[1])
    with pytest.raises(PatchError) as caught:
        json_patch(target, [first, operation])
    assert type(caught.value) is PatchError
    assert str(caught.value).startswith(f"operation 2 ({operation['op']} {operation['path']}): ")
    assert words in str(caught.value)
    assert target == before


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"a": 2}, "a JSON patch is a list of operations"),
        ([7], "operation 1: is not an object"),
        ([op("add", "/a", value=1), op("grow", "")], "operation 2 (grow ): op is none of add, "),
        ([op("add", "b", value=1)], "operation 1 (add b): 'b' is not a JSON pointer"),
        ([{"op": "add", "value": 1}], "None is not a JSON pointer: it begins with /"),
        ([op("add", "/b")], "value is missing"),
        ([op("replace", "/b")], "value is missing"),
        ([op("test", "/b")], "value is missing"),
        ([op("move", "/b")], "None is not a JSON pointer"),
        ([op("copy", "/b", "a")], "'a' is not a JSON pointer"),
    ],
)
def test_patches_that_are_none(patch: Any, words: str) -> None:
    target = {"a": 1}
    with pytest.raises(PatchMalformed) as caught:
        json_patch(target, patch)
    assert words in str(caught.value)
    assert target == {"a": 1}
