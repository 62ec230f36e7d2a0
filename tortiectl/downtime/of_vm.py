"""What a migration of a VM has to move, and under which limits, by its objects. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from libtortie.errors import InvalidInput
from tortiectl.downtime.amounts import quantity
from tortiectl.kubevirt.migratable import BLOCK, Around, methods
from tortiectl.kubevirt.objects import VMI, Claim


@dataclass(frozen=True, slots=True)
class Moving:
    """Bytes, and KubeVirt's settings; None: not known (a bandwidth without limit, too)."""

    memory: float | None = None
    disks: float | None = None
    bandwidth: float | None = None
    limit: float | None = None
    auto_converge: bool = False
    post_copy: bool = False
    disruption: bool = False


def moving(vmi: VMI, world: Around) -> Moving:
    """Of one VM. Disks that live in the launcher pod count nothing: they are small, and sparse."""
    domain, settings = vmi.spec.domain, world.settings
    memory = _size(domain.memory.guest) or _size(domain.resources.requests.get("memory"))
    copied = [
        _claimed((world.claims or {}).get(f"{vmi.metadata.namespace}/{one.claim}"))
        for one in methods(vmi, world)
        if one.method == BLOCK and one.claim
    ]
    return Moving(
        memory,
        sum(copied),
        settings.bandwidth or None,
        settings.completion_s_per_gb,
        settings.auto_converge,
        settings.post_copy,
        settings.disruption,
    )


def _claimed(claim: Claim | None) -> float:
    if claim is None:
        return 0.0
    requests = claim.spec.resources.get("requests")
    asked = requests.get("storage") if isinstance(requests, dict) else None
    return _size(claim.status.capacity.get("storage")) or _size(asked) or 0.0


def _size(value: object) -> float | None:
    try:
        return quantity(str(value)) if value is not None else None
    except InvalidInput:
        return None
