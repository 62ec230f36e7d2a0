"""`natOutgoing`: who leaves the pools with an address of the node. Pure.

A packet from a pool that wants it, to no pool, is masqueraded; to a pool never, so that workloads
see each other's own addresses on all nodes. The pools are in sets, so that one that comes or goes
costs its own elements and no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network

from felix_shim.failsafe import NODES
from felix_shim.policy_compile import collapsed, halves
from felix_shim.policy_sets import Elements
from felix_shim.rules import (
    Chain,
    InSet,
    IsProtocol,
    Masquerade,
    Match,
    Rule,
    SetKey,
    SetKind,
    Side,
)
from libtortie.model.policy import WITH_PORTS, IPNetwork, PortRange
from libtortie.model.resources import IPPoolSpec

NAT_CHAIN = "nat-outgoing"
LEAVING = {version: SetKey(SetKind.POOLS, version, "natOutgoing") for version in (4, 6)}
"""The pools whose addresses do not leave the cluster."""
INSIDE = {version: SetKey(SetKind.POOLS, version, "all") for version in (4, 6)}
"""All pools but those for load balancers."""
LOAD_BALANCER = ("LoadBalancer",)


@dataclass(frozen=True, slots=True)
class NatSettings:
    """What FelixConfiguration says of it.

    `address` stands for the outgoing link's (IPv4); `ports` are what source ports become;
    `spare_nodes`: to the cluster's nodes packets go as they are (`IPPoolsAndHostIPs`).
    """

    address: IPv4Address | None = None
    ports: PortRange | None = None
    spare_nodes: bool = False


def nat_chain(pools: Iterable[IPPoolSpec], settings: NatSettings) -> Chain:
    """The rules; none for a family of which no pool wants any."""
    versions = {ip_network(pool.cidr).version for pool in pools if pool.nat_outgoing}
    return tuple(rule for version in sorted(versions) for rule in _rules(version, settings))


def nat_sets(pools: Iterable[IPPoolSpec]) -> Mapping[SetKey, Elements]:
    """The sets that the rules look into."""
    nets = [(ip_network(pool.cidr), pool) for pool in pools]
    found = {}
    for version, key in LEAVING.items():
        mine = [(net, pool) for net, pool in nets if net.version == version]
        if any(pool.nat_outgoing for _, pool in mine):
            leaving = [net for net, pool in mine if pool.nat_outgoing]
            inside = [net for net, pool in mine if pool.allowed_uses != LOAD_BALANCER]
            found[key] = _elements(leaving)
            found[INSIDE[version]] = _elements(inside)
    return found


def _elements(nets: Iterable[IPNetwork]) -> Elements:
    return Elements(frozenset(text for net in collapsed(nets) for text in halves(net)), True)


def _rules(version: int, settings: NatSettings) -> Iterator[Rule]:
    matches: tuple[Match, ...] = (
        InSet(Side.SOURCE, LEAVING[version]),
        InSet(Side.DESTINATION, INSIDE[version], negated=True),
    )
    if settings.spare_nodes:
        matches += (InSet(Side.DESTINATION, NODES[version], negated=True),)
    address = str(settings.address) if settings.address and version == 4 else ""
    if settings.ports:
        for protocol in sorted(WITH_PORTS):
            yield Rule((IsProtocol(protocol), *matches), Masquerade(address, settings.ports))
    yield Rule(matches, Masquerade(address))
