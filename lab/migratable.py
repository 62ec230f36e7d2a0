"""The conditions `LiveMigratable` and `StorageLiveMigratable`, as KubeVirt words them. Pure.

The checks are those of `tortiectl.kubevirt.migratable`, which tells every reason. KubeVirt tells
the first in `LiveMigratable`; in `StorageLiveMigratable` the first of each reason, without those
that do not keep disks from moving to other volumes.
"""

from __future__ import annotations

from lab.objects import Condition, LabVMI
from tortiectl.kubevirt.migratable import DISKS, SECURE_EXECUTION, Around, refusals


def live_migratable(vmi: LabVMI, world: Around) -> Condition:
    """The condition `LiveMigratable`."""
    for first in refusals(vmi, world):
        return _refused("LiveMigratable", first.reason, first.message)
    return Condition(type="LiveMigratable", status="True")


def storage_live_migratable(vmi: LabVMI, world: Around) -> Condition:
    """The condition `StorageLiveMigratable`: may its disks move to other volumes."""
    kind = "StorageLiveMigratable"
    found: dict[str, str] = {}
    for one in refusals(vmi, world):
        if one.reason not in (DISKS, SECURE_EXECUTION):
            found.setdefault(one.reason, one.message)
    disks = vmi.spec.domain.devices.disks
    if any(disk.lun is not None and disk.lun.reservation for disk in disks):
        words = "VMI uses SCSI persistent reservation"
        found["PersistentReservationNotLiveMigratable"] = words
    if not found:
        return Condition(type=kind, status="True")
    return _refused(kind, "NotMigratable", ", ".join(f"{why}: {m}" for why, m in found.items()))


def _refused(kind: str, reason: str, message: str) -> Condition:
    return Condition(type=kind, status="False", reason=reason, message=message)


def migration_method(vmi: LabVMI) -> str:
    """`BlockMigration` when a disk lives in the launcher pod and is copied."""
    local = any(not volume.claim and volume.host_disk is None for volume in vmi.spec.volumes)
    return "BlockMigration" if local else "LiveMigration"
