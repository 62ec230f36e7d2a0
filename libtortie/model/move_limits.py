"""What in a cluster's network limits the moves of VMs: facts of its pools and settings. Pure.

The one source of them. `tortiectl vm preflight` tells them with the fix that fits who owns the
resource; agents tell them as Events of the VMs that are concerned.

What counts on a node is its FelixConfigurations' together: `default`, and over it `node.<name>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Any

from libtortie.model.felix_values import ELEVATED_PRIORITY as ELEVATED
from libtortie.model.felix_values import NORMAL_PRIORITY as NORMAL
from libtortie.model.resources import FelixConfiguration, IPPool
from libtortie.model.times import parse_duration

_NO_OVERLAY = "Never"


class Severity(StrEnum):
    """What comes of it if nothing is done."""

    BLOCKS = "blocks"
    BREAKS = "breaks connections"
    RISK = "risk"

    @property
    def rank(self) -> int:
        """The worst first."""
        return list(Severity).index(self)


BLOCKS, BREAKS, RISK = Severity.BLOCKS, Severity.BREAKS, Severity.RISK


@dataclass(frozen=True, slots=True)
class Limit:
    """One fact about a resource. `field` of its spec should have `value`; `fix` says what else."""

    severity: Severity
    kind: str
    name: str
    code: str
    text: str
    field: str = ""
    value: bool | str = ""
    fix: str = ""

    @property
    def remedy(self) -> str:
        """What to do, in words."""
        return self.fix or f"set {self.field}: {json.dumps(self.value)} on the {self.kind}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.text}; {self.remedy}"


Layers = Sequence[FelixConfiguration]
"""What counts on a node, the weakest first."""


def layers_of(felixes: Mapping[str, FelixConfiguration], nodes: Iterable[str]) -> list[Layers]:
    """Each different one of some nodes', by name; of no node that is known: all there are."""
    default = [felixes["default"]] if "default" in felixes else []
    names = {f"node.{node}" for node in nodes} or {*felixes} - {"default"} or {""}
    own: list[Layers] = [[*default, felixes[name]] for name in sorted(names & felixes.keys())]
    return own if names <= felixes.keys() else [default, *own]


def pool_limits(pool: IPPool, layers: Iterable[Layers] = ()) -> Iterator[Limit]:
    """Of VMs with an address of a pool; `layers` as nodes have them."""
    kind, name, spec = "IPPool", pool.metadata.name, pool.spec
    if spec.nat_outgoing:
        yield Limit(
            BREAKS, kind, name, "NATOutgoing",
            "natOutgoing is on: connections out of the pool are masqueraded by the node, and "
            "break when the VM leaves it",
            "natOutgoing", False,
        )  # fmt: skip
    if spec.ipip_mode != _NO_OVERLAY:
        yield Limit(
            BLOCKS, kind, name, "IPIP",
            f"ipipMode is {spec.ipip_mode}: live migration is not possible over IPIP",
            "ipipMode", _NO_OVERLAY,
        )  # fmt: skip
    if spec.disable_bgp_export and spec.vxlan_mode == _NO_OVERLAY:
        yield Limit(
            BREAKS, kind, name, "NoBGPExport",
            "disableBGPExport is on: no other node learns where the VM has gone",
            "disableBGPExport", False,
        )  # fmt: skip
    if spec.vxlan_mode != _NO_OVERLAY and ip_network(spec.cidr).version == 4:
        for each in layers:
            enabled, name = _said(each, "vxlan_enabled")
            if enabled is False:
                yield Limit(
                    BREAKS, "FelixConfiguration", name, "OverlayOff",
                    f"vxlanEnabled is off, and IPPool {pool.metadata.name} has vxlanMode "
                    f"{spec.vxlan_mode}: nodes without a tunnel do not reach a VM that has moved",
                    fix="leave vxlanEnabled out: pools then decide",
                )  # fmt: skip


def felix_limits(layers: Layers) -> Iterator[Limit]:
    """Of all VMs on a node that keep their address; each names the resource that says so."""
    kind = "FelixConfiguration"
    for key, field in (
        ("wireguardEnabled", "wireguard_enabled"),
        ("wireguardEnabledV6", "wireguard_enabled_v6"),
    ):
        on, name = _said(layers, field)
        if on:
            yield Limit(
                BREAKS, kind, name, "WireGuard",
                f"{key} is on: live migration is not supported with WireGuard",
                fix=f"set {key}: false, or keep these VMs where they are",
            )  # fmt: skip
    for version in (4, 6):
        normal, _ = _said(layers, f"ipv{version}_normal_route_priority")
        elevated, _ = _said(layers, f"ipv{version}_elevated_route_priority")
        name = _last(
            layers, f"ipv{version}_normal_route_priority", f"ipv{version}_elevated_route_priority"
        )
        if (normal or NORMAL) - (elevated or ELEVATED) < 2:
            yield Limit(
                BREAKS, kind, name, "RoutePriorities",
                f"ipv{version}ElevatedRoutePriority {elevated or ELEVATED} must be at least 2 "
                f"below ipv{version}NormalRoutePriority {normal or NORMAL}: the route of a VM "
                "that has moved does not win",
                fix=f"use {ELEVATED} and {NORMAL}, the defaults",
            )  # fmt: skip
    text, name = _said(layers, "live_migration_route_convergence_time")
    yield from _convergence(kind, name, text or "")


def _said(layers: Layers, field: str) -> tuple[Any, str]:
    """The value that counts, and the name of the resource that has it; None where none does."""
    for one in reversed(layers):
        value = getattr(one.spec, field)
        if value or value is False:
            return value, one.metadata.name
    return None, ""


def _last(layers: Layers, *fields: str) -> str:
    """The strongest resource that says one of some fields."""
    saying = [one for one in layers if any(getattr(one.spec, field) for field in fields)]
    return saying[-1].metadata.name if saying else ""


def _convergence(kind: str, name: str, text: str) -> Iterator[Limit]:
    if not text:
        return
    try:
        if parse_duration(text) >= 1:
            return
        why = "is over before other nodes have settled"
    except ValueError:
        why = "is no duration"
    yield Limit(
        RISK, kind, name, "ConvergenceTime", f"liveMigrationRouteConvergenceTime {text!r} {why}",
        fix="use 30s, the default",
    )  # fmt: skip
