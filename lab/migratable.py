"""Whether an instance may live-migrate: KubeVirt's checks, in its order and its words. Pure.

`LiveMigratable` names the first check that fails, `StorageLiveMigratable` all of its own. Only
the interface on the pod's network counts, and for bridge binding only the *presence* of the
annotation: `"false"` allows it, too. Nothing here looks at whether addresses persist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lab.objects import ANNOTATION_BRIDGE_MIGRATION, Claim, ClusterNode, Condition, LabVMI

HOST_MODEL_LABEL = "host-model-cpu.node.kubevirt.io/"
TSC_LABEL = "cpu-timer.node.kubevirt.io/tsc-frequency"
NOT_SHARED = (
    ", live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a KubeVirt resource would say. `bindings` are plugins registered with `migration`;
    `devices` are GPU names permitted and known to migrate."""

    gates: frozenset[str] = frozenset()
    bindings: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a verdict depends on beside the instance itself. `claims` are its namespace's."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    nodes: Mapping[str, ClusterNode] = field(default_factory=dict)
    settings: ClusterSettings = field(default_factory=ClusterSettings)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an instance cannot move."""

    reason: str
    message: str


def live_migratable(vmi: LabVMI, around: Surroundings) -> Condition:
    """The condition `LiveMigratable`."""
    for checks in (_everywhere(vmi, around), _disks(vmi, around)):
        for refusal in checks:
            return Condition(
                type="LiveMigratable",
                status="False",
                reason=refusal.reason,
                message=refusal.message,
            )
    return Condition(type="LiveMigratable", status="True")


def storage_live_migratable(vmi: LabVMI, around: Surroundings) -> Condition:
    """The condition `StorageLiveMigratable`: may its disks move to other volumes."""
    kind = "StorageLiveMigratable"
    found = [
        one for one in _everywhere(vmi, around) if one.reason != "SecureExecutionNotLiveMigratable"
    ]
    found += _reservations(vmi)
    if not found:
        return Condition(type=kind, status="True")
    message = ", ".join(f"{one.reason}: {one.message}" for one in found)
    return Condition(type=kind, status="False", reason="NotMigratable", message=message)


def migration_method(vmi: LabVMI) -> str:
    """`BlockMigration` when a disk lives in the launcher pod and is copied."""
    local = any(not volume.claim and volume.host_disk is None for volume in vmi.spec.volumes)
    return "BlockMigration" if local else "LiveMigration"


def _everywhere(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    """What both conditions check, in order."""
    yield from _interface(vmi, around)
    yield from _cpu(vmi, around)
    yield from _devices(vmi, around)
    yield from _security(vmi)
    yield from _clocks(vmi, around)


def _interface(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    network, found = vmi.spec.pod_network, vmi.spec.pod_interface
    if not network:
        return
    reason = "InterfaceNotLiveMigratable"
    if found is None:
        yield Refusal(reason, f"no primary interface found for network {network}")
        return
    core = (found.masquerade, found.passt, found.passt_binding)
    bridge = found.bridge is not None and ANNOTATION_BRIDGE_MIGRATION in vmi.metadata.annotations
    plugin = found.binding is not None and found.binding.name in around.settings.bindings
    if not (bridge or plugin or any(one is not None for one in core)):
        yield Refusal(
            reason,
            "cannot migrate VMI which does not use masquerade or a migratable plugin"
            " to connect to the pod network",
        )


def _cpu(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    if vmi.spec.domain.cpu.model != "host-model":
        return
    node = around.nodes.get(vmi.status.node_name)
    labels = node.metadata.labels if node is not None else {}
    if not any(label.startswith(HOST_MODEL_LABEL) for label in labels):
        yield Refusal(
            "CPUModeLiveMigratable",
            f'the node "{vmi.status.node_name}" does not allow migration with host-model',
        )


def _devices(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    reason, devices = "HostDeviceNotLiveMigratable", vmi.spec.domain.devices
    if devices.host_devices:
        yield Refusal(reason, "VMI specifies non-migratable generic PCI host device")
    elif len(devices.gpus) > 1:
        yield Refusal(reason, "VMI specifies too many GPUs")
    elif devices.gpus and "VGPULiveMigration" not in around.settings.gates:
        yield Refusal(
            reason, "VMI specifies a GPU but feature gate VGPULiveMigration is not enabled"
        )
    elif devices.gpus and devices.gpus[0].device_name not in around.settings.devices:
        yield Refusal(reason, "VMI specifies non-migratable GPU device")


def _security(vmi: LabVMI) -> Iterator[Refusal]:
    security = vmi.spec.domain.launch_security
    if security is None:
        return
    if security.sev is not None or security.snp is not None:
        yield Refusal("SEVNotLiveMigratable", "VMI uses SEV")
    if security.tdx is not None:
        yield Refusal("TDXNotLiveMigratable", "VMI uses TDX")
    if vmi.spec.architecture == "s390x":
        yield Refusal("SecureExecutionNotLiveMigratable", "VMI uses Secure Execution")


def _clocks(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    features = vmi.spec.domain.features
    lit = features.hyperv.reenlightenment
    exposed = any(TSC_LABEL in node.metadata.labels for node in around.nodes.values())
    if lit is not None and lit.enabled and not exposed:
        yield Refusal(
            "NoTSCFrequencyNotLiveMigratable",
            "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the"
            " cluster: guest timers might be inconsistent",
        )
    if features.hyperv_passthrough is not None and features.hyperv_passthrough.enabled:
        yield Refusal("HypervPassthroughNotLiveMigratable", "VMI uses hyperv passthrough")


def _disks(vmi: LabVMI, around: Surroundings) -> Iterator[Refusal]:
    reason = "DisksNotLiveMigratable"
    for volume in vmi.spec.volumes:
        if volume.host_disk is not None and not volume.host_disk.shared:
            yield Refusal(reason, "cannot migrate VMI with non-shared HostDisk")
        if not volume.claim:
            continue
        claim = around.claims.get(volume.claim)
        if claim is None:
            text = f"Unable to determine if PVC {volume.claim} is shared"
        elif claim.shared:
            continue
        else:
            text = f"PVC {volume.claim} is not shared"
        yield Refusal(reason, f"cannot migrate VMI: {text}{NOT_SHARED}")


def _reservations(vmi: LabVMI) -> list[Refusal]:
    disks = vmi.spec.domain.devices.disks
    if not any(disk.lun is not None and disk.lun.reservation for disk in disks):
        return []
    return [
        Refusal("PersistentReservationNotLiveMigratable", "VMI uses SCSI persistent reservation")
    ]
