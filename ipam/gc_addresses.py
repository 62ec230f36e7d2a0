"""Whether an address is still somebody's: each address for itself, never by its siblings. Pure.

An ordinary pod's address is known by pod UID and container id where they were recorded, else by
namespace, name and node, and by what the pod reports as its own. A tunnel's lives with its node.
Of anything else nobody here can tell whether it lives: it is kept, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from libtortie.model.ipam import IPAddress, Owner

from .gc_cluster import Cluster
from .gc_inventory import Allocated
from .gc_pods import PodFacts, PodName
from .gc_verdicts import Opinion, Unknown, blind, doubt, good
from .ownership import PLUGIN, is_pod

TUNNELS = frozenset(
    {
        "ipipTunnelAddress",
        "vxlanTunnelAddress",
        "vxlanV6TunnelAddress",
        "wireguardTunnelAddress",
        "wireguardV6TunnelAddress",
    }
)
"""Values of the owner attribute `type` of a node's own addresses."""

WINDOWS_HANDLE = "windows-reserved-ipam-handle"


@dataclass(frozen=True, slots=True)
class Life:
    """Whether something is there: True, False, or None for not known; and why."""

    lives: bool | None
    reason: str


def opine(found: Allocated, cluster: Cluster) -> Opinion[Allocated]:
    """What one observation says of one address that is no VM's."""
    owner = owner_of(found)
    exempt = _exempt(found, owner)
    if exempt:
        return good(found, exempt)
    if owner.get("type") in TUNNELS:
        return _tunnel(found, owner, cluster)
    life = pod_life(owner, found.piece.address, cluster.pods)
    if life.lives is None:
        return blind(found, life.reason)
    return good(found, life.reason) if life.lives else doubt(found, life.reason)


def _exempt(found: Allocated, owner: Owner) -> str:
    """Why an address is not for us to judge, or ""."""
    if found.handle_id == WINDOWS_HANDLE:
        return "reserved by a Windows node"
    if not found.handle_id:
        return "it has no handle by which it could be freed"
    if owner.get("type") in TUNNELS:
        return ""
    if "service" in owner:
        return f"of service {owner['service']}, not a pod's"
    return "" if is_pod(owner) else "no pod is named: it is another orchestrator's to free"


def owner_of(found: Allocated) -> Owner:
    """The owner that an address is judged by."""
    return found.piece.owners.active or found.piece.owners.alternate


def pod_of(owner: Owner) -> PodName:
    """The pod that an owner names."""
    return owner.get("namespace", ""), owner.get("pod", "")


def pod_life(owner: Owner, address: IPAddress, pods: Mapping[PodName, PodFacts] | Unknown) -> Life:
    """Whether the pod that an owner names lives and may have this address."""
    namespace, name = pod_of(owner)
    what = f"pod {namespace}/{name}"
    if isinstance(pods, Unknown):
        return Life(None, f"{what}: {pods.reason}")
    pod = pods.get((namespace, name))
    if pod is None:
        return Life(False, f"{what} is gone")
    uid, node = owner.get("pod-uid", ""), owner.get("node", "")
    if uid and uid not in pod.uids:
        return Life(False, f"{what} is another now, with UID {', '.join(sorted(pod.uids))}")
    if pod.finished:
        return Life(False, f"{what} has finished")
    if node and pod.nodes and node not in pod.nodes:
        return Life(False, f"{what} is on node {', '.join(sorted(pod.nodes))} now")
    return _reports(what, owner, address, pod)


def _reports(what: str, owner: Owner, address: IPAddress, pod: PodFacts) -> Life:
    """Whether a living pod's address is among those it reports, as far as it reports any."""
    container = owner.get("container-id", "")
    if address in pod.addresses or PLUGIN in owner:  # of a second network a pod reports nothing
        return Life(True, f"{what} lives and has it")
    if container and container in pod.containers:
        return Life(True, f"{what} lives in the sandbox it was given to")
    if not pod.addresses:
        return Life(True, f"{what} lives and reports no address yet")
    if container and pod.containers:
        return Life(False, f"{what} has another sandbox and does not report it")
    if all(one.version != address.version for one in pod.addresses):
        return Life(True, f"{what} lives and reports no IPv{address.version} address")
    shown = ", ".join(str(one) for one in sorted(pod.addresses, key=str))
    return Life(False, f"{what} has {shown} instead")


def _tunnel(found: Allocated, owner: Owner, cluster: Cluster) -> Opinion[Allocated]:
    node, kind = owner.get("node", ""), owner["type"]
    if not node:
        return good(found, f"{kind} of no node")
    if isinstance(cluster.nodes, Unknown):
        return blind(found, f"{kind} of {node}: {cluster.nodes.reason}")
    if node in cluster.nodes:
        return good(found, f"{kind} of node {node}, which exists")
    users = cluster.tunnels.get(found.piece.address, frozenset()) & cluster.nodes
    if users:
        return good(found, f"{kind} of removed node {node}, but {', '.join(sorted(users))} uses it")
    return doubt(found, f"{kind} of node {node}, which is removed")
