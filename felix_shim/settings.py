"""What FelixConfiguration says, made effective: built-in default < `default` < `node.<name>`.

A value we cannot use is reported and the next weaker one holds; the agent never stops for it.
Durations are Go's (`30s`, `1m30s`, `500ms`), as Calico stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from felix_shim.gate import GateSettings
from felix_shim.host_settings import HostSettings, stronger
from felix_shim.overlay_settings import TunnelSettings, stronger_tunnel
from felix_shim.routes import Priorities
from libtortie.model.felix_values import (
    are_priorities,
    parse_floating_ips,
    parse_interface_prefix,
    parse_on_timeout,
    parse_source_spoofing,
)
from libtortie.model.resources import FelixConfigurationSpec
from libtortie.model.times import parse_duration

T = TypeVar("T")
DEFAULT_CONVERGENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent obeys. `problems` are the values it could not use, in words."""

    floating_ips: bool = False
    source_spoofing: bool = False
    ipv4: Priorities = field(default_factory=Priorities)
    ipv6: Priorities = field(default_factory=Priorities)
    convergence_seconds: float = DEFAULT_CONVERGENCE_SECONDS
    gate: GateSettings = field(default_factory=GateSettings)
    host: HostSettings = field(default_factory=HostSettings)
    tunnel: TunnelSettings = field(default_factory=TunnelSettings)
    problems: tuple[str, ...] = field(default=())


def effective(
    specs: Iterable[tuple[str, FelixConfigurationSpec]], known: Settings | None = None
) -> Settings:
    """The settings of (name, spec) pairs, weakest first; `known` are those that held before."""
    settings = Settings()
    for name, spec in specs:
        settings = _apply(settings, name, spec, known)
    return settings


def _apply(
    settings: Settings, name: str, spec: FelixConfigurationSpec, known: Settings | None
) -> Settings:
    problems = list(settings.problems)

    def complain(text: str) -> None:
        problems.append(f"{name}: {text}")

    def read(field: str, text: str, parse: Callable[[str], T], weaker: T) -> T:
        """What a field says; the weaker value where it says nothing, or nothing of use."""
        try:
            return parse(text) if text else weaker
        except ValueError as error:
            complain(f"{field}: {error}")
            return weaker

    gate, spoofing = settings.gate, spec.workload_source_spoofing
    convergence = spec.live_migration_route_convergence_time
    read("interfacePrefix", spec.interface_prefix, parse_interface_prefix, "")
    wanted4 = (spec.ipv4_normal_route_priority, spec.ipv4_elevated_route_priority)
    wanted6 = (spec.ipv6_normal_route_priority, spec.ipv6_elevated_route_priority)
    four = _priorities(settings.ipv4, *wanted4, f"{name}: ipv4", problems)
    six = _priorities(settings.ipv6, *wanted6, f"{name}: ipv6", problems)
    return Settings(
        read("floatingIPs", spec.floating_ips, parse_floating_ips, settings.floating_ips),
        read("workloadSourceSpoofing", spoofing, parse_source_spoofing, settings.source_spoofing),
        four,
        six,
        read(
            "liveMigrationRouteConvergenceTime",
            convergence,
            parse_duration,
            settings.convergence_seconds,
        ),
        GateSettings(
            read("policyGateTimeout", spec.policy_gate_timeout, parse_duration, gate.seconds),
            read(
                "policyGateOnTimeout",
                spec.policy_gate_on_timeout,
                parse_on_timeout,
                gate.on_timeout,
            ),
        ),
        stronger(settings.host, spec, known.host if known else None, complain),
        stronger_tunnel(settings.tunnel, spec, known.tunnel if known else None, complain),
        tuple(problems),
    )


def _priorities(
    weaker: Priorities, normal: int, elevated: int, where: str, problems: list[str]
) -> Priorities:
    """Both priorities, or the weaker pair when they don't leave a metric between them."""
    wanted = (normal or weaker.normal, elevated or weaker.elevated)
    if wanted == (weaker.normal, weaker.elevated):
        return weaker
    if not are_priorities(*wanted):
        problems.append(
            f"{where}NormalRoutePriority {wanted[0]} must exceed "
            f"{where}ElevatedRoutePriority {wanted[1]} by at least 2"
        )
        return weaker
    return Priorities(normal=wanted[0], elevated=wanted[1])
