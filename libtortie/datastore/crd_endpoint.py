"""A pod's WorkloadEndpoint: read from the pod, written as annotations on it. Pure.

An endpoint is there when its pod is scheduled, has a network of its own, has not ended and has an
address that DEL has not taken back. Address, container and interface are Calico's annotations and
rules. Beside them stand our own notes (MAC, time, what ADD proved), and they count only where
they name the pod's UID, which whoever made the pod could not know; those about a VM only where the
pod's owner agrees. Whoever may change a pod's annotations afterwards may change its notes, so what
decides about addresses of others (owners in IPAM, the API's word on a migration) is never here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from libtortie.datastore.crd_names import Json, Place, metadata_of, place_text, require_name
from libtortie.datastore.crd_shapes import Query, mismatch
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.kube.objects import VMI_API_VERSION, OwnerRef, Pod, VirtualMachineInstance
from libtortie.kube.replies import decode
from libtortie.model import names
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Key, Kind, ResourceKey, Resources, Scope
from libtortie.model.plain_ip import can_be_reached, plain_address, plain_network
from libtortie.model.resources import API_VERSION, WorkloadEndpoint, parse_resource

CALICO = "cni.projectcalico.org/"
CONTAINER, POD_IP, POD_IPS = CALICO + "containerID", CALICO + "podIP", CALICO + "podIPs"
AMAZON = "vpc.amazonaws.com/pod-ips"
MAC, CREATED = "tortie.io/mac", "tortie.io/attached-at"
ENDPOINT = "eth0"
"""The one interface a pod's endpoint can have here, whatever the runtime calls it."""

FLOATING, SOURCES = CALICO + "floatingIPs", CALICO + "allowedSourcePrefixes"
_NOTES = (
    names.ANNOTATION_POD_UID,
    names.ANNOTATION_STATIC_UID,
    names.ANNOTATION_IPAM,
    names.ANNOTATION_HANDLE,
    names.ANNOTATION_VMI_NAME,
    names.ANNOTATION_VMI_UID,
    names.ANNOTATION_VM_UID,
    names.ANNOTATION_MIGRATION_UID,
    names.ANNOTATION_MTU,
)
_OF_A_VM = _NOTES[4:]
LONGEST_WISH = 4096
"""Characters of such an annotation, as ADD takes it."""
_LABEL_VALUE_MAX = 63
_DASH = re.compile(r"(?<!-)-(?!-)")


@dataclass(frozen=True, slots=True)
class EndpointShape:
    """The `Shape` of WorkloadEndpoint."""

    def place(self, key: Key) -> Place:
        """The pod. `InvalidInput` for an endpoint that is none of a pod's `eth0`."""
        assert isinstance(key, ResourceKey)
        return require_name(Place(Pod.api, _parts(key)[1], key.namespace))

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """All pods, those of a namespace, or one."""
        if isinstance(scope, ResourceKey):
            return (Query(Pod.api, scope.namespace, "", f"metadata.name={_parts(scope)[1]}"),)
        return (Query(Pod.api, scope.namespace if isinstance(scope, Resources) else ""),)

    def key(self, body: Json) -> Key | None:
        """See `Shape`."""
        pod = _pod(body)
        if not pod.spec.node_name or pod.spec.host_network or pod.finished:
            return None
        if pod.metadata.annotations.get(POD_IP) == "" or not _addresses(pod):
            return None
        return _key(pod)

    def former(self, body: Json) -> Key | None:
        """Which endpoint a pod without one may have had; None before it was scheduled."""
        pod = _pod(body)
        return _key(pod) if pod.spec.node_name and not pod.spec.host_network else None

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        pod, raw = _pod(body), metadata_of(body)
        where = place_text(Pod.api, pod.metadata.name, pod.metadata.namespace)
        notes = _trusted(pod)
        meta = {
            "name": key.name if isinstance(key, ResourceKey) else "",
            "generateName": raw.get("generateName") or "",
            "namespace": pod.metadata.namespace,
            "uid": pod.metadata.uid,
            "creationTimestamp": notes.get(CREATED) or raw.get("creationTimestamp"),
            "labels": _labels(pod),
            "annotations": {name: notes[name] for name in _NOTES if name in notes},
        }
        try:
            spec = _spec(pod, notes.get(MAC, ""))
            wire = {"kind": Kind.WORKLOAD_ENDPOINT.value, "apiVersion": API_VERSION}
            return parse_resource(Kind.WORKLOAD_ENDPOINT, {**wire, "metadata": meta, "spec": spec})
        except (Malformed, ValueError) as error:
            raise Malformed(f"{where}: {error}") from error


