"""What FelixConfiguration says about the node's own traffic, made effective. Pure.

A value that cannot be used is named among the problems and changes nothing: the last one known
holds, or, where none is, the next weaker one. So a slip in a list of failsafe ports locks nobody
out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, TypeVar

from felix_shim.failsafe import INBOUND, OUTBOUND
from felix_shim.nat_rules import NatSettings
from felix_shim.policy_compile import LOG_PREFIX
from libtortie.model.felix_values import (
    EndpointToHost,
    HostPort,
    parse_endpoint_to_host,
    parse_host_ports,
    parse_log_prefix,
    parse_port_range,
    parse_spare_nodes,
)
from libtortie.model.field_errors import InconsistentError
from libtortie.model.resources import FelixConfigurationSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Failsafe ports, `natOutgoing`, what becomes of workloads' packets to their node, and what
    the lines of Log rules begin with."""

    inbound: tuple[HostPort, ...] = INBOUND
    outbound: tuple[HostPort, ...] = OUTBOUND
    endpoint_to_host: EndpointToHost = EndpointToHost.DROP
    nat: NatSettings = field(default_factory=NatSettings)
    log_prefix: str = LOG_PREFIX


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
        except InconsistentError as error:
            for where, why in error.problems:
                self.complain(f"{field}.{where}: {why}")
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
            parse_endpoint_to_host,
            weaker.endpoint_to_host,
            last.endpoint_to_host,
        ),
        nat=_nat(weaker.nat, spec, last.nat, read),
        log_prefix=read(
            "logPrefix", spec.log_prefix, parse_log_prefix, weaker.log_prefix, last.log_prefix
        ),
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
            parse_spare_nodes,
            weaker.spare_nodes,
            last.spare_nodes,
        ),
    )
