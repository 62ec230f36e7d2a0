"""The datastore in etcd: Calico's keys and bytes, one transaction for a commit.

Revisions are etcd's ModRevisions. Every call ends within its deadline in a value or an error of
ours. A write whose answer was lost is `Unavailable`, although it may have been carried out: it
is never sent twice. How endpoints, tokens and streams are dealt with is `etcd_cluster` and
`etcd_watch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.codec import as_read, decode
from libtortie.datastore.etcd_answers import Outcome, outcome_of
from libtortie.datastore.etcd_cluster import EtcdCluster
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.etcd_reader import read, read_on, span_of, span_of_scope
from libtortie.datastore.etcd_watch import EtcdWatch
from libtortie.datastore.operations import (
    only,
    payload_of,
    replacement,
    require_distinct,
    verify,
    verify_scope,
)
from libtortie.datastore.port import (
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
from libtortie.datastore.records import listing_of, names_of, snapshot_of
from libtortie.datastore.stamps import Stamps, random_uid, utc_now
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, NotFound, TortieError
from libtortie.model.keys import Key, Scope, path_of


class EtcdDatastore:
    """Thread-safe; any number of processes and nodes share one cluster."""

    def __init__(
        self,
        config: EtcdConfig,
        *,
        timing: Timing | None = None,
        now: Callable[[], datetime] = utc_now,
        new_uid: Callable[[], str] = random_uid,
        on_call: Callable[[str], None] | None = None,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """Connects when first used, to endpoint number `choose(count)`.

        `on_call` is told of each round trip (gRPC's method name). Raises `InvalidInput` naming the
        setting.
        """
        self._stamps = Stamps(now, new_uid)
        self._cluster = EtcdCluster(config, timing or Timing(), on_call=on_call, choose=choose)

    @property
    def atomic(self) -> bool:
        """A commit is one transaction."""
        return True

    @property
    def rewinds(self) -> int:
        """Counted by the headers of all answers and what they came over (`etcd_timeline`)."""
        return self._cluster.timeline.rewinds

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        (rows,) = read(self._cluster, [span_of(key)]).rows
        if not rows:
            raise NotFound(f"{path_of(key)} does not exist")
        return Record(key, decode(key, rows[0].data), str(rows[0].revision))

    def list(self, scope: Scope) -> Listing:
        """All values of a scope at one revision, in path order."""
        found = read(self._cluster, [span_of_scope(scope)])
        return listing_of(found.rows[0], found.revision)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """All values of a scope in path order, an answer at a time."""
        for found in read_on(self._cluster, span_of_scope(scope)):
            yield listing_of(found.rows[0], found.revision)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """The keys of a scope, in path order."""
        (rows,) = read(self._cluster, [span_of_scope(scope)], keys_only=True).rows
        return names_of(row.path for row in rows)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several keys and scopes at one revision, in one round trip unless they are many."""
        spans = [*map(span_of, keys), *map(span_of_scope, scopes)]
        found = read(self._cluster, spans)
        rows = {key: next(iter(held), None) for key, held in zip(keys, found.rows, strict=False)}
        ranges = zip(scopes, found.rows[len(keys) :], strict=True)
        return snapshot_of(rows, {of: listing_of(held, found.revision) for of, held in ranges})

    def create(self, key: Key, value: Value) -> Record:
        """Store a new value. Raises `AlreadyExists`."""
        return only(self._apply([Create(key, value)]))

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """Replace a value. Raises `Conflict`, or `NotFound` when it is gone."""
        return only(self._apply([Update(key, value, revision)]))

    def delete(self, key: Key, revision: str | None = None) -> None:
        """Remove a value, only at `revision` when given. Raises `NotFound`, `Conflict`."""
        path = path_of(key)
        if revision is not None:
            self._apply([Delete(key, revision)])
        elif not outcome_of(self._cluster.write(messages.removal(path))).succeeded:
            raise NotFound(f"{path} does not exist")

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """Apply all operations or none. Raises `Conflict`, `InvalidInput` beyond 128."""
        try:
            return self._apply(ops)
        except (AlreadyExists, NotFound) as error:
            raise Conflict(str(error)) from error

    def watch(self, scope: Scope, revision: str) -> EtcdWatch:
        """Events of a scope after `revision` (a `Listing.revision`)."""
        self._cluster.require_open()
        return EtcdWatch(self._cluster, scope, revision)

    def close(self) -> None:
        """Every open watch ends; every later call is `Closed`."""
        self._cluster.close()

    def _apply(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        if not ops:
            self._cluster.require_open()
            return ()
        require_distinct(ops)
        if len(ops) > messages.MAX_OPS:
            raise InvalidInput(
                f"a commit of {len(ops)} operations: etcd takes at most {messages.MAX_OPS}"
            )
        payloads = [payload_of(op, self._stamps) for op in ops]
        for place, data in self._inherited(ops, payloads).items():
            payloads[place] = data
        try:
            answer = self._cluster.write(messages.transaction(ops, payloads))
        except InvalidInput as error:
            raise _sized(error, ops, payloads) from error
        outcome = outcome_of(answer)
        if not outcome.succeeded:
            raise _refusal(ops, outcome)
        revision = str(outcome.revision)
        return tuple(
            Record(op.key, as_read(op.key, op.value, data), revision)
            if data is not None and isinstance(op, Create | Update)
            else None
            for op, data in zip(ops, payloads, strict=True)
        )

    def _inherited(self, ops: Sequence[Op], payloads: Sequence[bytes | None]) -> dict[int, bytes]:
        """By place, the payloads of updates that keep the stored value's birth marks."""
        updates = {
            place: op
            for place, op in enumerate(ops)
            if isinstance(op, Update) and payloads[place] is None
        }
        if not updates:
            return {}
        rows = read(self._cluster, [span_of(op.key) for op in updates.values()]).rows
        found = {}
        for (place, op), held in zip(updates.items(), rows, strict=True):
            row = next(iter(held), None)
            verify(op, row)
            found[place] = replacement(op, row, self._stamps)
        return found


def _sized(
    error: InvalidInput, ops: Sequence[Op], payloads: Sequence[bytes | None]
) -> InvalidInput:
    """A refusal, which may be for its size, with what is the longest in it."""
    sizes = (
        (len(data), path_of(op.key))
        for op, data in zip(ops, payloads, strict=True)
        if data is not None and isinstance(op, Create | Update)
    )
    size, path = max(sizes, default=(0, ""))
    return InvalidInput(f"{error}: {path} has {size} bytes") if path else error


def _refusal(ops: Sequence[Op], outcome: Outcome) -> TortieError:
    """Why a transaction was refused, by what its reads found."""
    try:
        for op, page in zip(ops, outcome.pages, strict=False):
            stored = next(iter(page.rows), None)
            if isinstance(op, Unchanged):
                verify_scope(op, stored)
            else:
                verify(op, stored)
    except TortieError as error:
        return error
    return Conflict("etcd refused the commit, yet everything is as expected: try again")
