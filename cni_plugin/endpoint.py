"""The WorkloadEndpoint of an attachment: what policy, routes and a later DEL know about it.

Its name is the pod's (per node), so it outlives sandboxes: whoever reads it compares
`containerID` and pod UID before believing that it speaks of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_interface

from cni_plugin.annotations import source_prefixes
from cni_plugin.dataplane import as_interface
from cni_plugin.identity import VMIdentity, Workload
from cni_plugin.skel import CmdArgs
from cni_plugin.undo import Log
from libtortie.datastore.port import Datastore, Record
from libtortie.errors import AlreadyExists, Conflict, Malformed, NotFound
from libtortie.linux.port import Link
from libtortie.model import names
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import IPNAT, ObjectMeta, WorkloadEndpoint, WorkloadEndpointSpec
from libtortie.model.times import rfc3339

LABEL_VALUE_MAX = 63
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Names that follow from a call's parameters alone, known to ADD, DEL and CHECK alike."""

    orchestrator: str
    namespace: str
    pod: str
    container_id: str
    ifname: str
    key: ResourceKey
    host_name: str

    @property
    def workload(self) -> str:
        """Calico's workload id: `<namespace>/<pod>`, or the container's id without a pod."""
        return f"{self.namespace}/{self.pod}" if self.pod else self.container_id

    @property
    def status_file(self) -> str:
        """Name of the endpoint-status file."""
        return names.status_file_name(self.orchestrator, self.workload, self.ifname)

    @property
    def lock_key(self) -> str:
        """Sandboxes of one pod share the host interface, and GC knows no more than that of some."""
        return self.host_name


def place_of(args: CmdArgs, node: str) -> Place:
    """Where a call's attachment is, or would be."""
    orchestrator = names.ORCHESTRATOR_K8S if args.pod else names.ORCHESTRATOR_CNI
    name = names.wep_name(node, orchestrator, args.pod or args.container_id, args.ifname)
    return Place(
        orchestrator=orchestrator,
        namespace=args.namespace,
        pod=args.pod,
        container_id=args.container_id,
        ifname=args.ifname,
        key=ResourceKey(Kind.WORKLOAD_ENDPOINT, name, args.namespace),
        host_name=names.host_ifname(args.namespace, args.pod, args.ifname)
        if args.pod
        else names.host_ifname_of_container(args.container_id, args.ifname),
    )


@dataclass(frozen=True, slots=True)
class Wired:
    """What ADD made: where, of which network, with which addresses and veth ends, and when.

    `translations` are (own, floating) addresses, `giver` a note of who gave the own ones.
    """

    node: str
    network: str
    addresses: tuple[IPAddress, ...]
    host: Link
    pod: Link
    at: datetime
    translations: tuple[tuple[IPAddress, IPAddress], ...] = ()
    giver: str = ""


def build(place: Place, workload: Workload, wired: Wired) -> WorkloadEndpoint:
    """The endpoint of a wired attachment."""
    profiles = [f"kns.{place.namespace}"] if place.pod else [wired.network]
    if workload.service_account:
        profiles.append(f"ksa.{place.namespace}.{workload.service_account}")
    return WorkloadEndpoint(
        metadata=ObjectMeta(
            name=place.key.name,
            namespace=place.namespace,
            creation_timestamp=rfc3339(wired.at),
            labels=_labels(place, workload),
            annotations=_annotations(workload, wired),
        ),
        spec=WorkloadEndpointSpec(
            orchestrator=place.orchestrator,
            workload="" if place.pod else place.container_id,
            node=wired.node,
            containerID=place.container_id,
            pod=place.pod,
            endpoint=place.ifname,
            service_account_name=workload.service_account,
            ip_networks=tuple(str(as_interface(address)) for address in wired.addresses),
            ipNATs=tuple(
                IPNAT(internalIP=str(own), externalIP=str(floating))
                for own, floating in wired.translations
            ),
            profiles=tuple(profiles),
            interface_name=wired.host.name,
            mac=wired.pod.mac,
            ports=workload.ports,
            allow_spoofed_source_prefixes=source_prefixes(workload.annotations),
        ),
    )


def _labels(place: Place, workload: Workload) -> dict[str, str]:
    labels = {
        **workload.labels,
        "projectcalico.org/namespace": place.namespace,
        "projectcalico.org/orchestrator": place.orchestrator,
    }
    if 0 < len(workload.service_account) <= LABEL_VALUE_MAX:
        labels["projectcalico.org/serviceaccount"] = workload.service_account
    return labels


