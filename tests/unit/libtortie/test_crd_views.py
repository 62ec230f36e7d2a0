"""Nodes, endpoints and profiles as views of core Nodes, pods, namespaces and accounts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libtortie.datastore.crd_endpoint import EndpointShape, recorded
from libtortie.datastore.crd_node import KUBE_LABELS, NodeShape, annotations_of
from libtortie.datastore.crd_profile import ProfileShape
from libtortie.errors import InvalidInput
from libtortie.model import names
from libtortie.model.keys import Key, Kind, ResourceKey
from libtortie.model.resources import GenericResource, Node, WorkloadEndpoint

Json = dict[str, Any]
NODE = ResourceKey(Kind.NODE, "node-1")
WEB = ResourceKey(Kind.WORKLOAD_ENDPOINT, "node--1-k8s-web--0-eth0", "shop")
CALICO, OURS = "cni.projectcalico.org/", "projectcalico.org/"
ADDED = {
    CALICO + "containerID": "9f3c",
    CALICO + "podIP": "10.250.0.5/32",
    CALICO + "podIPs": "10.250.0.5/32,fd00::5/128",
}


def core_node(annotations: Json | None = None, **more: Any) -> Json:
    meta: Json = {"name": "node-1", "uid": "u-1", "resourceVersion": "5"}
    meta |= {"labels": {"zone": "a"}, "annotations": annotations or {}}
    return {"metadata": meta, **more}


def read_node(body: Json) -> Node:
    value = NodeShape().value(NODE, body)
    assert isinstance(value, Node)
    return value


def pod(annotations: Json | None = None, spec: Json | None = None, **more: Any) -> Json:
    meta: Json = {"name": "web-0", "namespace": "shop", "uid": "u-2", "resourceVersion": "9"}
    meta |= {"creationTimestamp": "2026-08-22T13:30:00Z", "labels": {"app": "web"}}
    meta |= {"annotations": annotations or {}, **more.pop("metadata", {})}
    full = {"nodeName": "node-1", "serviceAccountName": "default", **(spec or {})}
    return {"metadata": meta, "spec": full, **more}


def read_pod(body: Json) -> WorkloadEndpoint:
    shape = EndpointShape()
    assert shape.key(body) == WEB
    value = shape.value(WEB, body)
    assert isinstance(value, WorkloadEndpoint)
    return value


# -- nodes


NODE_NOTES = {
    OURS + "IPv4Address": "192.0.2.11/24",
    OURS + "ASNumber": "64512",
    OURS + "IPv4IPIPTunnelAddr": "10.250.0.4",
    OURS + "IPv4VXLANTunnelAddr": "10.250.0.6",
    OURS + "IPv4WireguardInterfaceAddr": "10.250.0.7",
    OURS + "WireguardPublicKey": "key",
    OURS + "Interfaces": '[{"name":"eth0","addresses":["192.0.2.11"]}]',
    OURS + "labels": '{"rack":"r1","zone":"calico"}',
    OURS + "annotations": '{"note":"x"}',
}


def test_a_node_is_its_annotations_and_comes_back_the_same() -> None:
    status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}, {"type": "Hostname"}]}
    body = core_node(NODE_NOTES, spec={"podCIDRs": ["10.1.0.0/24"]}, status=status)
    node = read_node(body)
    assert node.metadata.labels == {"rack": "r1", "zone": "a"}
    assert node.metadata.annotations == {"note": "x", KUBE_LABELS: '{"zone":"a"}'}
    assert node.to_wire()["spec"] == {
        "bgp": {
            "asNumber": 64512,
            "ipv4Address": "192.0.2.11/24",
            "ipv4IPIPTunnelAddr": "10.250.0.4",
        },
        "ipv4VXLANTunnelAddr": "10.250.0.6",
        "wireguard": {"interfaceIPv4Address": "10.250.0.7"},
        "orchRefs": [{"nodeName": "node-1", "orchestrator": "k8s"}],
        "interfaces": [{"name": "eth0", "addresses": ["192.0.2.11"]}],
        "addresses": [
            {"address": "192.0.2.11/24", "type": "CalicoNodeIP"},
            {"address": "192.0.2.11", "type": "InternalIP"},
        ],
    }
    assert node.to_wire()["status"] == {"wireguardPublicKey": "key", "podCIDRs": ["10.1.0.0/24"]}
    written = annotations_of(NODE, node, body)
    kept = {key: text for key, text in written.items() if text is not None}
    assert kept == NODE_NOTES | {OURS + "labels": '{"rack":"r1"}'}
    assert read_node(core_node(kept, spec=body["spec"], status=status)) == node


def test_an_emptied_field_takes_its_annotation_away() -> None:
    node = read_node(core_node({OURS + "IPv4Address": "192.0.2.11/24"}))
    assert node.spec.bgp is not None
    bare = node.model_copy(update={"spec": node.spec.model_copy(update={"bgp": None})})
    written = annotations_of(NODE, bare, core_node())
    assert written[OURS + "IPv4Address"] is None
    assert set(written.values()) == {None}


def test_node_annotations_that_cannot_be_read_are_empty() -> None:
    bad = {
        OURS + "IPv4Address": "x",
        OURS + "ASNumber": "many",
        OURS + "Interfaces": "{}",
        OURS + "labels": "[",
    }
    node = read_node(core_node(bad))
    assert node.spec.bgp is None
    assert node.metadata.labels == {"zone": "a"}


# -- endpoints


def test_an_endpoint_is_its_pod() -> None:
    port = {"name": "http", "containerPort": 8080}
    hidden = {"containerPort": 9090}
    spec = {"containers": [{"ports": [port, hidden]}], "initContainers": [{"ports": [port]}]}
    found = read_pod(pod(ADDED, spec, metadata={"generateName": "web-"}))
    assert found.to_wire() == {
        "kind": "WorkloadEndpoint",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": WEB.name,
            "generateName": "web-",
            "namespace": "shop",
            "uid": "u-2",
            "creationTimestamp": "2026-08-22T13:30:00Z",
            "labels": {
                "app": "web",
                "projectcalico.org/namespace": "shop",
                "projectcalico.org/orchestrator": "k8s",
                "projectcalico.org/serviceaccount": "default",
            },
        },
        "spec": {
            "orchestrator": "k8s",
            "node": "node-1",
            "containerID": "9f3c",
            "pod": "web-0",
            "endpoint": "eth0",
            "serviceAccountName": "default",
            "ipNetworks": ["10.250.0.5/32", "fd00::5/128"],
            "profiles": ["kns.shop", "ksa.shop.default"],
            "interfaceName": names.host_ifname("shop", "web-0"),
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}
            ]
            * 2,
        },
    }


@pytest.mark.parametrize(
    ("body", "networks"),
    [
        (pod(ADDED, status={"podIPs": [{"ip": "10.9.9.9"}]}), ["10.9.9.9/32"]),
        (pod(ADDED, status={"podIP": "10.9.9.8"}), ["10.9.9.8/32"]),
        (pod({CALICO + "podIP": "10.1.1.1/32"}), ["10.1.1.1/32"]),
        (pod({"vpc.amazonaws.com/pod-ips": "10.1.1.2, fd00::1"}), ["10.1.1.2/32", "fd00::1/128"]),
    ],
)
def test_the_first_place_that_has_addresses_has_them(body: Json, networks: list[str]) -> None:
    assert list(read_pod(body).spec.ip_networks) == networks


@pytest.mark.parametrize(
    "body",
    [
        pod(),
        pod(ADDED, {"nodeName": ""}),
        pod(ADDED, {"hostNetwork": True}),
        pod(ADDED, status={"phase": "Succeeded"}),
        pod(ADDED, status={"phase": "Failed", "podIP": "10.1.1.1"}),
        pod(ADDED | {CALICO + "podIP": "", CALICO + "podIPs": ""}),
        pod(ADDED | {CALICO + "podIP": ""}, status={"podIP": "10.250.0.5"}),
    ],
)
def test_pods_without_an_endpoint(body: Json) -> None:
    assert EndpointShape().key(body) is None


VM_NOTES = {
    names.ANNOTATION_POD_UID: "u-2",
    names.ANNOTATION_HANDLE: "net.vmi.shop.db",
    names.ANNOTATION_VMI_NAME: "db",
    names.ANNOTATION_VMI_UID: "u-vmi",
    names.ANNOTATION_VM_UID: "u-vm",
    names.ANNOTATION_MIGRATION_UID: "u-m",
}
OWNER = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "controller": True}
OWNER |= {"name": "db", "uid": "u-vmi"}


def notes_of(notes: Json, owner: Json | None) -> dict[str, str]:
    owners = [] if owner is None else [owner]
    body = pod(ADDED | notes, metadata={"ownerReferences": owners})
    return read_pod(body).metadata.annotations


def test_notes_count_where_the_pod_agrees() -> None:
    assert notes_of(VM_NOTES, OWNER) == VM_NOTES
    of_another = VM_NOTES | {names.ANNOTATION_POD_UID: "u-3"}
    assert notes_of(of_another, OWNER) == {}
    assert notes_of({k: v for k, v in VM_NOTES.items() if "pod-uid" not in k}, OWNER) == {}
    own = {names.ANNOTATION_POD_UID: "u-2", names.ANNOTATION_HANDLE: "net.9f3c"}
    assert notes_of(own, None) == own


@pytest.mark.parametrize(
    ("notes", "owner"),
    [
        ({}, None),
        ({}, OWNER | {"name": "other"}),
        ({}, OWNER | {"uid": "other"}),
        ({}, OWNER | {"kind": "ReplicaSet"}),
        ({}, OWNER | {"controller": False}),
        ({names.ANNOTATION_VMI_NAME: "other"}, OWNER),
        ({names.ANNOTATION_HANDLE: "net.vmi.shop.other"}, OWNER),
        ({names.ANNOTATION_HANDLE: "net.vmi.bank.db"}, OWNER),
        ({names.ANNOTATION_HANDLE: "net.9f3c"}, OWNER),
    ],
)
def test_notes_about_a_vm_need_the_pods_owner(notes: Json, owner: Json | None) -> None:
    assert notes_of(VM_NOTES | notes, owner) == {names.ANNOTATION_POD_UID: "u-2"}


def test_what_add_records_is_what_is_read() -> None:
    meta = {"creationTimestamp": "2026-08-23T00:00:00Z", "annotations": VM_NOTES}
    wire: Json = {"metadata": {"name": WEB.name, "namespace": "shop", **meta}}
    spec = {"node": "node-1", "pod": "web-0", "containerID": "9f3c", "mac": "02:00:00:00:00:01"}
    wire["spec"] = spec | {"ipNetworks": ["10.250.0.5/32", "fd00::5/128"]}
    value = WorkloadEndpoint.model_validate(wire)
    notes = recorded(WEB, value)
    assert {key: notes[key] for key in ADDED} == ADDED
    left = {key: text for key, text in notes.items() if text is not None}
    found = read_pod(pod(left, metadata={"ownerReferences": [OWNER]}))
    assert found.metadata.annotations == VM_NOTES
    assert found.metadata.creation_timestamp == "2026-08-23T00:00:00Z"
    assert found.spec.mac == "02:00:00:00:00:01"
    plain = value.model_copy(
        update={"metadata": value.metadata.model_copy(update={"annotations": {}})}
    )
    assert recorded(WEB, plain)[names.ANNOTATION_VMI_NAME] is None


def test_floating_addresses_and_source_prefixes_are_the_pods_annotations() -> None:
    """As Calico reads them; whoever spoils one afterwards has none, and the endpoint stays."""
    prefix = "cni.projectcalico.org/"
    own = {prefix + "podIP": "10.250.0.5/32", prefix + "podIPs": "10.250.0.5/32,fd00::5/128"}
    floating = '["203.0.113.5", "2001:db8::5", "nonsense"]'
    wishes = {"floatingIPs": floating, "allowedSourcePrefixes": '["198.51.100.0/24", 7, "no"]'}
    spec = read_pod(pod(own | {prefix + name: text for name, text in wishes.items()})).spec
    assert [(one.internal_ip, one.external_ip) for one in spec.ip_nats] == [
        ("10.250.0.5", "203.0.113.5"),
        ("fd00::5", "2001:db8::5"),
    ]
    assert spec.allow_spoofed_source_prefixes == ("198.51.100.0/24",)
    foul = '["fe80::%x }; flush ruleset;/64", "fe80::1%x }; flush ruleset;"]'
    many = json.dumps([f"192.0.2.{last}" for last in range(256)] * 2)  # more than ADD takes
    for text in ("", "nonsense", "7", "{}", "[" * 100_000, foul, many):
        spec = read_pod(pod(own | {prefix + name: text for name in wishes})).spec
        assert (spec.ip_nats, spec.allow_spoofed_source_prefixes) == ((), ())


def test_who_gave_the_addresses_is_noted_for_that_pod_only() -> None:
    own = {"cni.projectcalico.org/podIP": "10.250.0.5/32"}
    own |= {names.ANNOTATION_IPAM: '{"type":"host-local"}'}
    for uid, kept in (("u-2", True), ("another", False)):
        value = read_pod(pod(own | {names.ANNOTATION_POD_UID: uid}))
        assert (names.ANNOTATION_IPAM in value.metadata.annotations) is kept


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("node--1-cni-9f3c-eth0", "keeps endpoints on pods"),
        ("node--1-k8s-web--0-net1", "interface eth0"),
        ("w", "keeps endpoints on pods"),
    ],
)
def test_endpoints_that_no_pod_could_have(name: str, part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        EndpointShape().place(ResourceKey(Kind.WORKLOAD_ENDPOINT, name, "shop"))


# -- profiles


def test_profiles_are_namespaces_and_accounts() -> None:
    shape = ProfileShape()

    def read(name: str, namespace: str = "") -> tuple[Key, Json]:
        meta = {"name": name, "namespace": namespace, "labels": {"team": "a"}}
        body = {"metadata": meta}
        key = shape.key(body)
        place = shape.place(key)
        assert (place.name, place.namespace) == (name, namespace)
        value = shape.value(key, body)
        assert isinstance(value, GenericResource)
        return key, value.spec.to_wire()

    allow = [{"action": "Allow"}]
    assert read("shop") == (
        ResourceKey(Kind.PROFILE, "kns.shop"),
        {
            "ingress": allow,
            "egress": allow,
            "labelsToApply": {"pcns.projectcalico.org/name": "shop", "pcns.team": "a"},
        },
    )
    assert read("web.v2", "shop") == (
        ResourceKey(Kind.PROFILE, "ksa.shop.web.v2"),
        {"labelsToApply": {"pcsa.projectcalico.org/name": "web.v2", "pcsa.team": "a"}},
    )
    for name in ("mine", "ksa.shop", "projectcalico-default-allow"):
        with pytest.raises(InvalidInput, match=r"kns\.<namespace>"):
            shape.place(ResourceKey(Kind.PROFILE, name))
