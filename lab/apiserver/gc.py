"""The garbage collector: a thread that keeps up with the store and does what `ownership` plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from lab.apiserver.api import MERGE, Api
from lab.apiserver.deletion import FOREGROUND
from lab.apiserver.errors import ApiError, Json
from lab.apiserver.kind import Kind
from lab.apiserver.ownership import (
    Action,
    Delete,
    DropOwners,
    Graph,
    Node,
    Owner,
    OwnerState,
    RemoveFinalizer,
    plan,
)
from lab.apiserver.store import Event, Store

RETRY_S = 0.5
PATIENCE_S = 30.0


class Collector:
    """Deletes what has lost its owners. One thread between `start` and `stop`.

    Who sees its owner go is looked at at once. An owner that was never there to be seen (an object
    restored before its owner, a reference that is wrong or forged) gets `patience` seconds to
    turn up. Kubernetes promises no time for either.
    """

    def __init__(
        self, api: Api, on_crash: Callable[[], None], *, patience: float = PATIENCE_S
    ) -> None:
        self._api = api
        self._on_crash = on_crash
        self._patience = patience
        self._missed: dict[str, dict[str, float]] = {}  # dependent → owner → when to give it up
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._graph = Graph()
        self._due: dict[str, float] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take in everything there is, then follow."""
        store: Store = self._api.store
        for event in store.subscribe(self._events.put):
            self._take_in(event)
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; what is not done yet is done by the next one to start."""
        self._api.store.unsubscribe(self._events.put)
        self._events.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException:
            self._on_crash()
            raise

    def _step(self) -> bool:
        """Wait for news or for the time of a retry, then look at what is due."""
        timeout = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            pass
        else:
            while event is not None:
                self._take_in(event)
                try:
                    event = self._events.get_nowait()
                except Empty:
                    break
            else:
                return False
        now = time.monotonic()
        for uid in [uid for uid, due in self._due.items() if due <= now]:
            del self._due[uid]
            node = self._graph.node(uid)
            if node is not None and node.concerned:
                self._look_at(node)
        return True

    def _take_in(self, event: Event) -> None:
        if event.type == "DELETED":
            gone = str(event.body["metadata"]["uid"])
            self._missed.pop(gone, None)
            node = self._graph.node(gone)
            for bereaved in self._graph.dependents(node) if node else ():
                self._missed.setdefault(bereaved.uid, {})[gone] = 0.0
        self._due |= dict.fromkeys(self._graph.apply(event), 0.0)

    def _given_up(self, node: Node, owner: Owner) -> bool:
        """Whether an owner that is not there will not come; if not, it is asked again later."""
        now = time.monotonic()
        until = self._missed.setdefault(node.uid, {}).setdefault(owner.uid, now + self._patience)
        if until > now:
            self._due[node.uid] = until
        return until <= now

    def _look_at(self, node: Node) -> None:
        try:
            for action in plan(node, self._graph, self._resolve):
                self._do(action)
        except ApiError as error:
            if error.code != 404:  # another writer came between, or admission says no: later
                self._due[node.uid] = time.monotonic() + RETRY_S

    def _kind(self, node: Node) -> Kind | None:
        served = self._api.catalogue.served()
        return next((kind for kind in served if kind.resource == node.resource), None)

    def _resolve(self, node: Node, owner: Owner) -> OwnerState:
        for kind in self._api.catalogue.served():
            if (kind.api_version, kind.kind) == (owner.api_version, owner.kind):
                break
        else:
            return "unknown"
        if kind.namespaced and not node.key[0]:
            return "unknown"
        key = (node.key[0] if kind.namespaced else "", owner.name)
        found = self._api.store.get(kind.resource, key)
        if found is None or found["metadata"]["uid"] != owner.uid:
            return "absent" if self._given_up(node, owner) else "unknown"
        meta = found["metadata"]
        waits = meta.get("deletionTimestamp") and FOREGROUND in (meta.get("finalizers") or ())
        return "waiting" if waits else "solid"

    def _do(self, action: Action) -> None:
        """Carry an action out on the object as it is now. Raises `ApiError`."""
        node, kind = action.node, self._kind(action.node)
        if kind is None:
            return
        if isinstance(action, Delete):
            options = {"preconditions": {"uid": node.uid}, "propagationPolicy": action.policy}
            self._api.delete(kind, *node.key, options)
            return
        found = self._api.get(kind, *node.key)
        change = _changed(action, found)
        if change:
            guard = {"uid": node.uid, "resourceVersion": found["metadata"]["resourceVersion"]}
            patch = {"metadata": {**change, **guard}}
            self._api.patch(kind, *node.key, patch, content_type=MERGE)


def _changed(action: Action, found: Json) -> Json:
    """The metadata an action changes; empty when there is nothing left to do."""
    meta = found["metadata"]
    references = meta.get("ownerReferences") or []
    if isinstance(action, RemoveFinalizer):
        before = meta.get("finalizers") or []
        after = [one for one in before if one != action.finalizer]
        return {} if after == before else {"finalizers": after}
    if isinstance(action, DropOwners):
        kept = [one for one in references if one.get("uid") not in action.uids]
    else:
        kept = [{**one, "blockOwnerDeletion": False} for one in references]
    return {} if kept == references else {"ownerReferences": kept}
