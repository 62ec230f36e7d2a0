"""Nodes' CPUs compared: what they have in common, and where host-model VMs could go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tortiectl.kubevirt.cpu import (
    HOST_MODEL,
    HOST_MODEL_LABEL,
    MODEL,
    OBSOLETE,
    REQUIRED_FEATURE,
    VENDOR,
    Labels,
    Wish,
    host_model_of,
    needs,
    under,
)
from tortiectl.kubevirt.models import best_first
from tortiectl.kubevirt.objects import LABEL_SCHEDULABLE


@dataclass(frozen=True, slots=True)
class NodeCPU:
    """One node: its host model, the required features that no other of the nodes requires, and
    where a host-model VM could go from it; `reason` when that is nowhere."""

    node: str
    vendor: str
    host_model: str
    only_here: tuple[str, ...]
    targets: tuple[str, ...]
    reason: str


def runs_vms(labels: Labels) -> bool:
    """Whether KubeVirt has labelled a node: others are none of its nodes."""
    return (
        labels.get(LABEL_SCHEDULABLE) == "true"
        or bool(under(labels, MODEL))
        or bool(under(labels, HOST_MODEL_LABEL))
    )


def common_models(nodes: Mapping[str, Labels]) -> list[str]:
    """Named models that every node can run, the best first."""
    usable = [under(labels, MODEL) for labels in nodes.values()]
    return best_first(frozenset.intersection(*usable)) if usable else []


def compare(nodes: Mapping[str, Labels], shown: Sequence[str] = ()) -> list[NodeCPU]:
    """Each node (those to be shown, default all) against all others."""
    required = {name: under(labels, REQUIRED_FEATURE) for name, labels in nodes.items()}
    found = []
    for name in shown or sorted(nodes):
        labels = nodes[name]
        elsewhere = frozenset[str]().union(
            *(features for other, features in required.items() if other != name)
        )
        wanted = needs(Wish(HOST_MODEL), labels, {})
        missing = {
            other: wanted.missing(theirs) for other, theirs in nodes.items() if other != name
        }
        targets = tuple(sorted(other for other, lacks in missing.items() if not lacks))
        model = host_model_of(labels)
        found.append(
            NodeCPU(
                name,
                ",".join(sorted(under(labels, VENDOR))),
                model,
                tuple(sorted(required[name] - elsewhere)),
                targets,
                "" if targets and model else _reason(model, missing),
            )
        )
    return found


def _reason(model: str, missing: Mapping[str, tuple[str, ...]]) -> str:
    """Why a host-model VM could go nowhere: what the nearest other node lacks."""
    if not model:
        return "the node has no host-model-cpu label: KubeVirt refuses the migration"
    if not missing:
        return "there is no other node"
    nearest = min(missing, key=lambda name: (len(missing[name]), name))
    lacks = missing[nearest]
    more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    text = lacks[0] if OBSOLETE not in lacks[0] else "its host model is obsolete"
    return f"the nearest, {nearest}, {text}{more}"
