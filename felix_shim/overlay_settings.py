"""What FelixConfiguration says of the tunnel, made effective. Pure.

Calico's names and defaults. A value that cannot be used is named among the problems and the last
one known holds, so that a slip takes no tunnel down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from libtortie.model.felix_values import (
    parse_tunnel_mtu,
    parse_tunnel_mtu_v6,
    parse_tunnel_port,
    parse_tunnel_vni,
)
from libtortie.model.resources import FelixConfigurationSpec

DEFAULT_PORT, DEFAULT_VNI = 4789, 4096
OVERHEAD = {4: 50, 6: 70}
"""Bytes that encapsulation adds: inner Ethernet 14, VXLAN 8, UDP 8, IPv4 20 or IPv6 40."""


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """`enabled` None: where a pool wants it; it speaks of IPv4's tunnel alone, as Calico's does.
    An MTU of 0 is the underlay's less the overhead. `workloads_vxlan` and `workloads_ipip`:
    workloads may send such packets."""

    enabled: bool | None = None
    mtu: int = 0
    mtu6: int = 0
    port: int = DEFAULT_PORT
    vni: int = DEFAULT_VNI
    workloads_vxlan: bool = False
    workloads_ipip: bool = False

    def wanted(self, version: int, pools: bool) -> bool:
        """Whether a family has a tunnel; `pools`: whether any is in its overlay."""
        switched = self.enabled if version == 4 else None
        return pools if switched is None else switched

    def mtu_of(self, version: int, underlay: int) -> int:
        """The MTU of a family's tunnel over a link with this one; 0: leave the kernel's."""
        asked = self.mtu if version == 4 else self.mtu6
        return asked or max(underlay - OVERHEAD[version], 0)


def stronger_tunnel(
    weaker: TunnelSettings,
    spec: FelixConfigurationSpec,
    known: TunnelSettings | None,
    complain: Callable[[str], None],
) -> TunnelSettings:
    """The settings with those of a stronger configuration; `known` are the last effective ones."""
    last = known or weaker

    def read(
        name: str, value: Any, parse: Callable[[Any], int | None], below: int, before: int
    ) -> int:
        try:
            return below if value is None else parse(value) or below
        except ValueError as error:
            complain(f"{name}: {error}")
            return before

    vxlan, ipip = spec.allow_vxlan_packets_from_workloads, spec.allow_ipip_packets_from_workloads
    return TunnelSettings(
        enabled=weaker.enabled if spec.vxlan_enabled is None else spec.vxlan_enabled,
        mtu=read("vxlanMTU", spec.vxlan_mtu, parse_tunnel_mtu, weaker.mtu, last.mtu),
        mtu6=read("vxlanMTUV6", spec.vxlan_mtu_v6, parse_tunnel_mtu_v6, weaker.mtu6, last.mtu6),
        port=read("vxlanPort", spec.vxlan_port, parse_tunnel_port, weaker.port, last.port),
        vni=read("vxlanVNI", spec.vxlan_vni, parse_tunnel_vni, weaker.vni, last.vni),
        workloads_vxlan=weaker.workloads_vxlan if vxlan is None else vxlan,
        workloads_ipip=weaker.workloads_ipip if ipip is None else ipip,
    )
