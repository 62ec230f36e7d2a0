"""Giving up what a node keeps for nothing: false affinities, and empty blocks no pool has for it.

Best effort beside an operation, and always safe: an affinity is only an index, and an empty block
is deleted at the revision that was empty. Whoever wants the range claims it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from libtortie.model.keys import AffinityKey, BlockKey

from . import affinity as rules
from . import block as blocks
from .pools import pool_of, serves
from .settings import read_config, read_node_labels, read_pools
from .transaction import Transaction

EVERY_NODE = ("", "all()")


def stage(tx: Transaction, key: AffinityKey, known: Mapping[str, str], now: datetime) -> None:
    """Stage the removal of an affinity that stands for nothing, and of its block if that is empty.

    `known` are labels of the affinity's node beside those that are stored. While a pool cannot be
    read nothing is stranded: the block may be its.
    """
    claim, block = tx.affinity(key), tx.block(key.cidr)
    if claim is not None and rules.is_void(claim, block, key.node):
        tx.guard(BlockKey(key.cidr))
        tx.remove(key)
    elif (block is None or block.node == key.node) and _stranded(tx, key, known, now):
        tx.remove(BlockKey(key.cidr))
        tx.remove(key)


def _stranded(tx: Transaction, key: AffinityKey, known: Mapping[str, str], now: datetime) -> bool:
    pools, broken = read_pools(tx)
    pool = pool_of(pools, key.cidr)
    if broken or (pool is not None and pool.node_selector in EVERY_NODE):
        return False
    block, seconds = tx.block(key.cidr), read_config(tx).cooldown_seconds
    if block is not None:
        block = blocks.expire_cooldown(block, now=now, cooldown=seconds)
    labels = read_node_labels(tx, key.node, known)
    return not serves(key.cidr, pools, labels) and (block is None or blocks.is_empty(block))
