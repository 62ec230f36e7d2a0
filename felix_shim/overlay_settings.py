"""What FelixConfiguration says of the tunnel, made effective. Pure.

Calico's names and defaults. A value that cannot be used is named among the problems and the last
one known holds, so that a slip takes no tunnel down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from libtortie.model.resources import FelixConfigurationSpec

DEFAULT_PORT, DEFAULT_VNI = 4789, 4096
OVERHEAD = {4: 50, 6: 70}
"""Bytes that encapsulation adds: inner Ethernet 14, VXLAN 8, UDP 8, IPv4 20 or IPv6 40."""
_LEAST_MTU = {4: 576, 6: 1280}
_MTU_MAX = 65535


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """`enabled` None: where a pool wants it; it speaks of IPv4's tunnel alone, as Calico's does.
    An MTU of 0 is the underlay's less the overhead."""

    enabled: bool | None = None
    mtu: int = 0
    mtu6: int = 0
    port: int = DEFAULT_PORT
    vni: int = DEFAULT_VNI

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

    def read(name: str, value: Any, within: tuple[int, int], below: int, before: int) -> int:
        least, most = within
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None or (whole and value == 0):
            return below
        if whole and least <= value <= most:
            return int(value)
        complain(f"{name}: {value!r} is no number from {least} to {most}")
        return before

    of4, of6 = (_LEAST_MTU[4], _MTU_MAX), (_LEAST_MTU[6], _MTU_MAX)
    return TunnelSettings(
        enabled=weaker.enabled if spec.vxlan_enabled is None else spec.vxlan_enabled,
        mtu=read("vxlanMTU", spec.vxlan_mtu, of4, weaker.mtu, last.mtu),
        mtu6=read("vxlanMTUV6", spec.vxlan_mtu_v6, of6, weaker.mtu6, last.mtu6),
        port=read("vxlanPort", spec.vxlan_port, (1, 65535), weaker.port, last.port),
        vni=read("vxlanVNI", spec.vxlan_vni, (1, (1 << 24) - 1), weaker.vni, last.vni),
    )
