"""Threads that follow the outside and post what they see: datastore, Kubernetes API, kernel, BIRD.

Each `run` lasts until `stop` and survives everything the outside does: a lost connection is a
pause, never a deletion. None of them decides anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from felix_shim.cluster import POLICY_SCOPES
from felix_shim.drivers.routetable import is_learned
from felix_shim.events import (
    Done,
    Event,
    Instance,
    InSync,
    Listed,
    Lost,
    Migration,
    NetworkChanged,
    RaisesSeen,
    Seen,
    Stored,
    Surveyed,
    Unstored,
    Vanished,
)
from felix_shim.outlets import BIRD
from felix_shim.routes import is_ours
from felix_shim.wanted import Wanted
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore, Listing, Put, Watch
from libtortie.errors import Compacted, NotFound, TortieError, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.kube.follow import follow
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied, Bookmark, Gone, KubeClient
from libtortie.linux.port import Kernel, Link, NetworkEvent
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Key, Resources, Scope
from libtortie.model.names import INTERFACE_PREFIX

T = TypeVar("T", bound=KubeObject)
Post = Callable[[Event], None]

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
RAISES_SECONDS = 0.5
LIVENESS_SECONDS = 2.0


@dataclass(slots=True)
class StoreSource:
    """List, then watch one scope of the datastore, and list again when the watch is lost.

    One that is lost again and again is told of once, and looked for more and more rarely, even if
    it can be listed each time.
    `of_api`: the datastore is a Kubernetes API, whose absence is nobody's business (see `Lost`).
    """

    store: Datastore
    scope: Scope
    post: Post
    log: Log
    of_api: bool = False
    monotonic: Callable[[], float] = time.monotonic
    _stop: threading.Event = field(default_factory=threading.Event)
    _watch: Watch | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "watch_lost")

    @property
    def name(self) -> str:
        """What is followed, for people."""
        return self.scope.kind.value if isinstance(self.scope, Resources) else "affinities"

    def run(self) -> None:
        """The thread's body."""
        pause, lost = FIRST_PAUSE, False
        while not self._stop.is_set():
            began = self.monotonic()
            try:
                for event in self._follow():
                    self.post(event)
                    if lost:
                        self.log.info("watch_found", scope=self.scope)
                        lost = False
                continue
            except Compacted:
                if self.monotonic() - began < FIRST_PAUSE:  # a store that has no history at all
                    self._stop.wait(FIRST_PAUSE)
                continue
            except TortieError as error:
                if self.monotonic() - began >= LONGEST_PAUSE:
                    pause = FIRST_PAUSE
                    self._complaint.about("", scope=self.scope)
                self._complaint.about(first_line(error), scope=self.scope)
                lost = True
                if not self.of_api:
                    self.post(Lost(self.scope))
            self._stop.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def stop(self) -> None:
        """End `run` soon, wherever it waits."""
        self._stop.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _follow(self) -> Iterator[Event]:
        listing = self.store.list(self.scope)
        yield Listed(self.scope, listing.records, listing.malformed, self._broken(listing))
        with self.store.watch(self.scope, listing.revision) as watch:
            with self._lock:
                self._watch = watch
                if self._stop.is_set():
                    return
            for change in watch:
                if isinstance(change, Put):
                    yield Stored(self.scope, change.record)
                else:
                    yield Unstored(self.scope, change.key)
        if not self._stop.is_set():
            raise Unavailable("the watch ended")

    def _broken(self, listing: Listing) -> tuple[Key, ...]:
        """Keys of what could not be read. One that was made since the list is soon told of."""
        if not listing.malformed or self.scope not in POLICY_SCOPES:
            return ()
        known = {record.key for record in listing.records}
        return tuple(key for key in self.store.names(self.scope) if key not in known)


