"""A kubelet's part: one sandbox (a network namespace with a CNI attachment) per pod of a node.

A pod that should run and has no sandbox gets one; a pod that is finished, being deleted or gone
loses it, CNI DEL first. A refused ADD is undone by DEL, its words are put into the pod's status,
and it is tried again with a fresh container id, as a kubelet does for ever. A sandbox whose
namespace has vanished is replaced by another with another container id; the DEL of the dead one
comes after that, which is the order that hurts.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lab import names
from lab.cni_runtime import Runtime, result_addresses
from lab.objects import LabPod
from lab.processes import in_namespaces, namespace_inodes
from lab.sandbox import (
    Sandbox,
    Step,
    decide,
    ending_s,
    failed_status,
    refused_status,
    running_status,
)
from lab.tools import LabError, ip_batch, run
from lab.workqueue import WorkQueue
from libtortie.errors import NotFound, TortieError, first_line
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.follow import follow
from libtortie.kube.port import Applied, Gone
from tortiectl.kubevirt.objects import Node

Log = Callable[[str], None]
RELIST_S = 1.0
"""How often a kubelet looks whether its sandboxes are still there."""


class Kubelet:
    """One node's kubelet. `directory` keeps its sandboxes over a restart."""

    def __init__(
        self,
        node: names.LabNode,
        client: HttpKubeClient,
        runtime: Runtime,
        directory: Path,
        log: Log,
        *,
        new_id: Callable[[], str] = lambda: secrets.token_hex(32),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._client = client
        self._runtime = runtime
        self._directory = directory
        self._log = log
        self._new_id = new_id
        self._monotonic = monotonic
        self._pods: dict[str, LabPod] = {}
        self._said: dict[str, str] = {}
        self._ending: dict[str, float] = {}
        self._queue = WorkQueue(self._sync, log)
        directory.mkdir(parents=True, exist_ok=True)
        self._sandboxes = {one.uid: one for one in map(_load, directory.glob("*.json"))}
        self._dead = [_load(path) for path in directory.glob("*.dead")]

    def run(self, stop: threading.Event) -> None:
        """Follow the node's pods until `stop`."""
        self._queue.start()
        for uid in {*self._sandboxes, *(one.uid for one in self._dead)}:
            self._queue.add(uid, delay=2.0)
        watcher = threading.Thread(target=self._watch_sandboxes, args=(stop,))
        watcher.start()
        own = f"spec.nodeName={self._node.name}"
        for event in follow(self._client, LabPod, stop=stop, field_selector=own):
            if isinstance(event, Applied | Gone):
                self._take(event)
        watcher.join()
        self._queue.stop()

    def _watch_sandboxes(self, stop: threading.Event) -> None:
        """Say that the node is ready, then look for sandboxes that have died."""
        said = False
        while not stop.wait(RELIST_S if said else 0.2):
            said = said or self._report_node()
            for sandbox in list(self._sandboxes.values()):
                if sandbox.ready and not _present(sandbox):
                    self._queue.add(sandbox.uid)

    def _report_node(self) -> bool:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"status": {"conditions": [ready]}}
        try:
            self._client.patch(Node, self._node.name, "", status, subresource="status")
        except TortieError as error:
            self._log(f"node {self._node.name}: {first_line(error)}")
            return False
        return True

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
        step = decide(pod, sandbox, sandbox is None or _present(sandbox))
        match step:
            case Step.SET_UP if pod is not None:
                self._set_up(pod)
            case Step.REPORT if pod is not None and sandbox is not None:
                self._say(pod, running_status(pod, sandbox, str(self._node.address.ip)))
            case Step.REPLACE if pod is not None and sandbox is not None:
                self._log(f"pod {sandbox.namespace}/{sandbox.pod}: its sandbox has died")
                self._declare_dead(sandbox)
                self._set_up(pod)
            case Step.FAIL if pod is not None:
                self._say(pod, failed_status())
            case Step.TEAR_DOWN if sandbox is not None:
                if (rest := self._time_left(pod, sandbox)) > 0:
                    self._queue.add(uid, delay=rest)
                    return
                self._tear_down(sandbox)
                self._queue.add(uid)
            case Step.FORGET if pod is not None:
                self._bury(uid)
                self._forget(pod)
        if step is not Step.FORGET:
            self._bury(uid)

    def _time_left(self, pod: LabPod | None, sandbox: Sandbox) -> float:
        """Seconds until a deleted pod's containers have ended."""
        takes = ending_s(pod)
        if not takes or not sandbox.ready:
            return 0.0
        began = self._ending.setdefault(sandbox.uid, self._monotonic())
        return began + takes - self._monotonic()

    def _set_up(self, pod: LabPod) -> None:
        meta = pod.metadata
        netns = names.pod_netns(meta.name, meta.uid)
        sandbox = Sandbox(meta.namespace, meta.name, meta.uid, self._new_id(), netns)
        self._store(sandbox)
        try:
            run(["ip", "netns", "add", netns])
            ip_batch(netns, ("link set lo up",))
            result = self._runtime.add(sandbox.attachment(True))
        except LabError as error:
            self._say(pod, refused_status(error))
            self._tear_down(sandbox)
            raise
        sandbox = replace(sandbox, addresses=result_addresses(result))
        self._store(sandbox)
        where = ", ".join(sandbox.addresses)
        self._log(f"pod {meta.namespace}/{meta.name}: sandbox {sandbox.container_id[:12]}, {where}")
        self._say(pod, running_status(pod, sandbox, str(self._node.address.ip)))

    def _tear_down(self, sandbox: Sandbox) -> None:
        """CNI DEL, then the namespace. Raises `CniError`: the sandbox stays until DEL worked."""
        exists = _present(sandbox)
        self._runtime.delete(sandbox.attachment(exists))
        if exists:
            stop_processes(sandbox.netns)
            run(["ip", "netns", "del", sandbox.netns])
        self._sandboxes.pop(sandbox.uid, None)
        self._ending.pop(sandbox.uid, None)
        self._file(sandbox.uid).unlink(missing_ok=True)
        self._log(f"pod {sandbox.namespace}/{sandbox.pod}: sandbox removed")

    def _declare_dead(self, sandbox: Sandbox) -> None:
        """Keep a dead sandbox for its DEL, and make room for the next."""
        self._grave(sandbox).write_text(json.dumps(asdict(sandbox)))
        self._dead.append(sandbox)
        self._sandboxes.pop(sandbox.uid, None)
        self._file(sandbox.uid).unlink(missing_ok=True)

    def _bury(self, uid: str) -> None:
        """DEL for the pod's dead sandboxes. Raises `CniError`: to be tried again."""
        for sandbox in [one for one in self._dead if one.uid == uid]:
            self._runtime.delete(sandbox.attachment(False))
            self._dead.remove(sandbox)
            self._grave(sandbox).unlink(missing_ok=True)
            self._log(f"pod {sandbox.namespace}/{sandbox.pod}: dead sandbox removed")

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

    def _grave(self, sandbox: Sandbox) -> Path:
        return self._directory / f"{sandbox.uid}-{sandbox.container_id[:12]}.dead"


def stop_processes(netns: str) -> None:
    """A container's processes end with its sandbox."""
    for pid in in_namespaces(namespace_inodes((netns,))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _present(sandbox: Sandbox) -> bool:
    return names.netns_path(sandbox.netns).exists()


def _load(path: Path) -> Sandbox:
    data = json.loads(path.read_text())
    return Sandbox(**{**data, "addresses": tuple(data["addresses"])})
