"""Rests that began in the future: the wall clock was ahead when an address was released.

Left alone they would last until the clock gets there. They begin anew instead, when an allocation
found nothing else: so no address rests shorter than it should, whichever way the clock was set,
and none longer than one cooldown from the first allocation that it was wanting for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError
from libtortie.model.ipam import Attribute, Block
from libtortie.model.keys import BlockKey, Blocks

from .block import touch, whole_seconds
from .settings import read_config
from .transaction import Transaction


def restart(block: Block, now: datetime) -> Block:
    """The block with every rest that begins after `now` beginning now."""
    ahead = [a.released_at is not None and a.released_at > now for a in block.attributes]
    if not any(ahead):
        return block
    rest = Attribute(released_at=whole_seconds(now))
    changed = [rest if late else a for a, late in zip(block.attributes, ahead, strict=True)]
    kept = [a for number, a in enumerate(changed) if a not in changed[:number]]
    places = [kept.index(attribute) for attribute in changed]
    allocations = tuple(None if i is None else places[i] for i in block.allocations)
    return touch(replace(block, attributes=tuple(kept), allocations=allocations))


def restart_all(store: Datastore, now: datetime) -> None:
    """Do that to every block, each in a commit of its own; what resists is left for next time.

    Without a cooldown nothing rests, and nothing is read.
    """
    try:
        if read_config(Transaction(store)).cooldown_seconds <= 0:
            return
        records = [one for version in (4, 6) for one in store.list(Blocks(version)).records]
    except TortieError:
        return
    for record in records:
        if isinstance(record.key, BlockKey) and isinstance(record.value, Block):
            block = restart(record.value, now)
            if block is not record.value:
                with suppress(TortieError):
                    store.update(record.key, block, record.revision)
