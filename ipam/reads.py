"""What an operation is going to read, said beforehand, so that it is read in few round trips.

Two at most: settings, pools, handles and the node's affinities first, then the blocks these name.
What is not said here is read when it is met: that is slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libtortie.model.ipam import Handle
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    IPNetwork,
    Key,
    Kind,
    ResourceKey,
    Scope,
)

from .settings import CLUSTER, CONFIGURATION, POOLS, RESERVATIONS
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Reads:
    """What one operation works on.

    `allocates`: it may need an address. `new`: the handle is most likely not stored yet.
    """

    handle_id: str
    allocates: bool = False
    new: bool = False


def prepare(tx: Transaction, node: str, wanted: Sequence[Reads]) -> None:
    """Have what these operations of a node read at hand. Raises what the store raises.

    A new handle is taken for absent where all else is remembered: its creation will tell.
    """
    allocates = any(one.allocates for one in wanted)
    settings: list[Key] = [CLUSTER, CONFIGURATION, IPAMConfigKey()]
    settings += [ResourceKey(Kind.NODE, node)] if allocates else []
    scopes: list[Scope] = [POOLS, RESERVATIONS, Affinities(node)] if allocates else []
    handles = [HandleKey(one.handle_id) for one in wanted]
    if tx.remembers(settings, scopes):
        for key, one in zip(handles, wanted, strict=True):
            if one.new:
                tx.assume_absent(key)
        tx.prefetch(handles)
    else:
        tx.prefetch([*settings, *handles], scopes)
    cidrs = {cidr: None for key in handles for cidr in _named(tx, key)}
    if allocates:
        own = (record.key for record in tx.listing(Affinities(node)).records)
        cidrs |= {key.cidr: None for key in own if isinstance(key, AffinityKey)}
    tx.prefetch(map(BlockKey, cidrs))


def _named(tx: Transaction, key: HandleKey) -> tuple[IPNetwork, ...]:
    """The blocks that a handle names, if it can be read."""
    value = tx.at_hand(key)
    return tuple(value.blocks) if isinstance(value, Handle) else ()
