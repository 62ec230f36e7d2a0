"""What an API server is asked about pods of VMs: by KubeVirt's controller, others and forgers.

Each `Case` is an AdmissionRequest as the server would hand it to a policy, and what its denial has
to name ("": it is let through). One table for all engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]

CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"
GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
KUBELET = "system:node:node1"
REPLICAS = "system:serviceaccount:kube-system:replicaset-controller"
SCHEDULER = "system:kube-scheduler"
FORGER = "system:serviceaccount:shop:builder"

LAUNCHER, JOB = "kubevirt.io", "kubevirt.io/migrationJobUID"
OWNER = "may set an ownerReference to "
LABEL = "may set the label "


def reference(**changes: Any) -> JSON:
    """The owner reference by which a pod is a VM's, or a forgery of it."""
    found: JSON = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": "db",
        "uid": "7ad1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {key: value for key, value in {**found, **changes}.items() if value is not None}


WEB = reference(apiVersion="apps/v1", kind="ReplicaSet", name="web", uid="11")


def pod(*owners: JSON, labels: JSON | None = None, **metadata: Any) -> JSON:
    """A pod. What it does not have is absent, as from the server."""
    meta: JSON = {"name": "one", "namespace": "shop", "uid": "u1", **metadata}
    if labels is not None:
        meta["labels"] = labels
    if owners:
        meta["ownerReferences"] = list(owners)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}}


def launcher(**labels: str) -> JSON:
    """A VM's pod as KubeVirt makes it."""
    return pod(
        reference(), labels={LAUNCHER: "virt-launcher", "vm.kubevirt.io/name": "db"} | labels
    )


def target() -> JSON:
    """A migration's."""
    return launcher(**{JOB: "job-1"})


@dataclass(frozen=True, slots=True)
class Case:
    """`denied` is part of the message of the denial that has to come."""

    name: str
    request: JSON
    denied: str = ""


def request(user: str, now: JSON, before: JSON | None = None, resource: str = "pods") -> JSON:
    """An AdmissionRequest of a user; CREATE where there was nothing before."""
    plural, _, sub = resource.partition("/")
    return {
        "uid": "r1",
        "kind": {"group": "", "version": now["apiVersion"], "kind": now["kind"]},
        "resource": {"group": "", "version": "v1", "resource": plural},
        "subResource": sub,
        "name": now["metadata"]["name"],
        "namespace": now["metadata"]["namespace"],
        "operation": "CREATE" if before is None else "UPDATE",
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": now,
        "oldObject": before,
    }


def _with(found: JSON, **metadata: Any) -> JSON:
    changed = deepcopy(found)
    changed["metadata"].update(metadata)
    return changed


def _labelled(found: JSON, **labels: str | None) -> JSON:
    merged = {**found["metadata"].get("labels", {}), **labels}
    kept = {key: value for key, value in merged.items() if value is not None}
    return _with(found, labels=kept)


def _binding(**labels: str) -> JSON:
    meta = {"name": "one", "namespace": "shop", **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"name": "node1"}}


def allowed() -> Iterator[Case]:
    """What has to go on working."""
    yield Case("KubeVirt starts a VM", request(CONTROLLER, launcher()))
    yield Case("KubeVirt makes a target", request(CONTROLLER, target()))
    hotplug = pod(
        reference(kind="Pod", apiVersion="v1"), labels={LAUNCHER: "hotplug-disk", JOB: "job-1"}
    )
    yield Case("KubeVirt attaches a disk", request(CONTROLLER, hotplug))
    yield Case("KubeVirt marks a pod", request(CONTROLLER, target(), launcher()))
    yield Case("KubeVirt adopts a pod", request(CONTROLLER, launcher(), pod()))
    for sub in ("pods/status", "pods"):
        yield Case(f"KubeVirt marks by {sub}", request(CONTROLLER, target(), pod(), sub))
    yield Case("a plain pod", request(FORGER, pod()))
    yield Case("a pod with labels", request(FORGER, pod(labels={"app": "web"})))
    yield Case("a ReplicaSet's pod", request(REPLICAS, pod(WEB, labels={"app": "web"})))
    yield Case("no launcher's role", request(FORGER, pod(labels={LAUNCHER: "virt-exportserver"})))
    for owner in ("VirtualMachine", "VirtualMachineInstanceMigration", "VirtualMachineExport"):
        yield Case(f"a pod of a {owner}", request(FORGER, pod(reference(kind=owner))))
    running = _with(target(), resourceVersion="9")
    yield Case("the kubelet's status", request(KUBELET, running, target(), "pods/status"))
    yield Case(
        "an ephemeral container", request(FORGER, running, target(), "pods/ephemeralcontainers")
    )
    yield Case("a resize", request(FORGER, running, target(), "pods/resize"))
    yield Case("the scheduler's binding", request(SCHEDULER, _binding(), None, "pods/binding"))
    yield Case(
        "a binding with labels", request(SCHEDULER, _binding(zone="a"), None, "pods/binding")
    )
    free = _with(target(), ownerReferences=[reference(blockOwnerDeletion=False)])
    yield Case("foreground deletion", request(GARBAGE_COLLECTOR, free, target()))
    bare = _with(target(), ownerReferences=[reference(blockOwnerDeletion=None)])
    yield Case("the same reference, told shorter", request(FORGER, bare, target()))
    for gone in ([], [WEB]):
        orphan = _with(target(), ownerReferences=gone)
        yield Case(f"orphaned, {len(gone)} left", request(GARBAGE_COLLECTOR, orphan, target()))
    both = _with(target(), ownerReferences=[reference(), WEB])
    yield Case("another owner beside", request(FORGER, both, target()))
    turned = _with(target(), ownerReferences=[WEB, reference()])
    yield Case("the other way round", request(FORGER, turned, both))
    yield Case("another label of a VM's pod", request(FORGER, _labelled(target(), a="b"), target()))
    yield Case("a mark taken away", request(FORGER, launcher(), target()))
    yield Case("finalizers", request(FORGER, _with(target(), finalizers=["x/y"]), target()))
    unflagged = pod(reference(controller=None))
    flagged = pod(reference(controller=False))
    yield Case("no controller, said or not", request(FORGER, flagged, unflagged))


