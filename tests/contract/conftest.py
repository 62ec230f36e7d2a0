"""The kernel contract's two machines, in memory and of real namespaces; an API server; an etcd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from lab.apiserver.server import ApiServer
from libtortie.datastore.port import Datastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.linux import netns, topology
from libtortie.linux.netns import Netns
from libtortie.linux.port import Kernel, Namespaces
from tests.contract.datastore_backends import ATOMIC, BACKENDS, KEEPING_UIDS, Harness
from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.fresh_names import fresh_name
from tests.fakes.kernel import FakeKernel, FakeNamespaces
from tests.fakes.kubectl import Kubectl, kubectl_for
from tests.fakes.patience import patience


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Before all others: who names no deadline in these tests has a long one."""
    with patience():
        yield


class World(Protocol):
    """A machine to test on."""

    namespaces: Namespaces

    def create(self, name: str) -> str: ...
    def alias(self, path: str) -> str: ...
    def bridge(self, path: str, name: str) -> None: ...
    def close(self) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self.fake = FakeNamespaces()
        self.namespaces: Namespaces = self.fake

    def create(self, name: str) -> str:
        return self.fake.create(f"/fake/{name}")

    def alias(self, path: str) -> str:
        return self.fake.alias(f"{path}-alias", path)

    def bridge(self, path: str, name: str) -> None:
        FakeKernel(self.fake, path).add_link(name)

    def close(self) -> None:
        pass


class RealWorld:
    def __init__(self) -> None:
        self.namespaces: Namespaces = Netns()
        self._paths: list[str] = []
        self._held: list[int] = []

    def create(self, name: str) -> str:
        path = netns.create(fresh_name(name))
        self._paths.append(path)
        topology.set_up(path, "lo")  # without any address the kernel has no local table
        return path

    def alias(self, path: str) -> str:
        self._held.append(os.open(path, os.O_RDONLY))
        return f"/proc/{os.getpid()}/fd/{self._held[-1]}"

    def bridge(self, path: str, name: str) -> None:
        topology.ensure_bridge(path, name)

    def close(self) -> None:
        with ExitStack() as stack:  # one that fails must not keep the others
            for path in self._paths:
                stack.callback(netns.delete, path)
            for descriptor in self._held:
                stack.callback(os.close, descriptor)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.root)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World = FakeWorld() if request.param == "fake" else RealWorld()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def host_path(world: World) -> str:
    return world.create("host")


@pytest.fixture
def pod_path(world: World) -> str:
    return world.create("pod")


@pytest.fixture
def paths(host_path: str, pod_path: str) -> tuple[str, str]:
    """Two fresh namespaces: where `host` is, and where `pod` is."""
    return host_path, pod_path


@pytest.fixture
def host(world: World, host_path: str) -> Iterator[Kernel]:
    kernel = world.namespaces.open(host_path)
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def pod(world: World, pod_path: str) -> Iterator[Kernel]:
    kernel = world.namespaces.open(pod_path)
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """The lab's API server, which must not have crashed in any request."""
    with ApiServer(bookmark_interval=0.05) as running:
        yield running
    assert running.crashes == []


@pytest.fixture
def client(server: ApiServer) -> Iterator[HttpKubeClient]:
    made = HttpKubeClient(direct(server.url))
    yield made
    made.close()


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Iterator[Kubectl]:
    made = kubectl_for(server, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """One etcd for the session; what tests leave in it is the next one's to remove."""
    with etcd_members(tmp_path_factory.mktemp("etcd")) as (member,):
        yield member


@pytest.fixture
def member(shared_etcd: EtcdMember) -> EtcdMember:
    """The session's etcd, empty."""
    shared_etcd.remove_all()
    return shared_etcd


@pytest.fixture
def own_member(tmp_path: Path) -> Iterator[EtcdMember]:
    """An etcd that a test may kill."""
    with etcd_members(tmp_path) as (one,):
        yield one


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[list[EtcdMember]]:
    """A cluster of three."""
    with etcd_members(tmp_path, 3) as members:
        yield members


@pytest.fixture(params=list(BACKENDS))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Every datastore, empty."""
    with BACKENDS[request.param].open(request) as opened:
        yield opened


@pytest.fixture
def store(harness: Harness) -> Datastore:
    return harness.store


@pytest.fixture(params=KEEPING_UIDS)
def keeping_store(request: pytest.FixtureRequest) -> Iterator[Datastore]:
    """Every datastore that takes a UID as it is given, empty."""
    with BACKENDS[request.param].open(request) as opened:
        yield opened.store


@pytest.fixture(params=ATOMIC)
def atomic_harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Every datastore whose commits are transactions, empty."""
    with BACKENDS[request.param].open(request) as opened:
        yield opened


@pytest.fixture
def atomic_store(atomic_harness: Harness) -> Datastore:
    return atomic_harness.store
