"""Objects as KubeVirt renders them: an instance from a VM, a launcher pod from an instance."""

from __future__ import annotations

import hashlib
from typing import Any

from lab import objects as kv
from lab.objects import LabMigration, LabVM, LabVMI

VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VMI_FINALIZER = "foregroundDeleteVirtualMachine"


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
            "finalizers": [VMI_FINALIZER],
            "ownerReferences": [
                _owner("VirtualMachine", meta.name, meta.uid),
            ],
        },
        "spec": dict(vm.spec.template.spec),
    }


def _owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def launcher_name(vmi: str, *identity: str) -> str:
    """`virt-launcher-<vmi>-<5 characters>`, the same for the same VMI and migration."""
    digest = hashlib.sha256("/".join(identity).encode()).hexdigest()
    return f"virt-launcher-{vmi}-{digest[:5]}"


def launcher_body(
    vmi: LabVMI, name: str, node: str, migration: LabMigration | None
) -> dict[str, Any]:
    """The launcher pod virt-controller renders; for a migration, its target."""
    meta = vmi.metadata
    labels = {
        **meta.labels,
        kv.LABEL_LAUNCHER: kv.LAUNCHER,
        kv.LABEL_CREATED_BY: meta.uid,
        kv.LABEL_VM_NAME: meta.name,
        kv.LABEL_VMI: meta.name,
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
            "name": name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner("VirtualMachineInstance", meta.name, meta.uid)],
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "containers": [{"name": "compute", "image": "virt-launcher"}],
        },
    }


def migratable(vmi: LabVMI) -> dict[str, str]:
    """The condition `LiveMigratable` of an instance with bridge binding."""
    if kv.ANNOTATION_BRIDGE_MIGRATION in vmi.metadata.annotations:
        return {"type": "LiveMigratable", "status": "True"}
    return {
        "type": "LiveMigratable",
        "status": "False",
        "reason": "InterfaceNotLiveMigratable",
        "message": "cannot migrate VMI which does not use masquerade or a migratable plugin"
        " to connect to the pod network",
    }
