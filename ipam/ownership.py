"""Who owns an address: owner attributes, their comparison, and what each event makes of them.

Every VM address has an *active* owner (the pod that runs the VM) and, during a live migration,
an *alternate* (the target before promotion, the former source after it). The decisions here are
level-triggered: they depend on what is stored, and repeating one changes nothing.

Fencing: pods are compared by namespace, name and, where both sides know it, pod UID; sandboxes
also by container id. A VM is compared by its UID, or without one by the VMI's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.model.ipam import Owner
from libtortie.model.names import FIRST_INTERFACE

PLUGIN = "cni-type"
"""Owner attribute: the other plugin that asked for the address, and wired it as it likes."""

IFNAME = "ifname"
"""Owner attribute: the sandbox's interface that has the address, where it is not the first."""

OwnerGone = Callable[[Owner], bool]
"""Says whether an owner is proved to exist no longer; False when in doubt."""


PodLives = Callable[[Owner], bool]
"""Says whether the pod of an owner exists and has not finished."""


def nobody_is_gone(_: Owner) -> bool:
    """The answer of a caller that can prove nothing."""
    return False


def nobody_lives(_: Owner) -> bool:
    """The answer of a caller that lets every claim of the VM's pods pass."""
    return False


@dataclass(frozen=True, slots=True)
class Owners:
    """The two owners of one address; an empty mapping is no owner."""

    active: Owner
    alternate: Owner


def pod_owner(
    *,
    namespace: str,
    pod: str,
    node: str,
    timestamp: datetime,
    container_id: str = "",
    pod_uid: str = "",
    vmi_name: str = "",
    vmi_uid: str = "",
    vm_uid: str = "",
    vmim_uid: str = "",
) -> dict[str, str]:
    """Owner attributes of one sandbox of a pod; what is empty is left out.

    The timestamp has the form of Go's default time text, as Calico writes it.
    """
    attributes = {
        "namespace": namespace,
        "pod": pod,
        "node": node,
        "timestamp": go_time(timestamp),
        "container-id": container_id,
        "pod-uid": pod_uid,
        "vmi-name": vmi_name,
        "vmi-uid": vmi_uid,
        "vm-uid": vm_uid,
        "vmim-uid": vmim_uid,
    }
    return {key: value for key, value in attributes.items() if value}


def go_time(moment: datetime) -> str:
    """Go's default text of a UTC time: `2026-08-22 13:33:20.1 +0000 UTC`."""
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    text = utc.isoformat(" ")
    return f"{text.rstrip('0') if utc.microsecond else text} +0000 UTC"


def is_pod(owner: Owner) -> bool:
    """Whether the owner is a pod; empty owners and stopped VMs are not."""
    return bool(owner.get("pod"))


def same_pod(one: Owner, other: Owner) -> bool:
    """Whether both are the same pod: namespace, name, and the UID where both have it."""
    if not (is_pod(one) and is_pod(other)):
        return False
    named = all(one.get(key) == other.get(key) for key in ("namespace", "pod"))
    return named and _agree(one, other, "pod-uid")


def same_sandbox(one: Owner, other: Owner) -> bool:
    """Whether both are the same interface of the same sandbox of the same pod."""
    same = same_pod(one, other) and _agree(one, other, "container-id")
    return same and ifname_of(one) == ifname_of(other)


def ifname_of(owner: Owner) -> str:
    """The interface of a sandbox that an owner is about."""
    return owner.get(IFNAME, FIRST_INTERFACE)


def same_vm(one: Owner, other: Owner) -> bool:
    """Whether both belong to one VM: equal VM UIDs, or equal VMI UIDs.

    Without a UID to compare (records of the time before the first start, or of a program that
    wrote none) two owners of one VM handle are taken for the same VM.
    """
    if one.get("vmi-uid") and one.get("vmi-uid") == other.get("vmi-uid"):
        return True
    if one.get("vm-uid") and other.get("vm-uid"):
        return one["vm-uid"] == other["vm-uid"]
    if one.get("vm-uid") or other.get("vm-uid"):
        # A VM against a bare VMI: one of them replaced the other, unless a side has no UID.
        return not (_vm_uid(one) and _vm_uid(other))
    return _agree(one, other, "vmi-uid")


