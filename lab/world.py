"""What KubeVirt's plan is made from and what it is made of: the world, and the actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lab import objects as kv
from lab.cutover import Report
from lab.objects import LabMigration, LabPod, LabVM, LabVMI

Name = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class GuestView:
    """What the hypervisors know of one guest."""

    pod_uid: str
    mac: str
    address: str
    targets: frozenset[str] = frozenset()
    moved: Mapping[str, Report] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """Everything a plan is made from. `guests` is by VMI UID, `nodes` in scheduling order."""

    vms: Mapping[Name, LabVM]
    vmis: Mapping[Name, LabVMI]
    migrations: Mapping[Name, LabMigration]
    pods: Mapping[Name, LabPod]
    guests: Mapping[str, GuestView]
    nodes: tuple[str, ...]
    node_addresses: Mapping[str, str]
    now: datetime

    def launchers(self, vmi: LabVMI) -> tuple[LabPod, ...]:
        """Launcher pods whose controller is exactly this VMI."""
        return tuple(
            pod
            for (namespace, _), pod in sorted(self.pods.items())
            if namespace == vmi.metadata.namespace
            and pod.metadata.labels.get(kv.LABEL_LAUNCHER) == kv.LAUNCHER
            and (owner := pod.metadata.controller()) is not None
            and owner.uid == vmi.metadata.uid
        )


@dataclass(frozen=True, slots=True)
class CreateVMI:
    """A VM that should run has no VMI."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A launcher pod is missing."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an object."""

    object: LabVMI | LabPod


@dataclass(frozen=True, slots=True)
class Patch:
    """Merge-patch an object, or its status."""

    object: LabVM | LabVMI | LabMigration | LabPod
    body: dict[str, Any]
    status: bool = False


@dataclass(frozen=True, slots=True)
class StartGuest:
    """Boot the guest in its launcher."""

    vmi: LabVMI
    pod: LabPod


@dataclass(frozen=True, slots=True)
class StopGuest:
    """Power the guest off."""

    vmi_uid: str


@dataclass(frozen=True, slots=True)
class PrepareTarget:
    """Plumb the target pod."""

    vmi: LabVMI
    pod: LabPod


@dataclass(frozen=True, slots=True)
class CutOver:
    """Move the guest."""

    vmi: LabVMI
    migration: LabMigration
    target: LabPod


Action = CreateVMI | CreatePod | Remove | Patch | StartGuest | StopGuest | PrepareTarget | CutOver


def active_pod(vmi: LabVMI, world: World) -> LabPod | None:
    """The launcher the VMI's status says the guest runs in."""
    here = [uid for uid, node in vmi.status.active_pods.items() if node == vmi.status.node_name]
    return next((pod for pod in world.launchers(vmi) if pod.metadata.uid in here), None)


def pick_node(nodes: Iterable[str], selector: Mapping[str, str], exclude: str) -> str:
    """The first node that the selector allows and that is not excluded; empty for none."""
    wanted = selector.get(kv.LABEL_HOSTNAME, "")
    fitting = [node for node in nodes if node != exclude and wanted in ("", node)]
    return fitting[0] if fitting else ""
