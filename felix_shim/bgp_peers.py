"""Node, BGPPeer and BGPConfiguration resources → the neighbours of one node. Pure.

As Calico has it: every node is a neighbour of every other (the mesh) unless the mesh is off or one
of the two is a route reflector; BGPPeers come on top, for all nodes or for one. A BGPPeer that
cannot be used is left out and named in `problems`: the other sessions must not suffer for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface

from felix_shim.bgp import AS_MAX, DEFAULT_AS, Peer
from libtortie.model.ipam import IPAddress
from libtortie.model.resources import BGPConfigurationSpec, BGPPeer, Node


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """The neighbours of a node, its own AS number, and what could not be used, in words."""

    as_number: int
    peers: tuple[Peer, ...]
    problems: tuple[str, ...] = ()


def plan_peers(
    me: str, nodes: Iterable[Node], peers: Iterable[BGPPeer], config: BGPConfigurationSpec
) -> PeerPlan:
    """Who node `me` speaks BGP with, whatever the order of the resources."""
    by_name = {node.metadata.name: node for node in nodes}
    own_as = _as_number(by_name.get(me), config)
    own = set(_addresses(by_name.get(me), []))
    problems: list[str] = []
    chosen: dict[IPAddress, Peer] = {}
    for peer in sorted(peers, key=lambda one: (bool(one.spec.node), one.metadata.name)):
        planned = _explicit(me, peer, problems)
        if planned is not None:
            chosen[planned.address] = planned  # a peer for this node beats one for all
    for name in sorted(by_name):
        if name == me or not _meshed(by_name.get(me), by_name[name], config):
            continue
        as_number = _as_number(by_name[name], config)
        for address in _addresses(by_name[name], problems):
            chosen.setdefault(address, Peer(address, as_number, mesh=True))
    usable = [chosen[one] for one in chosen if one not in own]
    ordered = sorted(usable, key=lambda one: (one.address.version, int(one.address)))
    return PeerPlan(own_as, tuple(ordered), tuple(problems))


def _as_number(node: Node | None, config: BGPConfigurationSpec) -> int:
    own = node.spec.bgp.as_number if node is not None and node.spec.bgp is not None else None
    return own or config.as_number or DEFAULT_AS


def _meshed(me: Node | None, other: Node, config: BGPConfigurationSpec) -> bool:
    if config.node_to_node_mesh_enabled is False:
        return False
    both = (me, other)
    return not any(
        node is not None and node.spec.bgp and node.spec.bgp.route_reflector_cluster_id
        for node in both
    )


def _addresses(node: Node | None, problems: list[str]) -> list[IPAddress]:
    found: list[IPAddress] = []
    if node is None or node.spec.bgp is None:
        return found
    for text in (node.spec.bgp.ipv4_address, node.spec.bgp.ipv6_address):
        if not text:
            continue
        try:
            found.append(ip_interface(text).ip)
        except ValueError as error:
            problems.append(f"Node {node.metadata.name}: {error}")
    return found


def _explicit(me: str, peer: BGPPeer, problems: list[str]) -> Peer | None:
    """The neighbour a BGPPeer describes, None when it is not for this node or cannot be used."""
    name, spec = peer.metadata.name, peer.spec
    if spec.node and spec.node != me:
        return None
    if spec.node_selector not in ("", "all()"):
        problems.append(f"BGPPeer {name}: nodeSelector {spec.node_selector!r} is not supported")
        return None
    try:
        address, port = _endpoint(spec.peer_ip)
    except ValueError as error:
        problems.append(f"BGPPeer {name}: peerIP {spec.peer_ip!r}: {error}")
        return None
    if not 1 <= spec.as_number <= AS_MAX:
        problems.append(f"BGPPeer {name}: asNumber {spec.as_number} is outside 1..{AS_MAX}")
        return None
    return Peer(address, spec.as_number, port)


def _endpoint(text: str) -> tuple[IPAddress, int]:
    """`a.b.c.d`, `a.b.c.d:port`, `v6` or `[v6]:port`. Raises ValueError."""
    host, port = text, "179"
    if text.startswith("["):
        host, separator, rest = text[1:].partition("]")
        if not separator or (rest and not rest.startswith(":")):
            raise ValueError("not [address]:port")
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, port = text.split(":")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise ValueError(f"port {port!r} is outside 1..65535")
    return ip_address(host), int(port)
