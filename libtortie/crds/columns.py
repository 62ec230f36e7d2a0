"""What `kubectl get` shows of each kind besides its name, as data.

A column is (name, path, type, priority); one of priority 1 is shown by `-o wide` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
    """One column: the value at `path` of the object, and its OpenAPI type."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


AGE = Column("Age", ".metadata.creationTimestamp", "date")
_BLOCK = (Column("CIDR", ".spec.cidr"), Column("Affinity", ".spec.affinity"))
_POLICY = (Column("Tier", ".spec.tier"), Column("Order", ".spec.order", "number"))
_IPAM = (
    Column("Strict", ".spec.strictAffinity", "boolean"),
    Column("VM-Persistence", ".spec.kubeVirtVMAddressPersistence"),
    Column("Cooldown", ".spec.ipCooldownSeconds", "integer", 1),
)
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "IPPool": (
        Column("CIDR", ".spec.cidr"),
        Column("NAT", ".spec.natOutgoing", "boolean"),
        Column("IPIP", ".spec.ipipMode"),
        Column("VXLAN", ".spec.vxlanMode"),
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("Block", ".spec.blockSize", "integer", 1),
        Column("Selector", ".spec.nodeSelector", "string", 1),
    ),
    "IPAMConfig": _IPAM,
    "IPAMConfiguration": _IPAM,
    "IPAMBlock": _BLOCK,
    "BlockAffinity": (
        Column("Node", ".spec.node"),
        Column("CIDR", ".spec.cidr"),
        Column("State", ".spec.state"),
    ),
    "IPAMHandle": (Column("Handle", ".spec.handleID"),),
    "BGPPeer": (
        Column("Peer", ".spec.peerIP"),
        Column("AS", ".spec.asNumber", "integer"),
        Column("Node", ".spec.node"),
        Column("Nodes", ".spec.nodeSelector", "string", 1),
        Column("Peers", ".spec.peerSelector", "string", 1),
    ),
    "BGPConfiguration": (
        Column("AS", ".spec.asNumber", "integer"),
        Column("Mesh", ".spec.nodeToNodeMeshEnabled", "boolean"),
    ),
    "ClusterInformation": (
        Column("GUID", ".spec.clusterGUID"),
        Column("Ready", ".spec.datastoreReady", "boolean"),
    ),
    "Tier": (
        Column("Order", ".spec.order", "number"),
        Column("Default", ".spec.defaultAction"),
    ),
    "NetworkPolicy": _POLICY,
    "GlobalNetworkPolicy": _POLICY,
    "StagedNetworkPolicy": (*_POLICY, Column("Action", ".spec.stagedAction")),
    "StagedGlobalNetworkPolicy": (*_POLICY, Column("Action", ".spec.stagedAction")),
    "StagedKubernetesNetworkPolicy": (Column("Action", ".spec.stagedAction"),),
    "HostEndpoint": (
        Column("Node", ".spec.node"),
        Column("Interface", ".spec.interfaceName"),
    ),
    "CalicoNodeStatus": (
        Column("Node", ".spec.node"),
        Column("Updated", ".status.lastUpdated", "date"),
    ),
}
"""By kind; a kind that is not here shows its age."""
