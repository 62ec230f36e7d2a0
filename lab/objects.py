"""The parts of Kubernetes' and KubeVirt's objects that only a kubelet or KubeVirt itself reads."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lab.spec import LabAffinity, LabVMISpec
from libtortie.kube import migrations
from libtortie.kube import objects as kube
from libtortie.kube.objects import Meta, Pod, PodSpec, PodStatus, View, VirtualMachine
from tortiectl.kubevirt import objects as views

LABEL_LAUNCHER, LAUNCHER = kube.LABEL_LAUNCHER, kube.LAUNCHER
HOTPLUG = "hotplug-disk"
LABEL_CREATED_BY, LABEL_SCHEDULABLE = views.LABEL_CREATED_BY, views.LABEL_SCHEDULABLE
LABEL_NODE = "kubevirt.io/nodeName"
LABEL_TARGET_NODE = "kubevirt.io/migrationTargetNodeName"
LABEL_VMI = "vmi.kubevirt.io/id"
LABEL_VM_NAME = "vm.kubevirt.io/name"
LABEL_VMI_NAME = "kubevirt.io/vmi-name"
LABEL_JOB, ANNOTATION_JOB_NAME = kube.LABEL_MIGRATION_JOB, kube.ANNOTATION_MIGRATION_NAME
ANNOTATION_DOMAIN = "kubevirt.io/domain"
ANNOTATION_UNIX = "kubevirt.io/migrationTransportUnix"
ANNOTATION_EVICT = "descheduler.alpha.kubernetes.io/request-evict-only"
ANNOTATION_READY = "kubevirt.io/migration-target-ready-timestamp"
ANNOTATION_EVACUATION = "kubevirt.io/evacuationMigration"
ANNOTATION_OWNER_VMI = "kubevirt.io/owner-vmi-name"
ANNOTATION_OWNER_VMI_UID = "kubevirt.io/owner-vmi-uid"
ANNOTATION_UNSCHEDULABLE_S = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds"
ANNOTATION_PENDING_S = "kubevirt.io/migrationPendingPodTimeoutSeconds"
VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VMI_FINALIZER = "foregroundDeleteVirtualMachine"
MIGRATION_FINALIZER = "kubevirt.io/migrationJobFinalize"
ORPHAN = "orphan"


class LabMeta(migrations.FullMeta):
    """`metadata` with what only its controllers look at."""

    deletion_grace_period_seconds: int = 0


class Condition(kube.Condition):
    """A condition that can be written."""

    def body(self) -> dict[str, str]:
        """As the API has it."""
        return {key: value for key, value in self.model_dump(by_alias=True).items() if value}


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of a type."""
    return next((one for one in conditions if one.type == kind), None)


class Template(View):
    """`VM.spec.template`; the spec is handed on whole."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = Field(default_factory=dict)


class VMSpec(View):
    """`VM.spec`. A VM says `running` or `runStrategy`, never both."""

    running: bool | None = None
    run_strategy: str = ""
    template: Template = Template()

    @property
    def strategy(self) -> str:
        """The run strategy: `running` is short for Always and Halted."""
        if self.run_strategy:
            return self.run_strategy
        return "Always" if self.running else "Halted"


class StateChange(View):
    """`VM.status.stateChangeRequests[]`: what `virtctl` asks of a VM, once."""

    action: str = ""
    uid: str = ""


class VMStatus(View):
    """`VM.status`."""

    created: bool = False
    ready: bool = False
    printable_status: str = ""
    state_change_requests: tuple[StateChange, ...] = ()


class LabVM(VirtualMachine):
    """A VM with what makes a VMI of it."""

    metadata: LabMeta = LabMeta()
    spec: VMSpec = VMSpec()
    status: VMStatus = VMStatus()


class LabMigrationState(migrations.MigrationState):
    """`migrationState`, all the lab writes of it."""

    target_node_address: str = ""
    target_direct_migration_node_ports: dict[str, int] = Field(default_factory=dict)
    target_node_domain_detected: bool = False
    target_attachment_pod_uid: str = Field(default="", alias="targetAttachmentPodUID")
    migration_network_type: str = ""

    def body(self) -> dict[str, Any]:
        """What is set, as the API has it."""
        return self.model_dump(by_alias=True, exclude_defaults=True)


class LabVMIStatus(views.VMIStatus):
    """`VMI.status`."""

    migration_state: LabMigrationState = LabMigrationState()
    conditions: tuple[Condition, ...] = ()
    phase_transition_timestamps: tuple[migrations.PhaseTime, ...] = ()


class LabVMI(views.VMI):
    """A VMI as its controllers see it."""

    metadata: LabMeta = LabMeta()
    spec: LabVMISpec = LabVMISpec()
    status: LabVMIStatus = LabVMIStatus()

    @property
    def hotplugged(self) -> bool:
        """Whether it has a volume that an attachment pod brings."""
        sources = (one.persistent_volume_claim or one.data_volume for one in self.spec.volumes)
        return any(source is not None and source.hotpluggable for source in sources)


class LabMigrationStatus(migrations.MigrationStatus):
    """`VMIM.status`."""

    migration_state: LabMigrationState = LabMigrationState()
    conditions: tuple[Condition, ...] = ()


class LabMigration(migrations.Migration):
    """A VMIM as its controllers see it."""

    metadata: LabMeta = LabMeta()
    status: LabMigrationStatus = LabMigrationStatus()

    @property
    def evacuates(self) -> bool:
        """Whether the evacuation controller made it."""
        return ANNOTATION_EVACUATION in self.metadata.annotations


class ReadinessGate(View):
    """`Pod.spec.readinessGates[]`."""

    condition_type: str = ""


class LabPodSpec(PodSpec):
    """`Pod.spec` with what a scheduler and a kubelet read."""

    restart_policy: str = "Always"
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: LabAffinity = LabAffinity()
    readiness_gates: tuple[ReadinessGate, ...] = ()


class LabPodStatus(PodStatus):
    """`Pod.status` with the words a refused sandbox leaves."""

    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()


class LabPod(Pod):
    """A pod with the reason it does not run."""

    metadata: LabMeta = LabMeta()
    spec: LabPodSpec = LabPodSpec()
    status: LabPodStatus = LabPodStatus()

    @property
    def unschedulable(self) -> str:
        """The scheduler's words when no node fits; empty otherwise."""
        found = condition(self.status.conditions, "PodScheduled")
        return found.message if found is not None and found.reason == "Unschedulable" else ""
