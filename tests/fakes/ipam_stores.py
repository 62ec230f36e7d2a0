"""The stores that IPAM's contract runs over: how another process opens each, and how to empty it.

A store joins by one line in `STORES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from libtortie.datastore.crd_names import Group
from libtortie.datastore.open import DatastoreConfig
from libtortie.kube.config import direct
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.kubernetes_store import kubernetes_api

SQLITE, ETCD = "sqlite", "etcdv3"


@dataclass(frozen=True, slots=True)
class Where:
    """A store as a command line can name it: its kind, and where it is."""

    kind: str
    place: str

    def config(self, node: str) -> DatastoreConfig:
        """What a node's program opens."""
        if self.kind == SQLITE:
            path = Path(self.place)
            return DatastoreConfig(sqlite_path=path, node=node, shared=True, create=True)
        if self.kind == ETCD:
            return DatastoreConfig(type=ETCD, etcd_endpoints=self.place)
        return DatastoreConfig(
            type="kubernetes", kube=direct(self.place), calico_api_group=self.kind
        )


Opener = Callable[[pytest.FixtureRequest], AbstractContextManager[Where]]


@contextmanager
def _sqlite(_: pytest.FixtureRequest) -> Iterator[Where]:
    with TemporaryDirectory() as directory:
        yield Where(SQLITE, f"{directory}/tortie.db")


@contextmanager
def _etcd(request: pytest.FixtureRequest) -> Iterator[Where]:
    member: EtcdMember = request.getfixturevalue("shared_etcd")
    member.remove_all()
    yield Where(ETCD, member.url)


def _kubernetes(group: Group) -> Opener:
    @contextmanager
    def opened(_: pytest.FixtureRequest) -> Iterator[Where]:
        with kubernetes_api() as server:
            yield Where(group.value, server.url)

    return opened


STORES: dict[str, Opener] = {
    "sqlite": _sqlite,
    "etcd": _etcd,
    "kubernetes v1": _kubernetes(Group.V1),
    "kubernetes v3": _kubernetes(Group.V3),
}
