"""KubeVirt's own configuration, as far as it decides about migrations. Pure.

What is not set has KubeVirt's default; what is of another type than KubeVirt's counts as not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from libtortie.errors import InvalidInput
from tortiectl.downtime.amounts import quantity
from tortiectl.kubevirt.objects import KubeVirt

NO_EVICTION = "None"
DRAIN_TAINT = "kubevirt.io/drain"


@dataclass(frozen=True, slots=True)
class Settings:
    """`bindings` are network binding plugins and whether they may migrate; `gpus` the resource
    names of mediated devices that are permitted. `bandwidth` is bytes a second, 0 unlimited."""

    gates: frozenset[str] = frozenset()
    eviction_strategy: str = NO_EVICTION
    bindings: Mapping[str, bool] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()
    parallel_cluster: int = 5
    parallel_outbound: int = 2
    bandwidth: float = 0.0
    completion_s_per_gb: float = 150.0
    auto_converge: bool = False
    post_copy: bool = False
    disruption: bool = False
    drain_taint: str = DRAIN_TAINT
    migration_network: str = ""
    tls_off: bool = False


def settings_of(found: KubeVirt | None) -> Settings:
    """The settings of KubeVirt's object."""
    spec = found.spec if found is not None else {}
    config = _map(spec, "configuration")
    migrations = _map(config, "migrations")
    post_copy = migrations.get("allowPostCopy") is True
    disruption = migrations.get("allowWorkloadDisruption")
    devices = _map(config, "permittedHostDevices")
    plugins = _map(_map(config, "network"), "binding")
    return Settings(
        gates=frozenset(map(str, _list(_map(config, "developerConfiguration"), "featureGates"))),
        eviction_strategy=str(config.get("evictionStrategy") or NO_EVICTION),
        bindings={
            str(name): isinstance(one, Mapping) and one.get("migration") is not None
            for name, one in plugins.items()
        },
        gpus=frozenset(
            str(one.get("resourceName"))
            for one in _list(devices, "mediatedDevices")
            if isinstance(one, Mapping)
        ),
        parallel_cluster=_number(migrations, "parallelMigrationsPerCluster", 5),
        parallel_outbound=_number(migrations, "parallelOutboundMigrationsPerNode", 2),
        bandwidth=_bytes(migrations.get("bandwidthPerMigration")),
        completion_s_per_gb=float(_number(migrations, "completionTimeoutPerGiB", 150, 0)),
        auto_converge=migrations.get("allowAutoConverge") is True,
        post_copy=post_copy,
        disruption=post_copy if disruption is None else disruption is True,
        drain_taint=str(migrations.get("nodeDrainTaintKey") or DRAIN_TAINT),
        migration_network=str(migrations.get("network") or ""),
        tls_off=migrations.get("disableTLS") is True,
    )


def _map(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    found = body.get(key)
    return found if isinstance(found, list) else []


def _number(body: Mapping[str, Any], key: str, default: int, least: int = 1) -> int:
    found = body.get(key)
    fits = isinstance(found, int) and not isinstance(found, bool) and found >= least
    return found if fits and isinstance(found, int) else default


def _bytes(value: object) -> float:
    try:
        return quantity(str(value)) if value is not None else 0.0
    except InvalidInput:
        return 0.0
