"""A node's tunnel addresses: which it needs, that they are Calico's, what can go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from ipam.attempts import Attempts
from ipam.client import AddressRequest
from ipam.settings import NotReady
from ipam.tunnels import (
    IPIP,
    TUNNELS,
    VXLAN,
    VXLAN_V6,
    WIREGUARD,
    WIREGUARD_V6,
    Ensured,
    ensure_tunnel_addresses,
    stated_in,
)
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import NotFound
from libtortie.model.keys import Kind, ResourceKey, path_of
from libtortie.model.resources import Node, parse_resource
from tests.fakes.faulty_store import Fault, FaultyStore, Killed
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool

KEY = ResourceKey(Kind.NODE, "n1")
BOTH = frozenset({4, 6})
ON = {"ipipMode": "Always", "vxlanMode": "Never"}
OVERLAY = {"vxlanMode": "CrossSubnet"}


def with_node(world: World, spec: dict[str, Any] | None = None, **labels: str) -> World:
    wire = {"kind": "Node", "metadata": {"name": "n1", "labels": labels}, "spec": spec or {}}
    world.put(KEY, parse_resource(Kind.NODE, wire))
    return world


def ensure(
    world: World, wireguard: frozenset[int] = frozenset(), store: Any = None
) -> dict[str, Ensured]:
    at = store or world.store
    attempts = Attempts(at, UNHURRIED, time.monotonic, lambda seconds: None)
    done = ensure_tunnel_addresses(at, world.client(store=at), "n1", attempts, wireguard)
    assert [one.tunnel for one in done] == list(TUNNELS)
    return {one.tunnel.type: one for one in done}


def stated(world: World) -> dict[str, str]:
    """What the Node resource says, by tunnel type."""
    return {t.type: text for t in TUNNELS if (text := stated_in(the_node(world), t))}


def the_node(world: World) -> Node:
    node = world.store.get(KEY).value
    assert isinstance(node, Node)
    return node


def held(world: World) -> dict[str, str]:
    """What IPAM says, by tunnel type; each address this node's alone."""
    found = {}
    for tunnel in TUNNELS:
        for one in world.client().by_handle(tunnel.handle_id("n1")):
            assert one.active == {"node": "n1", "type": tunnel.type}
            assert tunnel.type not in found
            found[tunnel.type] = str(one.address)
    world.audit()
    return found


def test_names_and_attributes_are_calicos() -> None:
    assert [(t.type, t.handle_id("n1"), t.version) for t in TUNNELS] == [
        ("ipipTunnelAddress", "ipip-tunnel-addr-n1", 4),
        ("vxlanTunnelAddress", "vxlan-tunnel-addr-n1", 4),
        ("vxlanV6TunnelAddress", "vxlan-v6-tunnel-addr-n1", 6),
        ("wireguardTunnelAddress", "wireguard-tunnel-addr-n1", 4),
        ("wireguardV6TunnelAddress", "wireguard-v6-tunnel-addr-n1", 6),
    ]


@pytest.mark.parametrize(
    ("pools", "wireguard", "types"),
    [
        ([pool("a", "10.0.0.0/24")], frozenset(), []),
        ([pool("a", "10.0.0.0/24", **ON)], frozenset(), [IPIP]),
        ([pool("a", "10.0.0.0/24", ipipMode="CrossSubnet")], frozenset(), [IPIP]),
        ([pool("a", "10.0.0.0/24", **OVERLAY)], frozenset(), [VXLAN]),
        ([pool("a", "fd00::/64", **OVERLAY)], frozenset(), [VXLAN_V6]),
        ([pool("a", "10.0.0.0/24", **ON), pool("b", "10.1.0.0/24", **OVERLAY)], frozenset(),
         [IPIP, VXLAN]),
        ([pool("a", "10.0.0.0/24"), pool("b", "fd00::/64")], BOTH, [WIREGUARD, WIREGUARD_V6]),
        ([pool("a", "10.0.0.0/24")], frozenset({6}), []),
        ([pool("a", "10.0.0.0/24", **ON, disabled=True)], BOTH, []),
        ([pool("a", "10.0.0.0/24", **ON, allowedUses=["Workload"])], BOTH, []),
        ([pool("a", "10.0.0.0/24", **ON, nodeSelector="rack == 'r2'")], BOTH, []),
        ([pool("a", "10.0.0.0/24", **ON, nodeSelector="rack == 'r1'")], frozenset(), [IPIP]),
        ([pool("a", "10.0.0.0/24", **ON, allowedUses=["Tunnel"])], frozenset(), [IPIP]),
        ([pool("a", "10.0.0.0/24", **ON, assignmentMode="Manual")], frozenset(), [IPIP]),
    ],
)  # fmt: skip
def test_a_node_has_the_addresses_its_pools_need(
    pools: list[Any], wireguard: frozenset[int], types: list[Any]
) -> None:
    world = with_node(World().pools(*pools), rack="r1")
    done = ensure(world, wireguard)
    assert not [one.error for one in done.values() if one.error]
    assert set(held(world)) == {one.type for one in types}
    assert stated(world) == held(world)
    assert {name: str(one.address) for name, one in done.items() if one.address} == held(world)


