"""Stored resources → what BIRD is configured with on this node. Pure.

The mesh is every other node with a BGP address, unless `nodeToNodeMeshEnabled` is false. A BGPPeer
counts when it names this node, selects it, or names and selects nobody. One that cannot be used
is a problem in words, never a reason to configure nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface, ip_address

from felix_shim.bgp import DEFAULT_AS, BirdInput, Peer
from felix_shim.cluster import Cluster
from felix_shim.settings import Settings
from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.ipam import IPAddress
from libtortie.model.resources import BGPPeer, Node

BGP_PORT = 179


@dataclass(frozen=True, slots=True)
class BirdPlan:
    """The input, and the resources that could not be used, in words."""

    input: BirdInput
    problems: tuple[str, ...] = ()


def bird_input(
    cluster: Cluster, address: IPv4Interface, settings: Settings, uplinks: tuple[str, ...]
) -> BirdPlan:
    """What this node's BIRD needs to know."""
    bgp = cluster.bgp().spec
    default_as = bgp.as_number or DEFAULT_AS
    own = cluster.nodes().get(cluster.node)
    problems: list[str] = []
    peers: dict[tuple[IPAddress, int], Peer] = {}
    if bgp.node_to_node_mesh_enabled is not False:
        for peer in _mesh(cluster, address, default_as, problems):
            peers[peer.address, peer.port] = peer
    for resource in cluster.peers():
        try:
            found = _peer(resource, cluster.node, own, default_as)
        except (InvalidInput, ValueError) as error:
            problems.append(f"BGPPeer {resource.metadata.name}: {error}")
            continue
        if found is not None and found.address == address.ip:
            problems.append(f"BGPPeer {resource.metadata.name}: {found.address} is this node")
        elif found is not None:
            peers.setdefault((found.address, found.port), found)
    return BirdPlan(
        BirdInput(
            node=cluster.node,
            router_id=address.ip,
            address=address,
            as_number=_as_number(own, default_as),
            peers=tuple(peers[key] for key in sorted(peers, key=str)),
            blocks=cluster.blocks(),
            priorities=settings.ipv4,
            priorities6=settings.ipv6,
            uplinks=uplinks,
            listen_port=bgp.listen_port or BGP_PORT,
        ),
        tuple(problems),
    )


def _mesh(
    cluster: Cluster, address: IPv4Interface, default_as: int, problems: list[str]
) -> list[Peer]:
    port = cluster.bgp().spec.listen_port or BGP_PORT
    peers = []
    for name, node in sorted(cluster.nodes().items()):
        there = cluster.node_address(name)
        if name == cluster.node or there is None:
            continue
        if there == address.ip:
            problems.append(f"Node {name} has this node's address {there}")
            continue
        peers.append(Peer(there, _as_number(node, default_as), port, mesh=True))
    return peers


def _as_number(node: Node | None, default_as: int) -> int:
    return (node.spec.bgp.as_number if node and node.spec.bgp else None) or default_as


def _peer(resource: BGPPeer, node: str, own: Node | None, default_as: int) -> Peer | None:
    """The neighbour a resource gives this node, None when it is not for this node."""
    spec = resource.spec
    if spec.node and spec.node != node:
        return None
    if spec.node_selector:
        labels = own.metadata.labels if own is not None else {}
        if not selectors.parse(spec.node_selector).matches(labels):
            return None
    if not spec.peer_ip:
        raise InvalidInput("no peerIP (peerSelector is not supported)")
    address, port = _address_and_port(spec.peer_ip)
    return Peer(address, spec.as_number or default_as, port)


def _address_and_port(text: str) -> tuple[IPAddress, int]:
    """`192.0.2.1`, `192.0.2.1:179`, `2001:db8::1` or `[2001:db8::1]:179`. Raises ValueError."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return ip_address(host), int(rest.removeprefix(":") or BGP_PORT)
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return ip_address(host), int(port)
    return ip_address(text), BGP_PORT
