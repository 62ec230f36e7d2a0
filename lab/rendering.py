"""Objects as KubeVirt renders them: an instance from a VM, pods from an instance. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lab import objects as kv
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from tortiectl.kubevirt.placement import HOSTNAME

LABEL_VALUE_MAX = 63
GRACE_MARGIN_S = 15
"""A launcher may take so much longer to end than its guest."""


def vmi_body(vm: LabVM) -> dict[str, Any]:
    """The VMI a VM's template describes."""
    meta = vm.metadata
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": dict(vm.spec.template.metadata.labels),
            "annotations": dict(vm.spec.template.metadata.annotations),
            "finalizers": [kv.VMI_FINALIZER],
            "ownerReferences": [
                _owner("kubevirt.io/v1", "VirtualMachine", meta.name, meta.uid),
            ],
        },
        "spec": dict(vm.spec.template.spec),
    }


def _owner(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def short_hash(*identity: str) -> str:
    """Five characters, the same for the same identity: a generated name that can be repeated."""
    return hashlib.sha256("/".join(identity).encode()).hexdigest()[:5]


def launcher_name(vmi: str, *identity: str) -> str:
    """`virt-launcher-<vmi>-<5 characters>`, the same for the same VMI and migration."""
    return f"virt-launcher-{vmi}-{short_hash(*identity)}"


def label_value(name: str) -> str:
    """A name as a label's value; one too long for it ends with a hash of the whole."""
    if len(name) <= LABEL_VALUE_MAX:
        return name
    return f"{name[: LABEL_VALUE_MAX - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def launcher_body(vmi: LabVMI, migration: LabMigration | None) -> dict[str, Any]:
    """The launcher pod virt-controller renders; for a migration, its target. No node: the
    scheduler chooses one."""
    meta = vmi.metadata
    identity = (meta.uid,) if migration is None else (meta.uid, migration.metadata.uid)
    labels = {
        **meta.labels,
        kv.LABEL_LAUNCHER: kv.LAUNCHER,
        kv.LABEL_CREATED_BY: meta.uid,
        kv.LABEL_VM_NAME: label_value(meta.name),
        kv.LABEL_VMI: label_value(meta.name),
    }
    kept = {k: v for k, v in meta.annotations.items() if not k.startswith("kubectl.kubernetes.io")}
    annotations = {
        **kept,
        kv.ANNOTATION_DOMAIN: meta.name,
        kv.ANNOTATION_UNIX: "true",
        kv.ANNOTATION_EVICT: "",
    }
    if migration is not None:
        labels[kv.LABEL_JOB] = migration.metadata.uid
        annotations[kv.ANNOTATION_JOB_NAME] = migration.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": launcher_name(meta.name, *identity),
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [
                _owner("kubevirt.io/v1", "VirtualMachineInstance", meta.name, meta.uid)
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": _node_selector(vmi, migration),
            "affinity": _affinity(vmi, migration),
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "terminationGracePeriodSeconds": vmi.spec.termination_grace_period_seconds
            + GRACE_MARGIN_S,
            "containers": [{"name": "compute", "image": "virt-launcher"}],
        },
    }


def _node_selector(vmi: LabVMI, migration: LabMigration | None) -> dict[str, str]:
    """The template's wishes win over the migration's."""
    added = migration.spec.added_node_selector if migration is not None else {}
    return {kv.LABEL_SCHEDULABLE: "true", **added, **vmi.spec.node_selector}


def _affinity(vmi: LabVMI, migration: LabMigration | None) -> dict[str, Any]:
    """The VMI's own; a target also keeps away from the source."""
    affinity: dict[str, Any] = json.loads(json.dumps(vmi.spec.affinity_body))
    if migration is not None:
        term = {
            "labelSelector": {"matchLabels": {kv.LABEL_CREATED_BY: vmi.metadata.uid}},
            "topologyKey": HOSTNAME,
        }
        anti = affinity.setdefault("podAntiAffinity", {})
        anti.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    return affinity


def attachment_body(vmi: LabVMI, launcher: LabPod) -> dict[str, Any]:
    """The pod that brings a launcher its hotplugged volumes: an ordinary pod on the same node,
    owned by the launcher; for a migration's target it carries the job as well."""
    meta = launcher.metadata
    labels = {kv.LABEL_LAUNCHER: kv.HOTPLUG}
    annotations = {
        kv.ANNOTATION_OWNER_VMI: vmi.metadata.name,
        kv.ANNOTATION_OWNER_VMI_UID: vmi.metadata.uid,
    }
    if job := meta.labels.get(kv.LABEL_JOB):
        labels[kv.LABEL_JOB] = job
        annotations[kv.ANNOTATION_JOB_NAME] = meta.annotations.get(kv.ANNOTATION_JOB_NAME, "")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"hp-volume-{short_hash(meta.uid)}",
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner("v1", "Pod", meta.name, meta.uid)],
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {HOSTNAME: launcher.spec.node_name},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "hotplug-disk", "image": "virt-launcher"}],
        },
    }


def evacuation_body(vmi: LabVMI, *identity: str) -> dict[str, Any]:
    """The migration by which a marked instance leaves its node."""
    meta = vmi.metadata
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "name": f"kubevirt-evacuation-{short_hash(meta.uid, *identity)}",
            "namespace": meta.namespace,
            "labels": {kv.LABEL_VMI_NAME: label_value(meta.name)},
            "annotations": {kv.ANNOTATION_EVACUATION: vmi.status.evacuation_node_name},
            "finalizers": [kv.MIGRATION_FINALIZER],
        },
        "spec": {"vmiName": meta.name, "priority": "system-critical"},
    }
