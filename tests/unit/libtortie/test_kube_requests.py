"""Pure request building and answer reading."""

from __future__ import annotations

import json

import pytest

from libtortie import errors
from libtortie.kube import prepare, replies
from libtortie.kube.lines import LineSplitter, decode_line
from libtortie.kube.objects import KubeNode, Pod, VirtualMachineInstance
from libtortie.kube.port import NotServed, Overloaded, PatchType


def test_paths_of_core_and_groups() -> None:
    assert prepare.get(Pod.api, "web", "shop").path == "/api/v1/namespaces/shop/pods/web"
    assert prepare.get(KubeNode.api, "n1").path == "/api/v1/nodes/n1"
    vmi = prepare.get(VirtualMachineInstance.api, "vm", "shop")
    assert vmi.path == "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/vm"
    assert vmi.subject == "virtualmachineinstances.kubevirt.io shop/vm"
    assert prepare.list_(Pod.api).path == "/api/v1/pods"
    assert prepare.list_(Pod.api, "shop").path == "/api/v1/namespaces/shop/pods"


def test_queries_are_encoded_and_hold_only_what_is_set() -> None:
    request = prepare.list_(Pod.api, label_selector="a in (b,c)", limit=5, continuation="x=")
    assert request.url("http://h") == (
        "http://h/api/v1/pods?labelSelector=a+in+%28b%2Cc%29&limit=5&continue=x%3D"
    )
    assert prepare.list_(Pod.api).query == ()
    watch = dict(prepare.watch(Pod.api, resource_version="7", seconds=30).query)
    assert watch == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "30",
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "../nodes"])
def test_a_name_never_becomes_another_path(name: str) -> None:
    with pytest.raises(errors.InvalidInput):
        prepare.get(Pod.api, name, "shop")
    if name:
        with pytest.raises(errors.InvalidInput):
            prepare.get(Pod.api, "web", name)


def test_unusual_names_are_quoted() -> None:
    assert prepare.get(KubeNode.api, "n?1#ü").path == "/api/v1/nodes/n%3F1%23%C3%BC"


def test_namespaced_kinds_need_a_namespace() -> None:
    with pytest.raises(errors.InvalidInput, match="namespace"):
        prepare.get(Pod.api, "web")
    with pytest.raises(errors.InvalidInput, match="namespace"):
        prepare.create(Pod.api, {"metadata": {"name": "web"}})
    with pytest.raises(errors.InvalidInput, match="name"):
        prepare.create(Pod.api, {"metadata": {"namespace": "shop"}})


def test_bodies() -> None:
    made = prepare.create(Pod.api, {"metadata": {"generateName": "w-", "namespace": "s"}})
    assert (made.method, made.path) == ("POST", "/api/v1/namespaces/s/pods")
    assert json.loads(made.body or b"")["kind"] == "Pod"
    gone = prepare.delete(Pod.api, "web", "shop", uid="u1", grace_seconds=0)
    assert json.loads(gone.body or b"") == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u1"},
        "gracePeriodSeconds": 0,
    }
    changed = prepare.patch(
        Pod.api, "web", "shop", {"a": 1}, patch_type=PatchType.STRATEGIC, subresource="status"
    )
    assert changed.path.endswith("/pods/web/status")
    assert changed.content_type == "application/strategic-merge-patch+json"


def test_patch_type_and_body_agree() -> None:
    with pytest.raises(errors.InvalidInput):
        prepare.patch(Pod.api, "web", "shop", [])
    with pytest.raises(errors.InvalidInput):
        prepare.patch(Pod.api, "web", "shop", {}, patch_type=PatchType.JSON)


def test_raw_paths_are_absolute() -> None:
    with pytest.raises(errors.InvalidInput):
        prepare.raw("GET", "@evil.example/")


# --- answers -----------------------------------------------------------------------------------


def status(code: int, reason: str, message: str) -> bytes:
    details = {"name": "b", "kind": "pods"}
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return json.dumps(body | {"details": details}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "creating", "kind"),
    [
        (409, "AlreadyExists", True, errors.AlreadyExists),
        (409, "AlreadyExists", False, errors.AlreadyExists),
        (409, "Conflict", False, errors.Conflict),
        (404, "NotFound", True, errors.NotFound),
        (400, "BadRequest", False, errors.InvalidInput),
        (413, "", False, errors.InvalidInput),
        (408, "", False, errors.Unavailable),
        (504, "Timeout", False, Overloaded),
        (502, "", False, errors.Unavailable),
        (300, "", False, errors.Unavailable),
    ],
)
def test_failures(code: int, reason: str, creating: bool, kind: type[Exception]) -> None:
    body = status(code, reason, "why\nit failed")
    error = replies.failure(code, body, creating=creating, context="get pods a/b at URL")
    assert type(error) is kind
    assert str(error) == f"get pods a/b at URL: HTTP {code}: why it failed"


