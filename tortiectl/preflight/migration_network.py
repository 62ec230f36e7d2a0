"""Whether every node's virt-handler is on the network that migrations have of their own. Pure.

A virt-handler without that interface announces the pod network's address instead: the memory of
guests then crosses the network that it was to be kept from, and nothing says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tortiectl.kubevirt.objects import LABEL_SCHEDULABLE, Pod
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.world import Cluster

STATUS = "k8s.v1.cni.cncf.io/network-status"
"""What Multus notes on a pod: a JSON list, an object for each network."""


def check_migration_network(cluster: Cluster) -> Iterator[Finding]:
    """A finding for each node whose virt-handler has no address there."""
    network = cluster.settings.migration_network
    if not network:
        return
    there = {pod.spec.node_name for pod in cluster.handlers if _addresses(pod, network)}
    known = {pod.spec.node_name for pod in cluster.handlers if not pod.finished}
    for name, node in sorted(cluster.nodes.items()):
        takes_vms = node.metadata.labels.get(LABEL_SCHEDULABLE) == "true"
        if takes_vms and name in known and name not in there:
            yield Finding(
                Severity.RISK,
                Subject("Node", name),
                "MigrationNetwork",
                f"its virt-handler has no address on the migration network {network}: migrations "
                "to here take the pod network",
                f"see `kubectl describe pod` of it: does NetworkAttachmentDefinition {network} "
                "exist in KubeVirt's namespace, and is its interface on this node?",
            )


def _addresses(pod: Pod, network: str) -> list[Any]:
    """Its addresses there, as Multus notes them."""
    try:
        noted = json.loads(pod.metadata.annotations.get(STATUS, "[]"))
    except ValueError:
        return []
    for one in noted if isinstance(noted, list) else []:
        if isinstance(one, Mapping) and network in _names(str(one.get("name", ""))):
            found = one.get("ips")
            return found if isinstance(found, list) else []
    return []


def _names(noted: str) -> tuple[str, str]:
    """`namespace/name`, and the name alone."""
    return noted, noted.rpartition("/")[2]
