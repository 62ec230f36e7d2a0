"""Which launcher pod runs a VM: never guessed. Pure.

During and after a migration a VMI has several: a source that lingers as Running, failed targets,
one that is being deleted. The VMI's status says on which node the guest is; a pod there that has
not finished and is not a target in waiting runs it. Two of that kind are named, not chosen from.
"""

from __future__ import annotations

from collections.abc import Iterable

from libtortie.errors import Conflict, NotFound
from tortiectl.kubevirt.objects import LABEL_CREATED_BY, LABEL_ROLE, LAUNCHER, VMI, Pod


def launchers_of(vmi: VMI, pods: Iterable[Pod]) -> list[Pod]:
    """A VMI's launcher pods: by the owner's UID, never by a label with a name that may be cut."""
    return [
        pod
        for pod in pods
        if pod.metadata.namespace == vmi.metadata.namespace
        and pod.metadata.labels.get(LABEL_ROLE, LAUNCHER) == LAUNCHER
        and _owner_uid(pod) == vmi.metadata.uid
    ]


def _owner_uid(pod: Pod) -> str:
    owner = pod.metadata.controller()
    if owner is not None:
        return owner.uid
    return pod.metadata.labels.get(LABEL_CREATED_BY, "")


def active_launcher(vmi: VMI, pods: Iterable[Pod], node: str = "") -> Pod:
    """The pod in which the guest is, on `node` (default: where the VMI runs).

    Raises `NotFound`, and `Conflict` when several may be it.
    """
    node = node or vmi.status.node_name
    there = [
        pod
        for pod in launchers_of(vmi, pods)
        if pod.spec.node_name == node and pod.status.phase == "Running"
    ]
    state = vmi.status.migration_state
    named = [pod for pod in there if state.target_pod and pod.metadata.name == state.target_pod]
    if state.target_node == node and named:
        there = named
    living = [pod for pod in there if not pod.metadata.deleting] or there
    if not living:
        raise NotFound(f"VMI {vmi.id} has no running launcher pod on node {node or '(none)'}")
    if len(living) > 1:
        names = ", ".join(sorted(pod.metadata.name for pod in living))
        raise Conflict(f"VMI {vmi.id} has several running launcher pods on node {node}: {names}")
    return living[0]
