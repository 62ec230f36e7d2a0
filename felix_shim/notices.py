"""Which decisions an operator is told of as Kubernetes Events, and in what words. Pure.

A decision is told once, as a line of the log (`event` and its fields); this table says which of
the lines are Events too. Ordinary pods get few of them: their addresses are in their own status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libtortie.events import Severity

Fields = Mapping[str, object]
NORMAL, WARNING = Severity.NORMAL, Severity.WARNING
RETRY_CODE = 11
"""CNI's "try again later": the runtime does, and nothing is refused for good."""


@dataclass(frozen=True, slots=True)
class Wording:
    """An Event without the objects that it is about."""

    reason: str
    message: str
    severity: Severity = NORMAL


def wording(event: str, fields: Fields) -> Wording | None:
    """The Event of a line of the log; None for most lines."""
    say = _SAYINGS.get(event)
    return None if say is None else say(fields)


def _added(fields: Fields) -> Wording | None:
    addresses = fields.get("address")
    if not fields.get("vmi") or not addresses:
        return None
    if fields.get("target"):
        text = f"{addresses}: this pod is the migration's target and becomes its second owner"
        return Wording("AddressShared", text)
    if fields.get("kept"):
        return Wording("AddressKept", f"the VM keeps {addresses}")
    return Wording("AddressGranted", f"{addresses} granted to the VM")


def _removed(fields: Fields) -> Wording | None:
    if not fields.get("vmi"):
        return None
    if fields.get("freed"):
        return Wording("AddressReleased", "the VM is deleted: its addresses are free")
    return Wording("AddressKept", "the pod is gone; the VM keeps its addresses")


def _freed(fields: Fields) -> Wording:
    reason = f" ({fields['reason']})" if fields.get("reason") else ""
    return Wording("AddressReleased", f"{_list(fields.get('addresses'))} freed{reason}")


def _cni_error(fields: Fields) -> Wording | None:
    if fields.get("command") != "ADD" or not fields.get("pod"):
        return None
    text = f"{fields.get('error', '')} (CNI code {fields.get('code')})"
    if fields.get("code") == RETRY_CODE:
        return Wording("NetworkNotReady", text, WARNING)
    return Wording("NetworkRefused", text, WARNING)


def _begun(fields: Fields) -> Wording | None:
    return _TARGET if fields.get("state") == "target" else None


def _moved(fields: Fields) -> Wording | None:
    after, why = str(fields.get("to", "")), fields.get("input")
    if after == "target":
        return _TARGET
    if after == "refused":
        text = "another pod was chosen for this VM: what this one announces is not believed"
        return Wording("AnnouncementsRefused", text, WARNING)
    if after in ("departed", "suppressed"):
        return Wording("VMLeft", f"the VM runs elsewhere ({why}): its route here is withdrawn")
    if after == "time-wait":
        return Wording("MigrationConfirmed", "the API has the VM here: its route converges")
    return None


_TARGET = Wording(
    "MigrationTargetPrepared", "policy is being set up; the route waits for a sign of the VM"
)


def _sign(fields: Fields) -> Wording:
    kind = fields.get("kind", "a frame")
    return Wording("VMSeenOnTarget", f"the VM made itself heard here ({kind})")


def _raised(fields: Fields) -> Wording:
    took = f", {fields['latency_ms']} ms after its sign" if "latency_ms" in fields else ""
    return Wording("RouteRaised", f"route to {fields.get('dst')} raised{took}")


def _reverted(fields: Fields) -> Wording:
    ends = "is an ordinary one again" if fields.get("metrics") else "is withdrawn here"
    return Wording("RouteReverted", f"the raised route to {fields.get('dst')} {ends}")


def _gate_waits(fields: Fields) -> Wording:
    return Wording("PolicyGateWaits", f"the raise waits for policy: {fields.get('reason')}")


def _gate_opened(fields: Fields) -> Wording:
    return Wording("PolicyGateOpened", f"policy is in force after {fields.get('waited_ms')} ms")


def _policy_timeout(fields: Fields) -> Wording:
    text = f"the pod starts although its policy was not in force in {fields.get('timeout_seconds')}"
    return Wording("PolicyTimeout", f"{text} s: until then nothing passes", WARNING)


def _swapped(_: Fields) -> Wording:
    return Wording("OwnerSwapped", "this pod is the active owner of the VM's addresses")


def _not_swapped(fields: Fields) -> Wording:
    text = f"the VM's addresses are not this pod's yet: {fields.get('reason')}"
    return Wording("OwnerSwapFailed", text, WARNING)


def _held(fields: Fields) -> Wording:
    text = "another node still announces the VM's address: the raised route stays for now"
    return Wording("ConvergenceHeld", text, WARNING)


def _limited(fields: Fields) -> Wording:
    return Wording("LiveMigrationLimited", str(fields.get("text")), WARNING)


def _list(value: object) -> str:
    items = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return ", ".join(map(str, items))


_SAYINGS: Mapping[str, Callable[[Fields], Wording | None]] = {
    "cni_add": _added,
    "cni_del": _removed,
    "cni_error": _cni_error,
    "vm_address_freed": _freed,
    "migration_begun": _begun,
    "migration_transition": _moved,
    "sign": _sign,
    "route_raised": _raised,
    "route_reverted": _reverted,
    "policy_gate_waits": _gate_waits,
    "policy_gate_opened": _gate_opened,
    "policy_timeout": _policy_timeout,
    "owner_swapped": _swapped,
    "owner_swap_failed": _not_swapped,
    "convergence_held": _held,
    "migration_limited": _limited,
}