def _annotations(workload: Workload, wired: Wired) -> dict[str, str]:
    vm = workload.vm
    annotations = {
        names.ANNOTATION_POD_UID: workload.pod_uid,
        names.ANNOTATION_STATIC_UID: workload.static_uid,
        names.ANNOTATION_HANDLE: workload.handle_id,
        names.ANNOTATION_IPAM: wired.giver,
        names.ANNOTATION_VMI_NAME: vm.name if vm else "",
        names.ANNOTATION_VMI_UID: vm.vmi_uid if vm else "",
        names.ANNOTATION_VM_UID: vm.vm_uid if vm else "",
        names.ANNOTATION_MIGRATION_UID: vm.migration_uid if vm else "",
        names.ANNOTATION_MTU: str(wired.pod.mtu) if vm else "",
    }
    return {key: value for key, value in annotations.items() if value}


def read(store: Datastore, key: ResourceKey) -> Record | None:
    """The stored endpoint, or None. A record that cannot be read is nobody's: None too."""
    try:
        record = store.get(key)
    except (NotFound, Malformed):
        return None
    return record if isinstance(record.value, WorkloadEndpoint) else None


def endpoint_of(record: Record) -> WorkloadEndpoint:
    """The endpoint in a record that `read` returned."""
    assert isinstance(record.value, WorkloadEndpoint)  # read() has looked
    return record.value


def is_of(endpoint: WorkloadEndpoint, container_id: str, pod_uid: str) -> bool:
    """Whether an endpoint speaks of this sandbox: its container, and its pod where both know."""
    notes = endpoint.metadata.annotations
    known = {notes.get(names.ANNOTATION_POD_UID, ""), notes.get(names.ANNOTATION_STATIC_UID, "")}
    same_pod = known == {""} or not pod_uid or pod_uid in known
    return endpoint.spec.container_id == container_id and same_pod


def host_name_of(endpoint: WorkloadEndpoint, place: Place) -> str:
    """The host interface by the record: a container's was named otherwise by earlier versions."""
    name = endpoint.spec.interface_name
    return name if name.startswith(names.INTERFACE_PREFIX) else place.host_name


def of_node(store: Datastore, node: str) -> Iterator[WorkloadEndpoint]:
    """All endpoints of a node."""
    for record in store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records:
        if isinstance(record.value, WorkloadEndpoint) and record.value.spec.node == node:
            yield record.value


def vm_of(endpoint: WorkloadEndpoint) -> VMIdentity | None:
    """The VM that ADD proved for this endpoint."""
    notes = endpoint.metadata.annotations
    if not notes.get(names.ANNOTATION_VMI_NAME):
        return None
    return VMIdentity(
        notes[names.ANNOTATION_VMI_NAME],
        notes.get(names.ANNOTATION_VMI_UID, ""),
        notes.get(names.ANNOTATION_VM_UID, ""),
        notes.get(names.ANNOTATION_MIGRATION_UID, ""),
    )


def addresses_of(endpoint: WorkloadEndpoint) -> frozenset[str]:
    """The endpoint's networks as normal text. Raises `Malformed`."""
    try:
        return frozenset(str(ip_interface(text)) for text in endpoint.spec.ip_networks)
    except ValueError as error:
        raise Malformed(f"WorkloadEndpoint {endpoint.metadata.name}: {error}") from None


def write(
    store: Datastore,
    key: ResourceKey,
    endpoint: WorkloadEndpoint,
    log: Log,
    before: Record | None = None,
) -> None:
    """Create or replace; a repeat of the same sandbox keeps the first one's time of creation.

    `before` is what was read a moment ago. A record that cannot be read is replaced, or it would
    keep its pod's name from the node.
    """
    for attempt in range(_ATTEMPTS):
        try:
            if attempt:
                before = _writable(store, key, log)
            if before is None:
                store.create(key, endpoint)
            else:
                store.update(key, _aged(endpoint, before), before.revision)
            return
        except (AlreadyExists, Conflict, NotFound):
            if attempt == _ATTEMPTS - 1:
                raise


def _writable(store: Datastore, key: ResourceKey, log: Log) -> Record | None:
    """What is stored, or None when there is nothing, not any more."""
    try:
        return store.get(key)
    except NotFound:
        return None
    except Malformed as error:
        log("unreadable_endpoint_replaced", name=key.name, error=str(error))
        store.delete(key)
        return None


def _aged(endpoint: WorkloadEndpoint, current: Record) -> WorkloadEndpoint:
    stored = current.value
    if not isinstance(stored, WorkloadEndpoint):
        return endpoint
    if stored.spec.container_id != endpoint.spec.container_id:
        return endpoint
    created = stored.metadata.creation_timestamp or endpoint.metadata.creation_timestamp
    meta = endpoint.metadata.model_copy(update={"creation_timestamp": created})
    return endpoint.model_copy(update={"metadata": meta})


def remove(store: Datastore, key: ResourceKey, container_id: str) -> None:
    """Delete the endpoint if it is this sandbox's; absent or another's is success."""
    for _ in range(_ATTEMPTS):
        record = read(store, key)
        if record is None or endpoint_of(record).spec.container_id != container_id:
            return
        try:
            store.delete(key, record.revision)
            return
        except NotFound:
            return
        except Conflict:
            continue
    raise Conflict(f"WorkloadEndpoint {key.name} keeps changing")