def test_doing_it_again_writes_nothing() -> None:
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON), pool("b", "fd00::/64")))
    first = ensure(world, BOTH)
    assert first[IPIP.type].changed
    store = FaultyStore(world.store)
    again = ensure(world, BOTH, store)
    assert not any(one.changed for one in again.values())
    assert store.commits == []
    assert {k: v.address for k, v in first.items()} == {k: v.address for k, v in again.items()}


def test_what_else_the_node_says_stays() -> None:
    spec = {
        "bgp": {"ipv4Address": "192.0.2.1/24", "asNumber": 64512, "new": True},
        "orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}],
        "wireguard": {"interfaceIPv6Address": "fd00::9"},
    }
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)), spec)
    ensure(world, frozenset({4, 6}))
    wire = the_node(world).to_wire()["spec"]
    assert wire["bgp"].pop("ipv4IPIPTunnelAddr") == held(world)[IPIP.type]
    assert wire["bgp"] == spec["bgp"]
    assert wire["orchRefs"] == spec["orchRefs"]
    assert wire["wireguard"] == {"interfaceIPv4Address": held(world)[WIREGUARD.type]}
    world.pools(pool("a", "10.0.0.0/24"))
    ensure(world)
    left = the_node(world).to_wire()["spec"]
    assert left == {"bgp": spec["bgp"], "orchRefs": spec["orchRefs"]}


@pytest.mark.parametrize(
    "after",
    [
        pool("a", "10.0.0.0/24"),
        pool("a", "10.0.0.0/24", **ON, allowedUses=["Workload"]),
        pool("a", "10.0.0.0/24", **ON, nodeSelector="!all()"),
        pool("a", "10.0.0.0/24", **ON, disabled=True),
    ],
)
def test_an_address_that_is_not_needed_any_more_is_released(after: Any) -> None:
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)))
    ensure(world)
    world.pools(after)
    assert ensure(world)[IPIP.type].changed
    assert held(world) == stated(world) == {}
    assert world.handles() == {}


def test_an_address_in_a_pool_that_is_disabled_is_replaced() -> None:
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)))
    ensure(world)
    world.pools(pool("a", "10.0.0.0/24", **ON, disabled=True), pool("b", "10.1.0.0/24", **ON))
    ensure(world)
    assert held(world) == stated(world)
    assert held(world)[IPIP.type].startswith("10.1.")
    assert sum(world.allocated().values()) == 1


