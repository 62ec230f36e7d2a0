"""IPAM on a Kubernetes API: how many requests, and who comes between any two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from ipam.client import AddressRequest, IPAMClient
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.errors import TortieError
from libtortie.kube import prepare
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

V4 = AddressRequest()
VM = "k8s-pod-network.vmi.shop.db"
ALLOCATION = {
    "clusterinformations": 2,
    "ipamconfigs": 2,
    "ippools": 2,
    "ipreservations": 2,
    "blockaffinities": 1,
    "ipamblocks": 2,
    "ipamhandles": 2,
}
"""Settings are looked at twice: to decide, and right before the first write."""
RELEASE = {"clusterinformations": 2, "ipamconfigs": 2, "ipamblocks": 2, "ipamhandles": 4}
"""A handle is deleted in two steps, at what was just read of it."""


@dataclass(eq=False)
class Interrupted(HttpKubeClient):
    """Before one request another client acts."""

    server_: ApiServer
    between: Callable[[], object] = lambda: None
    at: int = -1
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(direct(self.server_.url))

    def send(self, request: prepare.Request, seconds: float = 0.0) -> bytes:
        if len(self.asked) == self.at:
            self.between()
        self.asked.append(f"{request.verb} {request.subject or request.path}")
        return super().send(request, seconds)


@contextmanager
def a_cluster() -> Iterator[tuple[ApiServer, World, World]]:
    """An API server with a node's block in use, and two clients' views of it."""
    with kubernetes_api() as server, stores_of(server, Group.V1, count=2) as (one, two):
        world = World(one).pools(pool("a", "10.0.0.0/26", blockSize=28))
        world.config()
        world.client().assign("before", plain_pod("before"), V4)
        world.client().claim_vm(VM, vm_pod("src"), V4)
        yield server, world, World(two)


def requests(server: ApiServer, work: Callable[[], object]) -> dict[str, int]:
    """Requests by resource."""
    server.audit.clear()
    work()
    found: dict[str, int] = {}
    for entry in server.audit:
        resource = entry.resource.partition(".")[0]
        found[resource] = found.get(resource, 0) + 1
    return found


def test_requests_of_an_allocation_and_its_release() -> None:
    with a_cluster() as (server, world, _):
        client = world.client()
        assert requests(server, lambda: client.assign("h", plain_pod("h"), V4)) == ALLOCATION
        assert requests(server, lambda: client.release("h")) == RELEASE


def test_the_node_is_read_only_where_a_pool_chooses_nodes() -> None:
    with a_cluster() as (server, world, _):
        world.pools(pool("b", "10.1.0.0/26", blockSize=28, nodeSelector="has(rack)"))
        found = requests(server, lambda: world.client().assign("h", plain_pod("h"), V4))
        assert found == ALLOCATION | {"nodes": 1}


Act = Callable[[IPAMClient], object]
MINE: dict[str, Act] = {
    "allocate": lambda client: client.assign("mine", plain_pod("mine"), V4),
    "release": lambda client: client.release("before"),
    "promote": lambda client: client.promote(VM, vm_pod("dst", node="n2", vmim_uid="m-1")),
}
THEIRS: dict[str, Act] = {
    "another allocation": lambda client: client.assign("other", plain_pod("other"), V4),
    "the same allocation": lambda client: client.assign("mine", plain_pod("mine"), V4),
    "its release": lambda client: client.release("mine"),
    "a release in the block": lambda client: client.release("before"),
    "a VM's target": lambda client: client.claim_vm_target(
        VM, vm_pod("dst", node="n2", vmim_uid="m-1")
    ),
}


PAIRS = (
    ("allocate", "another allocation"),
    ("allocate", "the same allocation"),
    ("allocate", "its release"),
    ("release", "another allocation"),
    ("promote", "a VM's target"),
    ("promote", "a release in the block"),
)


@pytest.mark.parametrize(("mine", "theirs"), PAIRS)
def test_somebody_comes_between_two_requests(mine: str, theirs: str) -> None:
    """Between any two: nobody's address is another's, and the records agree."""
    at, last = 0, 1
    while at < last:
        with a_cluster() as (server, world, other):
            wire = Interrupted(server, partial(quietly, THEIRS[theirs], other.client()), at)
            store = KubernetesDatastore(wire, group=Group.V1, close=wire.close)
            quietly(MINE[mine], world.client(store=store))
            store.close()
            at, last = at + 1, len(wire.asked)
            settle(world)
            world.audit()
            names, reader = world.handles(), other.client()
            held = [one.address for name in names for one in reader.by_handle(name)]
            assert len(held) == len(set(held))
            assert len(reader.by_handle(VM)) == 1


def quietly(act: Act, client: IPAMClient) -> None:
    """An operation that may be refused for what the other did."""
    with suppress(TortieError):
        act(client)


def settle(world: World) -> None:
    """What a handle announces too much, its next operation puts right."""
    for name in [*world.handles()]:
        if name != VM:
            world.client().assign(name, plain_pod(name), V4)
