"""The base of views over a datastore: a call is the store's unless a view overrides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libtortie.datastore.port import Datastore, Listing, Op, Record, Snapshot, Value, Watch
from libtortie.model.keys import Key, Scope


@dataclass(slots=True)
class ForwardingDatastore:
    """As `inner`; see `Datastore` for what each call means."""

    inner: Datastore

    @property
    def atomic(self) -> bool:
        """As the store's."""
        return self.inner.atomic

    @property
    def rewinds(self) -> int:
        """As the store's."""
        return self.inner.rewinds

    def get(self, key: Key) -> Record:
        """As the store's."""
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        """As the store's."""
        return self.inner.list(scope)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """As the store's."""
        return self.inner.parts(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """As the store's."""
        return self.inner.names(scope)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """As the store's."""
        return self.inner.snapshot(keys, scopes)

    def create(self, key: Key, value: Value) -> Record:
        """As the store's."""
        return self.inner.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """As the store's."""
        return self.inner.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        """As the store's."""
        self.inner.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """As the store's."""
        return self.inner.commit(ops)

    def watch(self, scope: Scope, revision: str) -> Watch:
        """As the store's."""
        return self.inner.watch(scope, revision)

    def close(self) -> None:
        """As the store's."""
        self.inner.close()
