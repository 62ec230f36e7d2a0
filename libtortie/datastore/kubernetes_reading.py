"""From lists and streams of objects to the port's listings and events. Mostly pure.

What a list shows: everything of a scope, but for affinities that are marked as deleted (blocks
and handles that are marked are shown so, as Calico shows them). What a watch shows: a mark is the
deletion, and the removal that follows is nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from libtortie.datastore.crd_endpoint import EndpointShape
from libtortie.datastore.crd_ipam import is_deleted
from libtortie.datastore.crd_ipam_shapes import AffinityShape, IpamShape
from libtortie.datastore.crd_names import Json, revision_of
from libtortie.datastore.crd_shapes import Shape, in_scope
from libtortie.datastore.kubernetes_policies import current, require_plain_end
from libtortie.datastore.port import Event, Listing, Put, Record, Removed
from libtortie.errors import Malformed, Unavailable
from libtortie.kube.lines import RawEvent
from libtortie.model.keys import Key, Scope, path_of


def record_of(shape: Shape, key: Key, body: Json) -> Record:
    """The record of an object that is `key`. Raises `Malformed`."""
    return Record(key, shape.value(key, body), revision_of(body))


def listing_of(shape: Shape, scope: Scope, bodies: Iterable[Json], revision: str) -> Listing:
    """The listing of objects in any order."""
    records: list[Record] = []
    malformed: list[str] = []
    for body in current(shape, bodies):
        try:
            key = shape.key(body)
            if key is None or not in_scope(scope, key) or _hidden(shape, body):
                continue
            records.append(record_of(shape, key, body))
        except Malformed as error:
            malformed.append(str(error))
    records.sort(key=lambda record: path_of(record.key))
    return Listing(tuple(records), revision, tuple(malformed))


def keys_of(shape: Shape, scope: Scope, bodies: Iterable[Json]) -> tuple[Key, ...]:
    """The keys of objects, in path order; what has none is left out."""
    found: list[Key] = []
    for body in current(shape, bodies):
        try:
            key = shape.key(body)
        except Malformed:
            continue
        if key is not None and in_scope(scope, key) and not _hidden(shape, body):
            found.append(key)
    return tuple(sorted(found, key=path_of))


def may_be_in(shape: Shape, scope: Scope, bodies: Iterable[Json]) -> Iterator[Json]:
    """The objects of a scope, and those of which it cannot be told."""
    for body in bodies:
        try:
            key = shape.key(body)
        except Malformed:
            yield body
            continue
        if key is not None and in_scope(scope, key):
            yield body


def newer_than(bodies: Iterable[Json], revision: int) -> Json | None:
    """Some object that was written after a revision; one without a number might have been."""
    for body in bodies:
        version = revision_of(body)
        if not version.isdecimal() or int(version) > revision:
            return body
    return None


@dataclass(slots=True)
class Events:
    """The port's events of one scope, out of a stream's."""

    shape: Shape
    scope: Scope
    _gone: set[Key] = field(default_factory=set)

    def of(self, event: RawEvent) -> Iterator[Event]:
        """At most one event. Raises `Unavailable`, which means "list again", if unreadable."""
        try:
            key = self.shape.key(event.object)
            there = key is not None and not _marked(self.shape, event.object)
            if key is None and isinstance(self.shape, EndpointShape):
                key = self.shape.former(event.object)
            if key is None or not in_scope(self.scope, key):
                return
            if event.type == "DELETED":
                require_plain_end(self.shape, event.object)
            if event.type == "DELETED" or not there:
                if event.type != "ADDED" and key not in self._gone:  # what is new was no value
                    yield Removed(key)
                self._gone.add(key)
                if event.type == "DELETED":
                    self._gone.discard(key)
                return
            record = record_of(self.shape, key, event.object)
        except Malformed as error:
            raise Unavailable(f"watch met a malformed value, list again: {error}") from error
        self._gone.discard(key)
        yield Put(record)


def _hidden(shape: Shape, body: Json) -> bool:
    return isinstance(shape, AffinityShape) and _marked(shape, body)


def _marked(shape: Shape, body: Json) -> bool:
    spec = body.get("spec")
    return isinstance(shape, IpamShape) and isinstance(spec, dict) and is_deleted(spec)
