"""The parts of Kubernetes' and KubeVirt's objects that only a kubelet or KubeVirt itself reads."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from libtortie.kube.objects import (
    Meta,
    MigrationState,
    Pod,
    PodStatus,
    View,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VMIMSpec,
    VMIMStatus,
    VMISpec,
)

LABEL_LAUNCHER = "kubevirt.io"
LAUNCHER = "virt-launcher"
LABEL_CREATED_BY = "kubevirt.io/created-by"
LABEL_NODE = "kubevirt.io/nodeName"
LABEL_TARGET_NODE = "kubevirt.io/migrationTargetNodeName"
LABEL_JOB = "kubevirt.io/migrationJobUID"
LABEL_VMI = "vmi.kubevirt.io/id"
LABEL_VM_NAME = "vm.kubevirt.io/name"
ANNOTATION_JOB_NAME = "kubevirt.io/migrationJobName"
ANNOTATION_DOMAIN = "kubevirt.io/domain"
ANNOTATION_UNIX = "kubevirt.io/migrationTransportUnix"
ANNOTATION_EVICT = "descheduler.alpha.kubernetes.io/request-evict-only"
ANNOTATION_READY = "kubevirt.io/migration-target-ready-timestamp"
ANNOTATION_BRIDGE_MIGRATION = "kubevirt.io/allow-pod-bridge-network-live-migration"
LABEL_HOSTNAME = "kubernetes.io/hostname"


class LabMeta(Meta):
    """`metadata` with what only its controllers look at."""

    finalizers: tuple[str, ...] = ()


class Template(View):
    """`VM.spec.template`; the spec is handed on whole."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = Field(default_factory=dict)


class VMSpec(View):
    """`VM.spec`."""

    running: bool | None = None
    run_strategy: str = ""
    template: Template = Template()

    @property
    def wants_to_run(self) -> bool:
        """Whether a VMI should exist."""
        return bool(self.running) or self.run_strategy in ("Always", "RerunOnFailure")


class LabVM(VirtualMachine):
    """A VM with what makes a VMI of it."""

    metadata: LabMeta = LabMeta()
    spec: VMSpec = VMSpec()


class Expression(View):
    """A node selector's `matchExpressions[]`."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class Term(View):
    """A node selector's term."""

    match_expressions: tuple[Expression, ...] = ()


class Preference(View):
    """One preferred term of a node affinity."""

    preference: Term = Term()


class NodeAffinity(View):
    """`affinity.nodeAffinity`, the preferred part."""

    preferred: tuple[Preference, ...] = Field(
        default=(), alias="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(View):
    """`spec.affinity`."""

    node_affinity: NodeAffinity = NodeAffinity()


class LabVMISpec(VMISpec):
    """`VMI.spec` with the wishes for a node."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Affinity = Affinity()

    @property
    def preferred_nodes(self) -> tuple[str, ...]:
        """Nodes that a preferred affinity names by hostname."""
        return tuple(
            value
            for preferred in self.affinity.node_affinity.preferred
            for expression in preferred.preference.match_expressions
            if (expression.key, expression.operator) == (LABEL_HOSTNAME, "In")
            for value in expression.values
        )


class LabVMI(VirtualMachineInstance):
    """A VMI with the wish for a node."""

    metadata: LabMeta = LabMeta()
    spec: LabVMISpec = LabVMISpec()


class LabMigrationSpec(VMIMSpec):
    """`VMIM.spec` with the wish for a node."""

    added_node_selector: dict[str, str] = Field(default_factory=dict)


class LabMigrationState(MigrationState):
    """`VMIM.status.migrationState` with the reason of a failure."""

    failure_reason: str = ""


class LabMigrationStatus(VMIMStatus):
    """`VMIM.status` with the reason of a failure."""

    migration_state: LabMigrationState = LabMigrationState()


class LabMigration(VirtualMachineInstanceMigration):
    """A VMIM with the wish for a node."""

    spec: LabMigrationSpec = LabMigrationSpec()
    status: LabMigrationStatus = LabMigrationStatus()


class PodStatusText(PodStatus):
    """`Pod.status` with the words a refused sandbox leaves."""

    reason: str = ""
    message: str = ""


class LabPod(Pod):
    """A pod with the reason it does not run."""

    status: PodStatusText = PodStatusText()