def stopped(owner: Owner) -> dict[str, str]:
    """What stays of an active owner whose pod is gone: the VM, so that nobody frees its address.

    A VMI without a VM is told apart by its own UID.
    """
    keys = ["namespace", "node", "vmi-name"] + (["vm-uid"] if "vm-uid" in owner else ["vmi-uid"])
    return {key: owner[key] for key in keys if owner.get(key)}


def refuse_rival(owners: Owners, claimant: Owner, lives: PodLives) -> None:
    """A VM runs in one pod, plus one target per migration: whoever else lives, stays.

    This is what a forged owner reference with the right UID meets, and the slower of two pods
    that claim at once. Raises `OwnerMismatch` naming both.
    """
    for seat, sitting in (("alternate", owners.alternate), ("active", owners.active)):
        if _is_rival(sitting, claimant, seat) and lives(sitting):
            raise OwnerMismatch(
                f"the {seat} owner of the VM's address is {_pod_text(sitting)}, which is alive "
                f"as far as the API says; {_pod_text(claimant)} may not take it over"
            )


def _refuse_other_interface(sitting: Owner, claimant: Owner) -> None:
    """A sandbox's interfaces don't share an address; two that claim at once both find it free."""
    same = same_pod(sitting, claimant) and _agree(sitting, claimant, "container-id")
    if same and ifname_of(sitting) != ifname_of(claimant):
        raise OwnerMismatch(
            f"interface {ifname_of(sitting)} of {_pod_text(claimant)} has the address; "
            f"{ifname_of(claimant)} may not take it over"
        )


def _is_rival(sitting: Owner, claimant: Owner, seat: str) -> bool:
    """Whether another pod has what this one claims: the active seat or, for a migration's target,
    either seat as the target of the same migration (it may have been promoted)."""
    if not is_pod(sitting) or same_pod(sitting, claimant):
        return False
    migration = claimant.get("vmim-uid", "")
    return sitting.get("vmim-uid", "") == migration if migration else seat == "active"


def claim(
    owners: Owners, claimant: Owner, gone: OwnerGone, lives: PodLives = nobody_lives
) -> Owners:
    """Make a pod of the VM the active owner.

    Allowed over nobody, the same pod, the stopped VM, and another pod of the same VM that does
    not live (the caller verified with the API that the VM's controller made this pod). Another
    VM of the same name must be gone. Raises `OwnerMismatch` naming both.
    """
    refuse_rival(owners, claimant, lives)
    _refuse_other_interface(owners.active, claimant)
    strangers = [o for o in (owners.active, owners.alternate) if o and not same_vm(o, claimant)]
    for stranger in strangers:
        if not gone(stranger):
            raise OwnerMismatch(
                f"the address belongs to another VM of this name: {_vm_text(stranger)}, "
                f"which is not proved to be gone; claimed for {_vm_text(claimant)}"
            )
    alternate = owners.alternate
    if alternate in strangers or same_pod(alternate, claimant):
        alternate = {}
    return Owners(_refreshed(owners.active, claimant), alternate)


def claim_target(
    owners: Owners,
    target: Owner,
    lives: PodLives = nobody_lives,
    *,
    named: bool = False,
    runs_in: str = "",
) -> Owners:
    """Make a migration target the alternate owner, in place of any older target.

    Of two pods of one migration the first keeps the seat while it lives, until the API names the
    target: `named` is that pod, and takes the seat from any other, dead or alive. A rival that
    was promoted meanwhile gives the active seat back to the pod it had it from.

    A target that was promoted already stays active. `runs_in` is the pod that the API has the VM
    in: where that is the target of the migration before, whose agent has not yet promoted it, it
    is promoted here, or it would lose its seat for good. Raises `MigrationRefused` when the address
    belongs to another VM, `OwnerMismatch` when another target of this migration lives.
    """
    if not named:
        refuse_rival(owners, target, lives)
    _refuse_other_interface(owners.alternate, target)
    current = owners.active or owners.alternate
    if current and not same_vm(current, target):
        raise MigrationRefused(
            f"the address belongs to {_vm_text(current)}, the migration is of {_vm_text(target)}"
        )
    if target.get("vmim-uid"):
        owners = _without_rival(owners, target)
    if runs_in and owners.alternate.get("pod") == runs_in:
        owners = promote(owners, {**owners.alternate})
    if same_pod(owners.active, target):
        alternate = {} if same_pod(owners.alternate, target) else owners.alternate
        return Owners(_refreshed(owners.active, target), alternate)
    return Owners(owners.active, _refreshed(owners.alternate, target))


