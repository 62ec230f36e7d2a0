"""Whether a VMI may live-migrate: KubeVirt's checks, all that fail, in its order and words. Pure.

KubeVirt's own condition `LiveMigratable` names only the first. As there, only the interface on the
pod's network counts, of the bridge annotation only the presence (`"false"` allows it, too), and
nothing looks at CPUs or at whether addresses persist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tortiectl.kubevirt.cpu import HOST_MODEL, host_model_of
from tortiectl.kubevirt.objects import ANNOTATION_BRIDGE, LIVE_MIGRATABLE, VMI, Claim, Node
from tortiectl.kubevirt.settings import Settings
from tortiectl.kubevirt.spec import Volume

TSC_LABEL = "cpu-timer.node.kubevirt.io/tsc-frequency"
INTERFACE = "InterfaceNotLiveMigratable"
DISKS = "DisksNotLiveMigratable"
DEVICES = "HostDeviceNotLiveMigratable"
SECURE_EXECUTION = "SecureExecutionNotLiveMigratable"
BLOCK, LIVE = "BlockMigration", "LiveMigration"
_SHARED = ", live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why KubeVirt will not migrate it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Around:
    """What a verdict depends on beside the VMI.

    `claims` are by `namespace/name`. None: they may not be read, and a claim is only known to be
    shared or not where the VMI's status says so.
    """

    claims: Mapping[str, Claim] | None = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    tsc_exposed: bool = False


def around(
    claims: Mapping[str, Claim] | None, nodes: Mapping[str, Node], settings: Settings
) -> Around:
    """The surroundings of all VMIs of a cluster."""
    exposed = any(TSC_LABEL in node.metadata.labels for node in nodes.values())
    return Around(claims, nodes, settings, exposed)


def refusals(vmi: VMI, world: Around) -> tuple[Refusal, ...]:
    """Every reason, the first being KubeVirt's."""
    return tuple(
        refusal
        for check in (_interface, _cpu, _devices, _security, _clocks, _disks)
        for refusal in check(vmi, world)
    )


def is_migratable(vmi: VMI, world: Around) -> bool:
    """What KubeVirt's webhooks go by: its condition, and before there is one, what it would be."""
    condition = vmi.condition(LIVE_MIGRATABLE)
    if condition is not None and condition.status in ("True", "False"):
        return condition.status == "True"
    return not refusals(vmi, world)


def _interface(vmi: VMI, world: Around) -> Iterator[Refusal]:
    network, found = vmi.spec.pod_network, vmi.spec.pod_interface
    if not network:
        return
    if found is None:
        yield Refusal(INTERFACE, f"no primary interface found for network {network}")
        return
    core = (found.masquerade, found.passt, found.passt_binding)
    bridge = found.bridge is not None and ANNOTATION_BRIDGE in vmi.metadata.annotations
    plugin = found.binding is not None and world.settings.bindings.get(found.binding.name, False)
    if not (bridge or plugin or any(one is not None for one in core)):
        yield Refusal(
            INTERFACE,
            "cannot migrate VMI which does not use masquerade or a migratable plugin"
            " to connect to the pod network",
        )


def _cpu(vmi: VMI, world: Around) -> Iterator[Refusal]:
    if vmi.spec.domain.cpu.model != HOST_MODEL:
        return
    node = world.nodes.get(vmi.status.node_name)
    if node is None or not host_model_of(node.metadata.labels):
        yield Refusal(
            "CPUModeLiveMigratable",
            f'the node "{vmi.status.node_name}" does not allow migration with host-model',
        )


def _devices(vmi: VMI, world: Around) -> Iterator[Refusal]:
    devices = vmi.spec.domain.devices
    if devices.host_devices:
        yield Refusal(DEVICES, "VMI specifies non-migratable generic PCI host device")
    if len(devices.gpus) > 1:
        yield Refusal(DEVICES, "VMI specifies too many GPUs")
    elif devices.gpus and "VGPULiveMigration" not in world.settings.gates:
        text = "VMI specifies a GPU but feature gate VGPULiveMigration is not enabled"
        yield Refusal(DEVICES, text)
    elif devices.gpus and devices.gpus[0].device_name not in world.settings.gpus:
        yield Refusal(DEVICES, "VMI specifies non-migratable GPU device")


