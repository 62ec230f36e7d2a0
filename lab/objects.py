"""The parts of Kubernetes' and KubeVirt's objects that only a kubelet or KubeVirt itself reads."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from lab.spec import Affinity, LabVMISpec
from libtortie.kube.objects import (
    Api,
    KubeNode,
    KubeNodeSpec,
    KubeObject,
    Meta,
    MigrationState,
    Pod,
    PodSpec,
    PodStatus,
    View,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VMIMSpec,
    VMIMStatus,
    VMIStatus,
)

LABEL_LAUNCHER = "kubevirt.io"
LAUNCHER = "virt-launcher"
HOTPLUG = "hotplug-disk"
LABEL_CREATED_BY = "kubevirt.io/created-by"
LABEL_NODE = "kubevirt.io/nodeName"
LABEL_TARGET_NODE = "kubevirt.io/migrationTargetNodeName"
LABEL_JOB = "kubevirt.io/migrationJobUID"
LABEL_VMI = "vmi.kubevirt.io/id"
LABEL_VM_NAME = "vm.kubevirt.io/name"
LABEL_VMI_NAME = "kubevirt.io/vmi-name"
LABEL_SCHEDULABLE = "kubevirt.io/schedulable"
ANNOTATION_JOB_NAME = "kubevirt.io/migrationJobName"
ANNOTATION_DOMAIN = "kubevirt.io/domain"
ANNOTATION_UNIX = "kubevirt.io/migrationTransportUnix"
ANNOTATION_EVICT = "descheduler.alpha.kubernetes.io/request-evict-only"
ANNOTATION_READY = "kubevirt.io/migration-target-ready-timestamp"
ANNOTATION_BRIDGE_MIGRATION = "kubevirt.io/allow-pod-bridge-network-live-migration"
ANNOTATION_EVACUATION = "kubevirt.io/evacuationMigration"
ANNOTATION_OWNER_VMI = "kubevirt.io/owner-vmi-name"
ANNOTATION_OWNER_VMI_UID = "kubevirt.io/owner-vmi-uid"
ANNOTATION_UNSCHEDULABLE_S = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds"
ANNOTATION_PENDING_S = "kubevirt.io/migrationPendingPodTimeoutSeconds"
VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VMI_FINALIZER = "foregroundDeleteVirtualMachine"
MIGRATION_FINALIZER = "kubevirt.io/migrationJobFinalize"
ORPHAN = "orphan"
FINAL_PHASES = ("Succeeded", "Failed")


class LabMeta(Meta):
    """`metadata` with what only its controllers look at."""

    finalizers: tuple[str, ...] = ()
    creation_timestamp: str = ""
    deletion_grace_period_seconds: int = 0


class Condition(View):
    """`status.conditions[]`, without the times."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""

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


class LabMigrationState(MigrationState):
    """`migrationState`, all the lab writes of it."""

    failure_reason: str = ""
    abort_requested: bool = False
    abort_status: str = ""
    target_node_address: str = ""
    target_direct_migration_node_ports: dict[str, int] = Field(default_factory=dict)
    target_node_domain_detected: bool = False
    target_attachment_pod_uid: str = Field(default="", alias="targetAttachmentPodUID")
    mode: str = ""
    migration_network_type: str = ""

    def body(self) -> dict[str, Any]:
        """What is set, as the API has it."""
        return self.model_dump(by_alias=True, exclude_defaults=True)


class Transition(View):
    """`phaseTransitionTimestamps[]`."""

    phase: str = ""
    phase_transition_timestamp: str = ""


class LabVMIStatus(VMIStatus):
    """`VMI.status`."""

    migration_state: LabMigrationState = LabMigrationState()
    conditions: tuple[Condition, ...] = ()
    evacuation_node_name: str = ""
    migration_method: str = ""
    phase_transition_timestamps: tuple[Transition, ...] = ()


class LabVMI(VirtualMachineInstance):
    """A VMI as its controllers see it."""

    metadata: LabMeta = LabMeta()
    spec: LabVMISpec = LabVMISpec()
    status: LabVMIStatus = LabVMIStatus()

    @property
    def final(self) -> bool:
        """Succeeded or Failed: it will never run again."""
        return self.status.phase in FINAL_PHASES

    @property
    def hotplugged(self) -> bool:
        """Whether it has a volume that an attachment pod brings."""
        return any(volume.hotplugged for volume in self.spec.volumes)


class LabMigrationSpec(VMIMSpec):
    """`VMIM.spec` with the wish for a node."""

    added_node_selector: dict[str, str] = Field(default_factory=dict)
    priority: str = ""


class LabMigrationStatus(VMIMStatus):
    """`VMIM.status`."""

    migration_state: LabMigrationState = LabMigrationState()
    conditions: tuple[Condition, ...] = ()
    phase_transition_timestamps: tuple[Transition, ...] = ()


class LabMigration(VirtualMachineInstanceMigration):
    """A VMIM as its controllers see it."""

    metadata: LabMeta = LabMeta()
    spec: LabMigrationSpec = LabMigrationSpec()
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
    affinity: Affinity = Affinity()
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


class NodeSpec(KubeNodeSpec):
    """`Node.spec`."""

    unschedulable: bool = False


class NodeAddress(View):
    """`Node.status.addresses[]`."""

    type: str = ""
    address: str = ""


class NodeStatus(View):
    """`Node.status`."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ClusterNode(KubeNode):
    """A core Node as the scheduler sees it."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so; a node that says nothing counts as ready."""
        found = condition(self.status.conditions, "Ready")
        return found is None or found.status == "True"

    @property
    def address(self) -> str:
        """Its internal address."""
        return next((one.address for one in self.status.addresses if one.type == "InternalIP"), "")


class ClaimSpec(View):
    """`PersistentVolumeClaim.spec`."""

    access_modes: tuple[str, ...] = ()


class Claim(KubeObject):
    """A PersistentVolumeClaim, of which only the access modes matter here."""

    api: ClassVar[Api] = Api("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True)
    spec: ClaimSpec = ClaimSpec()

    @property
    def shared(self) -> bool:
        """Whether several nodes may write to it at once."""
        return "ReadWriteMany" in self.spec.access_modes
