"""The datastores the contract's suite runs over: how to open, spoil and compact each.

A backend joins by one line in `BACKENDS`. One whose commits are no transactions says
`atomic=False`: it is left out where all-or-nothing is what is tested, and nowhere else. So it is
with `keeps_uids=False`, of one whose server makes all UIDs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from libtortie.datastore.crd_names import Group
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import StepwiseStore
from tests.fakes.kubernetes_store import kubernetes_api, put_raw, stores_of


@dataclass
class Harness:
    """One backend under test."""

    store: Datastore
    other: Datastore
    """A second client of the same data."""
    put_raw: Callable[[str, bytes], None]
    compact: Callable[[], None]


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[Harness]:
    with closing(MemoryDatastore()) as store:
        yield Harness(store, store, store.put_raw, store.compact)


@contextmanager
def stepwise(_: pytest.FixtureRequest) -> Iterator[Harness]:
    with closing(MemoryDatastore()) as inner:
        store = StepwiseStore(inner)
        yield Harness(store, store, inner.put_raw, inner.compact)


@contextmanager
def sqlite(request: pytest.FixtureRequest) -> Iterator[Harness]:
    directory: Path = request.getfixturevalue("tmp_path")
    path = directory / "tortie.db"

    def put_raw(where: str, data: bytes) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            row = raw.execute("INSERT INTO log (path, data) VALUES (?, ?)", (where, data))
            raw.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", (where, row.lastrowid, data))
            raw.execute("COMMIT")

    with closing(SqliteDatastore(path)) as store, closing(SqliteDatastore(path)) as other:
        yield Harness(store, other, put_raw, store.compact)


@contextmanager
def etcd(request: pytest.FixtureRequest) -> Iterator[Harness]:
    member: EtcdMember = request.getfixturevalue("shared_etcd")
    member.remove_all()
    config = EtcdConfig(member.url)
    with closing(EtcdDatastore(config)) as store, closing(EtcdDatastore(config)) as other:
        yield Harness(store, other, member.put, member.compact)


@contextmanager
def kubernetes(group: Group) -> Iterator[Harness]:
    with kubernetes_api() as server, stores_of(server, group, 2) as (store, other):

        def put(path: str, data: bytes) -> None:
            put_raw(server, group, path, data)

        yield Harness(store, other, put, server.compact)


@dataclass(frozen=True)
class Backend:
    """A datastore as the suite opens it."""

    open: Callable[[pytest.FixtureRequest], AbstractContextManager[Harness]]
    atomic: bool = True
    keeps_uids: bool = True


BACKENDS = {
    "memory": Backend(memory),
    "a fake without transactions": Backend(stepwise, atomic=False),
    "sqlite": Backend(sqlite),
    "etcd": Backend(etcd),
    "kubernetes v1": Backend(lambda _: kubernetes(Group.V1), atomic=False, keeps_uids=False),
    "kubernetes v3": Backend(lambda _: kubernetes(Group.V3), atomic=False, keeps_uids=False),
}
KEEPING_UIDS = [name for name, backend in BACKENDS.items() if backend.keeps_uids]
ATOMIC = [name for name, backend in BACKENDS.items() if backend.atomic]
