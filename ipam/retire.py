"""Taking a pool or a node out of IPAM: its addresses are no longer given, its blocks nobody's.

What is allocated stays allocated: a VM keeps its address. A block in use loses its node, an empty
one goes. Every step may be repeated; whoever is interrupted begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial

from libtortie.datastore.port import Datastore
from libtortie.model.ipam import Block
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, Blocks, IPNetwork

from . import block as blocks
from .attempts import Attempts
from .pools import inside
from .settings import read_config
from .transaction import Transaction

VM_NAME = "vmi-name"


def affinities_in(store: Datastore, cidr: IPNetwork) -> tuple[AffinityKey, ...]:
    """The affinities to blocks of a range."""
    return tuple(
        key
        for key in store.names(Affinities())
        if isinstance(key, AffinityKey) and inside(key.cidr, cidr)
    )


def affinities_of(store: Datastore, node: str) -> tuple[AffinityKey, ...]:
    """The affinities of a node."""
    return tuple(key for key in store.names(Affinities(node)) if isinstance(key, AffinityKey))


def give_up(attempts: Attempts, keys: Iterable[AffinityKey], now: Callable[[], datetime]) -> int:
    """Make blocks nobody's and remove those that are empty; how many there were."""
    count = 0
    for key in keys:
        attempts.run(f"give up {key.cidr}", partial(_staged, key=key, now=now))
        count += 1
    return count


def _staged(tx: Transaction, *, key: AffinityKey, now: Callable[[], datetime]) -> None:
    block = tx.block(key.cidr)
    if block is not None and block.node == key.node:
        seconds = read_config(tx).cooldown_seconds
        if blocks.is_empty(blocks.expire_cooldown(block, now=now(), cooldown=seconds)):
            tx.remove(BlockKey(key.cidr))
        else:
            orphan = replace(block, affinity=None, affinity_claim_time=None)
            tx.put(BlockKey(key.cidr), blocks.touch(orphan))
    if tx.affinity(key) is not None:
        tx.remove(key)


def handles_on(store: Datastore, node: str) -> tuple[str, ...]:
    """Handles of what a node's pods and tunnels hold, without those of VMs."""
    found: dict[str, None] = {}
    for version in (4, 6):
        for record in store.list(Blocks(version)).records:
            block = record.value
            for attribute in block.attributes if isinstance(block, Block) else ():
                owner = attribute.active
                if owner.get("node") == node and VM_NAME not in owner and attribute.handle_id:
                    found[attribute.handle_id] = None
    return tuple(found)
