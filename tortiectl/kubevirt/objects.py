"""KubeVirt's and Kubernetes' objects as these tools read them: views, never written back."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, ClassVar

from pydantic import Field

from libtortie.kube import objects as kube
from libtortie.kube.migrations import FullMeta, MigrationState, Object
from libtortie.kube.objects import Api, Condition, NodeStatus, View
from tortiectl.kubevirt.spec import Affinity, VMISpec

GROUP, VERSION = "kubevirt.io", "v1"
KNOWN_VERSIONS = ("v1", "v1alpha3")
"""Versions whose fields are the ones read here: v1alpha3 was served with v1's."""

LABEL_SCHEDULABLE = "kubevirt.io/schedulable"
LABEL_CREATED_BY = "kubevirt.io/created-by"
LABEL_ROLE, LAUNCHER, HANDLER = kube.LABEL_LAUNCHER, kube.LAUNCHER, "virt-handler"
LABEL_PERSISTENT_STATE = "persistent-state-for"
ANNOTATION_BRIDGE = "kubevirt.io/allow-pod-bridge-network-live-migration"
FINAL_PHASES = ("Succeeded", "Failed")
LIVE_MIGRATABLE = "LiveMigratable"


class InterfaceStatus(kube.InterfaceStatus):
    """`VMI.status.interfaces[]`."""

    ip_addresses: tuple[str, ...] = ()


class ClaimInfo(View):
    """`volumeStatus[].persistentVolumeClaimInfo`: the claim as virt-controller saw it."""

    claim_name: str = ""
    access_modes: tuple[str, ...] = ()


class VolumeStatus(View):
    """`VMI.status.volumeStatus[]`."""

    name: str = ""
    persistent_volume_claim_info: ClaimInfo | None = None


class MigratedVolume(View):
    """`VMI.status.migratedVolumes[]`: a volume that is copied to another claim."""

    volume_name: str = ""


class MachineStatus(View):
    """`VMI.status.machine`."""

    type: str = ""


class VMIStatus(kube.VMIStatus):
    """`VMI.status`."""

    conditions: tuple[Condition, ...] = ()
    interfaces: tuple[InterfaceStatus, ...] = ()
    migration_state: MigrationState = MigrationState()
    evacuation_node_name: str = ""
    migration_method: str = ""
    migrated_volumes: tuple[MigratedVolume, ...] = ()
    volume_status: tuple[VolumeStatus, ...] = ()
    machine: MachineStatus = MachineStatus()


class VMI(Object, kube.VirtualMachineInstance):
    """A running VM."""

    spec: VMISpec = Field(default_factory=VMISpec)
    status: VMIStatus = Field(default_factory=VMIStatus)

    @property
    def final(self) -> bool:
        """Succeeded or Failed: it will never run again."""
        return self.status.phase in FINAL_PHASES

    @property
    def running(self) -> bool:
        """Whether its guest runs now."""
        return self.status.phase == "Running" and not self.metadata.deleting

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its addresses on the pod network, the first family first."""
        name = self.spec.pod_network or "default"
        for one in self.status.interfaces:
            if one.name == name:
                return one.ip_addresses or ((one.ip_address,) if one.ip_address else ())
        return ()


class Template(View):
    """`VM.spec.template`."""

    metadata: FullMeta = Field(default_factory=FullMeta)
    spec: VMISpec = Field(default_factory=VMISpec)


class VMSpec(View):
    """`VM.spec`."""

    running: bool | None = None
    run_strategy: str = ""
    template: Template = Field(default_factory=Template)


class VMStatus(View):
    """`VM.status`."""

    printable_status: str = ""
    conditions: tuple[Condition, ...] = ()


class VM(Object, kube.VirtualMachine):
    """A VirtualMachine."""

    spec: VMSpec = Field(default_factory=VMSpec)
    status: VMStatus = VMStatus()


class KubeVirt(Object):
    """KubeVirt's own configuration; `spec` is kept as it came."""

    api: ClassVar[Api] = Api(GROUP, VERSION, "kubevirts", "KubeVirt", True)
    spec: dict[str, Any] = Field(default_factory=dict)
    status: dict[str, Any] = Field(default_factory=dict)


class MigrationPolicy(Object):
    """Settings for the migrations of some VMs."""

    api: ClassVar[Api] = Api(
        "migrations.kubevirt.io", "v1alpha1", "migrationpolicies", "MigrationPolicy", False
    )
    spec: dict[str, Any] = Field(default_factory=dict)


class Resources(View):
    """`Pod.spec.containers[].resources`."""

    requests: dict[str, Any] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)


class Container(View):
    """`Pod.spec.containers[]`."""

    resources: Resources = Resources()


class PodSpec(View):
    """`Pod.spec`."""

    containers: tuple[Container, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Affinity = Affinity()


class PodStatus(View):
    """`Pod.status`."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    pod_ip: str = Field(default="", alias="podIP")


class Pod(Object):
    """A pod; here mostly a launcher."""

    api: ClassVar[Api] = kube.Pod.api
    spec: PodSpec = Field(default_factory=PodSpec)
    status: PodStatus = Field(default_factory=PodStatus)

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: it will never run again."""
        return self.status.phase in FINAL_PHASES


class Taint(View):
    """`Node.spec.taints[]`."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(View):
    """`Node.spec`."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Node(Object):
    """A core Node."""

    api: ClassVar[Api] = kube.KubeNode.api
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so; a node that says nothing counts as ready."""
        found = next((one for one in self.status.conditions if one.type == "Ready"), None)
        return found is None or found.status == "True"

    @property
    def internal_ip(self) -> IPv4Address | IPv6Address | None:
        """Its first internal address that can be read."""
        for one in self.status.addresses:
            if one.type == "InternalIP":
                with suppress(ValueError):
                    return ip_address(one.address)
        return None


class ClaimSpec(View):
    """`PersistentVolumeClaim.spec`."""

    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    resources: dict[str, Any] = Field(default_factory=dict)


class ClaimStatus(View):
    """`PersistentVolumeClaim.status`."""

    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Any] = Field(default_factory=dict)


class Claim(Object):
    """A PersistentVolumeClaim."""

    api: ClassVar[Api] = Api("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True)
    spec: ClaimSpec = Field(default_factory=ClaimSpec)
    status: ClaimStatus = Field(default_factory=ClaimStatus)

    @property
    def shared(self) -> bool:
        """Whether several nodes may write to it at once, as KubeVirt decides: by the spec."""
        return "ReadWriteMany" in self.spec.access_modes


class VolumeSpec(View):
    """`PersistentVolume.spec`."""

    local: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None


class PersistentVolume(Object):
    """A PersistentVolume, of which only matters whether it is one node's own disk."""

    api: ClassVar[Api] = Api("", "v1", "persistentvolumes", "PersistentVolume", False)
    spec: VolumeSpec = Field(default_factory=VolumeSpec)


class Lease(Object):
    """A Lease; a node's is renewed by its kubelet's clock."""

    api: ClassVar[Api] = Api("coordination.k8s.io", "v1", "leases", "Lease", True)
    spec: dict[str, Any] = Field(default_factory=dict)
