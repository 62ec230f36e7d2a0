"""The values of a FelixConfiguration that this agent obeys, read and checked. Pure.

Readers raise `ValueError`, or `InconsistentError` for lists, with the places in them. The agent
reads by them when it makes settings effective; `felix_problems` names all that it could not obey,
for those who write a FelixConfiguration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Any

from libtortie.model.field_errors import InconsistentError
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.plain_ip import plain_network
from libtortie.model.policy import PROTOCOLS, IPNetwork, PortRange
from libtortie.model.times import parse_duration

PRIORITY_MAX = 2147483646
"""Largest metric that the local-preference formula `2147483647 - metric` keeps positive."""
NORMAL_PRIORITY, ELEVATED_PRIORITY = 1024, 512
MTU_MAX = 65535
LOG_PREFIX_MAX = 127
"""Of the kernel's (NF_LOG_PREFIXLEN); nft 1.0.6 is killed by its own checks at 200."""
LOG_PREFIX = "calico-packet"
LOG_END = ": "
_TCP, _UDP = PROTOCOLS["TCP"], PROTOCOLS["UDP"]
_FAILSAFE_PROTOCOLS = {"tcp": _TCP, "udp": _UDP}
_FAILSAFE_KEYS = frozenset({"protocol", "port", "net"})
_RANGE = re.compile(r"(\d{1,5})(?::(\d{1,5}))?")
_SPEAKABLE = re.compile(r"[A-Za-z0-9 :/_.,=+@#()\[\]-]*")
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


class OnTimeout(StrEnum):
    """What becomes of a raise that has waited long enough (`policyGateOnTimeout`)."""

    RAISE = "Raise"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port that is open to and from a network, or everybody."""

    protocol: int
    ports: PortRange
    net: IPNetwork | None = None


def parse_host_ports(value: Any) -> tuple[HostPort, ...]:
    """A list of {protocol, port, net}; an empty one is none at all. Raises ValueError."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is no list of ports")
    if problems := [
        (f"{number}{below}", why)
        for number, one in enumerate(value)
        for below, why in _host_port_problems(one)
    ]:
        raise InconsistentError(problems)
    return tuple(
        HostPort(
            _FAILSAFE_PROTOCOLS[one["protocol"].lower()],
            PortRange(one["port"], one["port"]),
            plain_network(one["net"]) if one.get("net") else None,
        )
        for one in value
    )


