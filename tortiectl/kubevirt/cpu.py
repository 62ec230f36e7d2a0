"""CPUs as KubeVirt's node labels tell them, and what a migration's target must have. Pure.

Labels of virt-handler's node labeller, value `true`. A named model asks for `cpu-model…/M` and its
features; host-model for the migration label of the source's model and every feature that the source
says it needs; once a VM has migrated, its next target is chosen by the labels that its pod has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MODEL = "cpu-model.node.kubevirt.io/"
MIGRATION_MODEL = "cpu-model-migration.node.kubevirt.io/"
FEATURE = "cpu-feature.node.kubevirt.io/"
VENDOR = "cpu-vendor.node.kubevirt.io/"
HOST_MODEL_LABEL = "host-model-cpu.node.kubevirt.io/"
REQUIRED_FEATURE = "host-model-required-features.node.kubevirt.io/"
MACHINE = "machine-type.node.kubevirt.io/"
OBSOLETE = "node-labeller.kubevirt.io/obsolete-host-model"
HOST_MODEL, PASSTHROUGH = "host-model", "host-passthrough"
_STICKY = (MIGRATION_MODEL, MODEL, FEATURE, VENDOR)

Labels = Mapping[str, str]


def under(labels: Labels, prefix: str) -> frozenset[str]:
    """What labels with a prefix name, where they are true."""
    return frozenset(
        key.removeprefix(prefix)
        for key, value in labels.items()
        if value == "true" and key.startswith(prefix)
    )


def host_model_of(labels: Labels) -> str:
    """The model that host-model stands for on a node; empty when it has none."""
    return min(under(labels, HOST_MODEL_LABEL), default="")


@dataclass(frozen=True, slots=True)
class Needs:
    """Labels that a target must have (`key: value`), and keys that it must not have."""

    labels: tuple[tuple[str, str], ...] = ()
    without: tuple[str, ...] = ()

    def missing(self, labels: Labels) -> tuple[str, ...]:
        """What a node lacks, as text."""
        lacks = [
            f"lacks label {key}" if value == "true" else f"lacks label {key}={value}"
            for key, value in self.labels
            if labels.get(key) != value
        ]
        return (*lacks, *(f"has label {key}" for key in self.without if key in labels))


@dataclass(frozen=True, slots=True)
class Wish:
    """A VMI's `domain.cpu`: model, and policies of features by name."""

    model: str = ""
    features: Mapping[str, str] = field(default_factory=dict)


def needs(wish: Wish, source: Labels, launcher: Labels) -> Needs:
    """What the target of the next migration must have, for a VM on a node with labels `source` by
    a pod with node selector `launcher`."""
    sticky = {key: value for key, value in launcher.items() if key.startswith(_STICKY)}
    if any(key.startswith(MIGRATION_MODEL) for key in sticky):
        return Needs(tuple(sorted(sticky.items())))
    wanted: set[str] = set()
    without: tuple[str, ...] = ()
    if wish.model == HOST_MODEL:
        model = host_model_of(source)
        wanted |= {f"{MIGRATION_MODEL}{model}"} if model else set()
        wanted |= {f"{FEATURE}{name}" for name in under(source, REQUIRED_FEATURE)}
        without = (OBSOLETE,)
    elif wish.model and wish.model != PASSTHROUGH:
        wanted.add(f"{MODEL}{wish.model}")
    for name, policy in wish.features.items():
        if policy in ("", "require"):
            wanted.add(f"{FEATURE}{name}")
        elif policy == "forbid":
            without = (*without, f"{FEATURE}{name}")
    wanted |= {f"{VENDOR}{name}" for name in under(source, VENDOR)}
    return Needs(tuple((key, "true") for key in sorted(wanted)), without)