def _without_rival(owners: Owners, target: Owner) -> Owners:
    """The owners without any other target of the same migration."""
    active, alternate = owners.active, owners.alternate
    if _is_rival(alternate, target, "alternate"):
        alternate = {}
    if _is_rival(active, target, "active"):
        source = is_pod(alternate) and not same_pod(alternate, target)
        active, alternate = (alternate, {}) if source else (stopped(active), alternate)
    return Owners(active, alternate)


def disown(owners: Owners, leaver: Owner) -> Owners:
    """Take a deleted sandbox out; an older or newer sandbox of the same pod takes nothing."""
    active, alternate = owners.active, owners.alternate
    if same_sandbox(active, leaver):
        active = stopped(active)
    if same_sandbox(alternate, leaver):
        alternate = {}
    return Owners(active, alternate)


def promote(owners: Owners, target: Owner) -> Owners:
    """Swap a migration target from alternate to active; done already is done.

    The former source becomes the alternate and loses its `vmim-uid`: a late repeat of *its*
    promotion, which names that migration, is refused as long as the newer owner is there. A
    caller that saw the VM come back to the former source names no migration; it may be mistaken
    (its API was late), so the pod that it takes the seat from keeps what it may claim it by.
    Raises `OwnerMismatch` (final) when the target is not the alternate.
    """
    if same_pod(owners.active, target):
        return owners
    if not is_pod(owners.alternate):
        raise OwnerMismatch(f"alternate owner is empty, expected {_pod_text(target)}")
    if not same_pod(owners.alternate, target):
        raise OwnerMismatch(
            f"alternate owner is {_pod_text(owners.alternate)}, expected {_pod_text(target)}"
        )
    if not is_pod(owners.active):
        return Owners(owners.alternate, {})
    wanted = target.get("vmim-uid", "")
    if wanted and owners.alternate.get("vmim-uid") != wanted:
        raise OwnerMismatch(
            f"{_pod_text(owners.alternate)} is not the target of migration {wanted} any more; "
            f"active is {_pod_text(owners.active)}"
        )
    former = {key: value for key, value in owners.active.items() if key != "vmim-uid"}
    return Owners(owners.alternate, former if wanted else owners.active)


def may_free(owners: Owners, leaver: Owner) -> bool:
    """Whether the address of a VM that is being deleted has no pod left.

    The name's next VM may have it already, stopped: then it is not the leaver's to free.
    """
    if is_pod(owners.active) or is_pod(owners.alternate):
        return False
    return not owners.active or same_vm(owners.active, leaver)


def _agree(one: Owner, other: Owner, key: str) -> bool:
    a, b = one.get(key, ""), other.get(key, "")
    return not a or not b or a == b


def _refreshed(current: Owner, wanted: Owner) -> Owner:
    """`wanted`, unless only its timestamp is new: repeating a claim writes nothing."""
    if {**current, "timestamp": ""} == {**wanted, "timestamp": ""}:
        return current
    return dict(wanted)


def _vm_uid(owner: Owner) -> str:
    return owner.get("vm-uid") or owner.get("vmi-uid") or ""


def _vm_text(owner: Owner) -> str:
    name = f"{owner.get('namespace', '?')}/{owner.get('vmi-name', '?')}"
    kind = "VM" if owner.get("vm-uid") else "VMI"
    return f"{kind} {name} with UID {_vm_uid(owner) or 'unknown'}"


def _pod_text(owner: Owner) -> str:
    return f"pod {owner.get('namespace', '?')}/{owner.get('pod', '?')}"
