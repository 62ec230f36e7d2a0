"""What of an instance's `spec` the lab's KubeVirt looks at, and what pods ask of nodes.

Views: a field that is not here is handed on untouched from VM to VMI and means nothing to the lab.
A mapping that may be empty (`bridge: {}`) is None when it is absent.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from libtortie.kube.objects import (
    Devices,
    Domain,
    InterfaceSpec,
    View,
    VMISpec,
)

LABEL_HOSTNAME = "kubernetes.io/hostname"
Empty = dict[str, Any]


class Expression(View):
    """A selector's `matchExpressions[]`."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether labels satisfy it; an unknown operator is never satisfied."""
        present, value = self.key in labels, labels.get(self.key, "")
        match self.operator:
            case "In":
                return present and value in self.values
            case "NotIn":
                return value not in self.values or not present
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
        return False


class Term(View):
    """A node selector's term."""

    match_expressions: tuple[Expression, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether a node's labels satisfy all of it."""
        return all(expression.holds(labels) for expression in self.match_expressions)


class Preference(View):
    """One preferred term of a node affinity."""

    weight: int = 1
    preference: Term = Term()


class Required(View):
    """The required part of a node affinity: one of the terms must hold."""

    node_selector_terms: tuple[Term, ...] = ()


class NodeAffinity(View):
    """`affinity.nodeAffinity`."""

    required: Required = Field(
        default=Required(), alias="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[Preference, ...] = Field(
        default=(), alias="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelector(View):
    """A label selector."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether an object's labels satisfy it."""
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(expression.holds(labels) for expression in self.match_expressions)


class PodTerm(View):
    """One term of a pod anti-affinity."""

    label_selector: LabelSelector = LabelSelector()
    topology_key: str = ""


class PodAntiAffinity(View):
    """`affinity.podAntiAffinity`, the required part."""

    required: tuple[PodTerm, ...] = Field(
        default=(), alias="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(View):
    """`spec.affinity` of a pod or a VMI."""

    node_affinity: NodeAffinity = NodeAffinity()
    pod_anti_affinity: PodAntiAffinity = PodAntiAffinity()


class Binding(View):
    """`interfaces[].binding`: a network binding plugin."""

    name: str = ""


class LabInterface(InterfaceSpec):
    """`interfaces[]` with the way it is bound."""

    bridge: Empty | None = None
    masquerade: Empty | None = None
    passt: Empty | None = None
    passt_binding: Empty | None = None
    binding: Binding | None = None


class Device(View):
    """`gpus[]`, `hostDevices[]`."""

    name: str = ""
    device_name: str = ""


class Lun(View):
    """`disks[].lun`."""

    reservation: bool = False


class Disk(View):
    """`devices.disks[]`."""

    name: str = ""
    lun: Lun | None = None


class LabDevices(Devices):
    """`domain.devices`."""

    interfaces: tuple[LabInterface, ...] = ()
    autoattach_pod_interface: bool = True
    host_devices: tuple[Device, ...] = ()
    gpus: tuple[Device, ...] = ()
    disks: tuple[Disk, ...] = ()


class Feature(View):
    """A feature that is on when it is mentioned, unless it says otherwise."""

    enabled: bool = True


class HyperV(View):
    """`features.hyperv`."""

    reenlightenment: Feature | None = None


class Features(View):
    """`domain.features`."""

    hyperv: HyperV = HyperV()
    hyperv_passthrough: Feature | None = None


class CPU(View):
    """`domain.cpu`."""

    model: str = ""


class LaunchSecurity(View):
    """`domain.launchSecurity`; empty on s390x means Secure Execution."""

    sev: Empty | None = None
    snp: Empty | None = None
    tdx: Empty | None = None


class LabDomain(Domain):
    """`spec.domain`."""

    devices: LabDevices = LabDevices()
    cpu: CPU = CPU()
    features: Features = Features()
    launch_security: LaunchSecurity | None = None


class ClaimVolume(View):
    """`volumes[].persistentVolumeClaim`."""

    claim_name: str = ""
    hotpluggable: bool = False


class DataVolume(View):
    """`volumes[].dataVolume`: its claim has its name."""

    name: str = ""
    hotpluggable: bool = False


class HostDisk(View):
    """`volumes[].hostDisk`."""

    shared: bool = False


class Volume(View):
    """`spec.volumes[]`; a source that is none of these lives in the launcher pod."""

    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    data_volume: DataVolume | None = None
    host_disk: HostDisk | None = None

    @property
    def claim(self) -> str:
        """Name of the claim behind it; empty when there is none."""
        if self.persistent_volume_claim is not None:
            return self.persistent_volume_claim.claim_name
        return self.data_volume.name if self.data_volume is not None else ""

    @property
    def hotplugged(self) -> bool:
        """Whether an attachment pod brings it."""
        source = self.persistent_volume_claim or self.data_volume
        return source is not None and source.hotpluggable


class LabVMISpec(VMISpec):
    """`VMI.spec`."""

    domain: LabDomain = LabDomain()
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Empty = Field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    eviction_strategy: str = ""
    architecture: str = ""
    termination_grace_period_seconds: int = 30

    @property
    def pod_network(self) -> str:
        """Name of the network that is the pod's; empty when there is none."""
        return next((one.name for one in self.networks if one.pod is not None), "")

    @property
    def pod_interface(self) -> LabInterface | None:
        """The interface on the pod's network."""
        name = self.pod_network
        return next((one for one in self.domain.devices.interfaces if one.name == name), None)
