"""The datastore in Kubernetes: Calico's CRDs, core Nodes, pods; a commit is a sequence.

Revisions are resourceVersions. There are no transactions: a commit's requirements are looked at
first, then its writes are made one by one, each by compare-and-swap, in the order given; it may
stop between any two. So callers order them such that each prefix is safe. Where the real server
is reached, with which credentials and deadlines, is the client's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from libtortie.datastore.crd_names import Group, Json, Place, revision_of
from libtortie.datastore.crd_shapes import Shape, where_of
from libtortie.datastore.kubernetes_gate import Gate, served_group
from libtortie.datastore.kubernetes_layout import Layout
from libtortie.datastore.kubernetes_reading import (
    Events,
    keys_of,
    listing_of,
    may_be_in,
    newer_than,
    record_of,
)
from libtortie.datastore.kubernetes_shelves import CrdShelf, Shelf
from libtortie.datastore.kubernetes_watch import SEPARATOR, KubernetesWatch
from libtortie.datastore.operations import position_of, require_distinct
from libtortie.datastore.port import (
    Check,
    Create,
    Delete,
    Listing,
    Op,
    Record,
    Snapshot,
    Unchanged,
    Update,
    Value,
)
from libtortie.datastore.stamps import utc_now
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    Malformed,
    NotFound,
    PartialCommit,
    TortieError,
    first_line,
)
from libtortie.kube.raw import Carrier, RawObjects
from libtortie.model.keys import Key, Scope, path_of
from libtortie.model.times import rfc3339

Write = Create | Update | Delete


@dataclass(frozen=True, slots=True)
class _Written:
    """What a commit did to one object: the revision it had before and has now."""

    before: str | None
    after: str


class KubernetesDatastore:
    """Thread-safe; any number of processes and nodes share one API server."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        group: Group | None = None,
        page: int = 500,
        watch_seconds: int = 300,
        now: Callable[[], datetime] = utc_now,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`group` None asks the server, when first used. `close` is called with the store."""
        self._gate = Gate(carrier)
        self._objects = RawObjects(self._gate, page=page, watch_seconds=watch_seconds)
        self._configured = group
        self._layout = Layout(self._objects, lambda: self.group, lambda: rfc3339(now()))
        self._close = close
        self._lock = threading.Lock()
        self._watches: weakref.WeakSet[KubernetesWatch] = weakref.WeakSet()

    @property
    def atomic(self) -> bool:
        """A commit may stop half way."""
        return False

    @property
    def rewinds(self) -> int:
        """Not noticed: nothing is remembered of a store without transactions."""
        return 0

    @property
    def group(self) -> Group:
        """The API group in use. Raises `Unavailable` while the server does not say."""
        if self._configured is None:
            self._configured = served_group(self._objects)
        return self._configured

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        return self._get(key, {})

    def _get(self, key: Key, seen: dict[Place, Json | None]) -> Record:
        shelf = self._shelf(key)
        body = _look(shelf, key, seen)
        if body is None or shelf.shape.key(body) != key:
            raise NotFound(f"{_named(shelf.shape, key)} does not exist")
        return record_of(shelf.shape, key, body)

    def get_mended(self, key: Key, mend: Callable[[Json], Json]) -> Record:
        """One value as it would be read with another spec. Raises `NotFound`, `Malformed`.

        For whoever repairs a value that cannot be read: an update at the record's revision does it.
        """
        shelf = self._shelf(key)
        body = shelf.read(key)
        if body is None:
            raise NotFound(f"{_named(shelf.shape, key)} does not exist")
        spec = body.get("spec")
        return record_of(shelf.shape, key, {**body, "spec": mend(spec)} if spec else body)

    def list(self, scope: Scope) -> Listing:
        """All values of a scope, in path order."""
        shape = self._shape(scope)
        bodies, revision = self._bodies(shape, scope)
        return listing_of(shape, scope, bodies, revision)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """As `list`, in one part."""
        yield self.list(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """The keys of a scope, in path order."""
        shape = self._shape(scope)
        return keys_of(shape, scope, self._bodies(shape, scope)[0])

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several keys and scopes, one request for each object and list: not of one moment."""
        records: dict[Key, Record] = {}
        seen: dict[Place, Json | None] = {}
        broken: dict[Key, str] = {}
        for key in keys:
            try:
                records[key] = self._get(key, seen)
            except NotFound:
                continue
            except Malformed as error:
                broken[key] = str(error)
        return Snapshot(records, {scope: self.list(scope) for scope in scopes}, broken)

    def create(self, key: Key, value: Value) -> Record:
        """Store a new value. Raises `AlreadyExists`."""
        shelf = self._shelf(key)
        shelf.check(key, value)
        return record_of(shelf.shape, key, shelf.create(key, value))

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """Replace a value. Raises `Conflict`, or `NotFound` when it is gone."""
        shelf = self._shelf(key)
        shelf.check(key, value)
        return record_of(shelf.shape, key, shelf.update(key, value, revision))

    def delete(self, key: Key, revision: str | None = None) -> None:
        """Remove a value, only at `revision` when given. Raises `NotFound`, `Conflict`."""
        self._shelf(key).delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """Apply the operations in order, requirements first.

        Raises `Conflict` when nothing was written, `PartialCommit` when something was.
        """
        self._gate.require_open()
        require_distinct(ops)
        for op in ops:
            if isinstance(op, Create | Update):
                self._shelf(op.key).check(op.key, op.value)
        seen: dict[Place, Json | None] = {}
        try:
            for op in ops:
                self._require(op, seen)
        except NotFound as error:
            raise Conflict(str(error)) from error
        records: list[Record | None] = []
        written: dict[Place, _Written] = {}
        for number, op in enumerate(ops):
            try:
                record = self._write(op, written) if isinstance(op, Write) else None
            except TortieError as error:
                if written:
                    text = f"{number} of {len(ops)} operations done: {first_line(error)}"
                    raise PartialCommit(number, text) from error
                if isinstance(error, AlreadyExists | NotFound):
                    raise Conflict(str(error)) from error
                raise
            records.append(record)
        return tuple(records)

    def watch(self, scope: Scope, revision: str) -> KubernetesWatch:
        """Events of a scope after `revision` (a `Listing.revision`)."""
        self._gate.require_open()
        shape = self._shape(scope)
        watch = KubernetesWatch(
            self._gate, self._objects, shape.queries(scope), Events(shape, scope), revision
        )
        with self._lock:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """Every open watch ends; every later call is `Closed`."""
        self._gate.closed.set()
        with self._lock:
            watches = [*self._watches]
        for watch in watches:
            watch.close()
        self._close()

    # --- what a commit is made of --------------------------------------------------------------

    def _require(self, op: Op, seen: dict[Place, Json | None]) -> None:
        """What must hold before anything is written, `seen` for it so far. Raises `Conflict`."""
        if isinstance(op, Unchanged):
            after = position_of(op)
            shape = self._shape(op.scope)
            bodies, _ = self._bodies(shape, op.scope)
            newer = newer_than(may_be_in(shape, op.scope, bodies), after)
            if newer is not None:
                where = where_of(shape.queries(op.scope)[0].api, newer)
                raise Conflict(f"{where} is newer than {after}: list again")
        elif isinstance(op, Check):
            shelf = self._shelf(op.key)
            body = _look(shelf, op.key, seen)
            found = None if body is None else revision_of(body)
            if found != op.revision:
                name = _named(shelf.shape, op.key)
                raise Conflict(f"{name} changed: expected {op.revision}, found {found}")

    def _write(self, op: Write, written: dict[Place, _Written]) -> Record | None:
        """One write. Where two keys are views of one object, the second sees the first's."""
        shelf = self._shelf(op.key)
        place = shelf.shape.place(op.key)
        earlier = written.get(place)
        if isinstance(op, Delete):
            at = earlier.after if earlier and earlier.before == op.revision else op.revision
            shelf.delete(op.key, at)
            written[place] = _Written(op.revision, "")
            return None
        before = None if isinstance(op, Create) else op.revision
        if earlier and earlier.before == before:
            body = shelf.update(op.key, op.value, earlier.after)
        elif before is None:
            body = shelf.create(op.key, op.value)
        else:
            body = shelf.update(op.key, op.value, before)
        written[place] = _Written(before, revision_of(body))
        return record_of(shelf.shape, op.key, body)

    # --- what is where -------------------------------------------------------------------------

    def _bodies(self, shape: Shape, scope: Scope) -> tuple[Sequence[Json], str]:
        """The objects that may be of a scope, and the revision of the list or lists."""
        found: list[Any] = []
        revisions: list[str] = []
        for query in shape.queries(scope):
            bodies, revision = self._objects.list(
                query.api,
                query.namespace,
                label_selector=query.label_selector,
                field_selector=query.field_selector,
            )
            found.extend(bodies)
            revisions.append(revision)
        return found, SEPARATOR.join(revisions)

    def _shelf(self, key: Key) -> Shelf:
        self._gate.require_open()
        return self._layout.shelf(key)

    def _shape(self, scope: Scope) -> Shape:
        self._gate.require_open()
        return self._layout.shape(scope)


def _look(shelf: Shelf, key: Key, seen: dict[Place, Json | None]) -> Json | None:
    """The object of a value, read once for all the values that are views of it."""
    if type(shelf) is not CrdShelf:
        return shelf.read(key)  # who looks closer than at the object: it depends on the value
    try:
        place = shelf.shape.place(key)
    except InvalidInput:
        return None  # no object can have that name
    if place not in seen:
        seen[place] = shelf.read(key)
    return seen[place]


def _named(shape: Shape, key: Key) -> str:
    """What errors call a value: its object, or its path where it can have none."""
    try:
        return str(shape.place(key))
    except InvalidInput:
        return path_of(key)
