"""The lab's API server against what the Kubernetes API promises, over HTTP."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from lab.apiserver.errors import ApiError
from lab.apiserver.kinds import KINDS
from lab.apiserver.server import ApiServer
from libtortie.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    TortieError,
    Unauthorized,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Namespace, Pod
from libtortie.kube.port import PatchType
from tests.fakes.objects import named

PODS = "/api/v1/namespaces/default/pods"
VMIS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
BLOCKS = "/apis/crd.projectcalico.org/v1/ipamblocks"


# --- discovery -------------------------------------------------------------------------------


def test_health_and_version_need_no_token() -> None:
    with ApiServer(tokens={"t": "alice"}) as running:
        client = HttpKubeClient(direct(running.url))
        for path in ("/healthz", "/readyz", "/livez"):
            assert client.raw("GET", path) == "ok"
        assert client.raw("GET", "/version")["major"] == "1"
        with pytest.raises(Unauthorized):
            client.raw("GET", "/api")
        client.close()


def test_discovery_names_every_kind(client: HttpKubeClient) -> None:
    assert client.raw("GET", "/api")["versions"] == ["v1"]
    groups = {g["name"]: g for g in client.raw("GET", "/apis")["groups"]}
    assert groups["kubevirt.io"]["preferredVersion"]["groupVersion"] == "kubevirt.io/v1"
    found = set()
    for path in (
        "/api/v1",
        *(f"/apis/{one['groupVersion']}" for g in groups.values() for one in g["versions"]),
    ):
        listed = client.raw("GET", path)
        for resource in listed["resources"]:
            found.add((listed["groupVersion"], resource["name"], resource["namespaced"]))
    assert {(k.api_version, k.plural, k.namespaced) for k in KINDS} <= found
    assert ("v1", "pods/status", True) in found
    assert client.raw("GET", "/apis/kubevirt.io")["name"] == "kubevirt.io"


@pytest.mark.parametrize(
    ("group_version", "plural"),
    [
        ("crd.projectcalico.org/v1", "ipreservations"),
        ("projectcalico.org/v3", "ipamconfigurations"),
        ("crd.projectcalico.org/v1", "caliconodestatuses"),
        ("projectcalico.org/v3", "caliconodestatuses"),
        ("projectcalico.org/v3", "stagedglobalnetworkpolicies"),
        ("projectcalico.org/v3", "kubecontrollersconfigurations"),
    ],
)
def test_calico_plurals(client: HttpKubeClient, group_version: str, plural: str) -> None:
    path = f"/apis/{group_version}/{plural}"
    made = client.raw("POST", path, named("default", spec={"maxBlocksPerHost": 1}))
    assert made["apiVersion"] == group_version
    listed = client.raw("GET", path)
    assert listed["kind"] == made["kind"] + "List"
    assert [item["spec"]["maxBlocksPerHost"] for item in listed["items"]] == [1]


def test_a_hidden_group_is_as_if_not_installed(server: ApiServer, client: HttpKubeClient) -> None:
    client.raw("POST", VMIS, named("vm"))
    server.api.catalogue.hide("kubevirt.io")
    assert "kubevirt.io" not in [g["name"] for g in client.raw("GET", "/apis")["groups"]]
    for path in (VMIS, "/apis/kubevirt.io/v1", "/apis/kubevirt.io"):
        with pytest.raises(NotFound):
            client.raw("GET", path)
    server.api.catalogue.offer("kubevirt.io")
    assert client.raw("GET", f"{VMIS}/vm")["metadata"]["name"] == "vm"


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/", NotFound),
        ("GET", "/api/v2/pods", NotFound),
        ("GET", "/api/v1/gadgets", NotFound),
        ("GET", "/api/v1/pods/web", NotFound),
        ("GET", f"{PODS}/web/exec", NotFound),
        ("GET", f"{BLOCKS}/b/status", NotFound),
        ("POST", "/api/v1/pods", InvalidInput),
        ("PUT", PODS, InvalidInput),
        ("DELETE", "/api/v1/pods", InvalidInput),
        ("GET", f"{PODS}?limit=x", InvalidInput),
        ("GET", f"{PODS}?continue=x", InvalidInput),
        ("GET", f"{PODS}?watch=1&resourceVersion=x", TortieError),
        ("GET", f"{PODS}?watch=1&sendInitialEvents=true", InvalidInput),
    ],
)
def test_requests_that_lead_nowhere(
    client: HttpKubeClient, method: str, path: str, error: type[TortieError]
) -> None:
    if "resourceVersion=x" in path:
        assert client.raw(method, path)["object"]["code"] == 400
        return
    with pytest.raises(error):
        client.raw(method, path, named("web") if method in ("POST", "PUT") else None)


# --- the life of an object -------------------------------------------------------------------


def test_what_the_server_sets(client: HttpKubeClient) -> None:
    body = named(
        "web",
        metadata={"uid": "mine", "generation": 9, "managedFields": [], "creationTimestamp": None},
        spec={"a": 1},
        status={"phase": "Running"},
    )
    made = client.raw("POST", PODS, body)
    meta = made["metadata"]
    assert meta["uid"] != "mine" and len(meta["uid"]) == 36
    assert meta["generation"] == 1 and "managedFields" not in meta
    assert meta["creationTimestamp"].endswith("Z") and meta["namespace"] == "default"
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert made["status"] == {"phase": "Pending"}
    assert client.raw("GET", f"{PODS}/web") == made


def test_names_are_generated(client: HttpKubeClient) -> None:
    made = [client.raw("POST", PODS, {"metadata": {"generateName": "web-"}}) for _ in range(20)]
    names = {pod["metadata"]["name"] for pod in made}
    assert len(names) == 20
    assert all(name.startswith("web-") and len(name) == 9 for name in names)
    long = client.raw("POST", PODS, {"metadata": {"generateName": "x" * 80}})
    assert len(long["metadata"]["name"]) == 63


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {}},
        named("Web"),
        named("a_b"),
        named("-a"),
        named("x" * 254),
        named("web", metadata={"labels": {"a b": "c"}}),
        named("web", metadata={"labels": {"a": "c d"}}),
        named("web", metadata={"labels": {"a": 1}}),
        named("web", metadata={"annotations": {"a": "x" * (257 << 10)}}),
        named("web", metadata={"namespace": "other"}),
        named("web", metadata={"resourceVersion": "7"}),
        named("web", metadata={"finalizers": "x"}),
        {**named("web"), "kind": "Node"},
        {**named("web"), "apiVersion": "v2"},
        {"metadata": 7},
        [],
        "text",
    ],
)
def test_objects_that_are_refused(client: HttpKubeClient, body: Any) -> None:
    with pytest.raises(InvalidInput):
        client.raw("POST", PODS, body)
    assert client.raw("GET", PODS)["items"] == []


def test_status_objects_are_complete(client: HttpKubeClient, server: ApiServer) -> None:
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(f"GET {PODS}/web HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert json.loads(body) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "web" not found',
        "reason": "NotFound",
        "details": {"name": "web", "kind": "pods"},
        "code": 404,
    }


def test_the_namespace_must_exist_and_goes_with_its_content(client: HttpKubeClient) -> None:
    path = "/api/v1/namespaces/shop/pods"
    with pytest.raises(NotFound, match='namespaces "shop" not found'):
        client.raw("POST", path, named("web"))
    client.create(Namespace, named("shop"))
    client.raw("POST", path, named("web", metadata={"finalizers": ["a/b"]}))
    client.raw("POST", path, named("db"))
    client.delete(Namespace, "shop")
    assert client.get(Namespace, "shop").metadata.deleting
    assert [p["metadata"]["name"] for p in client.raw("GET", path)["items"]] == ["web"]
    with pytest.raises(Unauthorized, match="being terminated"):
        client.raw("POST", path, named("late"))
    client.patch(Pod, "web", "shop", {"metadata": {"finalizers": []}})
    with pytest.raises(NotFound):
        client.get(Namespace, "shop")


def test_an_update_that_changes_nothing_writes_nothing(client: HttpKubeClient) -> None:
    made = client.raw("POST", PODS, named("web", spec={"a": 1}))
    assert client.raw("PUT", f"{PODS}/web", made) == made
    again = client.patch(Pod, "web", "default", {"spec": {"a": 1}})
    assert again.metadata.resource_version == made["metadata"]["resourceVersion"]


def test_generation_counts_spec_changes_only(client: HttpKubeClient) -> None:
    client.raw("POST", VMIS, named("vm", spec={"a": 1}))

    def patched(body: dict[str, Any], sub: str = "") -> int:
        answer = client.raw("PATCH", f"{VMIS}/vm{sub}", body, content_type=PatchType.MERGE.value)
        generation = answer["metadata"]["generation"]
        assert isinstance(generation, int)
        return generation

    assert patched({"metadata": {"labels": {"a": "b"}}}) == 1
    assert patched({"status": {"phase": "Running"}}, "/status") == 1
    assert patched({"spec": {"a": 2}}) == 2
    assert patched({"metadata": {"generation": 50}}) == 2


def test_status_of_a_custom_resource_changes_nothing_else(client: HttpKubeClient) -> None:
    made = client.raw("POST", VMIS, named("vm", spec={"a": 1}, status={"phase": "Running"}))
    assert "status" not in made
    body = {**made, "spec": {"a": 2}, "status": {"phase": "Scheduled"}}
    body["metadata"] = {**made["metadata"], "labels": {"a": "b"}}
    new = client.raw("PUT", f"{VMIS}/vm/status", body)
    assert new["spec"] == {"a": 1} and new["status"] == {"phase": "Scheduled"}
    assert "labels" not in new["metadata"]
    new = client.raw("PUT", f"{VMIS}/vm", {**new, "spec": {"a": 3}, "status": {}})
    assert new["spec"] == {"a": 3} and new["status"] == {"phase": "Scheduled"}


def test_system_fields_cannot_be_changed(client: HttpKubeClient) -> None:
    made = client.raw("POST", PODS, named("web"))
    meta = {
        "creationTimestamp": "1999-01-01T00:00:00Z",
        "deletionTimestamp": "1999-01-01T00:00:00Z",
    }
    client.patch(Pod, "web", "default", {"metadata": meta})
    now = client.raw("GET", f"{PODS}/web")["metadata"]
    assert now["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert "deletionTimestamp" not in now
    with pytest.raises(InvalidInput):
        client.patch(Pod, "web", "default", {"metadata": {"name": "other"}})


def test_a_pod_goes_gracefully_when_it_says_so(client: HttpKubeClient) -> None:
    spec = {"nodeName": "n1", "terminationGracePeriodSeconds": 30}
    client.raw("POST", PODS, named("web", spec=spec))
    client.delete(Pod, "web", "default")
    meta = client.raw("GET", f"{PODS}/web")["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30 and meta["deletionTimestamp"]
    client.delete(Pod, "web", "default")
    assert client.raw("GET", f"{PODS}/web")["metadata"] == meta
    client.delete(Pod, "web", "default", grace_seconds=0)
    with pytest.raises(NotFound):
        client.get(Pod, "web", "default")
    client.raw("POST", PODS, named("plain", spec={"nodeName": "n1"}))
    client.delete(Pod, "plain", "default")
    with pytest.raises(NotFound):
        client.get(Pod, "plain", "default")


def test_no_finalizer_is_added_to_a_dying_object(client: HttpKubeClient) -> None:
    client.raw("POST", PODS, named("web", metadata={"finalizers": ["a/b", "c/d"]}))
    client.delete(Pod, "web", "default")
    with pytest.raises(InvalidInput, match="no new finalizers"):
        client.patch(Pod, "web", "default", {"metadata": {"finalizers": ["a/b", "c/d", "e/f"]}})
    client.patch(Pod, "web", "default", {"metadata": {"finalizers": ["a/b"]}})
    client.patch(Pod, "web", "default", {"metadata": {"finalizers": []}})
    with pytest.raises(NotFound):
        client.get(Pod, "web", "default")


def test_delete_preconditions_and_calicos_two_phases(client: HttpKubeClient) -> None:
    spec = {"cidr": "10.0.0.0/26", "deleted": False, "strictAffinity": False}
    spec |= {"allocations": [], "attributes": [], "unallocated": []}
    made = client.raw("POST", BLOCKS, named("10-0-0-0-26", spec=spec))
    meta = made["metadata"]
    marked = client.raw("PUT", f"{BLOCKS}/10-0-0-0-26", {**made, "spec": spec | {"deleted": True}})
    old = {"preconditions": {"resourceVersion": meta["resourceVersion"]}}
    with pytest.raises(Conflict, match="ResourceVersion in precondition"):
        client.raw("DELETE", f"{BLOCKS}/10-0-0-0-26", old)
    with pytest.raises(Conflict):
        client.raw("PUT", f"{BLOCKS}/10-0-0-0-26", made)
    gone = client.raw("DELETE", f"{BLOCKS}/10-0-0-0-26", {"preconditions": {"uid": meta["uid"]}})
    assert gone["status"] == "Success" and gone["details"]["uid"] == marked["metadata"]["uid"]


def test_delete_collection(client: HttpKubeClient) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        client.raw("POST", PODS, named(name, metadata={"labels": {"app": app}}))
    client.raw("DELETE", f"{PODS}?labelSelector=app%3Dx")
    assert [p["metadata"]["name"] for p in client.raw("GET", PODS)["items"]] == ["b"]


def test_dry_run_stores_nothing(client: HttpKubeClient, server: ApiServer) -> None:
    client.raw("POST", PODS, named("web", spec={"a": 1}))
    version = server.api.store.version
    merge = PatchType.MERGE.value
    assert client.raw("POST", f"{PODS}?dryRun=All", named("dry"))["metadata"]["uid"]
    patched = client.raw("PATCH", f"{PODS}/web?dryRun=All", {"spec": {"a": 2}}, content_type=merge)
    assert patched["spec"] == {"a": 2}
    client.raw("DELETE", f"{PODS}/web?dryRun=All")
    assert server.api.store.version == version


def test_bodies_that_are_no_json_objects(client: HttpKubeClient, server: ApiServer) -> None:
    with pytest.raises(InvalidInput, match="unknown format"):
        client.raw("POST", PODS, {}, content_type="application/yaml")
    with pytest.raises(InvalidInput, match="unknown format"):
        client.raw("PATCH", f"{PODS}/web", {}, content_type="application/apply-patch+yaml")
    for head, code in (
        ("Content-Length: 3\r\n\r\n{x}", 400),
        ("Content-Length: x\r\n\r\n", 400),
        ("Content-Length: 99999999\r\n\r\n", 413),
        ("Transfer-Encoding: chunked\r\n\r\n", 411),
    ):
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(f"POST {PODS} HTTP/1.1\r\nHost: x\r\n{head}".encode())
            assert connection.recv(65536).startswith(f"HTTP/1.1 {code} ".encode())


# --- admission -------------------------------------------------------------------------------


def test_hooks_change_and_refuse(client: HttpKubeClient, server: ApiServer) -> None:
    seen: list[tuple[str, str, bool]] = []

    def hook(verb: str, resource: str, body: Any, old: Any) -> Any:
        seen.append((verb, resource, old is not None))
        if verb == "delete" and body["metadata"].get("labels", {}).get("keep"):
            raise ApiError(429, "TooManyRequests", "kept")
        if verb == "create":
            body = {**body, "metadata": {**body["metadata"], "labels": {"keep": "yes"}}}
        return body

    server.api.hooks.append(hook)
    assert client.create(Pod, named("web", metadata={"namespace": "default"})).metadata.labels
    with pytest.raises(TortieError, match="kept"):
        client.delete(Pod, "web", "default")
    client.patch(Pod, "web", "default", {"metadata": {"labels": None}})
    client.patch(Pod, "web", "default", {"status": {"phase": "Failed"}}, subresource="status")
    client.delete(Pod, "web", "default")
    assert seen == [
        ("create", "pods", False),
        ("delete", "pods", True),
        ("update", "pods", True),
        ("update", "pods/status", True),
        ("delete", "pods", True),
    ]


@pytest.mark.parametrize(
    ("group_version", "field", "value", "why"),
    [
        ("crd.projectcalico.org/v1", "deleted", False, "must be of type string"),
        ("projectcalico.org/v3", "deleted", "false", "must be of type boolean"),
        ("projectcalico.org/v3", "state", "claimed", "supported values"),
        ("crd.projectcalico.org/v1", "node", None, "must be of type string"),
    ],
)
def test_an_affinity_is_what_its_group_says(
    client: HttpKubeClient, group_version: str, field: str, value: object, why: str
) -> None:
    older = group_version.startswith("crd.")
    spec = {"node": "n1", "cidr": "10.0.0.0/26", "state": "confirmed"}
    spec["deleted"] = "false" if older else False  # type: ignore[assignment]  # as the group wants
    path = f"/apis/{group_version}/blockaffinities"
    with pytest.raises(InvalidInput, match=f"spec.{field}.*{why}"):
        client.raw("POST", path, named("n1-10-0-0-0-26", spec={**spec, field: value}))
    made = client.raw("POST", path, named("n1-10-0-0-0-26", spec=spec | {"unknown": 1}))
    assert made["spec"] == spec


def test_a_block_may_hold_nulls_and_maps_and_no_affinity_of_a_strange_form(
    client: HttpKubeClient,
) -> None:
    spec: dict[str, Any] = {"cidr": "10.0.0.0/31", "deleted": False, "strictAffinity": False}
    spec |= {"allocations": [0, None], "attributes": [{"secondary": {"pod": "p"}}]}
    spec |= {"unallocated": [1], "sequenceNumberForAllocation": {"0": 5}, "sequenceNumber": 6}
    path = "/apis/projectcalico.org/v3/ipamblocks"
    assert client.raw("POST", path, named("10-0-0-0-31", spec=spec))["spec"] == spec
    for field, value in {
        "sequenceNumberForAllocation": {"0": "5"},
        "affinity": "n1",
        "attributes": [{"secondary": {"pod": 1}}],
    }.items():
        with pytest.raises(InvalidInput, match=f"spec.{field}"):
            client.raw("POST", path, named("10-0-0-2-31", spec={**spec, field: value}))
