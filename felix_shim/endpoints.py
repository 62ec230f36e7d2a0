"""WorkloadEndpoint resource → the agent's `Endpoint`. Pure.

The CNI plugin wrote what it proved about the VM into annotations; labels are the pod's, so no
pod has to be read. A resource that cannot be understood yields a reason and no endpoint: such
an attachment stays without policy, and so without traffic.
"""

from __future__ import annotations

from ipaddress import ip_interface

from felix_shim.extras import floating_of, prefixes_of
from felix_shim.frames import mac_bytes
from felix_shim.model import Endpoint, EndpointId, VMRef
from libtortie.errors import Malformed
from libtortie.model.ipam import IPAddress
from libtortie.model.names import (
    ANNOTATION_HANDLE,
    ANNOTATION_IPAM,
    ANNOTATION_MIGRATION_UID,
    ANNOTATION_POD_UID,
    ANNOTATION_VMI_NAME,
    ANNOTATION_VMI_UID,
    INTERFACE_PREFIX,
    ORCHESTRATOR_K8S,
)
from libtortie.model.resources import WorkloadEndpoint

_INTERFACE_MAX = 15


def parse_endpoint(resource: WorkloadEndpoint) -> Endpoint:
    """The endpoint a resource describes. Raises `Malformed`."""
    spec, metadata = resource.spec, resource.metadata
    orchestrator = spec.orchestrator or ORCHESTRATOR_K8S
    workload = spec.workload or f"{metadata.namespace}/{spec.pod}"
    where = f"WorkloadEndpoint {metadata.namespace}/{metadata.name}"
    addresses = _addresses(spec.ip_networks, where)
    return Endpoint(
        id=EndpointId(metadata.namespace, spec.pod or workload, spec.endpoint or "eth0"),
        orchestrator=orchestrator,
        workload=workload,
        interface=_interface(spec.interface_name, where),
        mac=_mac(spec.mac, where),
        addresses=addresses,
        container_id=spec.container_id,
        pod_uid=metadata.annotations.get(ANNOTATION_POD_UID, ""),
        labels=dict(metadata.labels),
        profiles=tuple(spec.profiles),
        vm=_vm(resource),
        migration_uid=metadata.annotations.get(ANNOTATION_MIGRATION_UID, ""),
        floating=floating_of(spec, addresses, where),
        source_prefixes=prefixes_of(spec, where),
    )


def _interface(name: str, where: str) -> str:
    if not name.startswith(INTERFACE_PREFIX) or len(name) > _INTERFACE_MAX or "/" in name:
        raise Malformed(f"{where}: interfaceName {name!r} is not a {INTERFACE_PREFIX}* name")
    return name


def _mac(text: str, where: str) -> str:
    try:
        mac_bytes(text)
    except ValueError as error:
        raise Malformed(f"{where}: mac: {error}") from error
    return text.lower()


def _addresses(networks: tuple[str, ...], where: str) -> tuple[IPAddress, ...]:
    try:
        return tuple(ip_interface(text).ip for text in networks)
    except ValueError as error:
        raise Malformed(f"{where}: ipNetworks: {error}") from error


def _vm(resource: WorkloadEndpoint) -> VMRef | None:
    annotations = resource.metadata.annotations
    name, uid = annotations.get(ANNOTATION_VMI_NAME, ""), annotations.get(ANNOTATION_VMI_UID, "")
    if not name or not uid:
        return None
    ours = not annotations.get(ANNOTATION_IPAM)  # else IPAM has no owner to be kept right
    handle = annotations.get(ANNOTATION_HANDLE, "") if ours else ""
    return VMRef(resource.metadata.namespace, name, uid, handle)
