"""Two blocks of four addresses, and nodes that take some: the smallest cluster there can be."""

from __future__ import annotations

from ipam.client import AddressRequest
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()


def small(**config: object) -> World:
    """One /29 of two blocks of four."""
    world = World().pools(pool("a", "10.0.0.0/29", blockSize=30))
    return world.config(**config) if config else world


def take(world: World, node: str, count: int, want: AddressRequest = V4) -> list[str]:
    """Addresses that a node allocates for so many pods."""
    client = world.client(node)
    return [
        str(client.assign(f"{node}-{i}", plain_pod(f"{node}-{i}", node=node), want)[0].address)
        for i in range(count)
    ]
