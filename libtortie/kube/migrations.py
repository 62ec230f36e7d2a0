"""KubeVirt's migrations as people are shown them: phases, and when each began. Views."""

from __future__ import annotations

from pydantic import Field

from libtortie.kube import objects as kube
from libtortie.kube.objects import Condition, KubeObject, Meta, View


class FullMeta(Meta):
    """`metadata` with what is shown to people, too."""

    creation_timestamp: str = ""
    finalizers: tuple[str, ...] = ()


class Object(KubeObject):
    """An object that is shown to people."""

    metadata: FullMeta = Field(default_factory=FullMeta)

    @property
    def id(self) -> str:
        """`namespace/name`, or the name of what has no namespace."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class MigrationState(kube.MigrationState):
    """`VMI.status.migrationState`, also a migration's."""

    failure_reason: str = ""
    abort_requested: bool = False
    abort_status: str = ""
    mode: str = ""


class PhaseTime(View):
    """`phaseTransitionTimestamps[]`."""

    phase: str = ""
    phase_transition_timestamp: str = ""


class MigrationSpec(kube.VMIMSpec):
    """`VMIM.spec`."""

    added_node_selector: dict[str, str] = Field(default_factory=dict)
    priority: str = ""


class MigrationStatus(kube.VMIMStatus):
    """`VMIM.status`."""

    conditions: tuple[Condition, ...] = ()
    migration_state: MigrationState = MigrationState()
    phase_transition_timestamps: tuple[PhaseTime, ...] = ()


class Migration(Object, kube.VirtualMachineInstanceMigration):
    """A VirtualMachineInstanceMigration."""

    spec: MigrationSpec = Field(default_factory=MigrationSpec)
    status: MigrationStatus = Field(default_factory=MigrationStatus)
