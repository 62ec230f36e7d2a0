"""What the node's own rules are made of beside policies, as one value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from felix_shim.failsafe import NODES, Failsafe
from felix_shim.host_rules import host_chains, placed_on
from felix_shim.host_settings import HostSettings
from felix_shim.nat_rules import NAT_CHAIN, nat_chain, nat_sets
from felix_shim.policy_book import PolicyRules
from felix_shim.policy_compile import sets_of
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey
from libtortie.model.ipam import IPAddress
from libtortie.model.policy import PortRange
from libtortie.model.resources import IPPoolSpec


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`between_nodes` are TCP ports that the cluster's nodes (`nodes`) keep open to each other;
    `links` are the addresses of links that are no workload's."""

    settings: HostSettings = field(default_factory=HostSettings)
    between_nodes: tuple[PortRange, ...] = ()
    nodes: frozenset[IPAddress] = frozenset()
    pools: tuple[IPPoolSpec, ...] = ()
    links: Mapping[str, frozenset[IPAddress]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def failsafe(self) -> Failsafe:
        """The ports that no policy closes."""
        settings = self.settings
        return Failsafe(settings.inbound, settings.outbound, self.between_nodes)

    @property
    def nat(self) -> Chain:
        """The rules of `natOutgoing`."""
        return nat_chain(self.pools, self.settings.nat)

    @property
    def sets(self) -> dict[SetKey, Elements]:
        """The sets that rules may look into, used or not."""
        found = dict(nat_sets(self.pools))
        for version, key in NODES.items():
            texts = (str(one) for one in self.nodes if one.version == version)
            found[key] = Elements(frozenset(texts))
        return found


NOTHING_AROUND = Surroundings()


def with_node(found: PolicyRules, around: Surroundings) -> PolicyRules:
    """The policies' rules, and with them those of the node itself."""
    placed = placed_on(found.hosts, around.links)
    chains = host_chains(placed, around.failsafe) | {NAT_CHAIN: around.nat}
    used = frozenset().union(*(sets_of(chain) for chain in chains.values()))
    sets = {key: elements for key, elements in around.sets.items() if key in used}
    return replace(found, chains={**found.chains, **chains}, sets={**found.sets, **sets})
