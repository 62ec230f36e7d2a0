"""One particular address that is asked for by name."""

from __future__ import annotations

from libtortie.errors import Conflict, InvalidInput, NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import Block, IPAddress, Owner

from . import block as blocks
from .ownership import OwnerGone, is_pod
from .pools import WORKLOAD, described
from .staging import Claim, Pick
from .view import View


def pick_address(
    view: View, address: IPAddress, owner: Owner, gone: OwnerGone, use: str = WORKLOAD
) -> Pick | Claim:
    """One particular address; reservations and selectors don't count.

    Raises `InvalidInput` (in no enabled pool of the use, or in a block of another size),
    `OwnerMismatch` (held, or in another node's block under strict affinity),
    `NoFreeAddresses` (cooling down).
    """
    around = [pool for pool in view.pools if address in pool.cidr]
    pool = next((p for p in around if p.enabled and use in p.allowed_uses), None)
    if pool is None:
        where = f" (in pools: {described(around)})" if around else ""
        raise InvalidInput(
            f"{address} is not in an enabled pool for use {use}{where}{view.unread()}"
        )
    cidr = pool.block_of(address)
    block = view.block(cidr)
    if block is None:
        if view.tx.block(cidr) is not None:
            raise Conflict(f"block {cidr} is being deleted")
        if odd := [c for c in view.tx.block_names(cidr.version) if c.overlaps(cidr)]:
            raise InvalidInput(
                f"{address}: a block {cidr} of pool {pool.name} would overlap block {odd[0]}, "
                "which is of another size and still in use"
            )
        return Claim(pool, blocks.new_block(cidr, node=view.node, now=view.now))
    if block.node != view.node and view.config.strict_affinity:
        if block.affinity is None:
            return Claim(pool, blocks.claim_for(block, view.node, view.now))
        raise OwnerMismatch(
            f"{address} is in block {cidr} of {block.affinity} and affinity is strict"
        )
    ordinal = block.ordinal(address)
    if ordinal not in block.unallocated:
        return Pick(pool, cidr, ordinal, address, _evict(block, ordinal, owner, gone))
    if view.is_heavy(block):
        raise NoFreeAddresses(f"{address} is not given: {view.too_long(cidr)}")
    return Pick(pool, cidr, ordinal, address)


def _evict(block: Block, ordinal: int, owner: Owner, gone: OwnerGone) -> str:
    """The handle that must give up an ordinal to `owner`, a new sandbox of the same pod name.

    Raises when the holder is another pod, a VM, or not proved to be gone.
    """
    attribute, address = block.attribute(ordinal), block.address(ordinal)
    who = blocks.holder(block, ordinal)
    if attribute is None or attribute.released_at is not None:
        raise NoFreeAddresses(f"{address} is not free: {who}")
    held_by = attribute.active
    named = all(held_by.get(key) == owner.get(key) for key in ("namespace", "pod"))
    replaceable = named and is_pod(held_by) and not attribute.alternate
    if not replaceable or "vmi-name" in held_by or not attribute.handle_id or not gone(held_by):
        raise OwnerMismatch(f"{address} is not free: {who}")
    return attribute.handle_id
