"""What a user does to the cluster, through its API: VMs, pods, migrations, and waiting for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from lab import names, seed
from lab.cluster import in_api, until
from lab.kubelet import stop_processes
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from lab.rendering import label_value
from lab.tools import LabError, run
from libtortie.errors import NotFound
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.follow import follow
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied

T = TypeVar("T")
Obj = TypeVar("Obj", bound=KubeObject)
NAMESPACE = "default"
POLL_S = 0.05


def with_client(work: Callable[[HttpKubeClient], T]) -> T:
    """Call the API from the namespace in which it can be reached."""

    def inside() -> T:
        client = HttpKubeClient(direct(names.api_url()))
        try:
            return work(client)
        finally:
            client.close()

    return in_api(inside)


def get(model: type[Obj], name: str) -> Obj:
    """An object of the default namespace. Raises `NotFound`."""
    return with_client(lambda client: client.get(model, name, NAMESPACE))


def find(model: type[Obj], name: str) -> Obj | None:
    """An object of the default namespace, or None."""
    try:
        return get(model, name)
    except NotFound:
        return None


def listing(model: type[Obj]) -> tuple[Obj, ...]:
    """All objects of a kind, in all namespaces."""
    return with_client(lambda client: client.list(model)[0])


def create_vm(name: str, node: str = "", guest: str = "") -> None:
    """Create a VM that prefers to start on a node. Raises `AlreadyExists`.

    `guest` is its kind; empty: the lab's.
    """
    body = seed.vm_body(name, NAMESPACE, node, {"app": label_value(name)}, guest)
    with_client(lambda client: client.create(LabVM, body))


def create_vmi(name: str, node: str = "") -> None:
    """Create an instance of its own, without a VM. Raises `AlreadyExists`."""
    body = seed.vmi_body(name, NAMESPACE, node, {"app": label_value(name)})
    with_client(lambda client: client.create(LabVMI, body))


def start_vm(name: str) -> None:
    """`virtctl start`. Raises `LabError` when it runs already."""
    vm = get(LabVM, name)
    if find(LabVMI, name) is not None:
        raise LabError(f"VM {name} is already running")
    if vm.spec.strategy == "Manual":
        _request(name, [{"action": "Start"}])
    else:
        _set_strategy(name, "Always")


def stop_vm(name: str) -> None:
    """`virtctl stop`. Raises `LabError` when it does not run."""
    vm, vmi = get(LabVM, name), find(LabVMI, name)
    if vmi is None:
        raise LabError(f"VM {name} is not running")
    if vm.spec.strategy == "Manual":
        _request(name, [{"action": "Stop", "uid": vmi.metadata.uid}])
    else:
        _set_strategy(name, "Halted")


def restart_vm(name: str) -> LabVMI:
    """`virtctl restart`: another instance takes the place of this one, which is returned.

    Raises `LabError` when it does not run.
    """
    get(LabVM, name)
    vmi = find(LabVMI, name)
    if vmi is None:
        raise LabError(f"VM {name} is not running")
    _request(name, [{"action": "Stop", "uid": vmi.metadata.uid}, {"action": "Start"}])
    return vmi


def _request(name: str, changes: list[dict[str, str]]) -> None:
    body = {"status": {"stateChangeRequests": changes}}
    with_client(lambda client: client.patch(LabVM, name, NAMESPACE, body, subresource="status"))


def _set_strategy(name: str, strategy: str) -> None:
    """A VM says `running` or `runStrategy`, never both."""
    body = {"spec": {"runStrategy": strategy, "running": None}}
    with_client(lambda client: client.patch(LabVM, name, NAMESPACE, body))


def kill_sandbox(name: str) -> None:
    """End a pod's sandbox behind its kubelet's back, as a crash of its pause process does."""
    pod = get(LabPod, name)
    netns = names.pod_netns(name, pod.metadata.uid)
    stop_processes(netns)
    run(["ip", "netns", "del", netns])


def create_pod(name: str, node: str) -> None:
    """Create an ordinary pod. Raises `AlreadyExists`."""
    with_client(lambda client: client.create(LabPod, seed.pod_body(name, NAMESPACE, node)))


def create_migration(
    vmi: str, node: str, annotations: Mapping[str, str] | None = None
) -> LabMigration:
    """Ask for a migration, as `virtctl migrate` does. Raises `InvalidInput` with the reason why
    the VM cannot move, and `LabError` for a node it is on already."""
    here = find(LabVMI, vmi)
    if node and here is not None and here.status.node_name == node:
        raise LabError(f"{vmi} is on {node} already")
    body = seed.migration_body("", NAMESPACE, vmi, node=node, annotations=dict(annotations or {}))
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "kubevirt-migrate-vm-"
    return with_client(lambda client: client.create(LabMigration, body))


def delete(model: type[KubeObject], name: str, *, force: bool = False) -> None:
    """Delete an object; one that is not there is fine. By force: without waiting for its end."""

    def work(client: HttpKubeClient) -> None:
        try:
            client.delete(model, name, NAMESPACE, grace_seconds=0 if force else None)
        except NotFound:
            return

    with_client(work)


def await_vm(name: str, deadline: float = 120.0, *, besides: str = "") -> LabVMI:
    """Wait until a VM's guest runs, in another instance than the one with UID `besides`.

    Raises `LabError` with what stands in its way.
    """

    def running(client: HttpKubeClient) -> LabVMI:
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            try:
                vmi = client.get(LabVMI, name, NAMESPACE)
                if vmi.status.phase == "Running" and vmi.metadata.uid != besides:
                    return vmi
            except NotFound:
                pass
            time.sleep(POLL_S)
        raise LabError(f"VM {name} does not run after {deadline:g} s{_refusals(client, name)}")

    return with_client(running)


def _refusals(client: HttpKubeClient, name: str) -> str:
    pods, _ = client.list(LabPod, NAMESPACE)
    words = [pod_words(pod) for pod in pods if name in pod.metadata.name and pod_words(pod)]
    return f": {words[0]}" if words else ""


def pod_words(pod: LabPod) -> str:
    """Why a pod does not run, in the words of whoever refuses it."""
    return pod.status.message or pod.unschedulable


def await_pod(name: str, deadline: float = 120.0) -> LabPod:
    """Wait until a pod runs. Raises `LabError` with its last refusal."""

    def running(client: HttpKubeClient) -> LabPod:
        end = time.monotonic() + deadline
        while True:
            pod = client.get(LabPod, name, NAMESPACE)
            if pod.status.phase == "Running":
                return pod
            if time.monotonic() > end:
                raise LabError(f"pod {name} does not run: {pod_words(pod) or 'no word of it'}")
            time.sleep(POLL_S)

    return with_client(running)


def await_migration(
    name: str, tell: Callable[[str], None], deadline: float = 120.0
) -> LabMigration:
    """Wait until a migration is over, telling each new phase at once. Raises `LabError`."""

    def over(client: HttpKubeClient) -> LabMigration:
        stop, phase = threading.Event(), ""
        timer = threading.Timer(deadline, stop.set)
        timer.start()
        try:
            selector = f"metadata.name={name}"
            for event in follow(
                client, LabMigration, NAMESPACE, stop=stop, field_selector=selector
            ):
                if not isinstance(event, Applied):
                    continue
                if event.object.status.phase != phase:
                    phase = event.object.status.phase
                    tell(phase)
                if event.object.final:
                    return event.object
        finally:
            timer.cancel()
        words = _target_words(client, client.get(LabMigration, name, NAMESPACE))
        raise LabError(f"migration {name} is still {phase} after {deadline:g} s{words}")

    return with_client(over)


def _target_words(client: HttpKubeClient, job: LabMigration) -> str:
    pods, _ = client.list(LabPod, NAMESPACE)
    words = [
        pod_words(pod)
        for pod in pods
        if job.metadata.uid in pod.metadata.labels.values() and pod_words(pod)
    ]
    return f": {words[0]}" if words else ""


def await_gone(model: type[KubeObject], name: str, deadline: float = 120.0) -> None:
    """Wait until an object is gone. Raises `LabError`."""
    until(lambda: find(model, name) is None, f"{name} is not gone", deadline)


def await_replaced(model: type[KubeObject], name: str, uid: str, deadline: float = 120.0) -> None:
    """Wait until the object with this UID is gone. Raises `LabError`."""

    def gone() -> bool:
        found = find(model, name)
        return found is None or found.metadata.uid != uid

    until(gone, f"{name} is not gone", deadline)
