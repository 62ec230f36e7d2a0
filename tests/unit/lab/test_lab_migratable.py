"""Every reason why an instance cannot move, in KubeVirt's words and order."""

from __future__ import annotations

from typing import Any

import pytest

from lab.migratable import live_migratable, migration_method, storage_live_migratable
from lab.objects import LabVMI
from tests.fakes.lab_world import NODES, node, world
from tortiectl.kubevirt.migratable import around
from tortiectl.kubevirt.objects import ANNOTATION_BRIDGE, Claim
from tortiectl.kubevirt.settings import Settings

BRIDGE = {"name": "default", "bridge": {}}
NETWORK = "cannot migrate VMI which does not use masquerade or a migratable plugin to connect"
SHARED = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"


def instance(
    *,
    interface: dict[str, Any] | None = None,
    annotation: str | None = "true",
    devices: dict[str, Any] | None = None,
    domain: dict[str, Any] | None = None,
    **spec: Any,
) -> LabVMI:
    """An instance on node1 whose interface, devices, domain and spec are as given."""
    annotations = {} if annotation is None else {ANNOTATION_BRIDGE: annotation}
    interfaces = {"interfaces": [interface or BRIDGE], **(devices or {})}
    return LabVMI.model_validate(
        {
            "metadata": {"name": "vm", "namespace": "default", "annotations": annotations},
            "spec": {
                "domain": {"devices": interfaces, **(domain or {})},
                "networks": [{"name": "default", "pod": {}}],
                **spec,
            },
            "status": {"nodeName": "node1"},
        }
    )


def claim(name: str, *modes: str) -> Claim:
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": list(modes)},
    }
    return Claim.model_validate(body)


CLAIMS = {one.id: one for one in (claim("rwx", "ReadWriteMany"), claim("rwo", "ReadWriteOnce"))}
AROUND = around(CLAIMS, NODES, Settings())


def volume(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "disk", **source}]


def pvc(name: str) -> list[dict[str, Any]]:
    return volume(persistentVolumeClaim={"claimName": name})


REFUSED: list[tuple[str, LabVMI, str, str]] = [
    ("bridge without the annotation", instance(annotation=None), "InterfaceNot", NETWORK),
    (
        "a binding that is not registered",
        instance(interface={"name": "default", "binding": {"name": "l2bridge"}}),
        "InterfaceNot",
        NETWORK,
    ),
    ("macvtap", instance(interface={"name": "default", "macvtap": {}}), "InterfaceNot", NETWORK),
    (
        "no interface on the pod network",
        instance(interface={"name": "other", "bridge": {}}),
        "InterfaceNot",
        "no primary interface found for network default",
    ),
    (
        "host-model on a node without one",
        instance(domain={"cpu": {"model": "host-model"}}),
        "CPUMode",
        'the node "node1" does not allow migration with host-model',
    ),
    (
        "host device",
        instance(devices={"hostDevices": [{"name": "a", "deviceName": "vendor/nic"}]}),
        "HostDeviceNot",
        "VMI specifies non-migratable generic PCI host device",
    ),
    (
        "two GPUs",
        instance(devices={"gpus": [{"name": "a"}, {"name": "b"}]}),
        "HostDeviceNot",
        "VMI specifies too many GPUs",
    ),
    (
        "a GPU",
        instance(devices={"gpus": [{"name": "a"}]}),
        "HostDeviceNot",
        "VMI specifies a GPU but feature gate VGPULiveMigration is not enabled",
    ),
    ("SEV", instance(domain={"launchSecurity": {"sev": {}}}), "SEVNot", "VMI uses SEV"),
    ("SNP", instance(domain={"launchSecurity": {"snp": {}}}), "SEVNot", "VMI uses SEV"),
    ("TDX", instance(domain={"launchSecurity": {"tdx": {}}}), "TDXNot", "VMI uses TDX"),
    (
        "Secure Execution",
        instance(domain={"launchSecurity": {}}, architecture="s390x"),
        "SecureExecutionNot",
        "VMI uses Secure Execution",
    ),
    (
        "reenlightenment",
        instance(domain={"features": {"hyperv": {"reenlightenment": {}}}}),
        "NoTSCFrequencyNot",
        "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the"
        " cluster: guest timers might be inconsistent",
    ),
    (
        "passthrough",
        instance(domain={"features": {"hypervPassthrough": {"enabled": True}}}),
        "HypervPassthroughNot",
        "VMI uses hyperv passthrough",
    ),
    (
        "a claim of one node",
        instance(volumes=pvc("rwo")),
        "DisksNot",
        f"cannot migrate VMI: PVC rwo is not shared, {SHARED}",
    ),
    (
        "a data volume of one node",
        instance(volumes=volume(dataVolume={"name": "rwo"})),
        "DisksNot",
        f"cannot migrate VMI: PVC rwo is not shared, {SHARED}",
    ),
    (
        "an unknown claim",
        instance(volumes=pvc("lost")),
        "DisksNot",
        f"cannot migrate VMI: Unable to determine if PVC lost is shared, {SHARED}",
    ),
    (
        "a host disk",
        instance(volumes=volume(hostDisk={"path": "/disk"})),
        "DisksNot",
        "cannot migrate VMI with non-shared HostDisk",
    ),
]


