"""Is this pod the target of this migration? One answer for ADD and for the agent. Pure.

A pod says by its label which migration it is for, and anyone who may make pods can say so. KubeVirt
names the pod that it chose in `migrationState.targetPod` of the VMI, and of the migration itself,
but only at the hand-off: the pod, and its ADD, come long before. So three answers are possible for
a live migration: *named* (by a witness; none names another), *unnamed* (no witness names anyone:
several pods with the same label cannot be told apart by the API, IPAM's alternate owner decides)
and *another* (some witness names another pod: this one is refused, whatever it says).

Both witnesses are read: the migration's own status, unless it speaks of another migration, and
the VMI's, if it speaks of this one. What they say outlives the migration's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from libtortie.kube.objects import (
    LABEL_LAUNCHER,
    LAUNCHER,
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)


class Standing(StrEnum):
    """What a migration is to a pod that claims to be its target."""

    NONE = "none"  # no launcher, a migration of another VMI, or one that is over
    UNNAMED = "unnamed"
    NAMED = "named"
    ANOTHER = "another"

    @property
    def target(self) -> bool:
        """Whether the pod counts as the migration's target."""
        return self in (Standing.UNNAMED, Standing.NAMED)


def chosen_targets(
    migration: VirtualMachineInstanceMigration, vmi: VirtualMachineInstance | None
) -> frozenset[str]:
    """The pods that the API names as this migration's target: none before the hand-off."""
    uid = migration.metadata.uid
    own = migration.status.migration_state
    named = {own.target_pod} if own.migration_uid in ("", uid) else set()
    if vmi is not None and uid and vmi.status.migration_state.migration_uid == uid:
        named.add(vmi.status.migration_state.target_pod)
    return frozenset(named - {""})


def runs_in(vmi: VirtualMachineInstance) -> str:
    """The pod that the VM runs in, as the instance's last hand-off has it; empty without one."""
    state = vmi.status.migration_state
    return state.target_pod if state.completed and not state.failed else state.source_pod


def holder_on(node: str, state: MigrationState) -> str:
    """Of the pods of a hand-off the one that has the VM, given that the VM is on this node; empty
    where the hand-off says nothing about the node."""
    if state.source_node == state.target_node == node:
        return state.target_pod if state.completed and not state.failed else state.source_pod
    return {state.source_node: state.source_pod, state.target_node: state.target_pod}.get(node, "")


def standing(
    pod: str,
    labels: Mapping[str, str],
    migration: VirtualMachineInstanceMigration,
    vmi: VirtualMachineInstance | None,
) -> Standing:
    """What `migration`, which the pod claims to be for, makes of it.

    `vmi` is the one whose UID owns the pod; None where it is not known. The caller has found the
    migration by the UID in the pod's label, in the pod's namespace.
    """
    if labels.get(LABEL_LAUNCHER) != LAUNCHER:
        return Standing.NONE
    if vmi is not None and migration.spec.vmi_name != vmi.metadata.name:
        return Standing.NONE
    named = chosen_targets(migration, vmi)
    if named - {pod}:
        return Standing.ANOTHER
    if migration.final:
        return Standing.NONE
    return Standing.NAMED if named else Standing.UNNAMED
