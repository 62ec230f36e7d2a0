"""Giving up what a node keeps for nothing: false affinities, and empty blocks no pool has for it.

Best effort beside an operation, and always safe: an affinity is only an index, and an empty block
is deleted at the revision that was empty. Whoever wants the range claims it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from libtortie.errors import Malformed
from libtortie.model.ipam import Block
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, Kind, ResourceKey

from . import affinity as rules
from . import block as blocks
from .pools import EVERY_NODE, pool_of, serves
from .settings import POOLS, read_config, read_node_labels, read_pools
from .transaction import Transaction


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


def stranded(
    tx: Transaction, node: str, known: Mapping[str, str], now: datetime
) -> list[AffinityKey]:
    """The affinities that a node keeps for nothing; not those to a block that cannot be read."""
    found = []
    for key in tx.affinities(node):
        with suppress(Malformed):
            block = tx.block(key.cidr)
            if (block is None or block.node == node) and _stranded(tx, key, known, now):
                found.append(key)
    return found


def stage_emptied(tx: Transaction, block: Block) -> None:
    """Stage an emptied block; or its removal, with the node's affinity, if it is no node's or, as
    far as this transaction remembers without reading, stranded."""
    if block.node and _stranded_as_remembered(tx, AffinityKey(block.node, block.cidr)):
        tx.remove(BlockKey(block.cidr))
        tx.remove(AffinityKey(block.node, block.cidr))
    elif block.affinity is None:
        tx.remove(BlockKey(block.cidr))
    else:
        tx.put(BlockKey(block.cidr), block)


def _stranded_as_remembered(tx: Transaction, key: AffinityKey) -> bool:
    place = ResourceKey(Kind.NODE, key.node)
    if not tx.remembers([place], [POOLS, Affinities(key.node)]):
        return False
    pools, broken = read_pools(tx)
    return not broken and not serves(key.cidr, pools, read_node_labels(tx, key.node, {}))


def _rested(tx: Transaction, block: Block, now: datetime) -> Block:
    seconds = read_config(tx).cooldown_seconds
    return blocks.expire_cooldown(block, now=now, cooldown=seconds)


def _stranded(tx: Transaction, key: AffinityKey, known: Mapping[str, str], now: datetime) -> bool:
    pools, broken = read_pools(tx)
    pool = pool_of(pools, key.cidr)
    if broken or (pool is not None and pool.node_selector in EVERY_NODE):
        return False
    block = tx.block(key.cidr)
    if block is not None and not blocks.is_empty(_rested(tx, block, now)):
        return False
    return not serves(key.cidr, pools, read_node_labels(tx, key.node, known))
