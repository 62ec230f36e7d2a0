"""A watch over the API's streams: resumed where the server ended one, broken where one broke.

A stream that its server ends in good order goes on from its last event or bookmark. History that
is gone is `Compacted`. A connection that breaks, or falls silent, is `Unavailable`: what happened
meanwhile is for the next listing to say.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

from libtortie.datastore.crd_shapes import Query
from libtortie.datastore.kubernetes_gate import Gate
from libtortie.datastore.kubernetes_reading import Events
from libtortie.datastore.port import Event
from libtortie.errors import Compacted, Malformed, Unavailable
from libtortie.kube.lines import RawEvent
from libtortie.kube.raw import RawObjects

FINE_SECONDS = 1.0
"""A stream that ends sooner than this, without an event, gives a pause before the next."""

_LOOK_SECONDS = 0.2
SEPARATOR = "/"
"""Between the revisions of a scope that takes several lists."""


class KubernetesWatch:
    """The `Watch` of the port."""

    def __init__(
        self,
        gate: Gate,
        objects: RawObjects,
        queries: Sequence[Query],
        events: Events,
        revision: str,
    ) -> None:
        self._gate = gate
        self._objects = objects
        self._queries = queries
        self._events = events
        self._revision = revision
        self._stop = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        revisions = self._revision.split(SEPARATOR)
        known = all(one.isascii() and one.isdecimal() and int(one) > 0 for one in revisions)
        if not self._stop.is_set():
            self._gate.require_open()
            if not known or len(revisions) != len(self._queries):
                raise Compacted("not a revision of this store: list again")
        for event in self._raw(revisions):
            for found in self._events.of(event):
                if self._stop.is_set():
                    return
                yield found

    def close(self) -> None:
        """End the watch, from any thread; nothing more is yielded."""
        self._stop.set()

    def _raw(self, revisions: Sequence[str]) -> Iterator[RawEvent]:
        """Events of all queries; one is followed on the reader's own thread."""
        if len(self._queries) == 1:
            yield from self._stream(self._queries[0], revisions[0])
            return
        found: queue.Queue[RawEvent | BaseException | None] = queue.Queue(maxsize=1)
        for query, revision in zip(self._queries, revisions, strict=True):
            threading.Thread(
                target=self._feed, args=(query, revision, found), name="watch-part", daemon=True
            ).start()
        try:
            while not self._stop.is_set():
                try:
                    event = found.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    return
                yield event
        finally:
            self._stop.set()

    def _feed(
        self, query: Query, revision: str, found: queue.Queue[RawEvent | BaseException | None]
    ) -> None:
        def give(event: RawEvent | BaseException | None) -> None:
            while not self._stop.is_set():
                try:
                    found.put(event, timeout=_LOOK_SECONDS)
                except queue.Full:
                    continue
                return

        try:
            for event in self._stream(query, revision):
                give(event)
        except BaseException as error:
            give(error)
        else:
            give(None)

    def _stream(self, query: Query, revision: str) -> Iterator[RawEvent]:
        """Streams of one query, one after the other."""
        while not self._stop.is_set():
            began, lived = time.monotonic(), False
            try:
                for event in self._objects.watch(
                    query.api,
                    query.namespace,
                    version=revision,
                    label_selector=query.label_selector,
                    field_selector=query.field_selector,
                    stop=self._stop,
                ):
                    revision, lived = event.resource_version or revision, True
                    if event.type != "BOOKMARK":
                        yield event
            except (Unavailable, Malformed) as error:
                if self._stop.is_set():
                    return  # closed beneath our feet
                raise Unavailable(f"the watch broke, list again: {error}") from error
            if not lived and time.monotonic() - began < FINE_SECONDS:
                self._stop.wait(FINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
