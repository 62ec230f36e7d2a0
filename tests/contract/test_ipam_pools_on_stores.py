"""What depends on pools, over every datastore: tunnel addresses, blocks given up, overlaps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ipam.attempts import Attempts
from ipam.client import AddressRequest
from ipam.tunnels import IPIP, TUNNELS, VXLAN_V6, WIREGUARD, ensure_tunnel_addresses, stated_in
from libtortie.datastore.crd_names import Group
from libtortie.errors import InvalidInput
from libtortie.kube.objects import KubeNode
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node
from tests.contract.datastore_backends import BACKENDS
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

Label = Callable[..., None]
PLAIN = [name for name in BACKENDS if not name.startswith("kubernetes")]
NODE = ResourceKey(Kind.NODE, "n1")
V4 = AddressRequest()


@contextmanager
def on_kubernetes(group: Group) -> Iterator[tuple[World, Label]]:
    with kubernetes_api() as server, stores_of(server, group) as (store,):
        fake = FakeKube()
        fake.api = server.api

        def label(**labels: str) -> None:
            fake.put({"metadata": {"name": "n1", "labels": labels}}, KubeNode)

        yield World(store), label


@contextmanager
def on_paths(name: str, request: pytest.FixtureRequest) -> Iterator[tuple[World, Label]]:
    with BACKENDS[name].open(request) as harness:
        world = World(harness.store)

        def label(**labels: str) -> None:
            world.put(NODE, Node.model_validate({"metadata": {"name": "n1", "labels": labels}}))

        yield world, label


@pytest.fixture(params=[*PLAIN, Group.V1, Group.V3])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[World, Label]]:
    """A cluster of the node n1, without labels, and what sets them."""
    group = isinstance(request.param, Group)
    opened = on_kubernetes(request.param) if group else on_paths(request.param, request)
    with opened as (world, label):
        label()
        yield world, label


def ensure(world: World, wireguard: frozenset[int] = frozenset()) -> None:
    attempts = Attempts(world.store, UNHURRIED, time.monotonic, lambda seconds: None)
    done = ensure_tunnel_addresses(world.store, world.client(), "n1", attempts, wireguard)
    assert [one.error for one in done if one.error] == []


def stated(world: World) -> dict[str, str]:
    node = world.store.get(NODE).value
    assert isinstance(node, Node)
    return {tunnel.type: text for tunnel in TUNNELS if (text := stated_in(node, tunnel))}


def held(world: World) -> dict[str, str]:
    found = {one.type: world.client().by_handle(one.handle_id("n1")) for one in TUNNELS}
    return {name: str(got[0].address) for name, got in found.items() if got}


def test_tunnel_addresses(place: tuple[World, Label]) -> None:
    world, _ = place
    world.pools(pool("a", "10.0.0.0/24", ipipMode="Always"))
    world.pools(pool("b", "fd00::/64", vxlanMode="CrossSubnet"))
    ensure(world, frozenset({4}))
    had = held(world)
    assert had == stated(world)
    assert set(had) == {IPIP.type, VXLAN_V6.type, WIREGUARD.type}
    ensure(world, frozenset({4}))
    assert held(world) == stated(world) == had
    world.pools(pool("a", "10.0.0.0/24"))
    ensure(world)
    assert held(world) == stated(world) == {VXLAN_V6.type: had[VXLAN_V6.type]}
    world.audit()


def test_a_block_of_no_use_is_given_up(place: tuple[World, Label]) -> None:
    world, label = place
    label(rack="r1")
    world.pools(pool("a", "10.0.0.0/24", nodeSelector="has(rack)"), pool("b", "10.1.0.0/24"))
    world.client().assign("h", plain_pod("p"), AddressRequest(ipv4_pools=("a",)))
    world.client().release("h")
    assert world.client().give_up_stranded() == ()
    label()
    assert len(world.client().give_up_stranded()) == 1
    assert world.blocks() == []
    assert world.affinities() == {}


def test_a_pool_that_overlaps_gives_nothing(place: tuple[World, Label]) -> None:
    world, _ = place
    world.pools(pool("a", "10.0.0.0/24"), pool("b", "10.0.0.0/25", blockSize=28))
    with pytest.raises(InvalidInput, match="overlaps older pool a"):
        world.client().assign("h", plain_pod("p"), AddressRequest(ipv4_pools=("b",)))
    world.client().assign("h", plain_pod("p"), V4)
    assert [block.cidr.prefixlen for block in world.blocks()] == [26]