def _host_port_problems(value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield "", f"{value!r} is not of protocol, port and net"
        return
    for unknown in sorted(map(str, value.keys() - _FAILSAFE_KEYS)):
        yield "", f"unknown key {unknown!r}"
    protocol, port, net = value.get("protocol"), value.get("port"), value.get("net")
    if not isinstance(protocol, str) or protocol.lower() not in _FAILSAFE_PROTOCOLS:
        yield ".protocol", f"{protocol!r} is neither TCP nor UDP"
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
        yield ".port", f"{port!r} is no number from 1 to 65535"
    if net is not None and not isinstance(net, str):
        yield ".net", f"{net!r} is no network"
    elif net:
        try:
            plain_network(net)
        except ValueError as error:
            yield ".net", str(error)


def parse_port_range(value: Any) -> PortRange:
    """A number, or `first:last`. Raises ValueError."""
    found = None if isinstance(value, bool) else _RANGE.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no port or range first:last")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 0 < first <= last < 1 << 16:
        raise ValueError(f"{value!r} is no range of ports from 1 to 65535")
    return PortRange(first, last)


def parse_endpoint_to_host(value: str) -> EndpointToHost:
    """`defaultEndpointToHostAction`. Raises ValueError."""
    try:
        return EndpointToHost(value.lower())
    except ValueError:
        raise ValueError(f"{value!r} is not Drop, Accept or Return") from None


def parse_spare_nodes(value: str) -> bool:
    """`natOutgoingExclusions`: whether packets to nodes keep their address. Raises ValueError."""
    if value not in _EXCLUSIONS:
        raise ValueError(f"{value!r} is not one of {', '.join(_EXCLUSIONS)}")
    return _EXCLUSIONS[value]


def parse_on_timeout(value: str) -> OnTimeout:
    """`policyGateOnTimeout`. Raises ValueError."""
    try:
        return OnTimeout(value)
    except ValueError:
        known = f"neither {OnTimeout.RAISE} nor {OnTimeout.HOLD}"
        raise ValueError(f"{value!r} is {known}") from None


def parse_log_prefix(value: str) -> str:
    """`logPrefix`: what each line of a Log rule begins with. Raises ValueError.

    It goes into nft's text and into the kernel's log: nothing that could end a word or a line.
    Calico's `%` words would be of each rule's own policy, which is not known here.
    """
    if not _SPEAKABLE.fullmatch(value):
        known = "letters, digits, blanks and :/_.,=+@#()[]-"
        raise ValueError(f"{value[:40]!r} has other characters than {known}")
    most = LOG_PREFIX_MAX - len(LOG_END)
    if len(value) > most:
        raise ValueError(f"has {len(value)} characters; the kernel takes {most} and '{LOG_END}'")
    return value + LOG_END


def parse_interface_prefix(value: str) -> str:
    """`interfacePrefix`, of which there is one. Raises ValueError."""
    if INTERFACE_PREFIX not in (text.strip() for text in value.split(",")):
        raise ValueError(
            f"{value!r}: workloads are on {INTERFACE_PREFIX}* interfaces, and on no others"
        )
    return INTERFACE_PREFIX


def within(least: int, most: int) -> Callable[[Any], int | None]:
    """A reader of a number; of 0 it makes None, which says nothing, as in Calico."""

    def parse(value: Any) -> int | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or (value != 0 and not least <= value <= most):
            raise ValueError(f"{value!r} is no number from {least} to {most}")
        return int(value) or None

    return parse


def switch(no: str, yes: str) -> Callable[[str], bool]:
    """A reader of one of two words."""

    def parse(value: str) -> bool:
        if value not in (no, yes):
            raise ValueError(f"{value!r} is neither {no} nor {yes}")
        return value == yes

    return parse


parse_floating_ips = switch("Disabled", "Enabled")
parse_source_spoofing = switch("Disabled", "Any")
parse_tunnel_mtu = within(576, MTU_MAX)
"""`vxlanMTU`: the least that every IPv4 host takes (RFC 791)."""
parse_tunnel_mtu_v6 = within(1280, MTU_MAX)
"""`vxlanMTUV6`: the least of an IPv6 link (RFC 8200)."""
parse_tunnel_port = within(1, 65535)
parse_tunnel_vni = within(1, (1 << 24) - 1)
PARSERS: Mapping[str, Callable[[Any], object]] = {
    "failsafeInboundHostPorts": parse_host_ports,
    "failsafeOutboundHostPorts": parse_host_ports,
    "defaultEndpointToHostAction": parse_endpoint_to_host,
    "natOutgoingAddress": IPv4Address,
    "natPortRange": parse_port_range,
    "natOutgoingExclusions": parse_spare_nodes,
    "logPrefix": parse_log_prefix,
    "floatingIPs": parse_floating_ips,
    "workloadSourceSpoofing": parse_source_spoofing,
    "liveMigrationRouteConvergenceTime": parse_duration,
    "policyGateTimeout": parse_duration,
    "policyGateOnTimeout": parse_on_timeout,
    "interfacePrefix": parse_interface_prefix,
    "vxlanMTU": parse_tunnel_mtu,
    "vxlanMTUV6": parse_tunnel_mtu_v6,
    "vxlanPort": parse_tunnel_port,
    "vxlanVNI": parse_tunnel_vni,
}
"""The fields that the agent reads by themselves."""


def felix_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """What an agent could not obey, as `spec.natPortRange: why` each; pairs of priorities where
    both are given, for of one the other may be another configuration's."""
    for field, parse in PARSERS.items():
        value = spec.get(field)
        if value is None or value == "":
            continue
        try:
            parse(value)
        except InconsistentError as error:
            yield from (f"spec.{field}.{below}: {why}" for below, why in error.problems)
        except (ValueError, TypeError, AttributeError) as error:
            yield f"spec.{field}: {error}"
    for family in ("ipv4", "ipv6"):
        normal, elevated = (spec.get(f"{family}{one}RoutePriority") for one in _PAIR)
        if normal and elevated and not are_priorities(normal, elevated):
            yield f"spec.{family}NormalRoutePriority: {normal} {_too_near(family, elevated)}"


_PAIR = ("Normal", "Elevated")


def _too_near(family: str, elevated: object) -> str:
    return f"must exceed {family}ElevatedRoutePriority {elevated} by at least 2"


def are_priorities(normal: Any, elevated: Any) -> bool:
    """Whether two metrics leave one between them."""
    numbers = isinstance(normal, int) and isinstance(elevated, int)
    return numbers and 1 <= elevated <= normal - 2 <= PRIORITY_MAX - 2
