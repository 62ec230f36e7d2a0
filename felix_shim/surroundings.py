"""What the node's own rules are made of beside policies, as one value, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from felix_shim.failsafe import NODES, Failsafe
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS, HostPlan, host_chains, placed_on
from felix_shim.host_settings import HostSettings
from felix_shim.nat_rules import NAT_CHAIN, nat_chain, nat_sets
from felix_shim.overlay_settings import TunnelSettings
from felix_shim.policy_book import PolicyRules
from felix_shim.policy_compile import sets_of
from felix_shim.policy_sets import Elements, literal
from felix_shim.rules import Chain, SetKey
from felix_shim.snapshots import Snapshot, touched
from felix_shim.tunnel_rules import (
    ENCAPSULATION,
    NO_TUNNEL,
    OpenTunnel,
    no_encapsulation,
    tunnel_in,
    tunnel_out,
)
from libtortie.model.ipam import IPAddress
from libtortie.model.policy import PortRange
from libtortie.model.resources import IPPoolSpec


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`between_nodes` are TCP ports that the cluster's nodes (`nodes`) keep open to each other;
    `links` are the addresses of links that are no workload's; `tunnel` is None where there is
    none; `encapsulation` is the overlay's, here or elsewhere."""

    settings: HostSettings = field(default_factory=HostSettings)
    between_nodes: tuple[PortRange, ...] = ()
    nodes: frozenset[IPAddress] = frozenset()
    pools: tuple[IPPoolSpec, ...] = ()
    links: Mapping[str, frozenset[IPAddress]] = field(default_factory=lambda: MappingProxyType({}))
    tunnel: OpenTunnel | None = None
    encapsulation: TunnelSettings = NO_TUNNEL

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
            found[key] = Elements.of(texts)
        return found


NOTHING_AROUND = Surroundings()


@dataclass(slots=True)
class NodeRules:
    """The node's own rules, added to those of policies: worked out only when they may be others.

    What did not change is the same value as last time, so that nobody has to compare it.
    """

    _plans: tuple[HostPlan, ...] | None = None
    _around: Surroundings = NOTHING_AROUND
    _own: PolicyRules = field(default_factory=PolicyRules)
    _policies: PolicyRules = field(default_factory=PolicyRules)
    _whole: PolicyRules = field(default_factory=PolicyRules)

    def added_to(self, found: PolicyRules, around: Surroundings = NOTHING_AROUND) -> PolicyRules:
        """The policies' rules, and with them those of the node itself."""
        policies, own = self._policies, self._own
        if self._plans != found.hosts or self._around != around:
            self._plans, self._around = found.hosts, around
            self._own = _own_rules(found.hosts, around)
        chains = self._whole.chains
        if policies.chains is not found.chains or own is not self._own:
            chains = {**found.chains, **self._own.chains}
        sets = self._with_own_sets(found.sets, own.sets)
        self._policies = found
        self._whole = replace(found, chains=chains, sets=sets)
        return self._whole

    def _with_own_sets(
        self, found: Mapping[SetKey, Elements], before: Mapping[SetKey, Elements]
    ) -> Mapping[SetKey, Elements]:
        """No set is both the policies' and the node's own: they are of other kinds."""
        own, whole = self._own.sets, self._whole.sets
        keys = {*touched(self._policies.sets, found), *touched(before, own)}
        if not keys:
            return whole
        come = {key: mine[key] for mine in (found, own) for key in keys & mine.keys()}
        known = whole if isinstance(whole, Snapshot) else Snapshot(whole)
        return known.next(come, keys - come.keys())


def _own_rules(plans: tuple[HostPlan, ...], around: Surroundings) -> PolicyRules:
    placed = placed_on(plans, around.links)
    chains = host_chains(placed, around.failsafe) | {NAT_CHAIN: around.nat}
    chains[ENCAPSULATION] = no_encapsulation(around.encapsulation)
    if around.tunnel is not None:
        into, out_of = HOST_CHAINS[HostStage.IN], HOST_CHAINS[HostStage.OUT]
        chains[into] = tunnel_in(around.tunnel) + chains[into]
        chains[out_of] = tunnel_out(around.tunnel) + chains[out_of]
        chains[NAT_CHAIN] = tunnel_out(around.tunnel) + chains[NAT_CHAIN] if around.nat else ()
    used = frozenset().union(*(sets_of(chain) for chain in chains.values()))
    sets = {key: elements for key, elements in around.sets.items() if key in used}
    sets |= {key: literal(key) for key in used if key.kind.literal}
    return PolicyRules(chains, sets)
