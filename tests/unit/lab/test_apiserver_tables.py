"""What `kubectl get` is sent: ages, cells, forms of answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.apiserver.ages import human, since
from lab.apiserver.columns import columns_of, read
from lab.apiserver.errors import ApiError
from lab.apiserver.kinds import KINDS, Kind
from lab.apiserver.media import View, negotiate
from lab.apiserver.pod_columns import gates, ready, restarts, status
from lab.apiserver.table import Viewer, include_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11000, "3h3m"),
        (8 * 3600 + 60, "8h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400 + 3600, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400 + 86400, "9y"),
    ],
)
def test_ages(age: int, text: str) -> None:
    assert human(timedelta(seconds=age)) == text


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        ("2026-01-02T03:04:00Z", "5s"),
        ("2026-01-02T03:04:00.25+00:00", "4s"),
        ("2026-01-02T03:04:00", "5s"),
        (None, "<unknown>"),
        ("yesterday", "<unknown>"),
    ],
)
def test_since(stamp: object, text: str) -> None:
    assert since(stamp, NOW) == text


def pod(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": more.pop("metadata", {}), "status": state, "spec": more.pop("spec", {})}


def container(**state: Any) -> dict[str, Any]:
    return {"name": "x", "state": state}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (pod({"phase": "Running"}), "Running"),
        (pod({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
        (pod({}), "Unknown"),
        (pod({"phase": "Running"}, metadata={"deletionTimestamp": "x"}), "Terminating"),
        (
            pod({"reason": "NodeLost"}, metadata={"deletionTimestamp": "x"}),
            "Unknown",
        ),
        (
            pod(
                {
                    "phase": "Pending",
                    "containerStatuses": [
                        container(waiting={"reason": "ContainerCreating"}),
                        container(waiting={"reason": "ErrImagePull"}),
                    ],
                }
            ),
            "ContainerCreating",
        ),
        (pod({"containerStatuses": [container(terminated={"exitCode": 3})]}), "ExitCode:3"),
        (pod({"containerStatuses": [container(terminated={"signal": 9})]}), "Signal:9"),
        (pod({"containerStatuses": [container(terminated={"reason": "OOM"})]}), "OOM"),
    ],
)
def test_a_pods_state_in_one_word(body: dict[str, Any], word: str) -> None:
    assert status(body) == word


def test_other_cells_of_a_pod() -> None:
    spec = {
        "containers": [{}, {}],
        "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}],
    }
    state = {
        "containerStatuses": [{"ready": True, "restartCount": 2}, {"restartCount": 1}],
        "conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}],
    }
    body = pod(state, spec=spec)
    assert (ready(body), restarts(body), gates(body)) == ("1/2", 3, "1/2")
    assert (ready(pod({})), restarts(pod({})), gates(pod({}))) == ("0/0", 0, "<none>")


def test_paths() -> None:
    body = {"a": [{"b": 1}], "c": None}
    assert read(body, "a.0.b") == 1
    assert [read(body, path) for path in ("a.1.b", "a.x", "c.d", "a.0.b.c")] == [None] * 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.plural}.{kind.group}")
def test_every_kind_has_cells_for_whatever_is_stored(kind: Kind) -> None:
    """CRDs without a schema hold anything: no shape of an object may break a list."""
    meta = {"name": "x", "creationTimestamp": "2026-01-02T03:04:00Z"}
    viewer = Viewer(kind, View("Table"))
    shapes: tuple[Any, ...] = (
        None,
        7,
        "text",
        [],
        [7],
        {},
        {"conditions": [7]},
        {"interfaces": [[]]},
    )
    for value in shapes:
        body = {"kind": kind.kind, "metadata": meta, "spec": value, "status": value, "data": value}
        (row,) = viewer.show(body, NOW)["rows"]
        assert len(row["cells"]) == len(columns_of(kind))
        assert "x" in [str(cell) for cell in row["cells"]]


PODS = next(kind for kind in KINDS if kind.plural == "pods")
WEB = {"kind": "Pod", "metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"s": 1}}
LIST = {
    "kind": "PodList",
    "metadata": {"resourceVersion": "7", "continue": "c", "remainingItemCount": 3},
    "items": [WEB],
}


def test_a_table_of_a_list_keeps_what_paging_needs() -> None:
    shown = Viewer(PODS, View("Table"), "None").show(LIST, NOW)
    assert (shown["kind"], shown["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert shown["metadata"] == LIST["metadata"]
    assert [c["name"] for c in shown["columnDefinitions"]][:3] == ["Name", "Ready", "Status"]
    (row,) = shown["rows"]
    assert row["cells"][0] == "web" and "object" not in row


def test_rows_carry_what_was_asked_for() -> None:
    (row,) = Viewer(PODS, View("Table", "v1beta1")).show(WEB, NOW)["rows"]
    assert row["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": WEB["metadata"],
    }
    (row,) = Viewer(PODS, View("Table"), "Object").show(WEB, NOW)["rows"]
    assert row["object"] == WEB
    assert include_of({}) == "Metadata"
    with pytest.raises(ApiError, match="includeObject"):
        include_of({"includeObject": "All"})


def test_metadata_only() -> None:
    viewer = Viewer(PODS, View("PartialObjectMetadataList"))
    shown = viewer.show(LIST, NOW)
    assert shown["kind"] == "PartialObjectMetadataList"
    assert shown["items"][0]["metadata"] == WEB["metadata"] and "spec" not in shown["items"][0]


def test_a_watch_describes_its_columns_once() -> None:
    viewer = Viewer(PODS, View("Table"))
    first = viewer.event({"type": "ADDED", "object": WEB}, NOW)
    assert first["object"]["columnDefinitions"] and first["object"]["rows"]
    assert (
        viewer.event({"type": "ADDED", "object": WEB}, NOW)["object"]["columnDefinitions"] is None
    )
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}}
    shown = viewer.event(mark, NOW)["object"]
    assert shown["metadata"] == {"resourceVersion": "9"} and shown["rows"] == []
    error = {"type": "ERROR", "object": {"kind": "Status"}}
    assert viewer.event(error, NOW) == error
    assert Viewer(PODS, View()).event(mark, NOW) == mark


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", ""),
        ("*/*", ""),
        ("application/json", ""),
        ("application/vnd.kubernetes.protobuf,application/json", ""),
        (f"{TABLE},application/json", "Table"),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", ""),
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,*/*", ""),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "PartialObjectMetadata"),
        (f"application/json,{TABLE}", ""),
    ],
)
def test_accept(accept: str, form: str) -> None:
    assert negotiate(accept).form == form


@pytest.mark.parametrize("accept", ["application/yaml", "text/html, image/png"])
def test_what_cannot_be_served_is_406(accept: str) -> None:
    with pytest.raises(ApiError, match="only the following media types") as caught:
        negotiate(accept)
    assert caught.value.code == 406
