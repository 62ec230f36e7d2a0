"""The agent's copy of the stored resources it follows, and what they come to. No I/O.

Nothing is concluded from a scope before it was listed once: an empty copy is not an empty store.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_interface

from felix_shim.overlay_places import NEVER
from felix_shim.settings import Settings, effective
from libtortie.datastore.port import Record, Value
from libtortie.model.ipam import AffinityState, BlockAffinity, IPAddress
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    Blocks,
    IPNetwork,
    Key,
    Kind,
    Resources,
    Scope,
)
from libtortie.model.plain_ip import plain_network
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    FelixConfiguration,
    GenericResource,
    IPPool,
    Node,
)

ENDPOINTS = Resources(Kind.WORKLOAD_ENDPOINT)
FELIX = Resources(Kind.FELIX_CONFIGURATION)
POOLS = Resources(Kind.IP_POOL)
NODES = Resources(Kind.NODE)
PEERS = Resources(Kind.BGP_PEER)
FILTERS = Resources(Kind.BGP_FILTER)
BGP = Resources(Kind.BGP_CONFIGURATION)
BLOCKS = (Blocks(4), Blocks(6))
"""Where addresses are; followed once a pool is in the overlay (`overlay_source.py`)."""
POLICY_SCOPES = tuple(
    Resources(kind)
    for kind in (
        Kind.NETWORK_POLICY,
        Kind.GLOBAL_NETWORK_POLICY,
        Kind.NETWORK_SET,
        Kind.GLOBAL_NETWORK_SET,
        Kind.HOST_ENDPOINT,
        Kind.PROFILE,
        Kind.TIER,
    )
)
"""What policy is made of, beside the endpoints. Read by the policy lane (`policy_desk.py`)."""


def scopes(node: str) -> tuple[Scope, ...]:
    """What an agent makes its routes and BGP sessions of."""
    return ENDPOINTS, FELIX, POOLS, NODES, PEERS, FILTERS, BGP, Affinities(node)


def followed(node: str) -> tuple[Scope, ...]:
    """Everything an agent follows."""
    return *scopes(node), *POLICY_SCOPES


@dataclass(slots=True)
class Cluster:
    """Stored values by scope and key."""

    node: str
    _values: dict[Scope, dict[Key, Value]] = field(default_factory=dict)
    _of_nodes: frozenset[IPAddress] | None = None
    """What `node_addresses` found, until something changes."""

    def put(self, scope: Scope, record: Record) -> bool:
        """Take a value; True when it differs from the one known."""
        values = self._values.setdefault(scope, {})
        if values.get(record.key) == record.value:
            return False
        values[record.key] = record.value
        self._of_nodes = None
        return True

    def remove(self, scope: Scope, key: Key) -> bool:
        """Forget a value; True when there was one."""
        self._of_nodes = None
        return self._values.setdefault(scope, {}).pop(key, None) is not None

    def replace(
        self, scope: Scope, records: tuple[Record, ...], unreadable: tuple[str, ...] = ()
    ) -> bool:
        """Take a complete list; True when anything changed or the scope was never listed.

        With `unreadable` values beside it, what is not in it may be one of them: it stays.
        """
        fresh = {record.key: record.value for record in records}
        if unreadable:
            fresh = {**self._values.get(scope, {}), **fresh}
        changed = self._values.get(scope) != fresh
        self._values[scope] = fresh
        self._of_nodes = None
        return changed

    def listed(self, *wanted: Scope) -> bool:
        """Whether these scopes were listed at least once."""
        return all(scope in self._values for scope in wanted)

    def settings(self, known: Settings | None = None) -> Settings:
        """Effective FelixConfiguration: `default`, then `node.<name>`; `known` held before."""
        specs = ((one.metadata.name, one.spec) for one in self.felixes())
        return effective(specs, known)

    def felixes(self) -> tuple[FelixConfiguration, ...]:
        """The FelixConfigurations that count here, the weakest first."""
        values = self._values.get(FELIX, {}).values()
        found = {one.metadata.name: one for one in values if isinstance(one, FelixConfiguration)}
        return tuple(found[name] for name in ("default", f"node.{self.node}") if name in found)

    def nodes(self) -> dict[str, Node]:
        """Nodes by name."""
        values = self._values.get(NODES, {}).values()
        return {item.metadata.name: item for item in values if isinstance(item, Node)}

    def pools(self) -> tuple[IPPool, ...]:
        """IP pools in key order."""
        return tuple(item for item in self._sorted(POOLS) if isinstance(item, IPPool))

    def peers(self) -> tuple[BGPPeer, ...]:
        """BGP peers in key order."""
        return tuple(item for item in self._sorted(PEERS) if isinstance(item, BGPPeer))

    def bgp_configurations(self) -> dict[str, BGPConfiguration]:
        """BGPConfigurations by name: `default`, `node.<name>`."""
        values = self._values.get(BGP, {}).values()
        return {one.metadata.name: one for one in values if isinstance(one, BGPConfiguration)}

    def bgp_filters(self) -> tuple[GenericResource, ...]:
        """BGP filters in key order."""
        return tuple(item for item in self._sorted(FILTERS) if isinstance(item, GenericResource))

    def blocks(self) -> tuple[IPNetwork, ...]:
        """Blocks this node owns for certain."""
        owned = [
            key.cidr
            for key, value in self._values.get(Affinities(self.node), {}).items()
            if isinstance(key, AffinityKey)
            and isinstance(value, BlockAffinity)
            and value.state is AffinityState.CONFIRMED
            and not value.deleted
        ]
        return tuple(sorted(owned, key=lambda cidr: (cidr.version, int(cidr.network_address))))

    def wants_overlay(self) -> bool:
        """Whether a pool is in the overlay."""
        return any(pool.spec.vxlan_mode != NEVER for pool in self.pools())

    def knows_overlay(self) -> bool:
        """Whether all that the overlay is made of was listed."""
        if not self.listed(POOLS, NODES, FELIX):
            return False
        return self.listed(*BLOCKS) or not self.wants_overlay()

    def node_address(self, name: str) -> IPAddress | None:
        """Where this node reaches another: an address of a family that both have, IPv4 first.

        None when there is none. While this node's own are not known, any of the other's.
        """
        own = {one.version for one in self.bgp_addresses(self.node)}
        found = self.bgp_addresses(name)
        return next((one for one in found if not own or one.version in own), None)

    def bgp_addresses(self, name: str) -> tuple[IPAddress, ...]:
        """A node's BGP addresses, IPv4 first; unreadable ones are left out."""
        node = self.nodes().get(name)
        bgp = node.spec.bgp if node is not None else None
        found: list[IPAddress] = []
        for text, version in ((bgp.ipv4_address, 4), (bgp.ipv6_address, 6)) if bgp else ():
            with suppress(ValueError):
                plain_network(text)
                address = ip_interface(text).ip
                if address.version == version:
                    found.append(address)
        return tuple(found)

    def node_addresses(self) -> frozenset[IPAddress]:
        """All addresses that Node resources give their nodes; unreadable ones are left out."""
        if self._of_nodes is None:
            self._of_nodes = self._read_node_addresses()
        return self._of_nodes

    def _read_node_addresses(self) -> frozenset[IPAddress]:
        found = set()
        for node in self.nodes().values():
            bgp = node.spec.bgp
            texts = [bgp.ipv4_address, bgp.ipv6_address] if bgp else []
            others = (node.spec.model_extra or {}).get("addresses")
            for one in others if isinstance(others, list) else ():
                texts.append(str(one.get("address")) if isinstance(one, dict) else "")
            for text in texts:
                with suppress(ValueError):
                    found.add(ip_interface(text).ip)
        return frozenset(found)

    def _sorted(self, scope: Scope) -> list[Value]:
        values = self._values.get(scope, {})
        return [values[key] for key in sorted(values, key=str)]
