"""Warnings about a pod as Kubernetes Events, so that `kubectl describe pod` shows them.

A courtesy: nothing waits for it, what fails is logged, and when the API is slower than the
warnings come the oldest are dropped and counted.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

from felix_shim.jsonlog import Log
from felix_shim.model import Endpoint
from libtortie.errors import TortieError, first_line
from libtortie.kube.objects import Api, KubeObject
from libtortie.model.times import rfc3339

COMPONENT = "tortie-node"
REASON = "LiveMigrationWarning"
CLOSED_REASON = "PolicyNotObeyed"
MOST_WAITING = 64
MESSAGE_MAX = 1024
"""Characters; the API refuses longer messages."""

T = TypeVar("T", bound=KubeObject)


class KubeEvent(KubeObject):
    """A core Event."""

    api: ClassVar[Api] = Api("", "v1", "events", "Event", True)


class Creator(Protocol):
    """The one verb this needs of a Kubernetes client."""

    def create(self, model: type[T], body: Mapping[str, Any]) -> T:
        """Create an object. Raises `AlreadyExists` and what every call may raise."""
        ...


def event_body(
    endpoint: Endpoint,
    text: str,
    *,
    node: str,
    now: datetime,
    suffix: str,
    reason: str = REASON,
) -> dict[str, Any]:
    """The Event about an endpoint's pod. Pure."""
    pod, namespace = endpoint.id.pod, endpoint.id.namespace
    involved = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": namespace}
    if endpoint.pod_uid:
        involved["uid"] = endpoint.pod_uid
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod[:230]}.{suffix}", "namespace": namespace},
        "involvedObject": involved,
        "reason": reason,
        "message": text[:MESSAGE_MAX],
        "type": "Warning",
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }


@dataclass(slots=True)
class EventRecorder:
    """`warn` from any thread, at once; `run` is the thread that creates the Events."""

    kube: Creator
    node: str
    log: Log
    now: Callable[[], datetime]
    new_suffix: Callable[[], str] = lambda: uuid.uuid4().hex[:16]
    dropped: int = 0
    _waiting: deque[tuple[Endpoint, str, str, datetime]] = field(default_factory=deque)
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def warn(self, endpoint: Endpoint, text: str) -> None:
        """Create an Event about a migration soon."""
        self._add(endpoint, text, REASON)

    def closed(self, endpoint: Endpoint, text: str) -> None:
        """Create an Event about a policy that closes an endpoint soon."""
        self._add(endpoint, text, CLOSED_REASON)

    def _add(self, endpoint: Endpoint, text: str, reason: str) -> None:
        with self._condition:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append((endpoint, text, reason, self.now()))
            self._condition.notify()

    def run(self) -> None:
        """The thread's body: what waits, until `stop`."""
        while True:
            with self._condition:
                while not self._waiting and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
            self.create_next()

    def create_next(self) -> None:
        """Create the oldest that waits, if any."""
        with self._condition:
            if not self._waiting:
                return
            endpoint, text, reason, when = self._waiting.popleft()
        suffix = self.new_suffix()
        body = event_body(endpoint, text, node=self.node, now=when, suffix=suffix, reason=reason)
        try:
            self.kube.create(KubeEvent, body)
        except TortieError as error:
            self.log.warning(
                "event_failed", endpoint=endpoint.id, reason=first_line(error), dropped=self.dropped
            )

    def stop(self) -> None:
        """Make `run` return after the Event it is at; what waits is dropped, it is in the log."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