@pytest.mark.parametrize(
    "body",
    [b"404 page not found\n", b'{"kind":"Status","code":404}', b'{"kind":"Status","details":{}}'],
)
def test_a_kind_that_is_not_served_is_told_from_an_object_that_is_not_there(body: bytes) -> None:
    assert type(replies.failure(404, body, context="c")) is NotServed
    named = b'{"kind":"Status","details":{"name":"b"}}'
    assert type(replies.failure(404, named, context="c")) is errors.NotFound


def test_answers_that_are_no_status() -> None:
    def text(body: bytes) -> str:
        return str(replies.failure(404, body, context="c"))

    assert text(b"404 page not found\n") == "c: HTTP 404: 404 page not found"
    assert text(b"<html>...") == "c: HTTP 404"
    assert text(b"") == "c: HTTP 404"
    assert text(b"\xff\xfe") == "c: HTTP 404: \ufffd\ufffd"
    assert text(b'{"kind":"Status","message":7}') == "c: HTTP 404"
    assert len(text(b"x" * 10000)) < 500


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("", 0.0), ("99999", 300.0), ("Wed, 21", 0.0), ("-1", 0.0)]
)
def test_retry_after(header: str, seconds: float) -> None:
    error = replies.failure(429, b"", retry_after=header, context="c")
    assert isinstance(error, Overloaded)
    assert error.retry_after == seconds


def test_an_unreadable_field_counts_as_absent() -> None:
    body = {
        "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {"networks": [{"name": "default", "pod": {}}, 7], "domain": {"devices": "x"}},
        "status": {"nodeName": 7, "phase": "Running", "activePods": {"u": {}}},
    }
    vmi = replies.decode(VirtualMachineInstance, body, "c")
    assert vmi.status.phase == "Running"
    assert vmi.status.node_name == ""
    assert vmi.status.active_pods == {}
    assert vmi.spec.networks == ()
    assert body["status"]["nodeName"] == 7  # type: ignore[index]  # our own literal


@pytest.mark.parametrize(
    "body",
    [{"metadata": 7}, {"metadata": {"name": 7}}, {"metadata": {"labels": {"a": 1}}}],
)
def test_unreadable_metadata_is_malformed(body: dict[str, object]) -> None:
    with pytest.raises(errors.Malformed):
        replies.decode(Pod, body, "c")


def test_lists() -> None:
    assert replies.items(Pod, {"items": None}, "c") == ()
    for items in (7, [7], {"a": 1}):
        with pytest.raises(errors.Malformed):
            replies.items(Pod, {"items": items}, "c")
    assert replies.list_meta({"metadata": {"resourceVersion": "7"}}, "c") == ("7", "")
    for metadata in (None, {}, {"resourceVersion": 7}, {"resourceVersion": "7", "continue": 7}):
        with pytest.raises(errors.Malformed):
            replies.list_meta({"metadata": metadata}, "c")


def test_a_list_that_does_not_end_or_is_cut() -> None:
    page = {"metadata": {"resourceVersion": "7", "continue": "b"}}
    assert replies.list_meta(page, "c", {"a"}) == ("7", "b")
    with pytest.raises(errors.Malformed, match="c: the list goes round in circles"):
        replies.list_meta(page, "c", {"a", "b", "c"})
    cut = {"metadata": {"resourceVersion": "7", "remainingItemCount": 3}}
    with pytest.raises(errors.Malformed, match="c: the list is cut: it names no next page"):
        replies.list_meta(cut, "c")


# --- watch lines -------------------------------------------------------------------------------


def line(kind: object, body: object) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


def test_events() -> None:
    event = decode_line(line("ADDED", {"metadata": {"resourceVersion": "5"}}), "c")
    assert (event.type, event.resource_version) == ("ADDED", "5")
    assert decode_line(line("DELETED", {}), "c").resource_version == ""


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"code": 410, "reason": "Expired"}, errors.Compacted),
        ({"reason": "Expired"}, errors.Compacted),
        ({"code": 429}, Overloaded),
        ({"code": 403}, errors.Unauthorized),
        ({"code": 500}, errors.Unavailable),
        ({"code": 200}, errors.Unavailable),
        ({"code": True}, errors.Unavailable),
        ({"message": 7}, errors.Unavailable),
        ({}, errors.Unavailable),
    ],
)
def test_error_events_are_errors(body: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        decode_line(line("ERROR", body), "c")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        line("ADDED", None),
        line(7, {}),
        line("RENAMED", {}),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_lines_that_are_no_events(bad: bytes) -> None:
    with pytest.raises(errors.Malformed):
        decode_line(bad, "c")


def test_splitting() -> None:
    splitter = LineSplitter(limit=10)
    assert list(splitter.feed(b"ab")) == []
    assert splitter.pending is True
    assert list(splitter.feed(b"c\n\n \r\nd\ne")) == [b"abc", b"d"]
    assert list(splitter.feed(b"\n")) == [b"e"]
    assert list(splitter.feed(b"")) == []
    with pytest.raises(errors.Malformed):
        list(splitter.feed(b"x" * 11))
