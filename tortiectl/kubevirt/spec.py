"""`spec` of a VirtualMachineInstance, as far as it decides whether and where it can move.

Views: fields that are not here are passed over. A mapping that may be empty (`bridge: {}`) is None
where it is absent.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from libtortie.kube import objects as kube
from libtortie.kube.objects import View

Empty = dict[str, Any]


class Binding(View):
    """`interfaces[].binding`: a network binding plugin."""

    name: str = ""


class Interface(kube.InterfaceSpec):
    """`domain.devices.interfaces[]`."""

    state: str = ""
    bridge: Empty | None = None
    masquerade: Empty | None = None
    passt: Empty | None = None
    passt_binding: Empty | None = None
    macvtap: Empty | None = None
    slirp: Empty | None = None
    sriov: Empty | None = None
    binding: Binding | None = None

    @property
    def method(self) -> str:
        """How it is bound: `bridge`, `masquerade`, ..., or a plugin's name."""
        if self.binding is not None:
            return self.binding.name
        for name in ("bridge", "masquerade", "passt", "macvtap", "slirp", "sriov"):
            if getattr(self, name) is not None:
                return name
        return "passt" if self.passt_binding is not None else ""


class Device(View):
    """`gpus[]`, `hostDevices[]`."""

    name: str = ""
    device_name: str = ""


class Target(View):
    """`disks[].lun`, `.cdrom` or `.disk`."""

    reservation: bool = False
    bus: str = ""


class Disk(View):
    """`devices.disks[]`."""

    name: str = ""
    lun: Target | None = None
    cdrom: Target | None = None
    shareable: bool = False


class Filesystem(View):
    """`devices.filesystems[]`."""

    name: str = ""


class TPM(View):
    """`devices.tpm`."""

    persistent: bool = False
    enabled: bool = True


class Devices(kube.Devices):
    """`domain.devices`."""

    interfaces: tuple[Interface, ...] = ()
    autoattach_pod_interface: bool = True
    host_devices: tuple[Device, ...] = ()
    gpus: tuple[Device, ...] = ()
    disks: tuple[Disk, ...] = ()
    filesystems: tuple[Filesystem, ...] = ()
    tpm: TPM | None = None


class Switch(View):
    """A feature that is on when it is mentioned, unless it says otherwise."""

    enabled: bool = True


class HyperV(View):
    """`features.hyperv`."""

    reenlightenment: Switch | None = None


class Features(View):
    """`domain.features`."""

    hyperv: HyperV = HyperV()
    hyperv_passthrough: Switch | None = None


class CPUFeature(View):
    """`cpu.features[]`; no policy means `require`."""

    name: str = ""
    policy: str = ""


class CPU(View):
    """`domain.cpu`."""

    model: str = ""
    features: tuple[CPUFeature, ...] = ()
    dedicated_cpu_placement: bool = False


class LaunchSecurity(View):
    """`domain.launchSecurity`; empty on s390x means Secure Execution."""

    sev: Empty | None = None
    snp: Empty | None = None
    tdx: Empty | None = None


class EFI(View):
    """`firmware.bootloader.efi`."""

    persistent: bool = False


class Bootloader(View):
    """`firmware.bootloader`."""

    efi: EFI | None = None


class Firmware(View):
    """`domain.firmware`."""

    bootloader: Bootloader = Bootloader()


class Machine(View):
    """`domain.machine`."""

    type: str = ""


class Memory(View):
    """`domain.memory`."""

    guest: Any = None


class Resources(View):
    """`domain.resources`."""

    requests: dict[str, Any] = Field(default_factory=dict)


class Domain(kube.Domain):
    """`spec.domain`."""

    devices: Devices = Devices()
    cpu: CPU = CPU()
    features: Features = Features()
    launch_security: LaunchSecurity | None = None
    firmware: Firmware = Firmware()
    machine: Machine = Machine()
    memory: Memory = Memory()
    resources: Resources = Field(default_factory=Resources)


class Multus(View):
    """`networks[].multus`."""

    network_name: str = ""
    default: bool = False