def _security(vmi: VMI, world: Around) -> Iterator[Refusal]:
    security = vmi.spec.domain.launch_security
    if security is None:
        return
    if security.sev is not None or security.snp is not None:
        yield Refusal("SEVNotLiveMigratable", "VMI uses SEV")
    if security.tdx is not None:
        yield Refusal("TDXNotLiveMigratable", "VMI uses TDX")
    if vmi.spec.architecture == "s390x":
        yield Refusal(SECURE_EXECUTION, "VMI uses Secure Execution")


def _clocks(vmi: VMI, world: Around) -> Iterator[Refusal]:
    features = vmi.spec.domain.features
    lit = features.hyperv.reenlightenment
    if lit is not None and lit.enabled and not world.tsc_exposed:
        yield Refusal(
            "NoTSCFrequencyNotLiveMigratable",
            "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the"
            " cluster: guest timers might be inconsistent",
        )
    if features.hyperv_passthrough is not None and features.hyperv_passthrough.enabled:
        yield Refusal("HypervPassthroughNotLiveMigratable", "VMI uses hyperv passthrough")


def _disks(vmi: VMI, world: Around) -> Iterator[Refusal]:
    for row in methods(vmi, world):
        if row.refusal:
            yield Refusal(DISKS, row.refusal)


@dataclass(frozen=True, slots=True)
class Method:
    """How a volume comes along: shared, or copied; `refusal` when it cannot."""

    volume: str
    claim: str
    method: str
    reason: str
    refusal: str = ""


def methods(vmi: VMI, world: Around) -> tuple[Method, ...]:
    """Of every volume."""
    return tuple(_method(vmi, volume, world) for volume in vmi.spec.volumes)


def migration_method(vmi: VMI, world: Around) -> str:
    """`BlockMigration` when any volume is copied, as KubeVirt's status calls it."""
    copied = any(row.method == BLOCK for row in methods(vmi, world))
    return BLOCK if copied else LIVE


def _method(vmi: VMI, volume: Volume, world: Around) -> Method:
    name, disk = volume.name, volume.host_disk
    if any(one.volume_name == name for one in vmi.status.migrated_volumes):
        return Method(name, volume.claim, BLOCK, "it is being moved to another claim")
    if volume.claim:
        return _claimed(vmi, volume, world)
    if disk is not None and disk.shared:
        return Method(name, "", LIVE, "a shared hostDisk")
    if disk is not None:
        text = "cannot migrate VMI with non-shared HostDisk"
        return Method(name, "", BLOCK, "a hostDisk that is not shared", text)
    if any(one.name == name for one in vmi.spec.domain.devices.filesystems):
        return Method(name, "", LIVE, "shared by virtiofs")
    return Method(name, "", BLOCK, "it lives in the launcher pod and is copied")


def _claimed(vmi: VMI, volume: Volume, world: Around) -> Method:
    name, claim, modes = volume.name, volume.claim, _access_modes(vmi, volume, world)
    if modes is None and world.claims is None:
        return Method(name, claim, LIVE, f"PVC {claim} may not be read")
    if modes is None:
        text = f"cannot migrate VMI: Unable to determine if PVC {claim} is shared{_SHARED}"
        return Method(name, claim, BLOCK, f"PVC {claim} is not found", text)
    if "ReadWriteMany" in modes:
        return Method(name, claim, LIVE, f"PVC {claim} is ReadWriteMany")
    text = f"cannot migrate VMI: PVC {claim} is not shared{_SHARED}"
    how = ", ".join(modes) or "of no access mode"
    return Method(name, claim, BLOCK, f"PVC {claim} is {how}", text)


def _access_modes(vmi: VMI, volume: Volume, world: Around) -> tuple[str, ...] | None:
    """The claim's access modes; where claims cannot be read, those the VMI's status has."""
    if world.claims is not None:
        claim = world.claims.get(f"{vmi.metadata.namespace}/{volume.claim}")
        return None if claim is None else claim.spec.access_modes
    for one in vmi.status.volume_status:
        if one.name == volume.name and one.persistent_volume_claim_info is not None:
            return one.persistent_volume_claim_info.access_modes
    return None