@pytest.mark.parametrize("how", ["pod", "node"])
def test_an_address_that_somebody_else_has_is_replaced(how: str) -> None:
    world = World().pools(pool("a", "10.0.0.0/24", **ON))
    owner = {"node": "n2", "type": IPIP.type} if how == "node" else plain_pod("p")
    want = AddressRequest(addresses=(ip_address("10.0.0.7"),))
    world.client("n2").assign("theirs", owner, want)
    with_node(world, {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.7"}})
    ensure(world)
    assert held(world) == stated(world)
    assert held(world)[IPIP.type] != "10.0.0.7"
    assert [str(a.address) for a in world.client("n2").by_handle("theirs")] == ["10.0.0.7"]


def test_an_address_that_only_the_node_remembers_is_taken_again() -> None:
    world = with_node(
        World().pools(pool("a", "10.0.0.0/24", **ON)), {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.7"}}
    )
    ensure(world)
    assert held(world) == stated(world) == {IPIP.type: "10.0.0.7"}


@pytest.mark.parametrize("text", ["nonsense", "10.9.0.1", "fd00::1"])
def test_an_address_that_can_not_be_the_nodes_is_replaced(text: str) -> None:
    world = with_node(
        World().pools(pool("a", "10.0.0.0/24", **ON)), {"bgp": {"ipv4IPIPTunnelAddr": text}}
    )
    ensure(world)
    assert held(world) == stated(world)
    assert ip_address(held(world)[IPIP.type]) in pool_range(world)


def pool_range(world: World) -> Any:
    (block,) = world.blocks()
    return block.cidr


def test_a_handle_of_two_addresses_or_of_another_owner_is_put_right() -> None:
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON), pool("b", "fd00::/64")))
    strange = {"node": "n2", "type": "ipipTunnelAddress"}
    world.client().assign(IPIP.handle_id("n1"), strange, AddressRequest(ipv6=True))
    ensure(world)
    assert held(world) == stated(world)
    assert sum(world.allocated().values()) == 1


def test_an_address_in_a_pool_that_can_not_be_read_is_left() -> None:
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)))
    ensure(world)
    had = held(world)
    assert isinstance(world.store, MemoryDatastore)
    world.store.put_raw(path_of(ResourceKey(Kind.IP_POOL, "a")), b"{")
    done = ensure(world)[IPIP.type]
    assert "ippools/a: not JSON" in done.error
    assert held(world) == stated(world) == had


def test_one_tunnels_trouble_is_its_own() -> None:
    full = pool("a", "10.0.0.0/32", blockSize=32, **ON)
    world = with_node(World().pools(full, pool("b", "fd00::/64", **OVERLAY)))
    world.client().assign("other", plain_pod("p"), AddressRequest())
    done = ensure(world)
    assert "no free IPv4 address" in done[IPIP.type].error
    assert set(held(world)) == set(stated(world)) == {VXLAN_V6.type}


def test_a_node_that_is_not_registered_gets_nothing() -> None:
    world = World().pools(pool("a", "10.0.0.0/24", **ON))
    with pytest.raises(NotFound, match="Node n1 does not exist yet"):
        ensure(world)
    assert world.allocated() == {}


def test_a_locked_datastore_is_left_as_it_is() -> None:
    """`calicoctl datastore migrate lock`: the node keeps its tunnel, whatever becomes of pools."""
    world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)))
    ensure(world)
    had = stated(world)
    world.pools(pool("a", "10.0.0.0/24", **ON, disabled=True), pool("b", "10.1.0.0/24", **ON))
    world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    with pytest.raises(NotReady):
        ensure(world)
    assert held(world) == stated(world) == had


CHANGES: dict[str, Callable[[World], object]] = {
    "first": lambda world: None,
    "not needed": lambda world: (ensure(world), world.pools(pool("a", "10.0.0.0/24"))),
    "replaced": lambda world: (
        ensure(world),
        world.pools(pool("a", "10.0.0.0/24", **ON, disabled=True), pool("b", "10.1.0.0/24", **ON)),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("death", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_killed_at_any_commit_the_next_start_ends_the_same(change: str, death: Fault) -> None:
    """And the Node never names an address that IPAM does not say is its own."""
    deaths = 0
    while True:
        world = with_node(World().pools(pool("a", "10.0.0.0/24", **ON)))
        CHANGES[change](world)
        store = FaultyStore(world.store, [*[Fault.NONE] * deaths, death])
        try:
            ensure(world, store=store)
        except Killed:
            assert stated(world).items() <= held(world).items()
        else:
            break
        ensure(world)
        assert held(world) == stated(world)
        assert len(world.handles()) == len(held(world)) == (change != "not needed")
        deaths += 1
    assert deaths == len(store.commits) >= 2