def recorded(key: Key, value: Value) -> dict[str, str | None]:
    """The annotations that ADD leaves on the pod; None is one to remove. Raises `InvalidInput`."""
    if not isinstance(value, WorkloadEndpoint) or value.key != key:
        raise mismatch(key, value)
    node, pod = _parts(value.key)
    spec, meta = value.spec, value.metadata
    if (spec.node, spec.pod) != (node, pod):
        raise InvalidInput(f"WorkloadEndpoint {meta.name}: its node or pod is not {node}, {pod}")
    if not spec.ip_networks:
        raise InvalidInput(f"WorkloadEndpoint {meta.name}: ipNetworks is empty: nothing to keep")
    notes = {name: meta.annotations.get(name) or None for name in _NOTES}
    return {
        CONTAINER: spec.container_id,
        POD_IP: spec.ip_networks[0],
        POD_IPS: ",".join(spec.ip_networks),
        MAC: spec.mac or None,
        CREATED: meta.creation_timestamp,
        **notes,
    }


def removed() -> dict[str, str | None]:
    """The annotations that DEL leaves: the container's stays."""
    return {POD_IP: "", POD_IPS: ""}


def pod_uid(value: Value) -> str:
    """The UID of the pod that an endpoint was made for, where it says so."""
    if not isinstance(value, WorkloadEndpoint):
        return ""
    return value.metadata.annotations.get(names.ANNOTATION_POD_UID, "")


def _parts(key: ResourceKey) -> tuple[str, str]:
    """Node and pod in an endpoint's name."""
    parts = [part.replace("--", "-") for part in _DASH.split(key.name)]
    if len(parts) != 4 or (parts[1], parts[3]) != (names.ORCHESTRATOR_K8S, ENDPOINT):
        raise InvalidInput(
            f"WorkloadEndpoint {key.namespace}/{key.name}: the Kubernetes datastore keeps "
            f"endpoints on pods: want a pod's interface {ENDPOINT} (for another one use a plugin "
            "such as bridge or macvlan, with tortie-ipam, or the etcd datastore)"
        )
    return parts[0], parts[2]


def _key(pod: Pod) -> ResourceKey:
    meta = pod.metadata
    name = names.wep_name(pod.spec.node_name, names.ORCHESTRATOR_K8S, meta.name, ENDPOINT)
    return ResourceKey(Kind.WORKLOAD_ENDPOINT, name, meta.namespace)


def _pod(body: Json) -> Pod:
    return decode(Pod, body, f"read pods {metadata_of(body).get('name')}")


def _addresses(pod: Pod) -> list[str]:
    notes = pod.metadata.annotations
    sources = (
        [one.ip for one in pod.status.pod_ips],
        [pod.status.pod_ip],
        notes.get(POD_IPS, "").split(","),
        [notes.get(POD_IP, "")],
        notes.get(AMAZON, "").split(","),
    )
    return next((found for one in sources if (found := [text for text in one if text])), [])


