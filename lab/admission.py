"""KubeVirt's webhooks: what it lets in, what it turns away, and in which words.

The decisions are pure; `Admission` is the hook that the API server calls before each write. A
denial reads as the API server passes a webhook's on: with the webhook's name before its message.
An eviction that is answered by a migration is a denial with HTTP 429, which makes `kubectl drain`
ask again until the guest has left and its old pod is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from lab import objects as kv
from lab.apiserver.api import MERGE, Api
from lab.apiserver.errors import ApiError, Json, bad_request
from lab.objects import LabMigration, LabPod, LabVMI, condition
from lab.rendering import label_value
from lab.vmim import in_flight

EVICTION_HOOK = "virt-launcher-eviction-interceptor.kubevirt.io"
MIGRATION_HOOK = "migration-create-validator.kubevirt.io"
CLUSTER_EVICTION_STRATEGY = "None"
KUBEVIRT = "kubevirt.io"


class Denied(Exception):
    """A webhook says no; `mark` asks for the instance to be marked for evacuation first."""

    def __init__(self, code: int, message: str, *, mark: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.mark = mark


def judge_eviction(pod: LabPod, vmi: LabVMI | None) -> None:
    """Whether a pod may be evicted. Raises `Denied` (429)."""
    role = pod.metadata.labels.get(kv.LABEL_LAUNCHER)
    if vmi is None or pod.finished:
        return
    name, where = vmi.metadata.name, f'"{vmi.metadata.namespace}/{vmi.metadata.name}"'
    if role == kv.HOTPLUG:
        if not vmi.final:
            raise Denied(
                429,
                f"cannot evict hotplug pod: {pod.metadata.name} associated with running vmi:"
                f" {name} in namespace {vmi.metadata.namespace}",
            )
        return
    strategy = vmi.spec.eviction_strategy or CLUSTER_EVICTION_STRATEGY
    movable = _migratable(vmi)
    if role != kv.LAUNCHER or strategy == "None" or vmi.final:
        return
    if strategy == "LiveMigrate" and not movable:
        raise Denied(
            429, f"VMI {name} is configured with an eviction strategy but is not live-migratable"
        )
    if strategy == "LiveMigrateIfPossible" and not movable:
        return
    triggered = f"Eviction triggered evacuation of VMI {where}"
    if vmi.status.evacuation_node_name:
        raise Denied(429, f"Evacuation in progress: {triggered}")
    if pod.spec.node_name != vmi.status.node_name:
        raise Denied(429, "Eviction request for target Pod")
    raise Denied(429, triggered, mark=True)


def _migratable(vmi: LabVMI) -> bool:
    found = condition(vmi.status.conditions, "LiveMigratable")
    return found is not None and found.status == "True"


def judge_migration(
    migration: LabMigration, vmi: LabVMI | None, others: Iterable[LabMigration]
) -> None:
    """Whether a migration may be asked for; `others` are its namespace's. Raises `Denied`."""
    namespace, name = migration.metadata.namespace, migration.spec.vmi_name
    if vmi is None:
        raise Denied(400, f'the VMI "{namespace}/{name}" does not exist')
    if vmi.final:
        raise Denied(400, "Cannot migrate VMI in finalized state.")
    verdict = condition(vmi.status.conditions, "LiveMigratable")
    if verdict is not None and verdict.status == "False":
        raise Denied(
            400, f"Cannot migrate VMI, Reason: {verdict.reason}, Message: {verdict.message}"
        )
    for other in others:
        if other.spec.vmi_name == name and not other.final:
            raise Denied(400, in_flight(other.metadata.uid, name))


def with_migration_defaults(body: Json, vmi: str) -> Json:
    """A new migration as KubeVirt stores it: the label to find it by, and its finalizer."""
    meta = dict(body["metadata"])
    meta["labels"] = {**(meta.get("labels") or {}), kv.LABEL_VMI_NAME: label_value(vmi)}
    meta["finalizers"] = _with(meta.get("finalizers"), kv.MIGRATION_FINALIZER)
    return {**body, "metadata": meta}


