"""What FelixConfiguration says, made effective: built-in default < `default` < `node.<name>`.

A value we cannot use is reported and the next weaker one holds; the agent never stops for it.
Durations are Go's (`30s`, `1m30s`, `500ms`), as Calico stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from felix_shim.gate import GateSettings, OnTimeout
from felix_shim.host_settings import HostSettings, stronger
from felix_shim.overlay_settings import TunnelSettings, stronger_tunnel
from felix_shim.routes import PRIORITY_MAX, Priorities
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.resources import FelixConfigurationSpec
from libtortie.model.times import parse_duration

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

    settings = _gates(settings, name, spec, problems)
    seconds = settings.convergence_seconds
    if spec.live_migration_route_convergence_time:
        try:
            seconds = parse_duration(spec.live_migration_route_convergence_time)
        except ValueError as error:
            problems.append(f"{name}: liveMigrationRouteConvergenceTime: {error}")
    gate = _gate(settings.gate, name, spec, problems)
    prefixes = [text.strip() for text in spec.interface_prefix.split(",")]
    if spec.interface_prefix and INTERFACE_PREFIX not in prefixes:
        problems.append(
            f"{name}: interfacePrefix: {spec.interface_prefix!r}: workloads are on "
            f"{INTERFACE_PREFIX}* interfaces, and on no others"
        )
    ipv4 = _priorities(
        settings.ipv4,
        spec.ipv4_normal_route_priority,
        spec.ipv4_elevated_route_priority,
        f"{name}: ipv4",
        problems,
    )
    ipv6 = _priorities(
        settings.ipv6,
        spec.ipv6_normal_route_priority,
        spec.ipv6_elevated_route_priority,
        f"{name}: ipv6",
        problems,
    )
    return replace(
        settings,
        ipv4=ipv4,
        ipv6=ipv6,
        convergence_seconds=seconds,
        gate=gate,
        host=stronger(settings.host, spec, known.host if known else None, complain),
        tunnel=stronger_tunnel(settings.tunnel, spec, known.tunnel if known else None, complain),
        problems=tuple(problems),
    )


def _gates(
    weaker: Settings, name: str, spec: FelixConfigurationSpec, problems: list[str]
) -> Settings:
    """What pods may ask for in their annotations, beside their own addresses."""
    floating = _choice(spec.floating_ips, "Disabled", "Enabled", f"{name}: floatingIPs", problems)
    spoofing = _choice(
        spec.workload_source_spoofing,
        *("Disabled", "Any"),
        f"{name}: workloadSourceSpoofing",
        problems,
    )
    return replace(
        weaker,
        floating_ips=weaker.floating_ips if floating is None else floating,
        source_spoofing=weaker.source_spoofing if spoofing is None else spoofing,
    )


def _choice(text: str, no: str, yes: str, where: str, problems: list[str]) -> bool | None:
    """Whether it is `yes`; None where it says nothing, or nothing that is known."""
    if text not in ("", no, yes):
        problems.append(f"{where}: {text!r} is neither {no} nor {yes}")
    return {no: False, yes: True}.get(text)


def _gate(
    weaker: GateSettings, name: str, spec: FelixConfigurationSpec, problems: list[str]
) -> GateSettings:
    """How long a raise waits for policy, and what then."""
    if spec.policy_gate_timeout:
        try:
            weaker = replace(weaker, seconds=parse_duration(spec.policy_gate_timeout))
        except ValueError as error:
            problems.append(f"{name}: policyGateTimeout: {error}")
    if spec.policy_gate_on_timeout:
        try:
            weaker = replace(weaker, on_timeout=OnTimeout(spec.policy_gate_on_timeout))
        except ValueError:
            problems.append(
                f"{name}: policyGateOnTimeout: {spec.policy_gate_on_timeout!r} is neither "
                f"{OnTimeout.RAISE} nor {OnTimeout.HOLD}"
            )
    return weaker


def _priorities(
    weaker: Priorities, normal: int, elevated: int, where: str, problems: list[str]
) -> Priorities:
    """Both priorities, or the weaker pair when they don't leave a metric between them."""
    wanted = (normal or weaker.normal, elevated or weaker.elevated)
    if wanted == (weaker.normal, weaker.elevated):
        return weaker
    if not 1 <= wanted[1] <= wanted[0] - 2 <= PRIORITY_MAX - 2:
        problems.append(
            f"{where}NormalRoutePriority {wanted[0]} must exceed "
            f"{where}ElevatedRoutePriority {wanted[1]} by at least 2"
        )
        return weaker
    return Priorities(normal=wanted[0], elevated=wanted[1])
