"""What the collector needs to know of stored workload endpoints: a cluster has very many. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface

from libtortie.model.ipam import IPAddress
from libtortie.model.names import ANNOTATION_POD_UID, ANNOTATION_VMI_NAME, ORCHESTRATOR_K8S
from libtortie.model.resources import WorkloadEndpoint

from .gc_sharing import Texts


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One attachment. `pod_uid` and `vm` are "" where its ADD did not say."""

    name: str
    namespace: str
    workload: str
    node: str
    pod: str
    kubernetes: bool
    container_id: str
    addresses: tuple[IPAddress, ...]
    pod_uid: str
    vm: str

    @property
    def called(self) -> str:
        """What people call it."""
        return f"{self.namespace}/{self.pod}" if self.pod else self.workload or self.name


def endpoint_of(stored: WorkloadEndpoint, texts: Texts) -> Endpoint:
    """What is needed of a stored one."""
    metadata, spec = stored.metadata, stored.spec
    return Endpoint(
        name=metadata.name,
        namespace=texts.one(metadata.namespace),
        workload=spec.workload,
        node=texts.one(spec.node),
        pod=texts.one(spec.pod),
        kubernetes=spec.orchestrator in ("", ORCHESTRATOR_K8S),
        container_id=texts.one(spec.container_id),
        addresses=tuple(addresses(spec.ip_networks)),
        pod_uid=texts.one(metadata.annotations.get(ANNOTATION_POD_UID, "")),
        vm=metadata.annotations.get(ANNOTATION_VMI_NAME, ""),
    )


def addresses(texts: Iterable[str]) -> Iterator[IPAddress]:
    """The addresses in texts, with or without a prefix length; what is none is left out."""
    for text in dict.fromkeys(map(str.strip, texts)):
        plain = text.removesuffix("/32")  # a prefix length of both families
        try:
            if "/" in plain:
                yield ip_interface(text).ip
            elif plain:
                yield ip_address(plain)  # by far the most, and several times as fast
        except ValueError:
            continue
