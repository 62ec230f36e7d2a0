"""A kubelet's part: one sandbox (a network namespace with a CNI attachment) per pod of a node.

A pod that should run and has no sandbox gets one; a pod that is finished, being deleted or gone
loses it, CNI DEL first. A refused ADD is undone by DEL, its words are put into the pod's status,
and it is tried again with a fresh container id, as a kubelet does for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from lab import names
from lab.cni_runtime import Attachment, CniError, Runtime, result_addresses
from lab.objects import LabPod
from lab.processes import in_namespaces, namespace_inodes
from lab.tools import LabError, ip_batch, run
from lab.workqueue import WorkQueue
from libtortie.errors import NotFound
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.follow import follow
from libtortie.kube.port import Applied, Gone

Log = Callable[[str], None]


class Step(Enum):
    """What a pod needs next."""

    NOTHING = auto()
    SET_UP = auto()
    TEAR_DOWN = auto()
    FORGET = auto()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a kubelet made for a pod."""

    namespace: str
    pod: str
    uid: str
    container_id: str
    netns: str
    addresses: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether ADD succeeded."""
        return bool(self.addresses)

    @property
    def attachment(self) -> Attachment:
        """The CNI view of it."""
        return Attachment(
            container_id=self.container_id,
            netns=str(names.netns_path(self.netns)),
            args=(
                ("IgnoreUnknown", "1"),
                ("K8S_POD_NAMESPACE", self.namespace),
                ("K8S_POD_NAME", self.pod),
                ("K8S_POD_INFRA_CONTAINER_ID", self.container_id),
                ("K8S_POD_UID", self.uid),
            ),
        )


def decide(pod: LabPod | None, sandbox: Sandbox | None) -> Step:
    """What to do for a pod as the API shows it (None: it is gone).

    A sandbox that is not ready is the rest of an ADD that failed: it goes before the next try.
    """
    over = pod is None or pod.metadata.deleting or pod.finished
    if sandbox is not None:
        return Step.TEAR_DOWN if over or not sandbox.ready else Step.NOTHING
    if over:
        return Step.FORGET if pod is not None and pod.metadata.deleting else Step.NOTHING
    return Step.SET_UP


def running_status(sandbox: Sandbox, node_address: str) -> dict[str, Any]:
    """The status of a pod whose containers run."""
    return {
        "phase": "Running",
        "reason": None,
        "message": None,
        "hostIP": node_address,
        "podIP": sandbox.addresses[0] if sandbox.addresses else "",
        "podIPs": [{"ip": address} for address in sandbox.addresses],
        "conditions": [{"type": "Ready", "status": "True"}],
    }


def refused_status(error: LabError) -> dict[str, Any]:
    """The status of a pod whose sandbox was refused, in a kubelet's words."""
    words = f'plugin type="{error.plugin}" failed (add): ' if isinstance(error, CniError) else ""
    detail = error.message if isinstance(error, CniError) else str(error)
    if isinstance(error, CniError) and error.details:
        detail = f"{detail}: {error.details}"
    message = f"Failed to create pod sandbox: {words}{detail}"
    condition = {
        "type": "PodReadyToStartContainers",
        "status": "False",
        "reason": "FailedCreatePodSandBox",
        "message": message,
    }
    return {
        "phase": "Pending",
        "reason": "FailedCreatePodSandBox",
        "message": message,
        "conditions": [condition],
    }


