"""Whether the second pod that a migration needs fits its namespace's quota. Pure.

A migration whose target pod the quota forbids waits in Pending, with the condition
`migrationRejectedByResourceQuota`, and says nothing to who drains a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from libtortie.errors import InvalidInput
from tortiectl.downtime.amounts import quantity
from tortiectl.kubevirt.objects import VMI, Pod
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.world import Quota

_SHORT = {"cpu": "requests.cpu", "memory": "requests.memory"}
"""A quota's short names."""
_COUNTS = frozenset({"pods", "count/pods"})


def check_quotas(
    quotas: Sequence[Quota], vmis: Sequence[VMI], launchers: Mapping[str, Sequence[Pod]]
) -> Iterator[Finding]:
    """A finding for each quota that has no room for the target of one of these VMs."""
    for quota in quotas:
        for vmi in vmis:
            pods = [pod for pod in launchers.get(vmi.metadata.uid, ()) if not pod.finished]
            if vmi.metadata.namespace != quota.namespace or len(pods) != 1:
                continue  # with two, one is a target that was let in
            lacks = [text for name in quota.hard if (text := _lack(quota, name, pods[0]))]
            if lacks:
                yield Finding(
                    Severity.BLOCKS,
                    Subject("VM", vmi.metadata.name, vmi.metadata.namespace),
                    "ResourceQuota",
                    f"quota {quota.name} has no room for a second pod of it ({', '.join(lacks)}): "
                    "its migration would wait",
                    f"raise {quota.name} by what one VM needs, at least while a node is drained",
                )


def _lack(quota: Quota, name: str, pod: Pod) -> str:
    """`requests.memory: 3Gi of 4Gi used, 2Gi needed`; empty where it fits or cannot be said."""
    needs = 1.0 if name in _COUNTS else _sum(pod, _SHORT.get(name, name))
    try:
        hard, used = quantity(quota.hard[name]), quantity(quota.used.get(name, "0"))
    except InvalidInput:
        return ""
    if not needs or used + needs <= hard:
        return ""
    return f"{name}: {quota.used.get(name, '0')} of {quota.hard[name]} used, {needs:.12g} needed"


def _sum(pod: Pod, name: str) -> float:
    """What a pod's containers ask of `requests.X` or `limits.X`; 0 for what they do not name."""
    kind, _, resource = name.partition(".")
    total = 0.0
    for container in pod.spec.containers:
        asked = {"requests": container.resources.requests, "limits": container.resources.limits}
        value = asked.get(kind, {}).get(resource)
        try:
            total += quantity(str(value)) if value is not None else 0.0
        except InvalidInput:
            continue
    return total
