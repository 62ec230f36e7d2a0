"""IPAM's records at the limits of what a datastore takes in one request."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

from ipam.block import assign_ordinal, new_block
from libtortie.datastore.ipam_codec import block_to_text
from libtortie.model.ipam import AffinityState, Attribute, Block, BlockAffinity, Handle, Owner
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, IPNetwork
from tests.fakes.ipam_world import World, plain_pod

REQUEST = 1_572_864
"""Bytes that etcd takes in one request (`--max-request-bytes`), unless it is told otherwise."""


LONG, LONGEST = "a-long-name-" * 12, "a-long-name-" * 20
"""Of pods: so long that a good part of a block of 4,096 is free, or as long as they may be."""


def long_block(
    world: World,
    text: str,
    size: int,
    node: str = "n1",
    *,
    handle: str = "",
    name: str = LONG,
) -> Block:
    """Store a block of a node whose text has nearly `size` bytes (less than a pod is missing).

    The first address is of `handle`, if given.
    """
    empty = new_block(ip_network(text), node=node, now=world.now())
    block = _filled(empty, size, handle, name)
    world.put(BlockKey(block.cidr), block)
    world.put(AffinityKey(node, block.cidr), BlockAffinity(AffinityState.CONFIRMED))
    if handle:
        _count(world, handle, block.cidr)
    return block


def scattered(world: World, handle_id: str, owner: Owner, text: str, count: int) -> None:
    """Let a handle hold the first address of each of the first blocks (of one address) of a pool,
    which are no node's."""
    counts: dict[IPNetwork, int] = {}
    for number in range(count):
        cidr = ip_network((int(ip_network(text).network_address) + number, 32))
        block = new_block(cidr, node=None, now=world.now())
        block = assign_ordinal(block, 0, handle_id=handle_id, owner=owner)
        world.put(BlockKey(cidr), block)
        counts[cidr] = 1
    world.put(HandleKey(handle_id), Handle(counts))


def _filled(empty: Block, size: int, handle: str, name: str) -> Block:
    block = _with(empty, 1, handle, name)
    some = min(101, len(empty.allocations))
    more = len(block_to_text(_with(empty, some, handle, name)))
    each = (more - len(block_to_text(block))) / (some - 1)
    count = int((size - len(block_to_text(block))) / each)
    while len(block_to_text(block := _with(empty, count, handle, name))) > size:
        count -= 1
    return block


def _with(empty: Block, count: int, handle: str, name: str) -> Block:
    held = [
        Attribute(
            handle_id=handle if handle and not number else f"k8s-pod-network.{number:064x}",
            active=plain_pod(f"{name}{number:05}", container=f"{number:064x}"),
        )
        for number in range(count)
    ]
    size = len(empty.allocations)
    return replace(
        empty,
        allocations=(*range(count), *[None] * (size - count)),
        unallocated=tuple(range(count, size)),
        attributes=tuple(held),
        sequence_number=empty.sequence_number + count,
        sequence_numbers={number: empty.sequence_number + number for number in range(count)},
    )


def _count(world: World, handle_id: str, cidr: IPNetwork) -> None:
    known = world.handles().get(handle_id)
    world.put(HandleKey(handle_id), Handle({**(known.blocks if known else {}), cidr: 1}))
