"""A datastore for one command, which waits for a silent one once and not again at every call.

A backend bounds each call; a command makes many, and tries some again. Here the seconds in which
the store gave no answer are added up: when they are used up every further call fails at once, with
the words of the last. Calls that are answered cost nothing, however long they take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.port import Listing, Op, Record, Snapshot, Value
from libtortie.errors import Unavailable
from libtortie.model.keys import Key, Scope


@dataclass(slots=True)
class PatientDatastore(ForwardingDatastore):
    """As `inner`, with `seconds` of patience for all calls together."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _waited: float = 0.0
    _last: str = ""

    def get(self, key: Key) -> Record:
        """See `Datastore`."""
        with self._counted():
            return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        """See `Datastore`."""
        with self._counted():
            return self.inner.list(scope)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """See `Datastore`."""
        with self._counted():
            parts = iter(self.inner.parts(scope))
        while True:
            with self._counted():
                part = next(parts, None)
            if part is None:
                return
            yield part

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """See `Datastore`."""
        with self._counted():
            return self.inner.names(scope)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """See `Datastore`."""
        with self._counted():
            return self.inner.snapshot(keys, scopes)

    def create(self, key: Key, value: Value) -> Record:
        """See `Datastore`."""
        with self._counted():
            return self.inner.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """See `Datastore`."""
        with self._counted():
            return self.inner.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        """See `Datastore`."""
        with self._counted():
            self.inner.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """See `Datastore`."""
        with self._counted():
            return self.inner.commit(ops)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._last and self._waited >= self.seconds:
            raise Unavailable(self._last)
        began = self.clock()
        try:
            yield
        except Unavailable as error:
            self._waited += self.clock() - began
            self._last = str(error)
            raise
