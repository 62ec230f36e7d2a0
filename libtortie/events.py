"""Kubernetes Events about pods, VMs and nodes, so that `kubectl describe` tells what happened.

Core `v1` Events, which `kubectl describe` and `kubectl events` list. What is sent of what is told
follows client-go, whose numbers these are: of one object a burst of 25, then one each 5 minutes;
the same again counts up the Event that is there; many that differ in their message alone become
one "(combined from similar events)".

A courtesy. Never: wait for the API on a caller's thread, fail because it refuses, keep more than a
bounded number of anything. What is left out is counted.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from libtortie.errors import AlreadyExists, NotFound, TortieError, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.kube.objects import Api, KubeObject
from libtortie.model.times import rfc3339

BURST = 25
REFILL_SECONDS = 300.0
"""Until one more Event about the same object may be sent."""
SIMILAR = 10
"""As many of one reason, whatever they say, are told one by one."""
SIMILAR_SECONDS = 600.0
MOST_KNOWN = 4096
"""Objects, and Events that may be told again, that are remembered."""
MOST_WAITING = 512
MESSAGE_MAX = 1024
"""Characters; the API refuses longer messages."""
ATTEMPTS = 3
RETRY_SECONDS = 2.0
COMBINED = "(combined from similar events): "

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", bound=KubeObject)


class KubeEvent(KubeObject):
    """A core Event."""

    api: ClassVar[Api] = Api("", "v1", "events", "Event", True)


class Severity(StrEnum):
    """An Event's `type`."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an Event is about; `namespace` is empty for a node."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


def pod(namespace: str, name: str, uid: str = "") -> Subject:
    """A pod as a subject."""
    return Subject("Pod", name, namespace, uid)


def instance(namespace: str, name: str, uid: str = "") -> Subject:
    """A VirtualMachineInstance as a subject."""
    return Subject("VirtualMachineInstance", name, namespace, uid, "kubevirt.io/v1")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell of an object. `reason` is UpperCamelCase, for programs."""

    about: Subject
    reason: str
    message: str
    severity: Severity = Severity.NORMAL


@dataclass(frozen=True, slots=True)
class Series:
    """An Event as it stands: what a repeat of it counts up."""

    name: str
    first: datetime
    count: int = 1


class Skip(Enum):
    """Why an Event is not sent."""

    SPAM = auto()


@dataclass(frozen=True, slots=True)
class Told:
    """An Event to send: made anew where `series.count` is 1, else counted up."""

    notice: Notice
    series: Series
    last: datetime


class Recent(Generic[K, V]):
    """A bounded mapping that forgets what was not looked at for longest."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._held: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """What is known, which is then the latest that was looked at."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember."""
        self._held[key] = value
        self._held.move_to_end(key)
        if len(self._held) > self._most:
            self._held.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget."""
        self._held.pop(key, None)

    def __len__(self) -> int:
        return len(self._held)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Events that may be sent about an object; `at` is monotonic, in seconds."""

    tokens: float
    at: float

    def taken(self, now: float) -> Bucket | None:
        """The bucket after one more; None when there is none to take."""
        tokens = min(float(BURST), self.tokens + max(0.0, now - self.at) / REFILL_SECONDS)
        return Bucket(tokens - 1, now) if tokens >= 1 else None


@dataclass(frozen=True, slots=True)
class Alike:
    """Messages of one reason about one object, since `at`."""

    messages: frozenset[str]
    at: float


@dataclass(slots=True)
class Correlator:
    """Decides what is sent of what is told. No clock, no API; one thread."""

    new_suffix: Callable[[], str] = lambda: uuid.uuid4().hex[:16]
    _buckets: Recent[Subject, Bucket] = field(default_factory=Recent)
    _alike: Recent[tuple[Subject, str, Severity], Alike] = field(default_factory=Recent)
    _series: Recent[Notice, Series] = field(default_factory=Recent)

    def decide(self, notice: Notice, at: datetime, now: float) -> Told | Skip:
        """What to send of a notice of `at`; `now` is monotonic, in seconds."""
        notice = self._combined(notice, now)
        bucket = (self._buckets.get(notice.about) or Bucket(BURST, now)).taken(now)
        if bucket is None:
            return Skip.SPAM
        self._buckets.put(notice.about, bucket)
        key = _key(notice)
        known = self._series.get(key)
        if known is None:
            series = Series(self._new_name(notice), at)
        else:
            series = Series(known.name, known.first, known.count + 1)
        self._series.put(key, series)
        return Told(notice, series, at)

    def anew(self, told: Told) -> Told:
        """The same as a new Event: the one that was to be counted up has expired."""
        series = Series(self._new_name(told.notice), told.last)
        self._series.put(_key(told.notice), series)
        return Told(told.notice, series, told.last)

    def failed(self, told: Told) -> None:
        """It was not stored: nothing is there to be counted up."""
        if told.series.count == 1:
            self._series.drop(_key(told.notice))

    def _new_name(self, notice: Notice) -> str:
        """A name that the API takes: a part of it ends as it begins, by a letter or digit."""
        return f"{notice.about.name[:230].rstrip('-.')}.{self.new_suffix()}"

    def _combined(self, notice: Notice, now: float) -> Notice:
        kind = (notice.about, notice.reason, notice.severity)
        known = self._alike.get(kind)
        if known is None or now - known.at > SIMILAR_SECONDS:
            known = Alike(frozenset(), now)
        many = notice.message not in known.messages and len(known.messages) >= SIMILAR
        messages = known.messages if many else known.messages | {notice.message}
        self._alike.put(kind, Alike(messages, known.at))
        if not many:
            return notice
        return Notice(notice.about, notice.reason, COMBINED + notice.message, notice.severity)