class Network(kube.VMINetwork):
    """`networks[]`."""

    multus: Multus | None = None


class ClaimSource(View):
    """`volumes[].persistentVolumeClaim`, `.ephemeral.persistentVolumeClaim`."""

    claim_name: str = ""
    hotpluggable: bool = False


class Ephemeral(View):
    """`volumes[].ephemeral`: a read-only claim under a layer in the launcher pod."""

    persistent_volume_claim: ClaimSource | None = None


class DataVolume(View):
    """`volumes[].dataVolume`: its claim has its name."""

    name: str = ""
    hotpluggable: bool = False


class HostDisk(View):
    """`volumes[].hostDisk`."""

    path: str = ""
    shared: bool = False


class Volume(View):
    """`volumes[]`."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    data_volume: DataVolume | None = None
    ephemeral: Ephemeral | None = None
    host_disk: HostDisk | None = None
    container_disk: Empty | None = None
    empty_disk: Empty | None = None
    cloud_init_no_cloud: Empty | None = None
    cloud_init_config_drive: Empty | None = None

    @property
    def claim(self) -> str:
        """Name of the claim that the guest writes to; empty when there is none."""
        if self.persistent_volume_claim is not None:
            return self.persistent_volume_claim.claim_name
        return self.data_volume.name if self.data_volume is not None else ""


class Expression(View):
    """A selector's `matchExpressions[]` (or `matchFields[]`)."""

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
                return not present or value not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                return present and self._compares(value)
        return False

    def _compares(self, value: str) -> bool:
        try:
            have, than = int(value), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return have > than if self.operator == "Gt" else have < than


class NodeTerm(View):
    """A node selector's term."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def holds(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a node satisfies all of it; an empty term selects none."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {"metadata.name": name}
        return all(one.holds(labels) for one in self.match_expressions) and all(
            one.holds(fields) for one in self.match_fields
        )


class RequiredNodes(View):
    """The required part of a node affinity: one of the terms must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(View):
    """`affinity.nodeAffinity`."""

    required: RequiredNodes | None = Field(
        default=None, alias="requiredDuringSchedulingIgnoredDuringExecution"
    )

    def allows(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a node satisfies the required part; any does where there is none."""
        terms = self.required.node_selector_terms if self.required is not None else None
        return terms is None or any(term.holds(name, labels) for term in terms)


class LabelSelector(View):
    """A label selector; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether an object's labels satisfy it."""
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(one.holds(labels) for one in self.match_expressions)


class PodTerm(View):
    """One term of a pod affinity or anti-affinity; no selector selects no pod."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""

    def selects(self, pod: kube.Meta, namespace: str) -> bool:
        """Whether a pod is meant; `namespace` is that of the pod whose term it is."""
        return (
            self.label_selector is not None
            and pod.namespace in (self.namespaces or (namespace,))
            and self.label_selector.holds(pod.labels)
        )


class PodAffinity(View):
    """`affinity.podAffinity`, `affinity.podAntiAffinity`: the required part."""

    required: tuple[PodTerm, ...] = Field(
        default=(), alias="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(View):
    """`spec.affinity` of a VMI or a pod."""

    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class Toleration(View):
    """`spec.tolerations[]`."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a taint is tolerated; an empty key with Exists tolerates all."""
        if self.effect and self.effect != effect:
            return False
        if self.operator == "Exists":
            return self.key in ("", key)
        return self.key == key and self.value == value


class VMISpec(kube.VMISpec):
    """`spec` of a VMI."""

    domain: Domain = Field(default_factory=Domain)
    networks: tuple[Network, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    eviction_strategy: str = ""
    architecture: str = ""

    @property
    def pod_network(self) -> str:
        """Name of the network that is the pod's; empty when there is none.

        A Multus network that is the pod's default counts: it takes the pod's place.
        """
        for one in self.networks:
            if one.pod is not None or (one.multus is not None and one.multus.default):
                return one.name
        return ""

    @property
    def pod_interface(self) -> Interface | None:
        """The interface on the pod's network."""
        name = self.pod_network
        return next((one for one in self.domain.devices.interfaces if one.name == name), None)
