"""Resources as objects of Calico's CRDs: metadata apart in the v1 group, as it is in v3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libtortie.datastore.crd_names import Group
from libtortie.datastore.crd_shapes import ResourceShape
from libtortie.errors import Malformed
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Resource, parse_resource

NOW = "2026-08-22T13:30:00Z"
UID = "3f2b1c9e-7d4a-4e6b-9a51-0c8e2f7d6b14"
CONVERTED = "fcd43879-be52-4ed6-9a8a-3071f4bed628"
TIER = "projectcalico.org/tier"
PACKED = "projectcalico.org/metadata"
POLICY = ResourceKey(Kind.NETWORK_POLICY, "allow-web", "shop")
POLICY_SPEC = {"tier": "default", "selector": "app == 'web'", "types": ["Ingress"]}
POOL = ResourceKey(Kind.IP_POOL, "pool-a")
POOL_SPEC = {"cidr": "10.250.0.0/16"}


def resource(key: ResourceKey, spec: dict[str, Any], **meta: Any) -> Resource:
    where = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
    wire = {"kind": key.kind.value, "metadata": {**where, **meta}, "spec": spec}
    return parse_resource(key.kind, wire)


def read(group: Group, key: ResourceKey, meta: dict[str, Any], spec: Any) -> Resource:
    shape, body = ResourceShape(group, key.kind), {"metadata": meta, "spec": spec}
    assert shape.key(body) == key
    value = shape.value(key, body)
    assert isinstance(value, Resource)
    return value


def test_a_policy_of_v1_is_calicos_text() -> None:
    value = resource(
        POLICY, POLICY_SPEC, creationTimestamp=NOW, labels={TIER: "default", "team": "a"}
    )
    body = ResourceShape(Group.V1, POLICY.kind).body(POLICY, value, None, "later")
    packed = (
        '{"name":"allow-web","creationTimestamp":"2026-08-22T13:30:00Z",'
        '"labels":{"projectcalico.org/tier":"default","team":"a"}}'
    )
    assert body["metadata"] == {
        "name": "allow-web",
        "namespace": "shop",
        "labels": {TIER: "default"},
        "annotations": {PACKED: packed},
    }
    assert body["spec"] == POLICY_SPEC
    again = read(Group.V1, POLICY, body["metadata"] | {"uid": UID}, POLICY_SPEC)
    assert again.metadata.uid == CONVERTED
    assert (again.metadata.labels, again.metadata.annotations) == (value.metadata.labels, {})


def test_in_v3_metadata_is_what_it_is() -> None:
    value = resource(POOL, POOL_SPEC, uid=UID, labels={"team": "a"}, annotations={"note": "b"})
    body = ResourceShape(Group.V3, POOL.kind).body(POOL, value, None, NOW)
    assert body["metadata"] == {
        "name": "pool-a",
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
    }
    stored = body["metadata"] | {"uid": UID, "resourceVersion": "7", "managedFields": [{}]}
    assert read(Group.V3, POOL, stored, body["spec"]).metadata == value.metadata


def test_v1_hides_nothing_a_value_has_and_shows_what_others_wrote() -> None:
    owner = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "t", "uid": CONVERTED}
    value = resource(
        POOL,
        POOL_SPEC,
        annotations={"note": "b", "projectcalico.org/x": "c"},
        finalizers=["a/b"],
        ownerReferences=[owner],
    )
    body = ResourceShape(Group.V1, POOL.kind).body(POOL, value, None, NOW)
    inner = json.loads(body["metadata"]["annotations"][PACKED])
    assert inner["ownerReferences"][0] == owner | {
        "apiVersion": "crd.projectcalico.org/v1",
        "uid": UID,
    }
    assert inner["finalizers"] == ["a/b"]
    assert "finalizers" not in body["metadata"]
    assert sorted(body["metadata"]["annotations"]) == [PACKED, "projectcalico.org/x"]
    stored = body["metadata"] | {
        "uid": UID,
        "labels": {"by": "kubectl"},
        "finalizers": ["storage/hold"],
        "deletionTimestamp": NOW,
    }
    found = read(Group.V1, POOL, stored, POOL_SPEC).metadata
    assert found.annotations == value.metadata.annotations
    assert found.labels == {"by": "kubectl"}
    assert found.finalizers == ("a/b",)
    assert found.owner_references == value.metadata.owner_references
    assert (found.creation_timestamp, found.deletion_timestamp) == (NOW, NOW)


def test_an_object_that_kubectl_made_is_read_as_it_is() -> None:
    meta = {"name": "pool-a", "uid": UID, "creationTimestamp": NOW, "labels": {"a": "b"}}
    found = read(Group.V1, POOL, meta, POOL_SPEC).metadata
    assert (found.uid, found.labels, found.creation_timestamp) == (CONVERTED, {"a": "b"}, NOW)


@pytest.mark.parametrize("group", list(Group))
def test_a_rewrite_keeps_what_only_the_object_has(group: Group) -> None:
    shape = ResourceShape(group, POOL.kind)
    old = shape.body(POOL, resource(POOL, POOL_SPEC), None, NOW)
    old["metadata"] |= {"finalizers": ["storage/hold"], "uid": UID, "creationTimestamp": NOW}
    body = shape.body(POOL, resource(POOL, POOL_SPEC | {"disabled": True}), old, "later")
    assert body["metadata"]["finalizers"] == ["storage/hold"]
    if group is Group.V1:
        packed = json.loads(body["metadata"]["annotations"][PACKED])
        assert packed == {"creationTimestamp": NOW}


def test_the_name_of_a_policy() -> None:
    shape = ResourceShape(Group.V1, Kind.NETWORK_POLICY)

    def key(name: str, packed: str | None, **spec: object) -> object:
        meta: dict[str, Any] = {"name": name, "namespace": "shop"}
        if packed is not None:
            meta["annotations"] = {PACKED: packed}
        found = shape.key({"metadata": meta, "spec": spec})
        assert isinstance(found, ResourceKey)
        return found.name

    assert key("allow-web", '{"name":"allow-web"}', tier="default") == "allow-web"
    assert key("default.allow-web", "{}", tier="default") == "allow-web"
    assert key("default.allow-web", None) == "allow-web"
    assert key("default.allow-web", None, tier="other") == "default.allow-web"
    assert key("default.allow-web", '{"name":"default.x"}') == "default.x"


@pytest.mark.parametrize("packed", ["{", "[]", '{"labels":{"a":1}}'])
def test_metadata_that_cannot_be_read_is_named(packed: str) -> None:
    meta = {"name": "pool-a", "annotations": {PACKED: packed}}
    with pytest.raises(Malformed, match=r"^ippools\.crd\.projectcalico\.org/pool-a: metadata\."):
        ResourceShape(Group.V1, POOL.kind).value(POOL, {"metadata": meta, "spec": POOL_SPEC})


def test_a_spec_that_cannot_be_read_is_named() -> None:
    for spec in (None, {"cidr": 5}, {}):
        with pytest.raises(
            Malformed, match=r"^ippools\.projectcalico\.org/pool-a: IPPool 'pool-a'"
        ):
            read(Group.V3, POOL, {"name": "pool-a"}, spec)


def test_the_ipam_configuration_is_the_same_object_as_a_resource() -> None:
    key = ResourceKey(Kind.IPAM_CONFIGURATION, "default")
    for group, plural in {Group.V1: "ipamconfigs", Group.V3: "ipamconfigurations"}.items():
        shape = ResourceShape(group, key.kind)
        assert shape.place(key).api.plural == plural
        spec = {"strictAffinity": True, "kubeVirtVMAddressPersistence": "Disabled"}
        found = read(group, key, {"name": "default"}, spec)
        assert found.kind == "IPAMConfiguration"
        assert found.to_wire()["spec"] == {**spec, "autoAllocateBlocks": False}
