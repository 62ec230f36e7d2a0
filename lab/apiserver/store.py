"""Objects with one global resourceVersion, compare-and-swap, and a history to watch.

Stored objects are values: nobody changes one in place. Every write makes an `Event` under the
lock, tells the listener (the journal) before anybody sees it, and wakes that resource's watchers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from lab.apiserver.errors import expired, stale, too_large_version

Json = dict[str, Any]
ObjectKey = tuple[str, str]  # namespace ("" for cluster scope), name
EventType = Literal["ADDED", "MODIFIED", "DELETED"]
FIRST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One committed write. `body` is the object after it (of a deletion: as it was last)."""

    version: int
    type: EventType
    resource: str
    key: ObjectKey
    body: Json
    previous: Json | None


class Store:
    """All objects of all resources. Thread-safe."""

    def __init__(self, *, history: int = 4096) -> None:
        self._history = history
        self._lock = threading.RLock()
        self._changed: dict[str, threading.Condition] = {}
        """What the watchers of a resource wait for: a hundred agents have a thousand watches."""
        self._version = FIRST_VERSION
        self._tables: dict[str, dict[ObjectKey, Json]] = {}
        self._events: dict[str, deque[Event]] = {}
        self._forgotten: dict[str, int] = {}
        self._floor = 0
        self.listener: Callable[[Event], None] | None = None
        self._followers: list[Callable[[Event], None]] = []

    def subscribe(self, follower: Callable[[Event], None]) -> tuple[Event, ...]:
        """Call `follower` with every write from now on, under the lock (it must not wait);
        returns what is there as ADDED events."""
        with self._lock:
            self._followers.append(follower)
            return tuple(
                Event(self._version, "ADDED", resource, key, body, None)
                for resource, table in self._tables.items()
                for key, body in table.items()
            )

    def unsubscribe(self, follower: Callable[[Event], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._followers.remove(follower)

    @property
    def version(self) -> int:
        """The version of the latest write."""
        with self._lock:
            return self._version

    def get(self, resource: str, key: ObjectKey) -> Json | None:
        """One object, or None."""
        with self._lock:
            return self._tables.get(resource, {}).get(key)

    def list(self, resource: str, namespace: str = "") -> tuple[tuple[Json, ...], int]:
        """Objects by namespace and name, and the version they are at."""
        with self._lock:
            table = self._tables.get(resource, {})
            keys = sorted(key for key in table if not namespace or key[0] == namespace)
            return tuple(table[key] for key in keys), self._version

    def put(self, resource: str, key: ObjectKey, body: Json, *, expected: str | None) -> Json:
        """Store an object that is at version `expected` (None: absent); returns it with its new
        resourceVersion. Raises a 409 `ApiError` when it is not."""
        with self._lock:
            previous = self._check(resource, key, expected)
            return self._commit("MODIFIED" if previous else "ADDED", resource, key, body, previous)

    def remove(
        self, resource: str, key: ObjectKey, *, expected: str, last: Json | None = None
    ) -> Json:
        """Remove an object that is at version `expected`; `last` is its final state if that
        differs from the stored one. Raises a 409 `ApiError`."""
        with self._lock:
            previous = self._check(resource, key, expected)
            return self._commit("DELETED", resource, key, last or previous or {}, previous)

    def _check(self, resource: str, key: ObjectKey, expected: str | None) -> Json | None:
        found = self._tables.get(resource, {}).get(key)
        actual = None if found is None else found["metadata"]["resourceVersion"]
        if actual != expected:
            raise stale(resource, key[1])
        return found

    def _commit(
        self, kind: EventType, resource: str, key: ObjectKey, body: Json, previous: Json | None
    ) -> Json:
        version = self._version + 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}
        event = Event(version, kind, resource, key, body, previous)
        if self.listener is not None:
            self.listener(event)
        self._apply(event)
        events = self._events.setdefault(resource, deque())
        events.append(event)
        while len(events) > self._history:
            self._forgotten[resource] = events.popleft().version
        if resource in self._changed:
            self._changed[resource].notify_all()
        for follower in self._followers:
            follower(event)
        return body

    def _apply(self, event: Event) -> None:
        table = self._tables.setdefault(event.resource, {})
        if event.type == "DELETED":
            table.pop(event.key, None)
        else:
            table[event.key] = event.body
        self._version = event.version

    def since(
        self,
        resource: str,
        version: int,
        wait: float,
        ended: Callable[[], bool] = lambda: False,
    ) -> tuple[tuple[Event, ...], int]:
        """Events of a resource after `version`, waiting up to `wait` seconds for one (less when
        `ended` says so after a `wake`); and the version everything is known up to.

        Raises 410 or, for a version of the future, 504.
        """
        until = time.monotonic() + wait
        with self._lock:
            changed = self._changed.setdefault(resource, threading.Condition(self._lock))
            if version > self._version:
                raise too_large_version(version, self._version)
            while True:
                oldest = max(self._forgotten.get(resource, 0), self._floor)
                if version < oldest:
                    raise expired(f"too old resource version: {version} ({oldest})")
                found = tuple(self._after(resource, version))
                left = until - time.monotonic()
                if found or left <= 0 or ended():
                    return found, self._version
                changed.wait(left)

    def _after(self, resource: str, version: int) -> Iterable[Event]:
        newest_first = []
        for event in reversed(self._events.get(resource, ())):
            if event.version <= version:
                break
            newest_first.append(event)
        return reversed(newest_first)

    def wake(self) -> None:
        """Let every waiting watcher look around (the server is stopping, or cuts streams)."""
        with self._lock:
            for changed in self._changed.values():
                changed.notify_all()

    def compact(self) -> int:
        """Forget all history, as etcd's compaction does; returns the version kept."""
        with self._lock:
            self._events.clear()
            self._floor = self._version
            self.wake()
            return self._version

    def snapshot(self) -> Json:
        """Everything, for the disk."""
        with self._lock:
            tables = {
                resource: [body for _, body in sorted(table.items())]
                for resource, table in self._tables.items()
                if table
            }
            return {"version": self._version, "objects": tables}

    def restore(self, snapshot: Json, events: Iterable[Event] = ()) -> None:
        """Replace everything by a snapshot and the writes after it. History begins here."""
        with self._lock:
            self._tables = {
                resource: {
                    (body["metadata"].get("namespace", ""), body["metadata"]["name"]): body
                    for body in bodies
                }
                for resource, bodies in snapshot["objects"].items()
            }
            self._version = snapshot["version"]
            for event in events:
                if event.version > self._version:
                    self._apply(event)
            self.compact()
