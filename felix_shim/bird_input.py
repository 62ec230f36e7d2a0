"""Stored resources → what BIRD is configured with on this node. Pure.

The mesh is every other node with a BGP address, unless `nodeToNodeMeshEnabled` is false or one of
the two is a route reflector. A BGPPeer counts when it names this node, selects it, or names and
selects nobody; one that names it goes first. One that cannot be used, and every field that is
not obeyed, is a problem in words, never a reason to configure nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface

from felix_shim.bgp import AS_MAX, DEFAULT_AS, BirdInput, Peer
from felix_shim.cluster import Cluster
from felix_shim.overlay_places import overlay_pools
from felix_shim.settings import Settings
from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address
from libtortie.model.resources import BGPConfigurationSpec, BGPPeer, Node, Wire

BGP_PORT = 179
PORT_MAX = 65535
_DONE_ANYWAY = {
    "sourceAddress": "UseNodeIP",
    "nextHopMode": "Auto",
    "reversePeering": "Auto",
    "bindMode": "None",
}
"""Fields that nobody reads, with the value that says what happens in any case."""


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
    problems: list[str] = [*_not_obeyed("BGPConfiguration default", bgp, *_services(bgp))]
    peers: dict[tuple[IPAddress, int], Peer] = {}
    if bgp.node_to_node_mesh_enabled is not False:
        for peer in _mesh(cluster, address, default_as, problems):
            peers[peer.address, peer.port] = peer
    for resource in sorted(cluster.peers(), key=lambda one: not one.spec.node):
        try:
            found = _peer(resource, cluster.node, own, default_as)
        except (InvalidInput, ValueError) as error:
            problems.append(f"BGPPeer {resource.metadata.name}: {error}")
            continue
        if found is not None and found.address == address.ip:
            problems.append(f"BGPPeer {resource.metadata.name}: {found.address} is this node")
        elif found is not None:
            peers.setdefault((found.address, found.port), found)
            problems += _not_obeyed(f"BGPPeer {resource.metadata.name}", resource.spec)
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
            tunnelled=tuple(
                one.cidr for version in (4, 6) for one in overlay_pools(cluster.pools(), version)
            ),
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
        if _reflects(node) or _reflects(cluster.nodes().get(cluster.node)):
            continue
        if there == address.ip:
            problems.append(f"Node {name} has this node's address {there}")
            continue
        peers.append(Peer(there, _as_number(node, default_as), port, mesh=True))
    return peers


def _reflects(node: Node | None) -> bool:
    """Whether the node is a route reflector: only BGPPeers lead to and from it."""
    return bool(node and node.spec.bgp and node.spec.bgp.route_reflector_cluster_id)


def _not_obeyed(name: str, spec: Wire, *more: str) -> list[str]:
    """The fields of a resource that ask for what this agent does not do, in one line."""
    unread = {
        field
        for field, value in (spec.model_extra or {}).items()
        if value and _DONE_ANYWAY.get(field) != value
    }
    fields = ", ".join(sorted(unread.union(more)))
    return [f"{name}: not obeyed: {fields}"] if fields else []


def _services(spec: BGPConfigurationSpec) -> list[str]:
    """Services' addresses that shall be announced: nothing here announces them."""
    wanted = {
        "serviceClusterIPs": spec.service_cluster_ips,
        "serviceExternalIPs": spec.service_external_ips,
        "serviceLoadBalancerIPs": spec.service_load_balancer_ips,
    }
    return [name for name, cidrs in wanted.items() if cidrs]


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
        unread = ", ".join(sorted(spec.model_extra or {})) or "nothing else"
        raise InvalidInput(f"no peerIP, and not obeyed: {unread}")
    address, port = _address_and_port(spec.peer_ip)
    as_number = spec.as_number or default_as
    if not 1 <= as_number <= AS_MAX:
        raise InvalidInput(f"asNumber {as_number} is outside 1..{AS_MAX}")
    return Peer(address, as_number, port)


def _address_and_port(text: str) -> tuple[IPAddress, int]:
    """`192.0.2.1`, `192.0.2.1:179`, `2001:db8::1` or `[2001:db8::1]:179`. Raises ValueError."""
    host, port = text, str(BGP_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"peerIP {text!r} is not [address]:port")
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= PORT_MAX):
        raise ValueError(f"peerIP {text!r}: port {port!r} is outside 1..{PORT_MAX}")
    return plain_address(host), int(port)
