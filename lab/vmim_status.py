"""What a migration writes down: phases with times, the instance's state, its own end. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import objects as kv
from lab.objects import LabMigration, LabVMI
from lab.world import Action, Patch, World, stamp


def state_patch(vmi: LabVMI, fields: dict[str, Any]) -> Patch:
    """Change the instance's `migrationState`."""
    return Patch(vmi, {"status": {"migrationState": fields}}, status=True)


def phase_patch(migration: LabMigration, phase: str, world: World, **status: Any) -> Patch:
    """A new phase with its time."""
    times = [
        one.model_dump(by_alias=True)
        for one in migration.status.phase_transition_timestamps
        if one.phase != phase
    ]
    times.append({"phase": phase, "phaseTransitionTimestamp": stamp(world)})
    body = {"phase": phase, "phaseTransitionTimestamps": times, **status}
    return Patch(migration, {"status": body}, status=True)


def conclude(migration: LabMigration, vmi: LabVMI, why: str, world: World) -> Iterator[Action]:
    """The migration has failed; the guest stays where it is, and the instance says so."""
    state = vmi.status.migration_state
    end: dict[str, Any] = {"failed": True, "completed": True, "endTimestamp": stamp(world)}
    copy: dict[str, Any] = {}
    if state.migration_uid == migration.metadata.uid:
        if state.abort_requested:
            end["abortStatus"] = "Succeeded"
        targets = {
            uid: None for uid, node in vmi.status.active_pods.items() if node == state.target_node
        }
        yield Patch(vmi, {"metadata": {"labels": {kv.LABEL_TARGET_NODE: None}}})
        told = {**end, "failureReason": why}
        yield Patch(vmi, {"status": {"migrationState": told, "activePods": targets}}, status=True)
        copy = state.body()
    final = {**copy, **end, "failureReason": why}
    yield phase_patch(migration, "Failed", world, migrationState=final)
