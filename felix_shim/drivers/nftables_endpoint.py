"""What an endpoint puts into our tables: two chains, and elements of sets and maps. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from felix_shim.drivers.nftables_rules import SetSpec
from felix_shim.host_rules import KNOWN
from felix_shim.policy import EndpointPolicy
from felix_shim.rules import (
    DROP,
    Chain,
    ConnState,
    Goto,
    HasState,
    Jump,
    Plain,
    Rule,
)
from felix_shim.tunnel_rules import ENCAPSULATION

_INVALID = Rule((HasState((ConnState.INVALID,)),), Plain.DROP)

_BINDING = ("ifname", "ether_addr", "ipv4_addr")
_BINDING6 = ("ifname", "ether_addr", "ipv6_addr")
SETS = (
    SetSpec("inet", "bindings4", _BINDING),
    SetSpec("inet", "bindings6", _BINDING6),
    SetSpec("inet", "speakers6", ("ifname", "ether_addr")),
    SetSpec("inet", "sources4", _BINDING, interval=True),
    SetSpec("inet", "sources6", _BINDING6, interval=True),
    SetSpec("inet", "from-endpoints", ("ifname",), verdicts=True),
    SetSpec("inet", "to-endpoints", ("ifname",), verdicts=True),
    SetSpec("arp", "bindings", _BINDING),
    SetSpec("arp", "probers", ("ifname", "ether_addr")),
    SetSpec("arp", "claimed", ("ifname", "ipv4_addr")),
)
"""The sets that endpoints are in; in the kernel their names end with a tag."""


def chains(endpoint: EndpointPolicy) -> dict[str, Chain]:
    """Its chains by name: known connections, then what its policies make of new ones."""
    first = (KNOWN,) if endpoint.vm else (KNOWN, _INVALID)
    out, into = chain_names(endpoint)
    return {
        out: (*first, Rule((), Jump(ENCAPSULATION)), Rule((), Goto(endpoint.egress))),
        into: (*first, Rule((), Goto(endpoint.ingress))),
    }


def chain_names(endpoint: EndpointPolicy) -> tuple[str, str]:
    """The chains of what it sends, and of what it gets."""
    return f"cali-fw-{endpoint.interface}", f"cali-tw-{endpoint.interface}"


def to_node(*, drop: bool) -> Chain:
    """What becomes of what a workload may send, when it is for the node itself."""
    return (DROP,) if drop else (Rule((), Plain.ACCEPT),)


def elements(endpoints: Iterable[EndpointPolicy]) -> dict[SetSpec, list[str]]:
    """What the endpoints put into each set and map.

    The maps *jump*, and behind them stands a drop. A packet looks an element up as the map is by
    then, but reads a chain as it was when the packet's judging began: a chain that came in between
    is empty for it, and nothing that is gone to from an empty chain would stop it.
    """
    found: dict[str, list[str]] = {f"{one.family} {one.name}": [] for one in SETS}
    for endpoint in endpoints:
        interface = f'"{endpoint.interface}"'
        speaker = f"{interface} . {endpoint.mac}"
        ipv4 = [address for address in endpoint.addresses if address.version == 4]
        ipv6 = [address for address in endpoint.addresses if address.version == 6]
        out, into = chain_names(endpoint)
        found["inet bindings4"] += [f"{speaker} . {address}" for address in ipv4]
        found["inet bindings6"] += [f"{speaker} . {address}" for address in ipv6]
        found["inet speakers6"] += [speaker] if ipv6 else []
        for network in endpoint.source_prefixes:
            found[f"inet sources{network.version}"].append(f"{speaker} . {network}")
        found["inet from-endpoints"].append(f"{interface} : jump {out}")
        found["inet to-endpoints"].append(f"{interface} : jump {into}")
        found["arp bindings"] += [f"{speaker} . {address}" for address in ipv4]
        found["arp probers"] += [speaker] if ipv4 else []
        found["arp claimed"] += [f"{interface} . {address}" for address in ipv4]
    return {one: found[f"{one.family} {one.name}"] for one in SETS}
