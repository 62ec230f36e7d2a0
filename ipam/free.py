"""Freeing single addresses by hand: those that are still what somebody looked at.

It also works on a locked datastore, in which nobody else allocates or frees. An address that was
given to another since, or to the same again, stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libtortie.model.ipam import Block, IPAddress
from libtortie.model.keys import BlockKey, HandleKey, IPNetwork

from . import block as blocks
from . import tidy, vm
from .attempts import AGAIN, Again, Attempts
from .holdings import heal, holdings
from .settings import read_config
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Seat:
    """An allocation as it was seen. `number` is its sequence number, None where it has none."""

    address: IPAddress
    cidr: IPNetwork
    handle_id: str
    number: int | None


def seat_of(block: Block, address: IPAddress) -> Seat | None:
    """The allocation of an address in its block; None: it is free or cools down."""
    ordinal = block.ordinal(address)
    attribute = block.attribute(ordinal)
    if attribute is None or attribute.released_at is not None:
        return None
    number = block.sequence_numbers.get(ordinal)
    return Seat(address, block.cidr, attribute.handle_id or "", number)


def free(attempts: Attempts, seat: Seat, now: Callable[[], datetime]) -> bool:
    """Free an allocation and mend its handle's record; False: it is not there any more."""

    def decide(tx: Transaction) -> bool | Again:
        block = tx.block(seat.cidr)
        if block is None or seat_of(block, seat.address) != seat:
            return False
        if not seat.handle_id:
            _free_alone(tx, block, seat, now())
            return True
        found = holdings(tx, seat.handle_id, also=[seat.cidr])
        if heal(tx, found):
            return AGAIN
        same = [held for held in found.held if held.address == seat.address]
        return vm.stage_release(tx, found, same, now=now()) or AGAIN

    return attempts.run(f"release {seat.address}", decide)


def remove_handle(attempts: Attempts, handle_id: str, revision: str) -> bool:
    """Remove a handle's record that is at this revision and holds nothing; else False."""

    def decide(tx: Transaction) -> bool:
        record = tx.record(HandleKey(handle_id))
        if record is None or record.revision != revision or holdings(tx, handle_id).held:
            return False
        tx.remove(HandleKey(handle_id))
        return True

    return attempts.run(f"remove handle {handle_id}", decide)


def _free_alone(tx: Transaction, block: Block, seat: Seat, now: datetime) -> None:
    """An allocation under no handle."""
    cooldown = read_config(tx).cooldown_seconds
    left = blocks.release(block, [block.ordinal(seat.address)], now=now, cooldown=cooldown)
    if blocks.is_empty(left):
        tidy.stage_emptied(tx, left)
    else:
        tx.put(BlockKey(seat.cidr), left)
