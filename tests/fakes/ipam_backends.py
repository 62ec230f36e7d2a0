"""Stores to die over, for sweeps that need one and the same prepared store many times.

What a story prepared is kept as the backend's own bytes and put back, which is quicker than to
prepare it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import StepwiseStore
from tests.fakes.ipam_operations import Operation
from tests.fakes.ipam_world import World


class Backend(Protocol):
    """Where an operation is swept."""

    @property
    def exact(self) -> bool:
        """Whether a death never parts handle and block."""
        ...

    def prepared(self, operation: Operation) -> AbstractContextManager[World]:
        """A store of its own on which the operation may begin."""
        ...

    def seen(self, store: Datastore) -> Datastore:
        """What the operation gets of a store."""
        ...


@dataclass
class MemoryBackend:
    """In memory; `stepwise`: without transactions, as Kubernetes' API is."""

    stepwise: bool = False

    @property
    def exact(self) -> bool:
        return not self.stepwise

    @contextmanager
    def prepared(self, operation: Operation) -> Iterator[World]:
        with closing(MemoryDatastore()) as store:
            world = World(store)
            operation.prepare(world)
            yield world

    def seen(self, store: Datastore) -> Datastore:
        return StepwiseStore(store) if self.stepwise else store


@dataclass
class SqliteBackend:
    """A file that is copied."""

    directory: Path
    exact: bool = True
    _worlds: dict[str, World] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.directory / "t.db"

    @contextmanager
    def prepared(self, operation: Operation) -> Iterator[World]:
        self._prepare(operation)
        for old in self.directory.glob("t.db*"):
            old.unlink()
        shutil.copy(self._template(operation), self.path)
        with closing(SqliteDatastore(self.path, shared=True)) as store:
            yield replace(self._worlds[operation.name], store=store)

    def seen(self, store: Datastore) -> Datastore:
        return store

    def _template(self, operation: Operation) -> Path:
        return self.directory / f"{operation.name}.db"

    def _prepare(self, operation: Operation) -> None:
        if operation.name not in self._worlds:
            with closing(SqliteDatastore(self._template(operation), shared=True)) as store:
                world = self._worlds[operation.name] = World(store)
                operation.prepare(world)


@dataclass
class EtcdBackend:
    """Keys that are put again, by etcd's JSON gateway."""

    member: EtcdMember
    store: EtcdDatastore
    exact: bool = True
    _worlds: dict[str, World] = field(default_factory=dict)
    _puts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @contextmanager
    def prepared(self, operation: Operation) -> Iterator[World]:
        self.member.remove_all()
        if operation.name in self._worlds:
            self.member.ask("kv/txn", {"success": self._puts[operation.name]})
        else:
            world = self._worlds[operation.name] = World(self.store)
            operation.prepare(world)
            rows = self.member.ask("kv/range", {"key": "AA==", "range_end": "AA=="})["kvs"]
            self._puts[operation.name] = [
                {"request_put": {"key": row["key"], "value": row["value"]}} for row in rows
            ]
        yield replace(self._worlds[operation.name])

    def seen(self, store: Datastore) -> Datastore:
        return store


@contextmanager
def etcd_backend(member: EtcdMember) -> Iterator[EtcdBackend]:
    """On one connection."""
    with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
        yield EtcdBackend(member, store)
