"""What API and datastore together say of one pod: its UIDs, nodes, addresses, containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from libtortie.kube.objects import Pod
from libtortie.model.ipam import IPAddress

from .gc_endpoints import Endpoint, addresses

PodName = tuple[str, str]
"""Namespace and name."""

_CALICO = "cni.projectcalico.org/"
_STATIC_UID = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
"""Where a static pod's object has the UID by which the kubelet knows it."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of one pod. `addresses` and `containers` are what API and endpoint report."""

    uids: tuple[str, ...]
    nodes: frozenset[str]
    finished: bool = False
    addresses: tuple[IPAddress, ...] = ()
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """Which endpoints a pod has, and what its node is called in the datastore."""

    endpoints: Mapping[PodName, tuple[Endpoint, ...]]
    nodes: Mapping[str, frozenset[str]]
    _known: dict[str, frozenset[str]] = field(default_factory=dict)

    def nodes_of(self, node: str) -> frozenset[str]:
        """What a pod's node is called, there and here; the same object for all of its pods."""
        if node not in self._known:
            self._known[node] = frozenset({node, *self.nodes.get(node, ())} - {""})
        return self._known[node]


def pod_facts(pod: Pod, names: Names) -> PodFacts:
    """What API and datastore report of a pod. An address that is none is left out.

    What both say is kept once: a large cluster's pods are many.
    """
    meta, notes, uids = pod.metadata, pod.metadata.annotations, _uids(pod)
    node = pod.spec.node_name
    nodes = names.nodes_of(node)
    texts = [pod.status.pod_ip, *(one.ip for one in pod.status.pod_ips)]
    texts += [notes.get(_CALICO + "podIP", ""), *notes.get(_CALICO + "podIPs", "").split(",")]
    found = tuple(addresses(texts))
    containers = {notes.get(_CALICO + "containerID", "")}
    for endpoint in names.endpoints.get((meta.namespace, meta.name), ()):
        theirs = endpoint.pod_uid or meta.uid
        if theirs in uids and (not nodes or endpoint.node in nodes):
            uids = (endpoint.pod_uid,) if uids == (endpoint.pod_uid,) else uids
            found = _merged(found, endpoint.addresses)
            containers.add(endpoint.container_id)
    return PodFacts(uids, nodes, pod.finished, found, tuple(filter(None, containers)))


def _merged(
    reported: tuple[IPAddress, ...], stored: tuple[IPAddress, ...]
) -> tuple[IPAddress, ...]:
    """Each address once, those that the API reports first."""
    return stored if reported == stored else tuple(dict.fromkeys(reported + stored))


def _uids(pod: Pod) -> tuple[str, ...]:
    """Every UID by which API or kubelet know a pod."""
    notes = (pod.metadata.annotations.get(key, "") for key in _STATIC_UID)
    return tuple(dict.fromkeys(filter(None, (pod.metadata.uid, *notes))))