def _trusted(pod: Pod) -> dict[str, str]:
    """Our notes, as far as the pod itself agrees with them."""
    found = {key: text for key, text in pod.metadata.annotations.items() if text}
    if found.get(names.ANNOTATION_POD_UID) != pod.metadata.uid:
        return {}
    vmi = found.get(names.ANNOTATION_VMI_NAME, "")
    if not vmi:
        return {key: text for key, text in found.items() if key not in _OF_A_VM}
    handle = found.get(names.ANNOTATION_HANDLE, "")
    network = handle.partition(names.VM_MARK)[0]
    uid = found.get(names.ANNOTATION_VMI_UID, "")
    ours = handle == names.vm_handle(network, pod.metadata.namespace, vmi)
    if ours and _is_vmi(pod.metadata.controller(), vmi, uid):
        return found
    return {k: text for k, text in found.items() if k not in (*_OF_A_VM, names.ANNOTATION_HANDLE)}


def _is_vmi(owner: OwnerRef | None, name: str, uid: str) -> bool:
    """Whether a pod's owner is this VMI."""
    wanted = (VMI_API_VERSION, VirtualMachineInstance.api.kind, name, uid)
    return owner is not None and wanted == (owner.api_version, owner.kind, owner.name, owner.uid)


def _labels(pod: Pod) -> dict[str, str]:
    labels = {
        **pod.metadata.labels,
        "projectcalico.org/namespace": pod.metadata.namespace,
        "projectcalico.org/orchestrator": names.ORCHESTRATOR_K8S,
    }
    if 0 < len(pod.spec.service_account_name) < _LABEL_VALUE_MAX:
        labels["projectcalico.org/serviceaccount"] = pod.spec.service_account_name
    return labels


def _spec(pod: Pod, mac: str) -> Mapping[str, Any]:
    """Raises ValueError for an address that is none."""
    meta, spec = pod.metadata, pod.spec
    profiles = [f"kns.{meta.namespace}"]
    if spec.service_account_name:
        profiles.append(f"ksa.{meta.namespace}.{spec.service_account_name}")
    addresses = [ip_interface(text.strip()).ip for text in _addresses(pod)]
    return {
        "orchestrator": names.ORCHESTRATOR_K8S,
        "node": spec.node_name,
        "containerID": meta.annotations.get(CONTAINER, ""),
        "pod": meta.name,
        "endpoint": ENDPOINT,
        "serviceAccountName": spec.service_account_name,
        "ipNetworks": [f"{one}/{one.max_prefixlen}" for one in addresses],
        "ipNATs": _translations(meta.annotations.get(FLOATING, ""), addresses),
        "profiles": profiles,
        "interfaceName": names.host_ifname(meta.namespace, meta.name),
        "mac": mac,
        "ports": [
            {
                "name": port.name,
                "protocol": port.protocol,
                "port": port.container_port,
                "hostPort": port.host_port,
                "hostIP": port.host_ip,
            }
            for container in (*spec.containers, *spec.init_containers)
            for port in container.ports
            if port.name or port.host_port
        ],
        "allowSpoofedSourcePrefixes": _networks(meta.annotations.get(SOURCES, "")),
    }


def _translations(text: str, own: list[IPAddress]) -> list[dict[str, str]]:
    """Floating addresses, each to the pod's first of its family; without one there is none."""
    first = {address.version: address for address in reversed(own)}
    floating = [_address(item) for item in _texts(text)]
    return [
        {"internalIP": str(first[one.version]), "externalIP": str(one)}
        for one in floating
        if one is not None and one.version in first
    ]


def _address(text: str) -> IPAddress | None:
    try:
        address = plain_address(text)
    except ValueError:
        return None
    return address if can_be_reached(address) else None


def _networks(annotation: str) -> list[str]:
    """The networks that it names; what is none was not there when ADD looked."""
    return [text for text in _texts(annotation) if _is_network(text)]


def _is_network(text: str) -> bool:
    try:
        plain_network(text)
    except ValueError:
        return False
    return True


def _texts(annotation: str) -> list[str]:
    """An annotation's JSON list; ADD refused one that is none, so it was changed since: nothing."""
    try:
        found = json.loads(annotation or "[]") if len(annotation) <= LONGEST_WISH else None
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
