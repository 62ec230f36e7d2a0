"""Kubernetes and KubeVirt objects, as far as we read them: frozen pydantic models.

Unknown fields are ignored: these are views, never written back whole. Changes go out as patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

VMI_API_VERSION = "kubevirt.io/v1"
LABEL_MIGRATION_JOB = "kubevirt.io/migrationJobUID"
LABEL_LAUNCHER = "kubevirt.io"
LAUNCHER = "virt-launcher"
ANNOTATION_MIGRATION_NAME = "kubevirt.io/migrationJobName"
LAUNCHER_PREFIX = "virt-launcher-"


@dataclass(frozen=True, slots=True)
class Api:
    """Where a kind is served: `/api/v1/...` when the group is empty, else `/apis/...`."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool


class View(BaseModel):
    """Part of an object: camelCase names, immutable, unknown fields ignored, null = absent."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_absent(cls, value: object, info: object) -> object:
        """JSON null means "not set" in Kubernetes: take the field's default instead."""
        if value is not None:
            return value
        name = getattr(info, "field_name", "")
        return cls.model_fields[name].get_default(call_default_factory=True)


class OwnerRef(View):
    """`metadata.ownerReferences[]`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(View):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerRef, ...] = ()
    deletion_timestamp: str | None = None

    @property
    def deleting(self) -> bool:
        """Whether deletion is in progress."""
        return self.deletion_timestamp is not None

    def controller(self) -> OwnerRef | None:
        """The one owner with `controller: true`, if any."""
        return next((ref for ref in self.owner_references if ref.controller), None)


class KubeObject(View):
    """Any object: where it is served, and its metadata."""

    api: ClassVar[Api]
    metadata: Meta = Meta()


class ContainerPort(View):
    """`spec.containers[].ports[]`."""

    name: str = ""
    protocol: str = "TCP"
    container_port: int = 0
    host_port: int = 0
    host_ip: str = Field(default="", alias="hostIP")


class Container(View):
    """`spec.containers[]`."""

    name: str = ""
    ports: tuple[ContainerPort, ...] = ()


class PodSpec(View):
    """`Pod.spec`."""

    node_name: str = ""
    host_network: bool = False
    service_account_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodIP(View):
    """`status.podIPs[]`."""

    ip: str = ""


class PodStatus(View):
    """`Pod.status`."""

    phase: str = ""
    pod_ip: str = Field(default="", alias="podIP")
    pod_ips: tuple[PodIP, ...] = Field(default=(), alias="podIPs")


class Pod(KubeObject):
    """A pod."""

    api: ClassVar[Api] = Api("", "v1", "pods", "Pod", True)
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: it will never run again."""
        return self.status.phase in ("Succeeded", "Failed")


class Namespace(KubeObject):
    """A namespace."""

    api: ClassVar[Api] = Api("", "v1", "namespaces", "Namespace", False)


class ServiceAccount(KubeObject):
    """A service account."""

    api: ClassVar[Api] = Api("", "v1", "serviceaccounts", "ServiceAccount", True)


class Condition(View):
    """`status.conditions[]`, without the times."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeAddress(View):
    """`Node.status.addresses[]`."""

    type: str = ""
    address: str = ""


class NodeStatus(View):
    """`Node.status`."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class KubeNodeSpec(View):
    """`Node.spec`: the networks that Kubernetes gave the node for its pods."""

    pod_cidr: str = Field(default="", alias="podCIDR")
    pod_cidrs: tuple[str, ...] = Field(default=(), alias="podCIDRs")


class KubeNode(KubeObject):
    """A core Node."""

    api: ClassVar[Api] = Api("", "v1", "nodes", "Node", False)
    spec: KubeNodeSpec = KubeNodeSpec()


class VirtualMachine(KubeObject):
    """KubeVirt's VM: the thing whose deletion frees the address."""

    api: ClassVar[Api] = Api("kubevirt.io", "v1", "virtualmachines", "VirtualMachine", True)


class MigrationState(View):
    """`VMI.status.migrationState` (also on the VMIM's status)."""

    migration_uid: str = ""
    source_node: str = ""
    source_pod: str = ""
    target_node: str = ""
    target_pod: str = ""
    start_timestamp: str = ""
    end_timestamp: str = ""
    target_node_domain_ready_timestamp: str = ""
    completed: bool = False
    failed: bool = False


class InterfaceStatus(View):
    """`VMI.status.interfaces[]`."""

    name: str = ""
    mac: str = ""
    ip_address: str = ""


class VMIStatus(View):
    """`VMI.status`."""

    phase: str = ""
    node_name: str = ""
    active_pods: dict[str, str] = Field(default_factory=dict)
    interfaces: tuple[InterfaceStatus, ...] = ()
    migration_state: MigrationState = MigrationState()


class InterfaceSpec(View):
    """`VMI.spec.domain.devices.interfaces[]`."""

    name: str = ""
    mac_address: str = ""


class Devices(View):
    """`VMI.spec.domain.devices`."""

    interfaces: tuple[InterfaceSpec, ...] = ()


class Domain(View):
    """`VMI.spec.domain`."""

    devices: Devices = Devices()


class PodNetwork(View):
    """`VMI.spec.networks[].pod`: present (even empty) for the pod network."""


class VMINetwork(View):
    """`VMI.spec.networks[]`."""

    name: str = ""
    pod: PodNetwork | None = None


class VMISpec(View):
    """`VMI.spec`."""

    domain: Domain = Domain()
    networks: tuple[VMINetwork, ...] = ()


class VirtualMachineInstance(KubeObject):
    """A running VM; owned by its VirtualMachine unless it is standalone."""

    api: ClassVar[Api] = Api(
        "kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", True
    )
    spec: VMISpec = VMISpec()
    status: VMIStatus = VMIStatus()

    def pod_network_mac(self) -> str:
        """MAC of the pod-network interface: from spec, else from status, else empty."""
        pod_networks = {network.name for network in self.spec.networks if network.pod is not None}
        names = pod_networks or {"default"}
        for interface in self.spec.domain.devices.interfaces:
            if interface.name in names and interface.mac_address:
                return interface.mac_address.lower()
        for reported in self.status.interfaces:
            if reported.name in names and reported.mac:
                return reported.mac.lower()
        return ""


class VMIMSpec(View):
    """`VMIM.spec`."""

    vmi_name: str = ""


class VMIMStatus(View):
    """`VMIM.status`."""

    phase: str = ""
    migration_state: MigrationState = MigrationState()


class VirtualMachineInstanceMigration(KubeObject):
    """One migration of one VMI."""

    api: ClassVar[Api] = Api(
        "kubevirt.io",
        "v1",
        "virtualmachineinstancemigrations",
        "VirtualMachineInstanceMigration",
        True,
    )
    spec: VMIMSpec = VMIMSpec()
    status: VMIMStatus = VMIMStatus()

    @property
    def final(self) -> bool:
        """Succeeded or Failed: this job moves nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")


class IPAMSettings(KubeObject):
    """Calico's IPAM configuration where kubectl's users edit it; named `default`.

    `spec` is kept as it came: what cannot be read in it must not count as absent.
    """

    api: ClassVar[Api] = Api(
        "projectcalico.org", "v3", "ipamconfigurations", "IPAMConfiguration", False
    )
    spec: Any = None


class IPAMSettingsV1(IPAMSettings):
    """The same in Calico's older group, where that is all there is."""

    api: ClassVar[Api] = Api("crd.projectcalico.org", "v1", "ipamconfigs", "IPAMConfig", False)