@pytest.mark.parametrize(
    ("vmi", "reason", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_cannot_move(vmi: LabVMI, reason: str, message: str) -> None:
    found = live_migratable(vmi, AROUND)
    assert (found.type, found.status) == ("LiveMigratable", "False")
    assert found.reason == f"{reason}LiveMigratable"
    assert found.message.startswith(message)


MOVABLE: dict[str, LabVMI] = {
    "bridge": instance(),
    "the annotation's value does not matter": instance(annotation="false"),
    "masquerade": instance(interface={"name": "default", "masquerade": {}}, annotation=None),
    "passt": instance(interface={"name": "default", "passt": {}}, annotation=None),
    "no pod network": instance(networks=[], annotation=None),
    "a network of another kind in the pod's place": instance(
        networks=[{"name": "default", "multus": {"networkName": "n", "default": True}}],
        annotation=None,
    ),
    "named CPU": instance(domain={"cpu": {"model": "Skylake"}}),
    "launch security elsewhere": instance(domain={"launchSecurity": {}}),
    "reenlightenment off": instance(
        domain={"features": {"hyperv": {"reenlightenment": {"enabled": False}}}}
    ),
    "a shared claim": instance(volumes=pvc("rwx")),
    "a shared host disk": instance(volumes=volume(hostDisk={"path": "/disk", "shared": True})),
    "a container disk": instance(volumes=volume(containerDisk={"image": "x"})),
}


@pytest.mark.parametrize("name", MOVABLE)
def test_what_can_move(name: str) -> None:
    found = live_migratable(MOVABLE[name], AROUND)
    assert (found.status, found.reason) == ("True", "")


def test_what_the_cluster_has_can_move_after_all() -> None:
    labels = {
        "host-model-cpu.node.kubevirt.io/Skylake": "true",
        "cpu-timer.node.kubevirt.io/tsc-frequency": "2000000000",
    }
    rich = around(
        CLAIMS,
        {"node1": node("node1", labels=labels)},
        Settings(
            gates=frozenset({"VGPULiveMigration"}),
            bindings={"l2bridge": True},
            gpus=frozenset({"vendor/vgpu"}),
        ),
    )
    plugin = {"name": "default", "binding": {"name": "l2bridge"}}
    for vmi in (
        instance(domain={"cpu": {"model": "host-model"}}),
        instance(domain={"features": {"hyperv": {"reenlightenment": {}}}}),
        instance(interface=plugin, annotation=None),
        instance(devices={"gpus": [{"name": "a", "deviceName": "vendor/vgpu"}]}),
    ):
        assert live_migratable(vmi, rich).status == "True"
    other = instance(devices={"gpus": [{"name": "a", "deviceName": "vendor/other"}]})
    assert live_migratable(other, rich).message == "VMI specifies non-migratable GPU device"


def test_a_claim_counts_in_its_own_namespace() -> None:
    vmi, near = instance(volumes=pvc("rwx")), claim("rwx", "ReadWriteMany")
    assert live_migratable(vmi, world(near).surroundings()).status == "True"
    meta = near.metadata.model_copy(update={"namespace": "other"})
    far = near.model_copy(update={"metadata": meta})
    assert live_migratable(vmi, world(far).surroundings()).status == "False"


def test_the_first_failing_check_wins() -> None:
    both = instance(annotation=None, volumes=pvc("rwo"))
    assert live_migratable(both, AROUND).reason == "InterfaceNotLiveMigratable"
    security: dict[str, Any] = {"launchSecurity": {"sev": {}}}
    device = instance(devices={"hostDevices": [{"name": "a"}]}, domain=security)
    assert live_migratable(device, AROUND).reason == "HostDeviceNotLiveMigratable"
    disk = instance(domain=security, volumes=pvc("rwo"))
    assert live_migratable(disk, AROUND).reason == "SEVNotLiveMigratable"


def test_the_storage_condition_collects_everything() -> None:
    lun = {"disks": [{"name": "d", "lun": {"reservation": True}}]}
    vmi = instance(annotation=None, devices=lun, volumes=pvc("rwo"))
    found = storage_live_migratable(vmi, AROUND)
    assert (found.status, found.reason) == ("False", "NotMigratable")
    assert found.message == (
        "InterfaceNotLiveMigratable: cannot migrate VMI which does not use masquerade or a"
        " migratable plugin to connect to the pod network,"
        " PersistentReservationNotLiveMigratable: VMI uses SCSI persistent reservation"
    )
    assert storage_live_migratable(instance(volumes=pvc("rwo")), AROUND).status == "True"
    secure = instance(domain={"launchSecurity": {}}, architecture="s390x")
    assert storage_live_migratable(secure, AROUND).status == "True"
    devices = {"hostDevices": [{"name": "a"}], "gpus": [{"name": "b"}, {"name": "c"}]}
    assert storage_live_migratable(instance(devices=devices), AROUND).message == (
        "HostDeviceNotLiveMigratable: VMI specifies non-migratable generic PCI host device"
    )


def test_disks_in_the_pod_are_copied() -> None:
    assert migration_method(instance(volumes=volume(containerDisk={}))) == "BlockMigration"
    assert migration_method(instance(volumes=pvc("rwx"))) == "LiveMigration"
    assert migration_method(instance()) == "LiveMigration"
