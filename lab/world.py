"""What KubeVirt's plan is made from and what it is made of: the world, and the actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lab import objects as kv
from lab.cutover import Report
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from tortiectl.kubevirt.migratable import Around, around
from tortiectl.kubevirt.objects import Claim, Node
from tortiectl.kubevirt.settings import Settings

Name = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class GuestView:
    """What the hypervisors know of one guest. Its `addresses` are one or more, IPv4 first.
    `moving`, `moved` and `failed` are by migration UID; a report is None when nobody was left to
    write it down."""

    pod_uid: str
    mac: str
    addresses: tuple[str, ...]
    targets: frozenset[str] = frozenset()
    moving: frozenset[str] = frozenset()
    moved: Mapping[str, Report | None] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """Everything a plan is made from. `guests` is by VMI UID."""

    vms: Mapping[Name, LabVM]
    vmis: Mapping[Name, LabVMI]
    migrations: Mapping[Name, LabMigration]
    pods: Mapping[Name, LabPod]
    nodes: Mapping[str, Node]
    claims: Mapping[Name, Claim]
    guests: Mapping[str, GuestView]
    now: datetime
    settings: Settings = field(default_factory=Settings)

    def launchers(self, vmi: LabVMI) -> tuple[LabPod, ...]:
        """Launcher pods whose controller is exactly this VMI."""
        return self._controlled(vmi.metadata.namespace, vmi.metadata.uid, kv.LAUNCHER)

    def attachments(self, launcher: LabPod) -> tuple[LabPod, ...]:
        """Attachment pods whose controller is exactly this launcher."""
        meta = launcher.metadata
        return self._controlled(meta.namespace, meta.uid, kv.HOTPLUG)

    def _controlled(self, namespace: str, uid: str, role: str) -> tuple[LabPod, ...]:
        return tuple(
            pod
            for (where, _), pod in sorted(self.pods.items())
            if where == namespace
            and pod.metadata.labels.get(kv.LABEL_LAUNCHER) == role
            and (owner := pod.metadata.controller()) is not None
            and owner.uid == uid
        )

    def migrations_of(self, vmi: LabVMI) -> tuple[LabMigration, ...]:
        """Its migrations, oldest first."""
        found = [
            one
            for (namespace, _), one in self.migrations.items()
            if namespace == vmi.metadata.namespace and one.spec.vmi_name == vmi.metadata.name
        ]
        return tuple(sorted(found, key=age))

    def surroundings(self) -> Around:
        """What the verdict on a migration depends on beside the instance."""
        return around({one.id: one for one in self.claims.values()}, self.nodes, self.settings)


@dataclass(frozen=True, slots=True)
class Create:
    """An object is missing; `model` is the view of its kind."""

    model: type[LabVMI | LabPod | LabMigration]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an object."""

    object: LabVMI | LabPod | LabMigration


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


@dataclass(frozen=True, slots=True)
class AbortMove:
    """Leave the guest where it is; too late once it has gone."""

    vmi_uid: str
    migration_uid: str
    why: str


Action = Create | Remove | Patch | StartGuest | StopGuest | PrepareTarget | CutOver | AbortMove


def active_pod(vmi: LabVMI, world: World) -> LabPod | None:
    """The launcher the VMI's status says the guest runs in."""
    here = [uid for uid, node in vmi.status.active_pods.items() if node == vmi.status.node_name]
    return next((pod for pod in world.launchers(vmi) if pod.metadata.uid in here), None)


def over(pod: LabPod | None) -> bool:
    """Whether a pod is gone, going or finished."""
    return pod is None or pod.finished or pod.metadata.deleting


def without_finalizer(found: LabVM | LabVMI | LabMigration, finalizer: str) -> Patch:
    """Take our finalizer off, and only ours; the version fences it against other writers."""
    meta = found.metadata
    rest = [one for one in meta.finalizers if one != finalizer]
    fence = {"resourceVersion": meta.resource_version} if meta.resource_version else {}
    return Patch(found, {"metadata": {"finalizers": rest, **fence}})


def age(migration: LabMigration) -> tuple[str, str]:
    """Orders migrations: oldest first."""
    return migration.metadata.creation_timestamp, migration.metadata.uid


def stamp(world: World) -> str:
    """The world's time as the API writes it."""
    return world.now.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str | None) -> datetime | None:
    """A time of the API; None for one that is absent or unreadable."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def since(text: str | None, world: World) -> float:
    """Seconds since a time of the API; 0 for one that is absent."""
    began = parse_stamp(text)
    return (world.now - began).total_seconds() if began is not None else 0.0
