"""The datastore in etcd: Calico's keys and bytes, one transaction for a commit.

Revisions are etcd's ModRevisions. Every call ends within its deadline in a value or an error of
ours. A write whose answer was lost is `Unavailable`, although it may have been carried out: it
is never sent twice. How endpoints, tokens and streams are dealt with is `etcd_cluster` and
`etcd_watch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.codec import decode
from libtortie.datastore.etcd_cluster import EtcdCluster
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.etcd_watch import EtcdWatch
from libtortie.datastore.operations import (
    only,
    payload_of,
    replacement,
    require_distinct,
    verify,
)
from libtortie.datastore.port import Create, Delete, Listing, Op, Record, Update, Value
from libtortie.datastore.records import Stored, listing_of
from libtortie.datastore.stamps import Stamps, random_uid, utc_now
from libtortie.errors import AlreadyExists, Compacted, Conflict, InvalidInput, NotFound
from libtortie.model.keys import Key, Scope, path_of, scope_bounds

PAGE = 500
"""Rows of one answer of a listing."""

RESTARTS = 3
"""Listings begun anew because their revision was compacted, before one is asked for whole."""


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

    def get(self, key: Key) -> Record:
        """One value. Raises `NotFound`, `Malformed`."""
        path = path_of(key)
        rows = messages.rows_of(self._cluster.read("range", messages.get(path)))
        if not rows:
            raise NotFound(f"{path} does not exist")
        return Record(key, decode(key, rows[0].data), str(rows[0].revision))

    def list(self, scope: Scope) -> Listing:
        """All values of a scope at one revision, in path order."""
        low, high = (messages.name_of(path) for path in scope_bounds(scope))
        for page in (PAGE,) * RESTARTS:
            try:
                return self._pages(low, high, page)
            except Compacted:
                continue
        return self._pages(low, high, 0)

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
        elif not messages.outcome_of(self._cluster.write(messages.removal(path))).succeeded:
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
        """Every open watch ends; every later call is `Unavailable`."""
        self._cluster.close()

    def _pages(self, low: bytes, high: bytes, page: int) -> Listing:
        found: list[Stored] = []
        revision = 0
        while True:
            request = messages.scan(low, high, limit=page, revision=revision)
            response = self._cluster.read("range", request)
            revision = revision or response.header.revision
            found += messages.rows_of(response)
            if not response.more:
                return listing_of(found, revision)
            low = response.kvs[-1].key + b"\0"

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
        answer = self._cluster.write(messages.transaction(ops, payloads))
        outcome = messages.outcome_of(answer)
        if not outcome.succeeded:
            for op, stored in zip(ops, messages.rows_read(answer), strict=True):
                verify(op, stored)
            raise Conflict("etcd refused the commit, yet everything is as expected: try again")
        revision = str(outcome.revision)
        return tuple(
            None if data is None else Record(op.key, decode(op.key, data), revision)
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
        read = messages.reading(path_of(op.key) for op in updates.values())
        stored = messages.rows_read(self._cluster.read("txn", read))
        found = {}
        for (place, op), row in zip(updates.items(), stored, strict=True):
            verify(op, row)
            found[place] = replacement(op, row, self._stamps)
        return found
