"""Which columns `kubectl get` shows for each resource, as data. Pure.

Built-in kinds have kubectl's columns, KubeVirt's and Calico's those of their CRDs. A column of
priority 1 is shown by `-o wide` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.apiserver import pod_columns as pods
from lab.apiserver.ages import since
from lab.apiserver.errors import Json
from lab.apiserver.kind import Kind, Printed

Cell = Callable[[Json, datetime], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its cell is a JSON value of OpenAPI type `type`."""

    name: str
    cell: Cell
    priority: int = 0
    type: str = "string"


def read(body: Any, path: str) -> Any:
    """The value at a path such as `status.interfaces.0.ipAddress`; None when there is none."""
    for step in path.split("."):
        if isinstance(body, list):
            body = body[int(step)] if step.isdigit() and int(step) < len(body) else None
        else:
            body = body.get(step) if isinstance(body, dict) else None
    return body


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _path(path: str, absent: str = "") -> Cell:
    return lambda body, _: _text(read(body, path)) or absent


def _value(path: str) -> Cell:
    return lambda body, _: read(body, path)


def _condition(name: str) -> Cell:
    def cell(body: Json, _: datetime) -> str:
        conditions = read(body, "status.conditions") or []
        return next((c.get("status", "") for c in conditions if c.get("type") == name), "")

    return cell


def _age(path: str) -> Cell:
    return lambda body, now: since(read(body, path), now)


def _plain(cell: Callable[[Json], Any]) -> Cell:
    return lambda body, _: cell(body)


NAME = Column("Name", _path("metadata.name"))
AGE = Column("Age", _age("metadata.creationTimestamp"))


def _columns(*columns: Column) -> tuple[Column, ...]:
    return (NAME, *columns)


def _node_status(body: Json) -> str:
    conditions = read(body, "status.conditions") or []
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if read(body, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(body: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = read(body, "metadata.labels") or {}
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))
    return ",".join(roles) or "<none>"


def _node_address(wanted: str) -> Cell:
    def cell(body: Json, _: datetime) -> str:
        addresses = read(body, "status.addresses") or []
        return next((a.get("address", "") for a in addresses if a.get("type") == wanted), "<none>")

    return cell


def _event_object(body: Json) -> str:
    about = body.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_last(body: Json, now: datetime) -> str:
    stamps = ("series.lastObservedTime", "lastTimestamp", "eventTime", "metadata.creationTimestamp")
    return since(next(filter(None, (read(body, path) for path in stamps)), None), now)


def _count(path: str) -> Cell:
    return lambda body, _: len(read(body, path) or ())


def _replicas(body: Json) -> str:
    wanted = read(body, "spec.replicas")
    return f"{read(body, 'status.readyReplicas') or 0}/{1 if wanted is None else wanted}"


def _role(body: Json) -> str:
    return f"{read(body, 'roleRef.kind')}/{read(body, 'roleRef.name')}"


def _number(name: str, path: str) -> Column:
    return Column(name, lambda body, _: read(body, path) or 0, type="integer")


_BINDING = _columns(Column("Role", _plain(_role)), AGE)

