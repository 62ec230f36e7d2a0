"""Which block a node makes its own: a new one, or an empty one of another node's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from libtortie.model.ipam import Block
from libtortie.model.keys import AffinityKey, IPNetwork

from . import affinity as rules
from . import block as blocks
from .pools import Pool, pool_of
from .staging import Claim, readable
from .view import View


def fresh_block(
    view: View,
    pools: Sequence[Pool],
    owned: Collection[IPNetwork],
    unfinished: Collection[IPNetwork],
) -> Claim | None:
    """A place where no block is: found by the names of those that are, not by their values."""
    if not view.may_claim(owned):
        return None
    taken = dict.fromkeys(view.tx.block_names(pools[0].cidr.version))
    for cidr in (*unfinished, *_candidates(view, pools, taken)):
        pool = pool_of(pools, cidr)
        if pool and cidr not in taken and not view.reservations.exhausts(cidr):
            return Claim(pool, blocks.new_block(cidr, node=view.node, now=view.now))
    return None


def _candidates(
    view: View, pools: Sequence[Pool], taken: Mapping[IPNetwork, None]
) -> Iterator[IPNetwork]:
    """The first candidate of each pool, in pool order."""
    for pool in pools:
        walk = rules.candidates(
            pool,
            node=view.node,
            taken=taken.keys(),
            reservations=view.reservations,
            now=view.now,
        )
        yield from islice(filter(partial(_claimable, view), walk), 1)


def take_over(view: View, pools: Sequence[Pool], block: Block) -> Claim | None:
    """An empty block of another node, or of none, if it is free to take."""
    pool = pool_of(pools, block.cidr)
    if pool is None or view.reservations.exhausts(block.cidr):
        return None
    if not rules.reclaimable(block, view.node, view.now) or not _claimable(view, block.cidr):
        return None
    loser = AffinityKey(block.node, block.cidr) if block.node else None
    if loser and not readable(view.tx, loser):
        loser = None  # it stays, and is never trusted
    return Claim(pool, blocks.claim_for(block, view.node, view.now), loser)


def _claimable(view: View, cidr: IPNetwork) -> bool:
    return readable(view.tx, AffinityKey(view.node, cidr))
