"""A decision on addresses, and how it is written into a transaction.

A claim is a commit of its own (affinity `pending`, then the block, empty) where commits are not
atomic; the affinity becomes `confirmed` together with the block's first allocation. So no commit
that stops in the middle leaves a confirmed affinity without its block, and every handle names
blocks that existed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from libtortie.errors import Malformed
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, IPAddress, Owner
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork

from . import block as blocks
from .holdings import set_counts
from .pools import Pool
from .settings import POOLS, guard_pool
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Pick:
    """Take this ordinal, the `address`; `evicted` is the handle of a dead holder that has it."""

    pool: Pool
    cidr: IPNetwork
    ordinal: int
    address: IPAddress
    evicted: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make this block ours first. `loser` is the affinity of the node that had it, empty."""

    pool: Pool
    block: Block
    loser: AffinityKey | None = None


def stage_claim(tx: Transaction, claim: Claim, node: str) -> None:
    """Affinity first, as pending; then the block; last the affinity of the node that lost it.

    Only while the pools are what they were: one that has taken this one's place, or comes before
    it where they overlap, may have blocks of another size.
    """
    guard_pool(tx, claim.pool)
    tx.guard_listing(POOLS)
    pending = BlockAffinity(state=AffinityState.PENDING)
    tx.put(AffinityKey(node, claim.block.cidr), pending)
    tx.put(BlockKey(claim.block.cidr), claim.block)
    if claim.loser is not None:
        tx.remove(claim.loser)


def stage_picks(
    tx: Transaction,
    picks: Sequence[Pick],
    *,
    handle_id: str,
    owner: Owner,
    now: datetime,
    cooldown: int,
) -> None:
    """The handle first, then its blocks, then the handles of dead holders."""
    handle = tx.handle(handle_id)
    counts = dict(handle.blocks) if handle else {}
    for pick in picks:
        counts[pick.cidr] = counts.get(pick.cidr, 0) + 1
    set_counts(tx, handle_id, handle, counts)
    for pick in picks:
        block = tx.block(pick.cidr)
        if block is None:
            raise AssertionError(f"block {pick.cidr} was picked and not read")
        block = blocks.expire_cooldown(block, now=now, cooldown=cooldown)
        if pick.evicted:
            block = blocks.release(block, [pick.ordinal], now=now, cooldown=0)
        given = blocks.assign_ordinal(block, pick.ordinal, handle_id=handle_id, owner=owner)
        tx.put(BlockKey(pick.cidr), given)
        guard_pool(tx, pick.pool)
    for pick in picks:
        if pick.evicted:
            _uncount(tx, pick.evicted, pick.cidr)


def stage_confirmations(tx: Transaction, node: str, cidrs: Iterable[IPNetwork]) -> None:
    """Confirm the node's affinities to those blocks of its own that are in use.

    One that cannot be read stays so: it is only an index.
    """
    for cidr in cidrs:  # each once, as long as no other claims are staged
        tx.noted(("confirmed", cidr, tx.claims), partial(_confirm, tx, node, cidr))


def _confirm(tx: Transaction, node: str, cidr: IPNetwork) -> None:
    block, key = tx.block(cidr), AffinityKey(node, cidr)
    if block is None or block.node != node or not readable(tx, key):
        return
    stored = tx.affinity(key)
    if stored is None or stored.state is not AffinityState.CONFIRMED:
        wanted = replace(stored or BlockAffinity(), state=AffinityState.CONFIRMED)
        tx.put(key, wanted)


def readable(tx: Transaction, key: AffinityKey) -> bool:
    """Whether an affinity is absent or can be read: else it cannot be written either."""
    try:
        tx.glance(key, BlockAffinity)
    except Malformed:
        return False
    return True


def _uncount(tx: Transaction, handle_id: str, cidr: IPNetwork) -> None:
    handle = tx.handle(handle_id)
    if handle is not None:
        counts = dict(handle.blocks)
        counts[cidr] = counts.get(cidr, 0) - 1
        set_counts(tx, handle_id, handle, counts)
