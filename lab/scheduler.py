"""A scheduler: a node for each pod that names none. Pure.

Filters as Kubernetes' does: ready, not cordoned, selector, required node affinity, required pod
anti-affinity by host name. Among what is left: preferred affinity, then the fewest pods. A pod
that fits nowhere is told so in its condition `PodScheduled`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from lab.objects import LabPod, condition
from lab.world import Patch, World
from tortiectl.kubevirt.objects import Node
from tortiectl.kubevirt.placement import HOSTNAME


def plan_scheduling(world: World) -> Iterator[Patch]:
    """Bind what can be bound, and say of the rest why not."""
    placed: dict[str, list[LabPod]] = {name: [] for name in world.nodes}
    waiting: list[LabPod] = []
    for pod in world.pods.values():
        if pod.finished:
            continue
        if pod.spec.node_name:
            placed.get(pod.spec.node_name, []).append(pod)
        elif not pod.metadata.deleting:
            waiting.append(pod)
    for pod in waiting:
        reasons = {name: refusal(pod, node, placed[name]) for name, node in world.nodes.items()}
        fitting = [name for name, why in reasons.items() if not why]
        if fitting:
            node = min(fitting, key=lambda name: _rank(pod, world.nodes[name], placed[name]))
            placed[node].append(pod)
            yield Patch(pod, {"spec": {"nodeName": node}})
        elif pod.unschedulable != (words := _words(reasons)):
            yield Patch(pod, {"status": {"conditions": _unschedulable(pod, words)}}, status=True)


def refusal(pod: LabPod, node: Node, neighbours: list[LabPod]) -> str:
    """Why a pod cannot go to a node, in the scheduler's words; empty when it can."""
    labels = node.metadata.labels
    if node.spec.unschedulable:
        return "node(s) were unschedulable"
    if not node.ready:
        return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
    affinity = pod.spec.affinity
    selected = all(labels.get(key) == value for key, value in pod.spec.node_selector.items())
    if not selected or not affinity.node_affinity.allows(node.metadata.name, labels):
        return "node(s) didn't match Pod's node affinity/selector"
    for term in affinity.pod_anti_affinity.required:
        if term.topology_key == HOSTNAME and any(
            term.selects(other.metadata, pod.metadata.namespace) for other in neighbours
        ):
            return "node(s) didn't match pod anti-affinity rules"
    return ""


def _rank(pod: LabPod, node: Node, neighbours: list[LabPod]) -> tuple[int, int, str]:
    score = sum(
        preferred.weight
        for preferred in pod.spec.affinity.node_affinity.preferred
        if preferred.preference.holds(node.metadata.name, node.metadata.labels)
    )
    return -score, len(neighbours), node.metadata.name


def _words(reasons: Mapping[str, str]) -> str:
    counts = sorted(f"{count} {why}" for why, count in Counter(reasons.values()).items())
    return f"0/{len(reasons)} nodes are available: {', '.join(counts)}."


def _unschedulable(pod: LabPod, words: str) -> list[dict[str, str]]:
    kept = [one.body() for one in pod.status.conditions if one.type != "PodScheduled"]
    told = condition(pod.status.conditions, "PodScheduled")
    fresh = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }
    return [*kept, (told.body() if told is not None else {}) | fresh]
