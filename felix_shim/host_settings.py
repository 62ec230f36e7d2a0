"""What FelixConfiguration says about the node's own traffic, made effective. Pure.

A value that cannot be used is named among the problems and changes nothing: the last one known
holds, or, where none is, the next weaker one. So a slip in a list of failsafe ports locks nobody
out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Any, TypeVar

from felix_shim.failsafe import INBOUND, OUTBOUND, TCP, UDP, HostPort
from felix_shim.nat_rules import NatSettings
from libtortie.model.plain_ip import plain_network
from libtortie.model.policy import PortRange
from libtortie.model.resources import FelixConfigurationSpec

T = TypeVar("T")
_PROTOCOLS = {"tcp": TCP, "udp": UDP}
_KEYS = frozenset({"protocol", "port", "net"})
_RANGE = re.compile(r"(\d{1,5})(?::(\d{1,5}))?")
_EXCLUSIONS = {"IPPoolsOnly": False, "IPPoolsAndHostIPs": True}


class EndpointToHost(StrEnum):
    """What becomes of a workload's new connections to its own node, after its own policy.

    `DROP` is the default of Calico's FelixConfiguration (`defaultEndpointToHostAction`). Answers
    to connections that the node opened pass always, and so does forwarded traffic, whichever
    this is. `RETURN` and `ACCEPT` both leave the packet to the node's other rules: in nftables
    an accepted packet still meets the tables of others.
    """

    DROP = "drop"
    ACCEPT = "accept"
    RETURN = "return"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Failsafe ports, `natOutgoing`, and what becomes of workloads' packets to their node."""

    inbound: tuple[HostPort, ...] = INBOUND
    outbound: tuple[HostPort, ...] = OUTBOUND
    endpoint_to_host: EndpointToHost = EndpointToHost.DROP
    nat: NatSettings = field(default_factory=NatSettings)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the fields of one configuration."""

    complain: Callable[[str], None]

    def read(self, field: str, value: Any, parse: Callable[[Any], T], below: T, last: T) -> T:
        """What a field says; what held below it where it says nothing; else what held last."""
        if value is None or value == "":
            return below
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            self.complain(f"{field}: {error}")
            return last


def stronger(
    weaker: HostSettings,
    spec: FelixConfigurationSpec,
    known: HostSettings | None,
    complain: Callable[[str], None],
) -> HostSettings:
    """The settings with those of a stronger configuration; `known` are the last effective ones."""
    last, read = known or weaker, _Reader(complain).read
    return HostSettings(
        inbound=read(
            "failsafeInboundHostPorts",
            spec.failsafe_inbound_host_ports,
            parse_host_ports,
            weaker.inbound,
            last.inbound,
        ),
        outbound=read(
            "failsafeOutboundHostPorts",
            spec.failsafe_outbound_host_ports,
            parse_host_ports,
            weaker.outbound,
            last.outbound,
        ),
        endpoint_to_host=read(
            "defaultEndpointToHostAction",
            spec.default_endpoint_to_host_action,
            _action,
            weaker.endpoint_to_host,
            last.endpoint_to_host,
        ),
        nat=_nat(weaker.nat, spec, last.nat, read),
    )


def _nat(
    weaker: NatSettings, spec: FelixConfigurationSpec, last: NatSettings, read: Callable[..., Any]
) -> NatSettings:
    address, ports = spec.nat_outgoing_address, spec.nat_port_range
    return NatSettings(
        read("natOutgoingAddress", address, IPv4Address, weaker.address, last.address),
        read("natPortRange", ports, parse_port_range, weaker.ports, last.ports),
        read(
            "natOutgoingExclusions",
            spec.nat_outgoing_exclusions,
            _spare_nodes,
            weaker.spare_nodes,
            last.spare_nodes,
        ),
    )


def parse_host_ports(value: Any) -> tuple[HostPort, ...]:
    """A list of {protocol, port, net}; an empty one is none at all. Raises ValueError."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is no list of ports")
    found = []
    for number, one in enumerate(value):
        try:
            found.append(_host_port(one))
        except ValueError as error:
            raise ValueError(f"{number}: {error}") from error
    return tuple(found)


def _host_port(value: Any) -> HostPort:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not of protocol, port and net")
    if unknown := sorted(value.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}")
    protocol = _PROTOCOLS.get(str(value.get("protocol")).lower())
    if protocol is None:
        raise ValueError(f"protocol {value.get('protocol')!r} is neither TCP nor UDP")
    port = value.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise ValueError(f"port {port!r} is no number from 1 to 65535")
    net = value.get("net")
    if net is not None and not isinstance(net, str):
        raise ValueError(f"net {net!r} is no network")
    return HostPort(protocol, PortRange(port, port), plain_network(net) if net else None)


def parse_port_range(value: Any) -> PortRange:
    """A number, or `first:last`. Raises ValueError."""
    found = None if isinstance(value, bool) else _RANGE.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no port or range first:last")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 0 < first <= last < 1 << 16:
        raise ValueError(f"{value!r} is no range of ports from 1 to 65535")
    return PortRange(first, last)


def _action(value: str) -> EndpointToHost:
    try:
        return EndpointToHost(value.lower())
    except ValueError:
        raise ValueError(f"{value!r} is not Drop, Accept or Return") from None


def _spare_nodes(value: str) -> bool:
    if value not in _EXCLUSIONS:
        raise ValueError(f"{value!r} is not one of {', '.join(_EXCLUSIONS)}")
    return _EXCLUSIONS[value]
