"""Stores to die over, for sweeps that need one and the same prepared store many times.

What a story prepared is kept as the backend's own bytes and put back, which is quicker than to
prepare it again.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from libtortie.datastore.crd_names import Group
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.lines import RawEvent
from libtortie.kube.prepare import Request
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import StepwiseStore
from tests.fakes.ipam_operations import Operation
from tests.fakes.ipam_world import World
from tests.fakes.kubernetes_store import kubernetes_api
from tests.fakes.mortal_store import Tell, told


class Backend(Protocol):
    """Where an operation is swept."""

    @property
    def exact(self) -> bool:
        """Whether a death never parts handle and block."""
        ...

    def prepared(self, operation: Operation) -> AbstractContextManager[World]:
        """A store of its own on which the operation may begin."""
        ...

    def seen(self, world: World) -> Datastore:
        """The store as an operation gets it."""
        ...

    def mortal(self, world: World, tell: Tell) -> Datastore:
        """The same, of which `tell` hears each step."""
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

    def seen(self, world: World) -> Datastore:
        return StepwiseStore(world.store) if self.stepwise else world.store

    def mortal(self, world: World, tell: Tell) -> Datastore:
        mortal = told(world.store, tell)
        return StepwiseStore(mortal) if self.stepwise else mortal


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

    def seen(self, world: World) -> Datastore:
        return world.store

    def mortal(self, world: World, tell: Tell) -> Datastore:
        return told(world.store, tell)

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

    def seen(self, world: World) -> Datastore:
        return world.store

    def mortal(self, world: World, tell: Tell) -> Datastore:
        return told(world.store, tell)


@contextmanager
def etcd_backend(member: EtcdMember) -> Iterator[EtcdBackend]:
    """On one connection."""
    with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
        yield EtcdBackend(member, store)


class MortalCarrier:
    """The client of an API; `tell` hears of each request that writes."""

    def __init__(self, inner: HttpKubeClient, tell: Tell) -> None:
        self._inner = inner
        self._tell = tell

    @property
    def server(self) -> str:
        return self._inner.server

    def send(self, request: Request) -> bytes:
        if request.method == "GET":
            return self._inner.send(request)
        self._tell(f"before {request.verb} {request.subject}")
        try:
            return self._inner.send(request)
        finally:
            self._tell(f"after {request.verb} {request.subject}")

    def events(
        self, request: Request, *, seconds: float, stop: threading.Event | None = None
    ) -> Iterator[RawEvent]:
        return self._inner.events(request, seconds=seconds, stop=stop)


@dataclass
class KubernetesBackend:
    """The lab's API server; its steps are requests that write, a two-phase delete's both."""

    group: Group = Group.V1
    exact: bool = False
    _client: HttpKubeClient | None = None

    @contextmanager
    def prepared(self, operation: Operation) -> Iterator[World]:
        with kubernetes_api() as server, closing(HttpKubeClient(direct(server.url))) as client:
            self._client = client
            world = World(KubernetesDatastore(client, group=self.group))
            operation.prepare(world)
            yield world

    def seen(self, world: World) -> Datastore:
        return world.store

    def mortal(self, world: World, tell: Tell) -> Datastore:
        assert self._client is not None
        return KubernetesDatastore(MortalCarrier(self._client, tell), group=self.group)
