"""What an eviction does to a VM: KubeVirt's webhook, as a function. Pure."""

from __future__ import annotations

from enum import StrEnum

from tortiectl.kubevirt.objects import VMI
from tortiectl.kubevirt.settings import Settings

LIVE_MIGRATE, IF_POSSIBLE, EXTERNAL, NONE = (
    "LiveMigrate", "LiveMigrateIfPossible", "External", "None",
)  # fmt: skip


class Fate(StrEnum):
    """What a drain does to a VM."""

    MIGRATES = "migrates"
    RESTARTS = "restarts"
    ENDS = "ends"
    WAITS = "waits for its controller"
    BLOCKS = "blocks the drain"


def strategy_of(vmi: VMI, settings: Settings) -> str:
    """The VMI's eviction strategy, else the cluster's."""
    return vmi.spec.eviction_strategy or settings.eviction_strategy


def fate(strategy: str, migratable: bool, owned: bool) -> Fate:
    """What comes of an eviction; `owned`: a VM would start it again.

    A strategy that is not known counts as the one that KubeVirt treats so: it admits the eviction.
    """
    if strategy == LIVE_MIGRATE:
        return Fate.MIGRATES if migratable else Fate.BLOCKS
    if strategy == IF_POSSIBLE and migratable:
        return Fate.MIGRATES
    if strategy == EXTERNAL:
        return Fate.WAITS
    return Fate.RESTARTS if owned else Fate.ENDS
