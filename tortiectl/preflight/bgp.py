"""Whether every node learns by BGP where a VM has gone. Pure.

Asked only where a pool of the VMs is not in VXLAN, which needs no BGP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from libtortie.errors import InvalidInput
from libtortie.model.keys import IPNetwork
from libtortie.model.resources import BGPPeer, IPPool, Resource
from libtortie.model.selectors import parse
from tortiectl.kubevirt.objects import LABEL_SCHEDULABLE
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.network import Address
from tortiectl.preflight.world import Cluster, Network

_EXPORTS = {4: "exportV4", 6: "exportV6"}


def check_bgp(cluster: Cluster, addresses: Sequence[Address]) -> Iterator[Finding]:
    """Every finding about the sessions that carry these addresses."""
    network = cluster.network
    plain = [pool for pool in network.pools if _carries(pool, addresses)]
    if not plain or not network.nodes:
        return
    hosts = sorted(
        name
        for name, node in cluster.nodes.items()
        if node.metadata.labels.get(LABEL_SCHEDULABLE) == "true"
    )
    versions: set[int] = {ip_network(pool.spec.cidr).version for pool in plain}
    for name in hosts:
        yield from _node(name, network, versions)
    yield from _peers(network)
    for pool in plain:
        yield from _filters(pool, network)


def _carries(pool: IPPool, addresses: Sequence[Address]) -> bool:
    cidr = ip_network(pool.spec.cidr)
    used = any(one.version == cidr.version and one in cidr for one in addresses)
    return used and pool.spec.vxlan_mode == "Never"


def _node(name: str, network: Network, versions: set[int]) -> Iterator[Finding]:
    about = Subject("Node", name)
    known = network.nodes.get(name)
    if known is None:
        yield Finding(
            Severity.BREAKS, about, "NoAgent",
            "no agent has registered this node: nothing announces a VM that moves there",
            "start the node's agent, or keep VMs off it (kubevirt.io/schedulable)",
        )  # fmt: skip
        return
    bgp = known.spec.bgp
    for version in sorted(versions):
        has = bgp is not None and (bgp.ipv4_address if version == 4 else bgp.ipv6_address)
        if not has:
            yield Finding(
                Severity.BREAKS, about, "NoBGPAddress",
                f"the Node resource has no ipv{version}Address: BGP does not run there",
                "let the agent find the node's address (`ip` in node.yaml), and start it again",
            )  # fmt: skip
    meshed = network.bgp is None or network.bgp.spec.node_to_node_mesh_enabled is not False
    if not meshed and not any(
        _peers_with(one, name, known.metadata.labels) for one in network.peers
    ):
        yield Finding(
            Severity.BREAKS, about, "NoBGPPeer",
            "nodeToNodeMeshEnabled is false, and no BGPPeer is for this node: nobody learns its "
            "routes",
            "make a BGPPeer that selects it, or enable the mesh",
        )  # fmt: skip
    down = network.sessions_down.get(name, 0)
    if down:
        yield Finding(
            Severity.RISK, about, "BGPSessionsDown",
            f"{down} BGP sessions are not established",
            "see `tortiectl node status` there",
        )  # fmt: skip


def _peers_with(peer: BGPPeer, node: str, labels: Mapping[str, str]) -> bool:
    spec = peer.spec
    if spec.node:
        return spec.node == node
    if not spec.node_selector:
        return True
    try:
        return parse(spec.node_selector).matches(labels)
    except (ValueError, InvalidInput):
        return False


def _peers(network: Network) -> Iterator[Finding]:
    for peer in network.peers:
        about, spec = Subject("BGPPeer", peer.metadata.name), peer.spec
        if spec.node and spec.node not in network.nodes:
            yield Finding(
                Severity.RISK, about, "BGPPeerOfNoNode",
                f"spec.node is {spec.node}, which is no node: the session is nobody's",
                "name a node of the cluster, or delete the BGPPeer",
            )  # fmt: skip
        elif spec.node_selector and not any(
            _peers_with(peer, name, node.metadata.labels) for name, node in network.nodes.items()
        ):
            yield Finding(
                Severity.RISK, about, "BGPPeerOfNoNode",
                f"spec.nodeSelector {spec.node_selector!r} selects no node: the session is "
                "nobody's",
                "mend the selector, or delete the BGPPeer",
            )  # fmt: skip


def _filters(pool: IPPool, network: Network) -> Iterator[Finding]:
    """Export filters that keep the pool's single addresses from a peer."""
    cidr = ip_network(pool.spec.cidr)
    for peer in network.peers:
        names = (peer.spec.model_extra or {}).get("filters")
        for name in names if isinstance(names, list | tuple) else ():
            found = network.filters.get(str(name))
            if found is not None and _rejects(found, cidr):
                yield Finding(
                    Severity.BREAKS, Subject("BGPFilter", str(name)), "BGPFilterRejects",
                    f"it keeps addresses of IPPool {pool.metadata.name} from BGPPeer "
                    f"{peer.metadata.name}, who then does not learn where a VM has gone",
                    f"accept /{cidr.max_prefixlen} of {cidr} before the rule that rejects it",
                )  # fmt: skip


def _rejects(found: Resource, cidr: IPNetwork) -> bool:
    """Whether the first export rule about single addresses of a pool rejects them."""
    spec = found.to_wire().get("spec") or {}
    for rule in spec.get(_EXPORTS[cidr.version]) or ():
        if isinstance(rule, Mapping) and _about_hosts(rule, cidr):
            return rule.get("action") == "Reject"
    return False


def _about_hosts(rule: Mapping[str, Any], cidr: IPNetwork) -> bool:
    """Whether a rule matches /32 (or /128) routes within a pool, whatever their source."""
    lengths = rule.get("prefixLength")
    most = lengths.get("max") if isinstance(lengths, Mapping) else None
    too_short = isinstance(most, int) and most < cidr.max_prefixlen
    if too_short or rule.get("source") or rule.get("interface"):
        return False
    try:
        network = ip_network(str(rule.get("cidr") or ("::/0", "0.0.0.0/0")[cidr.version == 4]))
    except ValueError:
        return False
    overlaps = network.version == cidr.version and network.overlaps(cidr)
    matched = {
        "In": overlaps and network.prefixlen <= cidr.prefixlen,
        "NotIn": not overlaps,
        "NotEqual": True,
        "Equal": False,  # one prefix, which is no VM's
    }
    return not rule.get("cidr") or matched.get(str(rule.get("matchOperator")), False)
