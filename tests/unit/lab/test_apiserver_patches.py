"""JSON patches' errors, strategic merge patches and selectors, on plain values."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lab.apiserver.errors import ApiError
from lab.apiserver.patch import json_patch
from lab.apiserver.selectors import field_test, label_test
from lab.apiserver.strategic import strategic_merge


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ([{"op": "remove", "path": "/b"}], 422),
        ([{"op": "test", "path": "/a", "value": True}], 422),
        ([{"op": "grow", "path": "/a"}], 400),
        ({"a": 2}, 400),
    ],
)
def test_json_patch_failures(patch: Any, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        json_patch({"a": 1}, patch)
    assert caught.value.code == code


# --- strategic merge ---------------------------------------------------------------------------

READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}, "a": None}, {"b": {"c": 2, "d": 3}}),
        # keyed lists
        (
            {"conditions": [READY, {"type": "X", "status": "1"}]},
            {"conditions": [{"type": "Ready", "status": "False"}]},
            {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "status": "1"}]},
        ),
        (
            {"conditions": [READY]},
            {"conditions": [{"type": "Y"}]},
            {"conditions": [READY, {"type": "Y"}]},
        ),
        (
            {"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}]},
            {"containers": [{"name": "c", "env": [{"name": "B", "value": "2"}]}]},
            {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    }
                ]
            },
        ),
        (
            {"conditions": [READY, {"type": "X"}]},
            {"conditions": [{"type": "Ready", "$patch": "delete"}]},
            {"conditions": [{"type": "X"}]},
        ),
        (
            {"conditions": [READY, {"type": "X"}]},
            {"conditions": [{"type": "Z"}, {"$patch": "replace"}]},
            {"conditions": [{"type": "Z"}]},
        ),
        (
            {"ownerReferences": [{"uid": "1", "name": "a"}]},
            {"ownerReferences": [{"uid": "1", "name": "b"}, {"uid": "2", "name": "a"}]},
            {"ownerReferences": [{"uid": "1", "name": "b"}, {"uid": "2", "name": "a"}]},
        ),
        (
            {"podIPs": [{"ip": "1"}]},
            {"podIPs": [{"ip": "2"}]},
            {"podIPs": [{"ip": "1"}, {"ip": "2"}]},
        ),
        # sets and atomic lists
        ({"finalizers": ["a", "b"]}, {"finalizers": ["b", "c"]}, {"finalizers": ["a", "b", "c"]}),
        (
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["b"]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        ({"args": ["a"]}, {"args": None}, {}),
        # directives in mappings
        ({"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}, {"m": {"b": 2}}),
        ({"m": {"a": 1}, "n": 1}, {"m": {"$patch": "delete"}}, {"n": 1}),
        ({"m": {"a": 1}}, {"m": {"$patch": "merge", "b": 2}}, {"m": {"a": 1, "b": 2}}),
        (
            {"strategy": {"type": "Rolling", "rollingUpdate": {}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
        ),
        (
            {"conditions": [{"type": "A"}, {"type": "B"}]},
            {
                "$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}],
                "conditions": [{"type": "C"}],
            },
            {"conditions": [{"type": "C"}, {"type": "A"}, {"type": "B"}]},
        ),
        ({}, {"m": {"n": {"$patch": "delete"}}}, {"m": {}}),
        ({"m": 7}, {"m": {"a": None, "b": 1}}, {"m": {"b": 1}}),
    ],
)
def test_strategic_merge(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert strategic_merge(target, patch) == result
    assert (target, patch) == before


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"$patch": "eat"},
        {"$unknown": 1},
        {"$retainKeys": 1},
        {"conditions": [{"status": "True"}]},
        {"conditions": ["Ready"]},
        {"finalizers": [{"a": 1}]},
        {"$deleteFromPrimitiveList/finalizers": "a"},
        {"$setElementOrder/conditions": "a"},
    ],
)
def test_strategic_merge_refuses(patch: Any) -> None:
    with pytest.raises(ApiError) as caught:
        strategic_merge({"conditions": [READY], "finalizers": ["a"]}, patch)
    assert caught.value.code == 400


# --- selectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", "abc"),
        ("app=x", "a"),
        ("app==x", "a"),
        ("app = x ", "a"),
        ("app!=x", "bc"),
        ("app in (x, y)", "ab"),
        ("app notin (x)", "bc"),
        ("app", "ab"),
        ("!app", "c"),
        ("app,tier=front", "b"),
        ("app in (x,y),tier!=front", "a"),
        ("app=", ""),
        ("empty=", "c"),
        ("example.com/role", "c"),
        ("example.com/role in (web)", "c"),
    ],
)
def test_label_selectors(selector: str, selected: str) -> None:
    labels = {
        "a": {"app": "x"},
        "b": {"app": "y", "tier": "front"},
        "c": {"empty": "", "example.com/role": "web"},
    }
    test = label_test(selector)
    assert [n for n, found in labels.items() if test({"metadata": {"labels": found}})] == [
        *selected
    ]


def test_objects_without_labels() -> None:
    assert label_test("!a")({"metadata": {}})
    assert not label_test("a")({"metadata": {"labels": None}})


@pytest.mark.parametrize(
    "selector", ["=", "a=b=c", "a in", "a in (b", "a in b)", ",", "a,", "a b", "a=b c", "-a", "a>1"]
)
def test_bad_label_selectors(selector: str) -> None:
    with pytest.raises(ApiError) as caught:
        label_test(selector)
    assert caught.value.code == 400


def test_field_selectors() -> None:
    body = {"metadata": {"name": "web"}, "spec": {"nodeName": "n1"}, "status": {}}
    fields = ("metadata.name", "spec.nodeName", "status.phase")

    def selects(selector: str) -> bool:
        return field_test(selector, fields)(body)

    assert selects("")
    assert selects("spec.nodeName=n1,metadata.name==web")
    assert not selects("spec.nodeName!=n1")
    assert selects("status.phase=")
    assert selects("status.phase!=Running")
    for bad in ("spec.hostNetwork=true", "spec.nodeName", "a,b"):
        with pytest.raises(ApiError) as caught:
            selects(bad)
        assert caught.value.code == 400
