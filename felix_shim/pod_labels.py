"""Keeps the labels of this node's stored endpoints those of their pods, which may change any time.

In Kubernetes' own datastore an endpoint is its pod. In the others ADD writes the labels once, and
a pod that is labelled anew (to be put under another policy, say) would stay what it was for all
nodes. Each node sees to its own; a pod that is not the endpoint's by its UID says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from felix_shim.cluster import ENDPOINTS
from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.events import Event, Listed, Stored, Unstored
from felix_shim.sources import Listener
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore, Record
from libtortie.errors import Conflict, NotFound, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.kube.follow import follow
from libtortie.kube.objects import Pod
from libtortie.kube.port import Applied, Gone, KubeClient
from libtortie.model.keys import Key
from libtortie.model.names import ANNOTATION_POD_UID
from libtortie.model.policy import LABEL_NAMESPACE, LABEL_ORCHESTRATOR, LABEL_SERVICE_ACCOUNT
from libtortie.model.resources import WorkloadEndpoint

TROUBLE_SECONDS = 5.0
_OURS = (LABEL_NAMESPACE, LABEL_ORCHESTRATOR, LABEL_SERVICE_ACCOUNT)
"""Labels that ADD gives, whatever the pod says."""

Name = tuple[str, str]


def relabelled(endpoint: WorkloadEndpoint, pod: Pod | None) -> WorkloadEndpoint | None:
    """The endpoint with its pod's labels; None: it has them, or the pod is another. Pure."""
    meta = endpoint.metadata
    uid = meta.annotations.get(ANNOTATION_POD_UID, "")
    if pod is None or not uid or pod.metadata.uid != uid:
        return None
    ours = {name: meta.labels[name] for name in _OURS if name in meta.labels}
    theirs = {name: text for name, text in pod.metadata.labels.items() if name not in _OURS}
    labels = theirs | ours
    if labels == dict(meta.labels):
        return None
    fresh = meta.model_copy(update={"labels": labels})
    return endpoint.model_copy(update={"metadata": fresh})


@dataclass(slots=True)
class PodLabels:
    """`notice` takes every event of the datastore; `follow` and `run` are threads' bodies."""

    store: Datastore
    kube: KubeClient
    node: str
    kube_node: str
    log: Log
    trouble_seconds: float = TROUBLE_SECONDS
    _endpoints: dict[Key, Record] = field(default_factory=dict)
    _pods: dict[Name, Pod] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _due: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _watch: Complaint = field(init=False)
    _write: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._watch = Complaint(self.log, "api_watch_lost")
        self._write = Complaint(self.log, "pod_labels_wait")

    def notice(self, event: Event) -> None:
        """Hear of stored endpoints."""
        if not isinstance(event, Listed | Stored | Unstored) or event.scope != ENDPOINTS:
            return
        with self._lock:
            match event:
                case Listed(_, records):
                    self._endpoints = {one.key: one for one in records if self._is_own(one)}
                case Stored(_, record) if self._is_own(record):
                    self._endpoints[record.key] = record
                case Stored(_, record):
                    self._endpoints.pop(record.key, None)
                case Unstored(_, key):
                    self._endpoints.pop(key, None)
        self._due.set()

    def follow(self) -> None:
        """Hear of this node's pods, until `stop`."""
        client = Listener(self.kube)
        stream = follow(
            client,
            Pod,
            stop=self._stop,
            field_selector=f"spec.nodeName={self.kube_node}",
            trouble=self._watch.watch_lost,
        )
        for event in stream:
            self._watch.about("")
            with self._lock:
                if isinstance(event, Applied):
                    self._pods[_name(event.object)] = event.object
                elif isinstance(event, Gone):
                    self._pods.pop(_name(event.object), None)
                else:
                    self._pods = {key: self._pods[key] for key in self._pods.keys() & client.names}
            self._due.set()

    def run(self) -> None:
        """Write what differs, until `stop`."""
        while not self._stop.is_set():
            self._due.wait()
            self._due.clear()
            if not self.attempt() and not self._stop.wait(self.trouble_seconds):
                self._due.set()

    def attempt(self) -> bool:
        """One pass; False when something has to be tried again."""
        whole = True
        for key, record in self._snapshot().items():
            assert isinstance(record.value, WorkloadEndpoint)
            spec, meta = record.value.spec, record.value.metadata
            with self._lock:
                pod = self._pods.get((meta.namespace, spec.pod))
            fresh = relabelled(record.value, pod)
            whole &= fresh is None or self._update(key, fresh, record.revision)
        return whole

    def stop(self) -> None:
        """Make both threads return soon."""
        self._stop.set()
        self._due.set()

    def _update(self, key: Key, fresh: WorkloadEndpoint, revision: str) -> bool:
        try:
            self.store.update(key, fresh, revision)
        except (Conflict, NotFound):
            return True  # of what it is now we are about to hear
        except TortieError as error:
            self._write.about(first_line(error), endpoint=key)
            return False
        self._write.about("")
        self.log.info("pod_labels_stored", endpoint=key)
        return True

    def _snapshot(self) -> Mapping[Key, Record]:
        with self._lock:
            return dict(self._endpoints)

    def _is_own(self, record: Record) -> bool:
        value = record.value
        return isinstance(value, WorkloadEndpoint) and value.spec.node == self.node


def start_pod_labels(
    config: NodeConfig, store: Datastore, kube: KubeClient | None, crew: Crew, log: Log
) -> Callable[[Event], None]:
    """Keep labels from now on, where they are kept apart from pods; who takes the datastore's
    events for it."""
    if kube is None or config.datastore_type == "kubernetes":
        return _no_notice
    labels = PodLabels(store, kube, config.node, config.kube_node, log)
    crew.start("pod-labels", labels.run, labels.stop)
    crew.start("follow-Pod", labels.follow, labels.stop)
    return labels.notice


def _no_notice(event: Event) -> None:
    """Nobody is interested."""


def _name(pod: Pod) -> Name:
    return pod.metadata.namespace, pod.metadata.name