def forged() -> Iterator[Case]:
    """What only KubeVirt's controller may do."""
    yield from _forged_at_birth()
    yield from _forged_later()
    yield from _marked()


_OF_DB = f"{OWNER}VirtualMachineInstance db"


def _forged_at_birth() -> Iterator[Case]:
    owner = _OF_DB
    yield Case("a launcher of one's own", request(FORGER, launcher()), owner)
    yield Case("with the reference alone", request(FORGER, pod(reference())), owner)
    for user in (
        "kubernetes-admin",
        "system:anonymous",
        "system:serviceaccount:shop:kubevirt-controller",
        "system:serviceaccount:kubevirt:default",
        f"{CONTROLLER}2",
        CONTROLLER.upper(),
        KUBELET,
        GARBAGE_COLLECTOR,
        REPLICAS,
    ):
        yield Case(f"as {user!r}", request(user, pod(reference())), owner)
    for spelled in ("kubevirt.io/v1alpha3", "KubeVirt.io/v1", "kubevirt.io", "v1", "", "a.b/v1"):
        claim = pod(reference(apiVersion=spelled))
        yield Case(f"apiVersion {spelled!r}", request(FORGER, claim), owner)
    for kind in ("virtualmachineinstance", "VIRTUALMACHINEINSTANCE"):
        yield Case(kind, request(FORGER, pod(reference(kind=kind))), f"{OWNER}{kind} db")
    yield Case("no controller", request(FORGER, pod(reference(controller=False))), owner)
    yield Case("nothing said of it", request(FORGER, pod(reference(controller=None))), owner)
    yield Case("the last of several owners", request(FORGER, pod(WEB, WEB, reference())), owner)
    crowd = [reference(kind="Secret", name=f"s{n}", uid=str(n)) for n in range(400)]
    yield Case("behind many others", request(FORGER, pod(*crowd, reference())), owner)


def _forged_later() -> Iterator[Case]:
    owner = _OF_DB
    yield Case("added later", request(FORGER, pod(reference(), labels={}), pod(labels={})), owner)
    yield Case("added beside", request(FORGER, pod(WEB, reference()), pod(WEB)), owner)
    other = reference(name="mail", uid="99")
    yield Case(
        "a second VM", request(FORGER, pod(reference(), other), pod(reference())), OWNER.strip()
    )
    for changed in (
        {"uid": "99"},
        {"name": "mail"},
        {"controller": False},
        {"apiVersion": "kubevirt.io/v2"},
    ):
        then = pod(reference(**changed))
        why = f"{OWNER}VirtualMachineInstance {changed.get('name', 'db')}"
        yield Case(f"changed to {changed}", request(FORGER, then, pod(reference())), why)
    slurred = pod(reference(kind="virtualMachineInstance"))
    yield Case("its kind put right", request(FORGER, pod(reference()), slurred), owner)
    weak = pod(reference(controller=None))
    yield Case("made the controller", request(FORGER, pod(reference()), weak), owner)
    for resource in ("pods/status", "pods/ephemeralcontainers", "pods/resize"):
        yield Case(f"owner by {resource}", request(FORGER, launcher(), pod(), resource), owner)


def _marked() -> Iterator[Case]:
    label = f"{LABEL}{JOB}=job-1"
    for resource in ("pods/status", "pods/ephemeralcontainers", "pods/resize"):
        yield Case(f"mark by {resource}", request(KUBELET, target(), launcher(), resource), label)
    yield Case("marked at birth", request(FORGER, pod(labels={JOB: "job-1"})), label)
    yield Case("from a template", request(REPLICAS, pod(WEB, labels={JOB: "job-1"})), label)
    yield Case("an empty mark", request(FORGER, pod(labels={JOB: ""})), f"{LABEL}{JOB}=")
    yield Case("marked later", request(FORGER, target(), launcher()), label)
    yield Case("another job", request(FORGER, target(), _labelled(target(), **{JOB: "0"})), label)
    role = f"{LABEL}{LAUNCHER}=virt-launcher"
    yield Case("a launcher's label", request(FORGER, pod(labels={LAUNCHER: "virt-launcher"})), role)
    yield Case(
        "from a disk's to a launcher's",
        request(FORGER, launcher(), _labelled(launcher(), **{LAUNCHER: "hotplug-disk"})),
        role,
    )
    marked = _binding(**{JOB: "job-1"})
    yield Case("marked by binding", request(SCHEDULER, marked, None, "pods/binding"), label)


def legacy_binding() -> Case:
    """The older way to bind, of which Kyverno and Gatekeeper know by another kind."""
    marked = _binding(**{JOB: "job-1"})
    return Case("marked by bindings", request(SCHEDULER, marked, None, "bindings"), LABEL)
