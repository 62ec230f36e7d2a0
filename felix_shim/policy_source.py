"""Follows what policy is made of in the Kubernetes API, and never takes silence for absence.

While the API is away what was heard last counts, and nothing waits for it. A new agent that finds
it away, or slow, begins with what the last one heard (`policy_cache.py`). A server that does not
know a kind has none of its objects; those that were there before, also in an earlier agent's time,
were told of as deleted, or are kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.events import InSync, Seen, Vanished
from felix_shim.kube_entries import PolicyObject, followed_kinds
from felix_shim.policy_cache import PolicyCache
from felix_shim.sources import Listener, Post
from felix_shim.state import boot_id
from libtortie.complaint import Complaint
from libtortie.errors import TortieError
from libtortie.jsonlog import Log
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.follow import follow
from libtortie.kube.port import Applied, Gone, KubeClient, NotServed

RECALL_SECONDS = 0.5
"""For how long an API is waited for before what was heard last will do."""


@dataclass(slots=True)
class PolicySource:
    """See the module; one kind."""

    client: KubeClient
    kind: type[PolicyObject]
    post: Post
    log: Log
    cache: PolicyCache
    patience: float = RECALL_SECONDS
    _known: dict[tuple[str, str], PolicyObject] = field(default_factory=dict)
    _listed: bool = False
    _heard: bool = False
    _remembers: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "api_watch_lost")

    @property
    def name(self) -> str:
        """What is followed, for people."""
        return self.kind.api.plural

    def run(self) -> None:
        """The thread's body."""
        late = threading.Timer(self.patience, self._recall)
        late.daemon = True
        late.start()
        try:
            self._follow()
        finally:
            late.cancel()
            late.join()

    def _follow(self) -> None:
        client = Listener(self.client)
        stream = follow(client, self.kind, stop=self._stop, trouble=self._in_trouble, resumes=0)
        for event in stream:
            self._complaint.about("")
            with self._lock:
                self._heard = True  # nothing is recalled any more
            if isinstance(event, Applied):
                self._known[_name(event.object)] = event.object
                self.post(Seen(event.object))
            elif isinstance(event, Gone):
                self._known.pop(_name(event.object), None)
                self.post(Vanished(event.object))
            else:
                self._synced(client.names)
            if self._listed:
                self.cache.put(self.kind, self._known.values())

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()

    def _synced(self, names: frozenset[tuple[str, str]]) -> None:
        self._known = {name: one for name, one in self._known.items() if name in names}
        self._listed = True
        self.post(InSync(self.kind, names))

    def _in_trouble(self, kind: str, error: TortieError, delay: float) -> None:
        """An attempt failed."""
        self._recall()
        if not isinstance(error, NotServed) or (self._remembers and not self._listed):
            self._complaint.watch_lost(kind, error, delay)
        elif not self._listed:
            self.log.info("kind_not_served", kind=kind)
            self._synced(frozenset())
            self.cache.put(self.kind, ())

    def _recall(self) -> None:
        """Begin with what was heard last, if nothing has been heard yet; once."""
        with self._lock:
            if self._heard:
                return
            self._heard = True
            found = self.cache.load(self.kind)
            if found is None:
                return
            self._remembers = bool(found)
            self.log.info("policy_remembered", kind=self.kind.api.plural, objects=len(found))
            for one in found:
                self.post(Seen(one))
            self.post(InSync(self.kind, frozenset(map(_name, found))))


def policy_kinds(config: NodeConfig) -> tuple[type[PolicyObject], ...]:
    """What policy is made of in the API, beside what is stored."""
    return followed_kinds(config.datastore_type)


def start_policy_sources(
    config: NodeConfig, kube: HttpKubeClient, crew: Crew, post: Post, log: Log
) -> None:
    """Follow all of it from now on, and remember it."""
    cache = PolicyCache(config.policy_cache_dir, kube.server, boot_id(), log)
    crew.start("policy-cache", cache.run, cache.stop)
    for kind in policy_kinds(config):
        source = PolicySource(kube, kind, post, log, cache)
        crew.start(f"follow-{source.name}", source.run, source.stop)


def _name(found: PolicyObject) -> tuple[str, str]:
    return found.metadata.namespace, found.metadata.name
