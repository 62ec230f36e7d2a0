"""What may enter and leave a workload, as values. Pure; `drivers/nftables.py` renders it.

The rules of an endpoint do not depend on where its VM is: a migration target is programmed
exactly as any other endpoint, so that policy is in force before the VM's first packet.

Anti-spoofing is a binding of interface, MAC and address (see `docs/adr/0004`), with the networks
besides from which an endpoint may send. KubeVirt's DHCP for
a bridged VM is answered inside the pod, so nothing but the VM's own addresses ever leaves the veth
and 0.0.0.0 needs no exemption. ARP is not IP: it has its own table with the same binding, where
probes (sender 0.0.0.0, RFC 5227) pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from felix_shim.extras import Translation, translated
from felix_shim.host_rules import HOST_CHAINS
from felix_shim.model import Endpoint
from felix_shim.nat_rules import NAT_CHAIN
from felix_shim.policy_book import PolicyRules, Ways
from felix_shim.policy_order import Direction
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey
from felix_shim.tunnel_rules import ENCAPSULATION, no_encapsulation
from libtortie.errors import InvalidInput
from libtortie.linux.port import IPNetwork
from libtortie.model.felix_values import EndpointToHost
from libtortie.model.ipam import IPAddress
from libtortie.model.names import INTERFACE_PREFIX

_INTERFACE = re.compile(rf"{INTERFACE_PREFIX}[A-Za-z0-9_.-]{{1,11}}")  # 15 bytes: IFNAMSIZ - 1
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """One endpoint's rules: who may send on its interface, and what passes.

    `vm`: a packet that conntrack finds invalid is judged like a new one, not dropped. A VM's
    connections outlive the node's knowledge of them: when it comes back to a node that still has
    its old entry, or replies take another way during cut-over, the TCP window recorded there is
    wrong and every packet of a healthy connection is "invalid".

    `ingress` and `egress` name the chains that judge new connections to and from it.
    """

    interface: str
    mac: str
    addresses: tuple[IPAddress, ...]
    vm: bool = False
    ingress: str = Direction.INGRESS.allowed
    egress: str = Direction.EGRESS.allowed
    floating: tuple[Translation, ...] = ()
    source_prefixes: tuple[IPNetwork, ...] = ()


NODE_CHAINS: Mapping[str, Chain] = MappingProxyType(
    {
        NAT_CHAIN: (),
        ENCAPSULATION: no_encapsulation(),
        **dict.fromkeys(HOST_CHAINS.values(), ()),
    }
)
"""The chains that base chains and endpoints' ask, whatever is or is not in them."""


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All rules of this node: at most one endpoint per interface, sorted by it.

    `chains` and `sets` are what the endpoints' policies come to (`policy_book.py`), and the node's
    own (`surroundings.py`); `NODE_CHAINS` are always among them. `prepared` are sets that are there
    besides, before rules look into them.
    """

    endpoints: tuple[EndpointPolicy, ...] = ()
    endpoint_to_host: EndpointToHost = EndpointToHost.DROP
    chains: Mapping[str, Chain] = field(default_factory=lambda: NODE_CHAINS)
    sets: Mapping[SetKey, Elements] = field(default_factory=dict)
    prepared: Mapping[SetKey, Elements] = field(default_factory=dict)

    def by_interface(self) -> dict[str, EndpointPolicy]:
        """The endpoints by interface name."""
        return {endpoint.interface: endpoint for endpoint in self.endpoints}

    @property
    def translated(self) -> dict[IPAddress, IPAddress]:
        """Floating address → whose it stands for."""
        return translated(self.endpoints)

    @property
    def ipv6_interfaces(self) -> frozenset[str]:
        """Where an IPv6 workload is."""
        six = (one for one in self.endpoints if any(a.version == 6 for a in one.addresses))
        return frozenset(one.interface for one in six)


_NO_POLICIES = PolicyRules()
_ALLOWED = Ways(Direction.INGRESS.allowed, Direction.EGRESS.allowed)


def compile_endpoint(endpoint: Endpoint, ways: Ways = _ALLOWED) -> EndpointPolicy:
    """The rules of one endpoint, whose new connections go these ways.

    Raises `InvalidInput` for a name or MAC that cannot be one.
    """
    mac = endpoint.mac.lower()
    if not _INTERFACE.fullmatch(endpoint.interface):
        raise InvalidInput(f"endpoint {endpoint.id}: no interface name: {endpoint.interface!r}")
    if not _MAC.fullmatch(mac):
        raise InvalidInput(f"endpoint {endpoint.id}: no MAC address: {endpoint.mac!r}")
    addresses = sorted(set(endpoint.addresses), key=lambda one: (one.version, int(one)))
    vm = endpoint.vm is not None
    policy = EndpointPolicy(
        endpoint.interface, mac, tuple(addresses), vm, ways.ingress, ways.egress
    )
    return replace(policy, floating=endpoint.floating, source_prefixes=endpoint.source_prefixes)


def policy_set(
    endpoints: Iterable[EndpointPolicy],
    *,
    endpoint_to_host: EndpointToHost = EndpointToHost.DROP,
    rules: PolicyRules = _NO_POLICIES,
) -> PolicySet:
    """The node's rules, the same whatever order the endpoints come in.

    Two endpoints on one interface are two records of one veth: the one that is greater in (MAC,
    addresses) is used, so that the choice does not depend on order.
    """
    chosen: dict[str, EndpointPolicy] = {}
    for endpoint in endpoints:
        rival = chosen.get(endpoint.interface)
        if rival is None or _rank(rival) <= _rank(endpoint):
            chosen[endpoint.interface] = endpoint
    ordered = tuple(chosen[name] for name in sorted(chosen))
    chains = rules.chains
    if not NODE_CHAINS.keys() <= chains.keys():
        chains = {**NODE_CHAINS, **chains}
    return PolicySet(ordered, endpoint_to_host, chains, rules.sets)


def _rank(endpoint: EndpointPolicy) -> tuple[str, str]:
    return endpoint.mac, str(endpoint.addresses)
