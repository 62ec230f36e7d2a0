"""The in-memory nodes of `cni_world` over each real datastore, for what has to hold on all of them.

On Kubernetes pods, VMs and data are in one API: an endpoint is annotations on its pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import cast

import pytest

from ipam.client import IPAMClient, Retry
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.port import Datastore
from libtortie.kube.config import direct
from tests.fakes.cni_steps import CountedStore
from tests.fakes.cni_world import CniNode, CniWorld
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.kubernetes_store import kubernetes_api

PATIENT = Retry(attempts=500, seconds=120.0)


class StoredWorld(CniWorld):
    """A world whose data is in a store of its own, maybe behind the API that has the pods."""

    def __init__(self, directory: Path, store: Datastore, server: ApiServer | None = None) -> None:
        super().__init__(directory)
        self.on_kubernetes = server is not None
        if server is not None:
            self.kube.api = server.api
        self.memory = cast(MemoryDatastore, store)  # its methods are the port's
        self.store = CountedStore(self.memory, self.step)
        self.pool("pool-4", "10.65.0.0/24")

    def node(self, name: str = "node1") -> CniNode:
        """A node whose IPAM has the time that a real store takes."""
        if name not in self.nodes:
            node = super().node(name)
            node.ipam = IPAMClient(self.store, name, now=self.clock.now, retry=PATIENT)
            node.use()
        return self.nodes[name]


Opener = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[StoredWorld]]


def _opened(config: DatastoreConfig, directory: Path) -> Iterator[StoredWorld]:
    with closing(open_datastore(config)) as store:
        yield StoredWorld(directory, store)


@contextmanager
def _sqlite(_: pytest.FixtureRequest, directory: Path) -> Iterator[StoredWorld]:
    path = directory / "tortie.db"
    yield from _opened(DatastoreConfig(sqlite_path=path, node="node1", create=True), directory)


@contextmanager
def _etcd(request: pytest.FixtureRequest, directory: Path) -> Iterator[StoredWorld]:
    member: EtcdMember = request.getfixturevalue("shared_etcd")
    member.remove_all()
    yield from _opened(DatastoreConfig(type="etcdv3", etcd_endpoints=member.url), directory)


def _kubernetes(group: Group) -> Opener:
    @contextmanager
    def opened(_: pytest.FixtureRequest, directory: Path) -> Iterator[StoredWorld]:
        with kubernetes_api() as server:
            config = DatastoreConfig(
                type="kubernetes", kube=direct(server.url), calico_api_group=group.value
            )
            with closing(open_datastore(config)) as store:
                yield StoredWorld(directory, store, server)

    return opened


CNI_STORES: dict[str, Opener] = {
    "sqlite": _sqlite,
    "etcd": _etcd,
    "kubernetes v1": _kubernetes(Group.V1),
    "kubernetes v3": _kubernetes(Group.V3),
}