class Listener:
    """A Kubernetes client that remembers the names of the last list, for `follow`'s `Synced`."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.names: frozenset[tuple[str, str]] = frozenset()

    def list(
        self,
        model: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[tuple[T, ...], str]:
        """As the client's."""
        objects, version = self._client.list(
            model, namespace, label_selector=label_selector, field_selector=field_selector
        )
        self.names = frozenset((one.metadata.namespace, one.metadata.name) for one in objects)
        return objects, version

    def pages(
        self, model: type[T], namespace: str = "", **options: Any
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        """As the client's."""
        return self._client.pages(model, namespace, **options)

    def get(self, model: type[T], name: str, namespace: str = "") -> T:
        """As the client's."""
        return self._client.get(model, name, namespace)

    def patch(self, model: type[T], name: str, namespace: str, body: Any, **options: Any) -> T:
        """As the client's."""
        return self._client.patch(model, name, namespace, body, **options)

    def watch(
        self, model: type[T], namespace: str = "", **options: Any
    ) -> Iterator[Applied[T] | Gone[T] | Bookmark]:
        """As the client's."""
        return self._client.watch(model, namespace, **options)


@dataclass(slots=True)
class KubeSource:
    """Follow all migrations or all VMIs; silent while the kind is not served."""

    client: KubeClient
    kind: type[Migration] | type[Instance]
    post: Post
    log: Log
    _stop: threading.Event = field(default_factory=threading.Event)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "api_watch_lost")

    @property
    def name(self) -> str:
        """What is followed, for people."""
        return self.kind.api.kind

    def run(self) -> None:
        """The thread's body."""
        client = Listener(self.client)
        stream = follow(client, self.kind, stop=self._stop, trouble=self._complaint.watch_lost)
        for event in stream:
            self._complaint.about("")
            if isinstance(event, Applied):
                self.post(Seen(event.object))
            elif isinstance(event, Gone):
                self.post(Vanished(event.object))
            else:
                self.post(InSync(self.kind, client.names))

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()


@dataclass(slots=True)
class KernelSource:
    """Link and route notifications, and complete surveys on request.

    It listens from the first, whenever its thread comes to run: what changes after a survey is
    told. Raises `KernelError`.
    """

    kernel: Kernel
    post: Post
    monotonic: Callable[[], float]
    _events: Iterator[NetworkEvent] = field(init=False)

    def __post_init__(self) -> None:
        self._events = self.kernel.events()

    def run(self) -> None:
        """The thread's body; ends when the kernel adapter is closed."""
        for event in self._events:
            self.post(NetworkChanged(event))

    def survey(self) -> frozenset[str]:
        """Read all links and the host routes that matter, on the caller's thread.

        Raises `KernelError`.
        """
        began = self.monotonic()
        links = self.kernel.links()
        routes = self.kernel.routes(version=4) + self.kernel.routes(version=6)
        ours = tuple(route for route in routes if is_ours(route) or is_learned(route))
        self.post(Surveyed(began, links, ours, self._addresses(links)))
        return frozenset()

    def _addresses(self, links: tuple[Link, ...]) -> dict[str, frozenset[IPAddress]]:
        found = {}
        for link in links:
            if link.name.startswith(INTERFACE_PREFIX):
                continue
            with suppress(NotFound):  # it has just gone
                found[link.name] = frozenset(one.ip for one in self.kernel.addresses(link.name))
        return found


@dataclass(slots=True)
class RaisesSource:
    """Asks BIRD which addresses other nodes have raised, for as long as anybody wants to know.

    `ask(addresses)` gives (raised, announced). `alive()` is asked when nothing else is: while
    BIRD does not answer, its lane is told, which starts it again.
    """

    ask: Callable[[frozenset[IPAddress]], tuple[Mapping[IPAddress, str], frozenset[IPAddress]]]
    alive: Callable[[], bool]
    post: Post
    log: Log
    _down: bool = False
    _wanted: Wanted[IPAddress] = field(default_factory=lambda: Wanted(_pause))

    def want(self, addresses: frozenset[IPAddress], urgent: bool) -> None:
        """From now on these addresses matter; look at once if `urgent` or if any is new."""
        self._wanted.want(addresses, urgent=urgent)

    def stop(self) -> None:
        """End `run` soon."""
        self._wanted.stop()

    def run(self) -> None:
        """The thread's body."""
        for addresses in self._wanted.rounds():
            self.look(addresses)

    def look(self, addresses: frozenset[IPAddress]) -> None:
        """One look, and its answer as an event."""
        try:
            if addresses:
                raised, announced = self.ask(addresses)
                self.post(RaisesSeen(addresses, raised, announced))
                answered = True
            else:
                answered = self.alive()
        except (TortieError, OSError) as error:
            answered = False
            if not self._down:
                self.log.warning("bird_silent", reason=first_line(error))
        if not answered and not self._down:
            self.post(Done(BIRD, 0, error="BIRD does not answer"))
        self._down = not answered


def _pause(addresses: frozenset[IPAddress]) -> float:
    return RAISES_SECONDS if addresses else LIVENESS_SECONDS
