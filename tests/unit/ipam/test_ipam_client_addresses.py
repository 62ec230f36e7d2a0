"""Particular addresses: asked for, reserved, cooling down, looked up."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from ipam.client import AddressRequest
from libtortie.errors import (
    InvalidInput,
    NoFreeAddresses,
    OwnerMismatch,
)
from libtortie.model.ipam import Owner
from libtortie.model.keys import (
    Kind,
    ResourceKey,
)
from tests.fakes.ipam_world import World, plain_pod, pool
from tests.fakes.small_world import small, take

V4 = AddressRequest()
V6 = AddressRequest(ipv4=False, ipv6=True)
BOTH = AddressRequest(ipv6=True)


def test_reserved_addresses_are_for_explicit_requests_only() -> None:
    world = small()
    world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.0/30", "10.0.0.4/31"]})
    assert sorted(take(world, "n1", 2)) == ["10.0.0.6", "10.0.0.7"]
    with pytest.raises(NoFreeAddresses):
        take(world, "n2", 1)
    want = AddressRequest(addresses=(ip_address("10.0.0.1"),))
    (got,) = world.client().assign("x", plain_pod("x"), want)
    assert str(got.address) == "10.0.0.1"


def test_explicit_address() -> None:
    world = small()
    want = AddressRequest(addresses=(ip_address("10.0.0.6"),))
    client = world.client()
    (got,) = client.assign("h", plain_pod("p"), want)
    assert (str(got.address), world.block(got.block).node) == ("10.0.0.6", "n1")
    assert client.assign("h", plain_pod("p"), want) == (got,)
    with pytest.raises(OwnerMismatch, match=r"10\.0\.0\.6 .* handle h \(pod shop/p on node n1\)"):
        client.assign("other", plain_pod("q"), want)
    with pytest.raises(InvalidInput, match=r"holds 10\.0\.0\.6"):
        client.assign("h", plain_pod("p"), AddressRequest(addresses=(ip_address("10.0.0.7"),)))
    for outside in ("10.9.0.1", "fd00::1"):
        with pytest.raises(InvalidInput, match="not in an enabled pool"):
            client.assign("z", plain_pod("z"), AddressRequest(addresses=(ip_address(outside),)))
    with pytest.raises(InvalidInput, match="one explicit address per family"):
        two = (ip_address("10.0.0.1"), ip_address("10.0.0.2"))
        client.assign("z", plain_pod("z"), AddressRequest(addresses=two))
    world.audit()


def test_explicit_address_in_another_nodes_block() -> None:
    for strict in (False, True):
        world = small(strict_affinity=strict)
        taken = take(world, "n2", 1)
        block = ip_network(f"{taken[0]}/30", strict=False)
        free = next(str(a) for a in block if str(a) != taken[0])
        want = AddressRequest(addresses=(ip_address(free),))
        if strict:
            with pytest.raises(OwnerMismatch, match="host:n2 and affinity is strict"):
                world.client("n1").assign("h", plain_pod("p"), want)
        else:
            assert str(world.client("n1").assign("h", plain_pod("p"), want)[0].address) == free
        assert world.block(block).node == "n2"
        assert world.affinities("n1") == {}


def test_fixed_address_of_a_dead_sandbox_moves_only_on_proof() -> None:
    world = small()
    client = world.client()
    want = AddressRequest(addresses=(ip_address("10.0.0.6"),))
    old = plain_pod("web-0", container="old", uid="u1")
    new = plain_pod("web-0", container="new", uid="u2")
    client.assign("net.old", old, want)
    with pytest.raises(OwnerMismatch, match=r"net\.old"):
        client.assign("net.new", new, want)
    asked: list[Owner] = []

    def gone(owner: Owner) -> bool:
        asked.append(owner)
        return True

    with pytest.raises(OwnerMismatch):
        client.assign("net.x", plain_pod("else"), want, previous_owner_gone=gone)
    assert asked == []
    (got,) = client.assign("net.new", new, want, previous_owner_gone=gone)
    assert asked == [old]
    assert (str(got.address), got.active) == ("10.0.0.6", new)
    assert client.by_handle("net.old") == ()
    assert set(world.handles()) == {"net.new"}
    world.audit()


def test_cooldown_delays_reuse() -> None:
    world = World().pools(pool("a", "10.0.0.0/30", blockSize=30)).config(cooldown_seconds=30)
    client = world.client()
    owners = [client.assign(f"h{i}", plain_pod(f"p{i}"), V4)[0] for i in range(4)]
    client.release("h1")
    with pytest.raises(NoFreeAddresses):
        client.assign("x", plain_pod("x"), V4)
    want = AddressRequest(addresses=(owners[1].address,))
    with pytest.raises(NoFreeAddresses, match="cooling down"):
        client.assign("x", plain_pod("x"), want)
    assert client.owner_of(owners[1].address) is None
    world.later(31)
    assert client.assign("x", plain_pod("x"), V4)[0].address == owners[1].address
    world.audit()


def test_owner_of_finds_blocks_outside_every_pool() -> None:
    world = small()
    client = world.client()
    (got,) = client.assign("h", plain_pod("p"), V4)
    world.store.delete(ResourceKey(Kind.IP_POOL, "a"))
    assert client.owner_of(got.address) == got
    assert client.owner_of(got.address + 1) is None
    assert client.owner_of(ip_address("192.0.2.1")) is None