BY_PLURAL: Mapping[str, tuple[Column, ...]] = {
    "pods": _columns(
        Column("Ready", _plain(pods.ready)),
        Column("Status", _plain(pods.status)),
        Column("Restarts", _plain(pods.restarts), type="integer"),
        AGE,
        Column("IP", _path("status.podIP", "<none>"), 1),
        Column("Node", _path("spec.nodeName", "<none>"), 1),
        Column("Nominated Node", _path("status.nominatedNodeName", "<none>"), 1),
        Column("Readiness Gates", _plain(pods.gates), 1),
    ),
    "nodes": _columns(
        Column("Status", _plain(_node_status)),
        Column("Roles", _plain(_node_roles)),
        AGE,
        Column("Version", _path("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), 1),
        Column("External-IP", _node_address("ExternalIP"), 1),
        Column("OS-Image", _path("status.nodeInfo.osImage", "<unknown>"), 1),
        Column("Kernel-Version", _path("status.nodeInfo.kernelVersion", "<unknown>"), 1),
        Column("Container-Runtime", _path("status.nodeInfo.containerRuntimeVersion"), 1),
    ),
    "namespaces": _columns(Column("Status", _path("status.phase")), AGE),
    "configmaps": _columns(Column("Data", _count("data"), type="integer"), AGE),
    "secrets": _columns(
        Column("Type", _path("type", "Opaque")), Column("Data", _count("data"), type="integer"), AGE
    ),
    "services": _columns(
        Column("Type", _path("spec.type", "ClusterIP")),
        Column("Cluster-IP", _path("spec.clusterIP", "<none>")),
        AGE,
    ),
    "persistentvolumeclaims": _columns(
        Column("Status", _path("status.phase")), Column("Volume", _path("spec.volumeName")), AGE
    ),
    "events": (
        Column("Last Seen", _event_last),
        Column("Type", _path("type")),
        Column("Reason", _path("reason")),
        Column("Object", _plain(_event_object)),
        Column("Source", _path("source.component"), 1),
        Column("Message", _path("message")),
        Column("Count", _path("count", "1"), 1),
        Column("Name", _path("metadata.name"), 1),
    ),
    "deployments": _columns(
        Column("Ready", _plain(_replicas)),
        _number("Up-to-date", "status.updatedReplicas"),
        _number("Available", "status.availableReplicas"),
        AGE,
    ),
    "replicasets": _columns(
        _number("Desired", "spec.replicas"),
        _number("Current", "status.replicas"),
        _number("Ready", "status.readyReplicas"),
        AGE,
    ),
    "statefulsets": _columns(Column("Ready", _plain(_replicas)), AGE),
    "daemonsets": _columns(
        _number("Desired", "status.desiredNumberScheduled"),
        _number("Current", "status.currentNumberScheduled"),
        _number("Ready", "status.numberReady"),
        AGE,
    ),
    "leases": _columns(Column("Holder", _path("spec.holderIdentity")), AGE),
    "clusterroles": _columns(Column("Created At", _path("metadata.creationTimestamp"))),
    "roles": _columns(Column("Created At", _path("metadata.creationTimestamp"))),
    "clusterrolebindings": _BINDING,
    "rolebindings": _BINDING,
    "virtualmachines": _columns(
        AGE,
        Column("Status", _path("status.printableStatus")),
        Column("Ready", _condition("Ready")),
    ),
    "virtualmachineinstances": _columns(
        AGE,
        Column("Phase", _path("status.phase")),
        Column("IP", _path("status.interfaces.0.ipAddress")),
        Column("NodeName", _path("status.nodeName")),
        Column("Ready", _condition("Ready")),
        Column("Live-Migratable", _condition("LiveMigratable"), 1),
        Column("Paused", _condition("Paused"), 1),
    ),
    "virtualmachineinstancemigrations": _columns(
        Column("Phase", _path("status.phase")),
        Column("VMI", _path("spec.vmiName")),
        Column("Source", _path("status.migrationState.sourceNode"), 1),
        Column("Target", _path("status.migrationState.targetNode"), 1),
        AGE,
    ),
}


def columns_of(kind: Kind) -> tuple[Column, ...]:
    """The columns of a kind: name and age where nothing is known of it."""
    if kind.printed:
        return _columns(*map(_printed, kind.printed))
    return BY_PLURAL.get(kind.plural, (NAME, AGE))


def _printed(column: Printed) -> Column:
    """A CRD's column: an age for a date, and the value as it is for what is no text."""
    if column.type == "date":
        return Column(column.name, _age(column.path), column.priority)
    cell = _path(column.path) if column.type == "string" else _value(column.path)
    return Column(column.name, cell, column.priority, column.type)
