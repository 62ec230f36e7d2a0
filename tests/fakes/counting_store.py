"""A store that notes what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from libtortie.datastore.port import Datastore, Listing, Op, Record, Snapshot
from libtortie.model.keys import Key, Scope
from tests.fakes.faulty_store import FaultyStore


class CountingStore(FaultyStore):
    """`calls` are the round trips since `forget`, `lists` the scopes that were listed."""

    atomic = True

    def __init__(self, inner: Datastore) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.lists: list[Scope] = []

    def forget(self) -> None:
        """Begin anew."""
        self.calls.clear()
        self.lists.clear()

    def get(self, key: Key) -> Record:
        self.calls.append("get")
        return super().get(key)

    def list(self, scope: Scope) -> Listing:
        self.calls.append("list")
        self.lists.append(scope)
        return super().list(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        self.calls.append("names")
        return super().names(scope)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        self.calls.append("snapshot")
        return super().snapshot(keys, scopes)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        self.calls.append("commit")
        return super().commit(ops)
