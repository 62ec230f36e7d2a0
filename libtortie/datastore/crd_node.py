"""Calico's Node on the core Node: what Calico adds is in annotations. Pure.

The kubelet makes and removes Nodes; we change annotations only. Labels that Kubernetes has win
over Calico's of the same key and never become Calico's own. An annotation that cannot be read
counts as empty, as in Calico.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from libtortie.datastore import gojson
from libtortie.datastore.crd_names import Json, Place, metadata_of, place_text, require_name
from libtortie.datastore.crd_shapes import Query, mismatch
from libtortie.datastore.port import Value
from libtortie.errors import Malformed
from libtortie.kube.objects import KubeNode
from libtortie.model.keys import Key, Kind, ResourceKey, Scope
from libtortie.model.plain_ip import plain_address
from libtortie.model.resources import API_VERSION, Node, parse_resource

PREFIX = "projectcalico.org/"
KUBE_LABELS = PREFIX + "kube-labels"
"""In a value only: the labels that are Kubernetes', so that a write can leave them out."""

_LABELS, _ANNOTATIONS = PREFIX + "labels", PREFIX + "annotations"
_INTERFACES = PREFIX + "Interfaces"


def _interface(text: str) -> Any:
    ip_interface(text)
    return text


def _address(text: str) -> Any:
    plain_address(text)
    return text


_FIELDS: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("spec", "bgp.ipv4Address", "IPv4Address", _interface),
    ("spec", "bgp.ipv6Address", "IPv6Address", _interface),
    ("spec", "bgp.asNumber", "ASNumber", int),
    ("spec", "bgp.routeReflectorClusterID", "RouteReflectorClusterID", _address),
    ("spec", "bgp.ipv4IPIPTunnelAddr", "IPv4IPIPTunnelAddr", _address),
    ("spec", "ipv4VXLANTunnelAddr", "IPv4VXLANTunnelAddr", _address),
    ("spec", "vxlanTunnelMACAddr", "VXLANTunnelMACAddr", str),
    ("spec", "ipv6VXLANTunnelAddr", "IPv6VXLANTunnelAddr", _address),
    ("spec", "vxlanTunnelMACAddrV6", "VXLANTunnelMACAddrV6", str),
    ("spec", "wireguard.interfaceIPv4Address", "IPv4WireguardInterfaceAddr", _address),
    ("spec", "wireguard.interfaceIPv6Address", "IPv6WireguardInterfaceAddr", _address),
    ("status", "wireguardPublicKey", "WireguardPublicKey", str),
    ("status", "wireguardPublicKeyV6", "WireguardPublicKeyV6", str),
)
"""Section, field, annotation, and how the annotation's text is read (ValueError: not at all)."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The `Shape` of Node."""

    def place(self, key: Key) -> Place:
        """See `Shape`."""
        assert isinstance(key, ResourceKey)
        return require_name(Place(KubeNode.api, key.name))

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """All nodes, or one."""
        name = f"metadata.name={scope.name}" if isinstance(scope, ResourceKey) else ""
        return (Query(KubeNode.api, field_selector=name),)

    def key(self, body: Json) -> Key:
        """See `Shape`."""
        return ResourceKey(Kind.NODE, str(metadata_of(body).get("name") or ""))

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        wire = _wire(body)
        try:
            return parse_resource(Kind.NODE, wire)
        except Malformed as error:
            name = str(metadata_of(body).get("name"))
            raise Malformed(f"{place_text(KubeNode.api, name)}: {error}") from error


def annotations_of(key: Key, value: Value, old: Json) -> dict[str, str | None]:
    """The annotations of a node after a write; None is one to remove. `old` is the core Node."""
    if not isinstance(value, Node) or value.key != key:
        raise mismatch(key, value)
    wire = value.to_wire()
    found: dict[str, str | None] = {}
    for section, path, name, _ in _FIELDS:
        held = _at(wire.get(section), path)
        found[PREFIX + name] = str(held) if held not in (None, "", 0) else None
    interfaces = _at(wire.get("spec"), "interfaces")
    found[_INTERFACES] = gojson.dumps(interfaces).decode() if interfaces else None
    kubernetes = metadata_of(old).get("labels") or {}
    own = value.metadata.labels
    labels = {name: own[name] for name in sorted(own) if name not in kubernetes}
    given = value.metadata.annotations
    annotations = {name: given[name] for name in sorted(given) if name != KUBE_LABELS}
    found[_LABELS] = gojson.dumps(labels).decode() if labels else None
    found[_ANNOTATIONS] = gojson.dumps(annotations).decode() if annotations else None
    return found


def _wire(body: Json) -> Json:
    raw = metadata_of(body)
    notes = raw.get("annotations") or {}
    kubernetes = {key: str(value) for key, value in (raw.get("labels") or {}).items()}
    meta: Json = {
        "name": raw.get("name", ""),
        "uid": raw.get("uid", ""),
        "creationTimestamp": raw.get("creationTimestamp"),
        "labels": _texts(notes.get(_LABELS)) | kubernetes,
        "annotations": _texts(notes.get(_ANNOTATIONS))
        | {KUBE_LABELS: gojson.dumps(dict(sorted(kubernetes.items()))).decode()},
    }
    wire: Json = {"kind": Kind.NODE.value, "apiVersion": API_VERSION, "metadata": meta}
    wire |= {"spec": {}, "status": {}}
    for section, path, name, read in _FIELDS:
        text = notes.get(PREFIX + name)
        if not text:
            continue
        try:
            _put(wire[section], path, read(text))
        except ValueError:
            continue
    spec, status = wire["spec"], wire["status"]
    spec["orchRefs"] = [{"nodeName": meta["name"], "orchestrator": "k8s"}]
    if interfaces := _json(notes.get(_INTERFACES), list):
        spec["interfaces"] = interfaces
    if addresses := _addresses(spec, body):
        spec["addresses"] = addresses
    core = body.get("spec") or {}
    if cidrs := core.get("podCIDRs") or ([core["podCIDR"]] if core.get("podCIDR") else []):
        status["podCIDRs"] = cidrs
    return wire


def _addresses(spec: Json, body: Json) -> list[Json]:
    """What the node is reached at: by Calico's annotations, then by the kubelet's word."""
    bgp = spec.get("bgp") or {}
    found = [
        {"address": bgp[name], "type": "CalicoNodeIP"}
        for name in ("ipv4Address", "ipv6Address")
        if bgp.get(name)
    ]
    for one in (body.get("status") or {}).get("addresses") or ():
        if one.get("type") in ("InternalIP", "ExternalIP"):
            found.append({"address": one.get("address", ""), "type": one["type"]})
    return found


def _at(section: Any, path: str) -> Any:
    for step in path.split("."):
        section = section.get(step) if isinstance(section, Mapping) else None
    return section


def _put(section: Json, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        section = section.setdefault(step, {})
    section[last] = value


def _json(text: Any, kind: type) -> Any:
    """What an annotation holds, if it is JSON of a kind; else None."""
    try:
        found = gojson.loads(str(text or "").encode())
    except ValueError:
        return None
    return found if isinstance(found, kind) else None


def _texts(text: Any) -> dict[str, str]:
    found = _json(text, dict) or {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
