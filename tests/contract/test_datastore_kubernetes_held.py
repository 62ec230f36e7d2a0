"""IPAM's objects that somebody deletes by hand while a finalizer holds them: no write is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ipam.client import AddressRequest
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.errors import Conflict
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.port import PatchType
from libtortie.model.ipam import Block
from libtortie.model.keys import BlockKey
from tests.fakes.ipam_world import World, plain_pod, pool
from tests.fakes.kubernetes_store import kubernetes_api, stores_of


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as made:
        yield made


@pytest.fixture(params=list(Group))
def store(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[KubernetesDatastore]:
    with stores_of(server, request.param) as (made,):
        yield made


def hold_and_delete(server: ApiServer, store: KubernetesDatastore, plural: str) -> list[str]:
    """`kubectl patch` with a finalizer, then `kubectl delete --wait=false`, of every object."""
    assert store.group is not None
    client = HttpKubeClient(direct(server.url))
    names = []
    path = f"/apis/{store.group}/{plural}"
    for one in client.raw("GET", path)["items"]:
        at = f"{path}/{one['metadata']['name']}"
        held = {"metadata": {"finalizers": ["example.com/held"]}}
        client.raw("PATCH", at, held, content_type=PatchType.MERGE.value)
        client.raw("DELETE", at)
        assert client.raw("GET", at)["metadata"]["deletionTimestamp"]
        names.append(one["metadata"]["name"])
    client.close()
    return names


@pytest.mark.parametrize("plural", ["ipamblocks", "ipamhandles", "blockaffinities"])
def test_an_allocation_is_not_written_into_what_goes(
    server: ApiServer, store: KubernetesDatastore, plural: str
) -> None:
    world = World(store).pools(pool("v4", "10.65.0.0/24", blockSize=30))
    world.client().assign("net.c-1", plain_pod("p1"), AddressRequest())
    assert hold_and_delete(server, store, plural)
    (got,) = world.client().assign("net.c-2", plain_pod("p2"), AddressRequest())
    assert world.allocated()["net.c-2"] == 1
    assert [one.address for one in world.client().by_handle("net.c-2")] == [got.address]
    world.client().release("net.c-2")
    assert world.allocated()["net.c-2"] == 0


def test_a_write_that_goes_with_its_object_is_a_conflict(
    server: ApiServer, store: KubernetesDatastore
) -> None:
    world = World(store).pools(pool("v4", "10.65.0.0/24", blockSize=30))
    world.client().assign("net.c-1", plain_pod("p1"), AddressRequest())
    hold_and_delete(server, store, "ipamblocks")
    (block,) = world.blocks()
    record = store.get(BlockKey(block.cidr))
    assert isinstance(record.value, Block)
    with pytest.raises(Conflict, match=r"was being deleted, and is gone: read again"):
        store.update(record.key, record.value, record.revision)
