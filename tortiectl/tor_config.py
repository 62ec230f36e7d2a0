"""What a top-of-rack router must be told, as values: stored resources → its neighbours. Pure.

A router is the `peerIP` of a BGPPeer that is no node. What it needs is the same for every vendor:
each node that peers with it, the pools whose routes it may take (host routes too), and how it knows
a raised host route, which it must prefer. Tortie's nodes say that by MED, which is the metric; a
community of a BGPFilter can say it instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_interface

from pydantic import ValidationError

from libtortie.errors import InvalidInput, NotFound
from libtortie.model import selectors
from libtortie.model.bgp_spec import (
    BGP_PORT,
    BGPConfigurationWire,
    BGPPeerWire,
    address_and_port,
)
from libtortie.model.field_errors import lines_of, summary
from libtortie.model.fields import network_of
from libtortie.model.ipam import IPAddress
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    FelixConfiguration,
    IPPool,
    Node,
    Resource,
)

DEFAULT_AS, ELEVATED = 64512, 512


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node, as the router sees it. `secret`: which Secret's key has the session's password."""

    node: str
    address: IPAddress
    as_number: int
    port: int = BGP_PORT
    secret: str = ""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Tor:
    """One address of a router, and what it is to do in that address's family."""

    address: IPAddress
    as_number: int
    neighbours: tuple[Neighbour, ...]
    pools: tuple[IPv4Network | IPv6Network, ...]
    elevated: int = ELEVATED
    community: str = ""

    @property
    def version(self) -> int:
        """The family."""
        return self.address.version

    @property
    def hostlen(self) -> int:
        """The length of a host route."""
        return self.address.max_prefixlen

    @property
    def raised(self) -> str:
        """How a raised route is known, in words."""
        return f"community {self.community}" if self.community else f"MED {self.elevated}"


@dataclass(slots=True)
class Stored:
    """What is stored, by kind."""

    nodes: dict[str, Node] = field(default_factory=dict)
    peers: dict[str, BGPPeer] = field(default_factory=dict)
    pools: list[IPPool] = field(default_factory=list)
    bgp: dict[str, BGPConfiguration] = field(default_factory=dict)
    felix: FelixConfiguration = field(default_factory=FelixConfiguration)

    def put(self, found: Resource) -> None:
        """Take one resource; others than these are passed over."""
        name = found.metadata.name
        match found:
            case Node():
                self.nodes[name] = found
            case BGPPeer():
                self.peers[name] = found
            case IPPool():
                self.pools.append(found)
            case BGPConfiguration():
                self.bgp[name] = found
            case FelixConfiguration() if name == "default":
                self.felix = found

    @property
    def default_as(self) -> int:
        """The cluster's AS number."""
        return self._conf("default").as_number or DEFAULT_AS

    def port_of(self, node: str) -> int:
        """Where a node listens."""
        own, default = self._conf(f"node.{node}"), self._conf("default")
        return own.listen_port or default.listen_port or BGP_PORT

    def _conf(self, name: str) -> BGPConfigurationWire:
        stored = self.bgp.get(name)
        try:
            return BGPConfigurationWire.model_validate(stored.spec.to_wire() if stored else {})
        except ValidationError as error:
            raise InvalidInput(f"BGPConfiguration {name}: {summary(lines_of(error))}") from error

    def elevated(self, version: int) -> int:
        """The raised metric of a family."""
        spec = self.felix.spec
        four, six = spec.ipv4_elevated_route_priority, spec.ipv6_elevated_route_priority
        return (four if version == 4 else six) or ELEVATED

    def addresses(self, node: Node) -> Iterator[IPAddress]:
        """A node's, IPv4 first. Raises `InvalidInput` for one that is none."""
        bgp = node.spec.bgp
        for text in (bgp.ipv4_address, bgp.ipv6_address) if bgp else ():
            if text:
                try:
                    yield ip_interface(text).ip
                except ValueError as error:
                    raise InvalidInput(f"Node {node.metadata.name}: {error}") from error


def tors(stored: Stored, names: Iterable[str] = (), community: str = "") -> tuple[Tor, ...]:
    """The routers of these BGPPeers, or of the only one. Raises `InvalidInput`, `NotFound`."""
    chosen = list(names) or _the_only(stored)
    return tuple(_tor(stored, name, community) for name in chosen)


def _the_only(stored: Stored) -> list[str]:
    """The BGPPeers of one router; several routers are for the caller to choose from."""
    of_nodes = {one for node in stored.nodes.values() for one in stored.addresses(node)}
    found = {}
    for name, peer in sorted(stored.peers.items()):
        if peer.spec.peer_ip and _address(name, peer.spec.peer_ip) not in of_nodes:
            found[name] = _address(name, peer.spec.peer_ip)
    if not found:
        raise NotFound("no BGPPeer with the peerIP of a router: create one for the ToR first")
    if len(set(found.values())) > 1:
        raise InvalidInput(f"several routers: choose with --peer from {', '.join(found)}")
    return list(found)[:1]


def _tor(stored: Stored, name: str, community: str) -> Tor:
    if name not in stored.peers:
        raise NotFound(f"BGPPeer {name}: no such resource; there are {', '.join(stored.peers)}")
    try:
        wire = BGPPeerWire.model_validate(stored.peers[name].spec.to_wire())
    except ValidationError as error:
        raise InvalidInput(f"BGPPeer {name}: {summary(lines_of(error))}") from error
    if not wire.peer_ip:
        raise InvalidInput(f"BGPPeer {name}: no peerIP: it is about nodes, not a router")
    address = _address(name, wire.peer_ip)
    nets = [network_of(one.spec.cidr) for one in stored.pools if not one.spec.disable_bgp_export]
    found = Tor(
        address,
        wire.as_number or stored.default_as,
        tuple(_neighbours(stored, wire, address.version)),
        tuple(sorted((one for one in nets if one.version == address.version), key=str)),
        stored.elevated(address.version),
        community,
    )
    if not found.neighbours:
        raise InvalidInput(f"BGPPeer {name}: no node with an IPv{address.version} address has it")
    if not found.pools:
        raise InvalidInput(f"BGPPeer {name}: no IPv{address.version} pool is exported")
    return found


def _neighbours(stored: Stored, wire: BGPPeerWire, version: int) -> Iterator[Neighbour]:
    secret = wire.password.secret_key_ref if wire.password else None
    for name, node in sorted(stored.nodes.items()):
        if not _is_peer(wire, name, node.metadata.labels):
            continue
        own = node.spec.bgp.as_number if node.spec.bgp else None
        for address in stored.addresses(node):
            if address.version == version:
                yield Neighbour(
                    name,
                    address,
                    wire.local_as_number or own or stored.default_as,
                    stored.port_of(name),
                    f"key {secret.key} of Secret {secret.name}" if secret else "",
                    wire.ttl_security,
                )


def _is_peer(wire: BGPPeerWire, name: str, labels: Mapping[str, str]) -> bool:
    if wire.node:
        return wire.node == name
    return not wire.node_selector or selectors.parse(wire.node_selector).matches(labels)


def _address(name: str, text: str) -> IPAddress:
    try:
        return address_and_port(text)[0]
    except ValueError as error:
        raise InvalidInput(f"BGPPeer {name}: {error}") from error