class Kubelet:
    """One node's kubelet. `directory` keeps its sandboxes over a restart."""

    def __init__(
        self,
        node: names.LabNode,
        client: HttpKubeClient,
        runtime: Runtime,
        directory: Path,
        log: Log,
    ) -> None:
        self._node = node
        self._client = client
        self._runtime = runtime
        self._directory = directory
        self._log = log
        self._pods: dict[str, LabPod] = {}
        self._attempts: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._queue = WorkQueue(self._sync, log)
        directory.mkdir(parents=True, exist_ok=True)
        self._sandboxes = {one.uid: one for one in map(_load, directory.glob("*.json"))}

    def run(self, stop: threading.Event) -> None:
        """Follow the node's pods until `stop`."""
        self._queue.start()
        for uid in self._sandboxes:
            self._queue.add(uid, delay=2.0)
        for event in follow(self._client, LabPod, stop=stop):
            if isinstance(event, Applied | Gone):
                self._take(event)
        self._queue.stop()

    def _take(self, event: Applied[LabPod] | Gone[LabPod]) -> None:
        pod = event.object
        uid = pod.metadata.uid
        if isinstance(event, Gone):
            self._pods.pop(uid, None)
        elif pod.spec.node_name == self._node.name:
            self._pods[uid] = pod
        else:
            return
        self._queue.add(uid)

    def _sync(self, uid: str) -> None:
        pod, sandbox = self._pods.get(uid), self._sandboxes.get(uid)
        match decide(pod, sandbox):
            case Step.SET_UP if pod is not None:
                self._set_up(pod)
            case Step.TEAR_DOWN if sandbox is not None:
                self._tear_down(sandbox)
                self._queue.add(uid)
            case Step.FORGET if pod is not None:
                self._forget(pod)

    def _set_up(self, pod: LabPod) -> None:
        meta = pod.metadata
        attempt = self._attempts.get(meta.uid, 0)
        self._attempts[meta.uid] = attempt + 1
        container_id = hashlib.sha256(f"{meta.uid}/{attempt}".encode()).hexdigest()
        netns = names.pod_netns(meta.name, meta.uid)
        sandbox = Sandbox(meta.namespace, meta.name, meta.uid, container_id, netns)
        self._store(sandbox)
        try:
            run(["ip", "netns", "add", netns])
            ip_batch(netns, ("link set lo up",))
            result = self._runtime.add(sandbox.attachment)
        except LabError as error:
            self._say(pod, refused_status(error))
            self._tear_down(sandbox)
            raise
        addresses = result_addresses(result)
        sandbox = Sandbox(meta.namespace, meta.name, meta.uid, container_id, netns, addresses)
        self._store(sandbox)
        self._log(f"pod {meta.namespace}/{meta.name}: sandbox up, {', '.join(addresses)}")
        self._say(pod, running_status(sandbox, str(self._node.address.ip)))

    def _tear_down(self, sandbox: Sandbox) -> None:
        """CNI DEL, then the namespace. Raises `CniError`: the sandbox stays until DEL worked."""
        exists = names.netns_path(sandbox.netns).exists()
        attachment = sandbox.attachment
        if not exists:
            attachment = Attachment(attachment.container_id, "", attachment.ifname, attachment.args)
        self._runtime.delete(attachment)
        if exists:
            self._stop_processes(sandbox.netns)
            run(["ip", "netns", "del", sandbox.netns])
        self._sandboxes.pop(sandbox.uid, None)
        self._file(sandbox.uid).unlink(missing_ok=True)
        self._log(f"pod {sandbox.namespace}/{sandbox.pod}: sandbox removed")

    @staticmethod
    def _stop_processes(netns: str) -> None:
        """A container's processes end with its sandbox."""
        for pid in in_namespaces(namespace_inodes((netns,))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _forget(self, pod: LabPod) -> None:
        """Nothing of a deleted pod runs any more: let the API drop it."""
        meta = pod.metadata
        try:
            self._client.delete(LabPod, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)
        except NotFound:
            return

    def _say(self, pod: LabPod, status: dict[str, Any]) -> None:
        """Report a status, unless it was the last one reported."""
        text = json.dumps(status, sort_keys=True)
        meta = pod.metadata
        if self._said.get(meta.uid) == text:
            return
        try:
            self._client.patch(
                LabPod, meta.name, meta.namespace, {"status": status}, subresource="status"
            )
        except NotFound:
            return
        self._said[meta.uid] = text

    def _store(self, sandbox: Sandbox) -> None:
        self._file(sandbox.uid).write_text(json.dumps(asdict(sandbox)))
        self._sandboxes[sandbox.uid] = sandbox

    def _file(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"


def _load(path: Path) -> Sandbox:
    data = json.loads(path.read_text())
    return Sandbox(**{**data, "addresses": tuple(data["addresses"])})