def _key(notice: Notice) -> Notice:
    """What is counted as the same: combined ones are, whatever they say."""
    if notice.message.startswith(COMBINED):
        return Notice(notice.about, notice.reason, COMBINED, notice.severity)
    return notice


def event_body(told: Told, *, component: str, instance: str, host: str = "") -> dict[str, Any]:
    """The Event to create. A cluster-wide object's are in namespace `default`, as Kubernetes'."""
    about = told.notice.about
    involved = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name}
    if about.namespace:
        involved["namespace"] = about.namespace
    if about.uid:
        involved["uid"] = about.uid
    namespace = about.namespace or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": told.series.name, "namespace": namespace},
        "involvedObject": involved,
        "reason": told.notice.reason,
        "message": told.notice.message[:MESSAGE_MAX],
        "type": told.notice.severity.value,
        "source": {"component": component, **({"host": host} if host else {})},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": rfc3339(told.series.first),
        "lastTimestamp": rfc3339(told.last),
        "count": told.series.count,
    }


def event_patch(told: Told) -> dict[str, Any]:
    """What a repeat changes of the Event that is there."""
    return {
        "count": told.series.count,
        "message": told.notice.message[:MESSAGE_MAX],
        "lastTimestamp": rfc3339(told.last),
    }


class EventApi(Protocol):
    """The two verbs this needs of a Kubernetes client."""

    def create(self, model: type[T], body: Mapping[str, Any]) -> T:
        """Create an object. Raises `AlreadyExists` and what every call may raise."""
        ...

    def patch(self, model: type[T], name: str, namespace: str, body: Mapping[str, Any]) -> T:
        """Merge into an object. Raises `NotFound` and what every call may raise."""
        ...


@dataclass(slots=True)
class EventSender:
    """`tell` from any thread, at once; `run` is the thread that speaks with the API.

    `spam` counts what the limit per object left out, `dropped` what the API was too slow for,
    `failed` what it refused.
    """

    kube: EventApi
    component: str
    instance: str
    log: Log
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    host: str = ""
    correlator: Correlator = field(default_factory=Correlator)
    sent: int = 0
    spam: int = 0
    dropped: int = 0
    failed: int = 0
    _waiting: deque[tuple[Notice, datetime]] = field(default_factory=deque)
    _stopped: bool = False
    _complaint: str = ""
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, notice: Notice) -> None:
        """Have an Event sent soon; the oldest that waits goes when too many do."""
        with self._condition:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append((notice, self.now()))
            self._condition.notify()

    def run(self) -> None:
        """The thread's body: what waits, until `stop`."""
        while True:
            with self._condition:
                while not self._waiting and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
            self.send_next()

    def stop(self) -> None:
        """Make `run` return after the Event it is at; what waits is in the log all the same."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def send_next(self) -> None:
        """Send the oldest that waits, if any; a silent API is tried again."""
        with self._condition:
            if not self._waiting:
                return
            notice, at = self._waiting.popleft()
        told = self.correlator.decide(notice, at, self.monotonic())
        if isinstance(told, Skip):
            self.spam += 1
            return
        for attempt in range(ATTEMPTS):
            try:
                if not self._counted_up(told):
                    told = told if told.series.count == 1 else self.correlator.anew(told)
                    self._create(told)
            except Unavailable as error:
                if attempt < ATTEMPTS - 1 and self._pause():
                    continue
                self._refused(told, error)
            except TortieError as error:
                self._refused(told, error)
            else:
                self.sent += 1
                self._complaint = ""
            return

    def _counted_up(self, told: Told) -> bool:
        """Whether the Event that a repeat is one of is there, and says so now."""
        if told.series.count == 1:
            return False
        namespace = told.notice.about.namespace or "default"
        try:
            self.kube.patch(KubeEvent, told.series.name, namespace, event_patch(told))
        except NotFound:
            return False
        return True

    def _create(self, told: Told) -> None:
        """Every attempt is of one name, so that one whose answer was lost is not told twice."""
        body = event_body(told, component=self.component, instance=self.instance, host=self.host)
        with suppress(AlreadyExists):
            self.kube.create(KubeEvent, body)

    def _pause(self) -> bool:
        """Wait before another attempt; False when it is time to stop."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped, RETRY_SECONDS)
            return not self._stopped

    def _refused(self, told: Told, error: TortieError) -> None:
        """Told once for each kind of trouble, until an Event is taken again."""
        self.failed += 1
        self.correlator.failed(told)
        kind = type(error).__name__
        if kind != self._complaint:
            self._complaint = kind
            self.log.warning(
                "event_failed", about=told.notice.about.name, event_reason=told.notice.reason,
                reason=first_line(error), failed=self.failed, dropped=self.dropped,
            )  # fmt: skip
