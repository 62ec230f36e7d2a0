"""BGPPeers and the mesh → this node's neighbours. Pure.

The mesh is every other node with an address, unless `nodeToNodeMeshEnabled` is false or one of
the two is a route reflector. A BGPPeer counts when it names this node, selects it, or names and
selects nobody; one that names it goes first, and any goes before the mesh. One that selects its
peers among the nodes makes those its peers, too, in return (`reversePeering: Manual`: it does not).
One that selects workloads makes those of this node its peers (`bird_workloads.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from pydantic import ValidationError

from felix_shim.bgp import problem_of
from felix_shim.bgp_filter import RouteFilter
from felix_shim.bgp_model import NextHop, Peer
from felix_shim.bird_config import Configured
from felix_shim.bird_workloads import Workload, sessions
from felix_shim.cluster import Cluster
from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.bgp_spec import BGPPeerWire, PasswordWire, address_and_port, seconds_of
from libtortie.model.field_errors import lines_of, summary
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import can_be_reached, plain_address
from libtortie.model.resources import BGPPeer, Node

SecretKey = tuple[str, str]
"""The name of a Secret, and a key in it."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is known of Secrets: None for what is not there; what is absent was not answered yet.

    `namespace` is where they are; empty: there is no API to ask.
    """

    known: Mapping[SecretKey, str | None] = field(default_factory=dict, repr=False)
    namespace: str = ""


@dataclass(slots=True)
class Neighbourhood:
    """What neighbours are made of. `wanted` and `complete` come of making them."""

    cluster: Cluster
    addresses: Mapping[int, IPAddress]
    conf: Configured
    filters: Mapping[str, RouteFilter]
    secrets: Secrets
    problems: list[str]
    workloads: tuple[Workload, ...] = ()
    wanted: set[SecretKey] = field(default_factory=set)
    complete: bool = True
    cluster_id: str = ""
    """This node's, if it is a route reflector."""
    _nodes: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = self.cluster.nodes()
        given = _reflector(self._nodes.get(self.cluster.node))
        if given and not _is_cluster_id(given):
            where = f"Node {self.cluster.node}: routeReflectorClusterID {given!r}"
            self.problems.append(f"{where} is not like 244.0.0.1: this node reflects nothing")
        else:
            self.cluster_id = given

    def peers(self) -> tuple[Peer, ...]:
        """All neighbours of this node, in order."""
        found: dict[tuple[IPAddress, int], Peer] = {}
        for resource in sorted(self.cluster.peers(), key=lambda one: not one.spec.node):
            for peer in self._of(resource):
                found.setdefault((peer.address, peer.port), peer)
        for peer in self._mesh() if self.conf.mesh else ():
            found.setdefault((peer.address, peer.port), peer)
        return tuple(found[key] for key in sorted(found, key=str))

    # -- the mesh ------------------------------------------------------------------------------

    def _mesh(self) -> Iterator[Peer]:
        password = self._password(self.conf.mesh_password, "BGPConfiguration default")
        if password is None or self.cluster_id:
            return
        for name, node in self._nodes.items():
            if _reflector(node):
                continue
            for peer in self._of_node(name, node):
                yield replace(
                    peer,
                    mesh=True,
                    member=False,
                    password=password,
                    restart_seconds=self.conf.mesh_restart,
                )

    def _of_node(self, name: str, node: Node) -> Iterator[Peer]:
        """Another node, in each family that both have an address in."""
        if name == self.cluster.node:
            return
        for address in self.cluster.bgp_addresses(name):
            own = self.addresses.get(address.version)
            if address == own:
                self.problems.append(f"Node {name} has this node's address {address}")
            elif own is not None and not can_be_reached(address):
                self.problems.append(f"Node {name}: {address} is no address of a node")
            elif own is not None:
                number = self.conf.as_number_of(node)
                yield Peer(address, number, self.conf.port_of(name), member=True)

    # -- BGPPeers ------------------------------------------------------------------------------

    def _of(self, resource: BGPPeer) -> Iterator[Peer]:
        name = f"BGPPeer {resource.metadata.name}"
        try:
            wire = BGPPeerWire.model_validate(resource.spec.to_wire())
            found = list(self._of_wire(wire))
            for peer in found:
                self._check(peer)
        except ValidationError as error:
            self.problems.append(f"{name}: {summary(lines_of(error))}")
            return
        except (InvalidInput, ValueError) as error:
            self.problems.append(f"{name}: {error}")
            return
        if not found:
            return
        if unread := ", ".join(sorted(wire.model_extra or {})):
            self.problems.append(f"{name}: not obeyed: {unread}")
        password = self._password(wire.password, name)
        if password is None:
            return
        try:
            options = self._options(wire, name)
            for peer in found:
                _check_gateway(options.reachable_by, peer.address)
        except InvalidInput as error:
            self.problems.append(f"{name}: {error}")
            return
        for peer in found:
            yield self._completed(replace(options, password=password), peer)

    def _of_wire(self, wire: BGPPeerWire) -> Iterator[Peer]:
        here = self._selected(wire, self.cluster.node)
        if wire.local_workload_selector:
            if here:
                yield from self._workloads_of(wire)
            return
        if wire.peer_ip:
            if here:
                yield self._named(wire)
            return
        wanted = selectors.parse(wire.peer_selector)
        manual = wire.reverse_peering == "Manual"
        asked = not manual and wanted.matches(self._labels(self.cluster.node))
        for name, node in sorted(self._nodes.items()):
            forward = here and wanted.matches(node.metadata.labels)
            if forward or (asked and self._selected(wire, name)):
                for peer in self._of_node(name, node):
                    own = self.addresses[peer.address.version]
                    yield replace(peer, passive=not manual and str(peer.address) > str(own))

    def _workloads_of(self, wire: BGPPeerWire) -> Iterator[Peer]:
        sources = {
            version: source
            for version, source in self.conf.towards_workloads.items()
            if version in self.addresses
        }
        if not sources:
            raise InvalidInput("BGPConfiguration default has no localWorkloadPeeringIPV4 or -IPV6")
        if source := next((one for one in sources.values() if self._is_taken(one)), None):
            raise InvalidInput(f"BGPConfiguration default: {source} is an address of a node")
        yield from sessions(wire, self.workloads, sources)

    def _is_taken(self, address: IPAddress) -> bool:
        return any(address in self.cluster.bgp_addresses(name) for name in self._nodes)

    def _selected(self, wire: BGPPeerWire, node: str) -> bool:
        """Whether a BGPPeer is one of a node's."""
        if wire.node:
            return wire.node == node
        selector = wire.node_selector
        return not selector or selectors.parse(selector).matches(self._labels(node))

    def _labels(self, node: str) -> Mapping[str, str]:
        found = self._nodes.get(node)
        return found.metadata.labels if found is not None else {}

    def _named(self, wire: BGPPeerWire) -> Peer:
        """The peer with a `peerIP`; it may be a node all the same."""
        address, port = address_and_port(wire.peer_ip)
        for name, node in self._nodes.items():
            if name != self.cluster.node and address in self.cluster.bgp_addresses(name):
                number = wire.as_number or self.conf.as_number_of(node)
                return Peer(address, number, port, member=True)
        return Peer(address, wire.as_number or self.conf.default_as, port)

    def _check(self, peer: Peer) -> None:
        """Raises InvalidInput for what this node cannot have a session with."""
        version = peer.address.version
        own = self.addresses.get(version)
        if own is None:
            raise InvalidInput(f"{peer.address} needs an IPv{version} address of this node")
        if peer.address == own:
            raise InvalidInput(f"{peer.address} is this node")
        if not can_be_reached(peer.address):
            raise InvalidInput(f"{peer.address} is no address that a neighbour has here")

    def _options(self, wire: BGPPeerWire, name: str) -> Peer:
        """All of a BGPPeer's options, on a peer that is nobody's yet."""
        usable = [one for one in wire.filters if one in self.filters]
        closed = len(usable) < len(wire.filters)
        if closed:
            missing = ", ".join(sorted(set(wire.filters) - set(usable)))
            self.problems.append(f"{name}: nothing passes: no usable BGPFilter {missing}")
        hop = NextHop.KEEP if wire.keep_original_next_hop else NextHop(wire.next_hop_mode or "Auto")
        restart = wire.max_restart_time
        return Peer(
            IPv4Address(0),
            0,
            local_as=wire.local_as_number,
            from_node_address=wire.source_address != "None",
            next_hop=hop,
            ttl_hops=wire.ttl_security,
            restart_seconds=seconds_of(restart, 0, 4095) if restart else None,
            keepalive_seconds=seconds_of(wire.keepalive_time, 1, 21845)
            if wire.keepalive_time
            else 0,
            own_as_allowed=wire.num_allowed_local_as_numbers,
            reachable_by=plain_address(wire.reachable_by) if wire.reachable_by else None,
            filters=tuple(usable),
            closed=closed,
        )

    def _completed(self, options: Peer, peer: Peer) -> Peer:
        own = self._nodes.get(self.cluster.node)
        local_as = options.local_as or self.conf.as_number_of(own)
        reflect = bool(self.cluster_id) and peer.as_number == local_as
        if peer.member and reflect:
            reflect = self._cluster_id_at(peer.address) != self.cluster_id
        told = any(self.filters[one].speaks_of_peers_routes for one in options.filters)
        return replace(
            options,
            address=peer.address,
            as_number=peer.as_number,
            port=peer.port,
            member=peer.member,
            passive=peer.passive,
            interface=peer.interface,
            source=peer.source,
            reflect=reflect,
            relay=bool(self.cluster_id) or options.next_hop is NextHop.KEEP or told,
        )

    def _cluster_id_at(self, address: IPAddress) -> str:
        for name, node in self._nodes.items():
            if address in self.cluster.bgp_addresses(name):
                return _reflector(node)
        return ""

    def _password(self, wire: PasswordWire | None, name: str) -> str | None:
        """The password, empty for none; None when there should be one and it cannot be had."""
        if wire is None:
            return ""
        key = (wire.secret_key_ref.name, wire.secret_key_ref.key)
        self.wanted.add(key)
        where = f"key {key[1]} of Secret {self.secrets.namespace}/{key[0]}"
        if not self.secrets.namespace:
            self.problems.append(f"{name}: no session: its password needs the Kubernetes API")
        elif key not in self.secrets.known:
            self.complete = False
        elif (found := self.secrets.known[key]) is None:
            self.problems.append(f"{name}: no session: there is no {where}, or not for us")
        elif why := problem_of(found):
            self.problems.append(f"{name}: no session: {where} {why}")
        else:
            return found
        return None


def _check_gateway(gateway: IPAddress | None, peer: IPAddress) -> None:
    """Raises InvalidInput for a `reachableBy` through which the peer cannot be reached."""
    if gateway is None:
        return
    if gateway.version != peer.version or gateway == peer or not can_be_reached(gateway):
        raise InvalidInput(f"reachableBy {gateway} is no gateway to {peer}")


def _is_cluster_id(text: str) -> bool:
    try:
        return IPv4Address(text) != IPv4Address(0)
    except ValueError:
        return False


def _reflector(node: Node | None) -> str:
    """The cluster id of a route reflector: only BGPPeers lead to and from it."""
    return node.spec.bgp.route_reflector_cluster_id if node is not None and node.spec.bgp else ""
