"""The early ends of a migration: cancelled before its hand-off, or waiting for a pod too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lab import objects as kv
from lab.objects import LabMigration, LabPod, LabVMI
from lab.vmim_status import conclude
from lab.world import Action, Remove, World, since

UNSCHEDULABLE_S = 300.0
PENDING_S = 900.0


def plan_cancel(
    migration: LabMigration, vmi: LabVMI, target: LabPod | None, world: World
) -> Iterator[Action]:
    """A migration nobody works on yet was deleted: its target goes, and it has failed."""
    if target is not None and not target.metadata.deleting:
        yield Remove(target)
    yield from conclude(migration, vmi, "the migration was cancelled", world)


def expired(migration: LabMigration, pod: LabPod, world: World) -> str:
    """Why a migration has waited long enough for its target pod; empty while it may wait."""
    if pod.status.phase == "Running":
        return ""
    annotations, name = migration.metadata.annotations, pod.metadata.name
    waited = since(pod.metadata.creation_timestamp, world)
    if pod.unschedulable:
        limit = _seconds(annotations, kv.ANNOTATION_UNSCHEDULABLE_S, UNSCHEDULABLE_S)
        if waited >= limit:
            return f"target pod {name} was unschedulable for {limit:g} s: {pod.unschedulable}"
        return ""
    limit = _seconds(annotations, kv.ANNOTATION_PENDING_S, PENDING_S)
    words = f": {pod.status.message}" if pod.status.message else ""
    return f"target pod {name} was pending for {limit:g} s{words}" if waited >= limit else ""


def _seconds(annotations: Mapping[str, str], key: str, default: float) -> float:
    """A time-out annotation; KubeVirt takes whole seconds and ignores what it cannot read."""
    text = annotations.get(key, "")
    return float(text) if text.isascii() and text.isdigit() else default