def with_instance_defaults(body: Json) -> Json:
    """A new instance as KubeVirt stores it: its finalizer, and an interface on the pod network
    (by bridge binding, the cluster's default) unless it wants none."""
    meta = dict(body["metadata"])
    meta["finalizers"] = _with(meta.get("finalizers"), kv.VMI_FINALIZER)
    return {**body, "metadata": meta, "spec": _with_interface(body.get("spec") or {})}


def _with_interface(spec: Mapping[str, Any]) -> Json:
    domain = dict(spec.get("domain") or {})
    devices = dict(domain.get("devices") or {})
    unwanted = devices.get("autoattachPodInterface") is False
    if unwanted or spec.get("networks") or devices.get("interfaces"):
        return dict(spec)
    devices["interfaces"] = [{"name": "default", "bridge": {}}]
    domain["devices"] = devices
    return {**spec, "domain": domain, "networks": [{"name": "default", "pod": {}}]}


def _with(finalizers: Any, ours: str) -> list[str]:
    present = list(finalizers or ())
    return present if ours in present else [*present, ours]


class Admission:
    """The hook: looks up what a decision needs, and carries its side effect out."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __call__(self, verb: str, resource: str, body: Json, old: Json | None) -> Json:
        """See `lab.apiserver.api`. Raises `ApiError`."""
        if verb != "create":
            return body
        try:
            return self._created(resource, body, old)
        except ValidationError as error:
            places = [".".join(map(str, one["loc"])) for one in error.errors(include_url=False)]
            raise bad_request(f"unreadable fields: {', '.join(places)}") from error

    def _created(self, resource: str, body: Json, old: Json | None) -> Json:
        if resource == "pods/eviction" and old is not None:
            self._evict(body, LabPod.model_validate(old))
        elif resource == f"virtualmachineinstancemigrations.{KUBEVIRT}":
            migration = LabMigration.model_validate(body)
            body = with_migration_defaults(body, migration.spec.vmi_name)
            self._migrate(migration)
        elif resource == f"virtualmachineinstances.{KUBEVIRT}":
            LabVMI.model_validate(body)
            body = with_instance_defaults(body)
        return body

    def _evict(self, eviction: Json, pod: LabPod) -> None:
        vmi = self._vmi(pod.metadata.namespace, owner_vmi(pod))
        try:
            judge_eviction(pod, vmi)
        except Denied as denied:
            dry_run = "All" in ((eviction.get("deleteOptions") or {}).get("dryRun") or ())
            if denied.mark and vmi is not None and not dry_run:
                self._mark(vmi)
            raise _denial(EVICTION_HOOK, denied) from None

    def _mark(self, vmi: LabVMI) -> None:
        kind = self._api.kind(KUBEVIRT, "v1", "virtualmachineinstances")
        mark = {"status": {"evacuationNodeName": vmi.status.node_name}}
        meta = vmi.metadata
        self._api.patch(
            kind, meta.namespace, meta.name, mark, content_type=MERGE, subresource="status"
        )

    def _migrate(self, migration: LabMigration) -> None:
        kind = self._api.kind(KUBEVIRT, "v1", "virtualmachineinstancemigrations")
        namespace = migration.metadata.namespace
        found = self._api.list(kind, namespace)["items"]
        others = [LabMigration.model_validate(one) for one in found]
        try:
            judge_migration(migration, self._vmi(namespace, migration.spec.vmi_name), others)
        except Denied as denied:
            raise _denial(MIGRATION_HOOK, denied) from None

    def _vmi(self, namespace: str, name: str) -> LabVMI | None:
        kind = self._api.kind(KUBEVIRT, "v1", "virtualmachineinstances")
        try:
            return LabVMI.model_validate(self._api.get(kind, namespace, name))
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def owner_vmi(pod: LabPod) -> str:
    """Name of the instance a launcher or attachment pod belongs to; empty for other pods."""
    annotations = pod.metadata.annotations
    if pod.metadata.labels.get(kv.LABEL_LAUNCHER) == kv.HOTPLUG:
        return annotations.get(kv.ANNOTATION_OWNER_VMI, "")
    return annotations.get(kv.ANNOTATION_DOMAIN, "")


def _denial(hook: str, denied: Denied) -> ApiError:
    reason = "TooManyRequests" if denied.code == 429 else "BadRequest"
    words = f'admission webhook "{hook}" denied the request: {denied.message}'
    return ApiError(denied.code, reason, words)
