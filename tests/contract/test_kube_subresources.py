"""Binding, eviction, owners, preconditions and watches from a list, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.apiserver.errors import ApiError
from lab.apiserver.server import ApiServer
from libtortie.errors import Conflict, InvalidInput, NotFound, TortieError, Unauthorized
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.port import PatchType

PODS = "/api/v1/namespaces/default/pods"
KUBEVIRT = "/apis/kubevirt.io/v1/namespaces/default"
Json = dict[str, Any]


def make(client: HttpKubeClient, name: str, **more: Any) -> Json:
    meta = {"name": name, **more.pop("metadata", {})}
    made: Json = client.raw("POST", PODS, {"metadata": meta, **more})
    return made


def bind(client: HttpKubeClient, name: str, node: str, **meta: Any) -> Any:
    body = {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}
    return client.raw("POST", f"{PODS}/{name}/binding", body)


# --- binding -----------------------------------------------------------------------------------


def test_a_pod_is_bound_once(client: HttpKubeClient) -> None:
    made = make(client, "web", metadata={"annotations": {"a": "b"}})
    assert bind(client, "web", "node1", annotations={"c": "d"})["status"] == "Success"
    found = client.raw("GET", f"{PODS}/web")
    assert found["spec"] == {"nodeName": "node1"}
    assert found["metadata"]["annotations"] == {"a": "b", "c": "d"}
    assert {"type": "PodScheduled", "status": "True"} in found["status"]["conditions"]
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(Conflict, match='pod web is already assigned to node "node1"'):
        bind(client, "web", "node2")


def test_bindings_that_are_refused(client: HttpKubeClient) -> None:
    make(client, "web")
    with pytest.raises(NotFound):
        bind(client, "none", "node1")
    with pytest.raises(Conflict, match="UID in precondition"):
        bind(client, "web", "node1", uid="other")
    refused: tuple[Any, ...] = (
        {"target": {"name": ""}},
        {},
        {"target": {"kind": "Pod", "name": "x"}},
        {"metadata": {"name": "other"}, "target": {"name": "node1"}},
        {"kind": "Pod", "target": {"name": "node1"}},
        [],
    )
    for body in refused:
        with pytest.raises(InvalidInput):
            client.raw("POST", f"{PODS}/web/binding", body)
    assert "spec" not in client.raw("GET", f"{PODS}/web")
    with pytest.raises(InvalidInput):  # 405
        client.raw("GET", f"{PODS}/web/binding")
    dry = {"target": {"name": "node1"}}
    client.raw("POST", f"{PODS}/web/binding?dryRun=All", dry)
    assert "spec" not in client.raw("GET", f"{PODS}/web")


def test_a_pods_node_stays(client: HttpKubeClient) -> None:
    make(client, "web", spec={"nodeName": "node1"})
    make(client, "free", spec={})

    def move(name: str, node: str | None) -> Any:
        body = {"spec": {"nodeName": node}}
        media = PatchType.MERGE.value
        return client.raw("PATCH", f"{PODS}/{name}", body, content_type=media)

    for node in ("node2", None):
        with pytest.raises(InvalidInput, match=r"spec.nodeName: Invalid value: .*immutable"):
            move("web", node)
    assert move("web", "node1")["spec"] == {"nodeName": "node1"}
    assert move("free", "node1")["spec"] == {"nodeName": "node1"}


# --- eviction ----------------------------------------------------------------------------------


def evict(client: HttpKubeClient, name: str, **options: Any) -> Any:
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body["deleteOptions"] = options
    return client.raw("POST", f"{PODS}/{name}/eviction", body)


def test_eviction_deletes_with_its_options(client: HttpKubeClient) -> None:
    spec = {"nodeName": "n", "terminationGracePeriodSeconds": 30}
    made = make(client, "web", spec=spec)
    with pytest.raises(Conflict):
        evict(client, "web", preconditions={"uid": "other"})
    evict(client, "web", dryRun=["All"])
    assert "deletionTimestamp" not in client.raw("GET", f"{PODS}/web")["metadata"]
    uid = made["metadata"]["uid"]
    assert evict(client, "web", preconditions={"uid": uid})["status"] == "Success"
    meta = client.raw("GET", f"{PODS}/web")["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    evict(client, "web", gracePeriodSeconds=0)
    with pytest.raises(NotFound):
        client.raw("GET", f"{PODS}/web")
    with pytest.raises(NotFound, match='pods "web" not found'):
        evict(client, "web")


def test_eviction_asks_its_own_hook_and_not_that_of_deletion(
    client: HttpKubeClient, server: ApiServer
) -> None:
    seen: list[tuple[str, str, str, str]] = []

    def hook(verb: str, resource: str, new: Any, old: Any) -> Any:
        seen.append((verb, resource, new["kind"], (old or new)["kind"]))
        if len(seen) == 2:
            raise ApiError(429, "TooManyRequests", "Eviction request for target Pod")
        return new

    server.api.hooks.append(hook)
    make(client, "web")
    with pytest.raises(TortieError, match="Eviction request for target Pod"):
        evict(client, "web")
    evict(client, "web")
    assert seen == [
        ("create", "pods", "Pod", "Pod"),
        ("create", "pods/eviction", "Eviction", "Pod"),
        ("create", "pods/eviction", "Eviction", "Pod"),
    ]


def test_discovery_shows_evictions_kind(client: HttpKubeClient) -> None:
    """`kubectl drain` looks for it, and deletes pods when there is none."""
    found = {r["name"]: r for r in client.raw("GET", "/api/v1")["resources"]}
    assert found["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "verbs": ["create"],
        "group": "policy",
        "version": "v1",
    }
    assert found["pods"]["shortNames"] == ["po"] and found["pods"]["categories"] == ["all"]


# --- owners and deletion -----------------------------------------------------------------------


def test_owners_are_named_fully_and_one_of_them_controls(client: HttpKubeClient) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}
    for key in ("apiVersion", "kind", "name", "uid"):
        cut = {k: v for k, v in owner.items() if k != key}
        with pytest.raises(InvalidInput, match=f"ownerReferences.0..{key}: Required value"):
            make(client, "web", metadata={"ownerReferences": [cut]})
    with pytest.raises(InvalidInput, match="Only one reference can have Controller set to true"):
        make(client, "web", metadata={"ownerReferences": [owner, {**owner, "uid": "v"}]})


def test_deletion_policies_that_make_no_sense(client: HttpKubeClient) -> None:
    make(client, "web")
    for options in (
        {"propagationPolicy": "Sideways"},
        {"propagationPolicy": "Orphan", "orphanDependents": True},
    ):
        with pytest.raises(InvalidInput, match="propagationPolicy"):
            client.raw("DELETE", f"{PODS}/web", options)
    with pytest.raises(InvalidInput, match="propagationPolicy"):
        client.raw("DELETE", f"{PODS}/web?propagationPolicy=Sideways")
    client.raw("DELETE", f"{PODS}/web", {"dryRun": ["All"]})
    assert client.raw("GET", f"{PODS}/web")["metadata"]["name"] == "web"


def test_a_later_policy_counts(client: HttpKubeClient) -> None:
    owner = make(client, "owner")
    meta = {k: owner["metadata"][k] for k in ("name", "uid")}
    reference = {"apiVersion": "v1", "kind": "Pod", "blockOwnerDeletion": True, **meta}
    held = {"ownerReferences": [reference], "finalizers": ["a/b"]}
    make(client, "held", metadata=held)
    client.raw("DELETE", f"{PODS}/owner", {"propagationPolicy": "Foreground"})
    meta = client.raw("GET", f"{PODS}/owner")["metadata"]
    assert meta["finalizers"] == ["foregroundDeletion"] and meta["deletionTimestamp"]
    client.raw("DELETE", f"{PODS}/owner")
    assert client.raw("GET", f"{PODS}/owner")["metadata"] == meta
    client.raw("DELETE", f"{PODS}/owner", {"propagationPolicy": "Background"})
    with pytest.raises(NotFound):
        client.raw("GET", f"{PODS}/owner")


def test_kubevirts_objects_are_kept_as_they_come(client: HttpKubeClient) -> None:
    """A launcher pod, a migration and its state, as KubeVirt writes them."""
    vmi = client.raw(
        "POST",
        f"{KUBEVIRT}/virtualmachineinstances",
        {"metadata": {"name": "vm", "labels": {"kubevirt.io/nodeName": "n1"}}, "spec": {"x": [1]}},
    )
    owner = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": "vm",
        "uid": vmi["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    meta = {
        "generateName": "virt-launcher-vm-",
        "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/migrationJobUID": "u-1"},
        "annotations": {
            "kubevirt.io/migrationTransportUnix": "true",
            "kubevirt.io/migration-target-ready-timestamp": "2026-01-01 10:00:00 +0000 UTC m=+1",
        },
        "ownerReferences": [owner],
    }
    gate = {"conditionType": "kubevirt.io/virtual-machine-unpaused"}
    spec = {"restartPolicy": "Never", "readinessGates": [gate], "containers": [{"name": "compute"}]}
    pod = client.raw("POST", PODS, {"metadata": meta, "spec": spec})
    assert {k: pod["metadata"][k] for k in meta} == meta and pod["spec"] == spec
    vmim = {
        "metadata": {
            "generateName": "kubevirt-evacuation-",
            "finalizers": ["kubevirt.io/migrationJobFinalize"],
            "annotations": {"kubevirt.io/evacuationMigration": "n1"},
        },
        "spec": {"vmiName": "vm", "priority": "system-critical"},
    }
    path = f"{KUBEVIRT}/virtualmachineinstancemigrations"
    made = client.raw("POST", path, vmim)
    name = made["metadata"]["name"]
    state = {"migrationUid": "u-1", "targetDirectMigrationNodePorts": {"41234": 0}}
    made["status"] = {"phase": "Running", "migrationState": state}
    stored = client.raw("PUT", f"{path}/{name}/status", made)
    assert (stored["spec"], stored["status"]) == (vmim["spec"], made["status"])


# --- watches and forms -------------------------------------------------------------------------


def lines(client: HttpKubeClient, query: str) -> list[Json]:
    text = client.raw("GET", f"{PODS}?watch=true&timeoutSeconds=1&{query}")
    text = json.dumps(text) if isinstance(text, dict) else text
    return [json.loads(line) for line in text.splitlines()]


def test_a_watch_that_begins_with_what_is_there(client: HttpKubeClient, server: ApiServer) -> None:
    make(client, "b")
    make(client, "a")
    query = (
        f"resourceVersion={server.api.store.version}&resourceVersionMatch=NotOlderThan"
        "&sendInitialEvents=true&allowWatchBookmarks=true"
    )
    first, second, end, *_ = lines(client, query)
    assert [e["object"]["metadata"]["name"] for e in (first, second)] == ["a", "b"]
    assert end["type"] == "BOOKMARK"
    meta = end["object"]["metadata"]
    assert meta["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert meta["resourceVersion"] == str(server.api.store.version)


def test_an_unknown_field_validation_is_refused(client: HttpKubeClient) -> None:
    with pytest.raises(InvalidInput, match='fieldValidation: "Never" is none of'):
        client.raw("POST", f"{PODS}?fieldValidation=Never", {"metadata": {"name": "web"}})


def test_a_namespace_is_judged_in_itself_and_a_list_of_one_by_name() -> None:
    """As Kubernetes does, so that roles in a namespace and `resourceNames` reach them."""
    with ApiServer(tokens={"0123456789": "alice"}, authorization="RBAC") as server:
        rules = (("get", "namespaces", "default"), ("list", "pods", "web"))
        role = {
            "metadata": {"name": "own"},
            "rules": [
                {"verbs": [verb], "apiGroups": [""], "resources": [what], "resourceNames": [name]}
                for verb, what, name in rules
            ],
        }
        group = "rbac.authorization.k8s.io"
        server.api.create(server.api.kind(group, "v1", "roles"), "default", role)
        binding = {
            "metadata": {"name": "own"},
            "roleRef": {"kind": "Role", "name": "own"},
            "subjects": [{"kind": "User", "name": "alice"}],
        }
        server.api.create(server.api.kind(group, "v1", "rolebindings"), "default", binding)
        client = HttpKubeClient(direct(server.url, "0123456789"))
        assert client.raw("GET", "/api/v1/namespaces/default")["kind"] == "Namespace"
        assert client.raw("GET", f"{PODS}?fieldSelector=metadata.name%3Dweb")["items"] == []
        for path in ("/api/v1/namespaces/kube-system", PODS, "/metrics"):
            with pytest.raises(Unauthorized, match='User "alice" cannot'):
                client.raw("GET", path)
        assert client.raw("GET", "/apis")["kind"] == "APIGroupList"
        client.close()
    assert server.crashes == []
