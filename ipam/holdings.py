"""What a handle holds. The blocks decide; the handle's counts are only an index into them.

A store without transactions can stop between handle and block, so a handle may name a block
that gives it nothing. `heal` makes such a handle true again. The block is changed too, so that
a writer which had raised the count and not yet written the block fails there, instead of
leaving an allocation that no handle knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from libtortie.model.ipam import Attribute, Handle, IPAddress
from libtortie.model.keys import BlockKey, HandleKey, IPNetwork

from . import block as rules
from .room import Portion
from .transaction import Transaction

HEALED = 64
"""Most blocks of which a handle's counts are mended in one commit."""


@dataclass(frozen=True, slots=True)
class Held:
    """One allocated address of a handle."""

    address: IPAddress
    cidr: IPNetwork
    ordinal: int
    attribute: Attribute


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything a handle holds, and what its own record says."""

    handle_id: str
    handle: Handle | None
    held: tuple[Held, ...] = ()
    counts: Mapping[IPNetwork, int] = field(default_factory=dict)
    """Addresses per block, as the blocks have it."""

    @property
    def true(self) -> bool:
        """Whether the handle's record says what the blocks say."""
        return self.handle is None or (bool(self.counts) and self.handle.blocks == self.counts)

    @property
    def wrong(self) -> tuple[IPNetwork, ...]:
        """The blocks of which the handle's record does not say what they say."""
        recorded = self.handle.blocks if self.handle else {}
        every = dict.fromkeys([*recorded, *self.counts])
        return tuple(c for c in every if recorded.get(c, 0) != self.counts.get(c, 0))

    def by_block(self) -> dict[IPNetwork, tuple[Held, ...]]:
        """The held addresses grouped by block."""
        return {
            cidr: tuple(item for item in self.held if item.cidr == cidr) for cidr in self.counts
        }


def holdings(tx: Transaction, handle_id: str, also: Collection[IPNetwork] = ()) -> Holdings:
    """Read a handle and its blocks, and other blocks in which it may hold something.

    An absent handle holds nothing but what is found in those.
    """
    handle = tx.handle(handle_id)
    if handle is None and not also:
        return Holdings(handle_id, None)
    held: list[Held] = []
    counts: dict[IPNetwork, int] = {}
    recorded = handle.blocks if handle else {}
    for cidr in dict.fromkeys([*recorded, *also]) if also else recorded:
        block = tx.block(cidr)
        ordinals = rules.held_by(block, handle_id) if block else ()
        for ordinal in ordinals:
            attribute = block.attribute(ordinal) if block else None
            if block and attribute:
                held.append(Held(block.address(ordinal), cidr, ordinal, attribute))
        if ordinals:
            counts[cidr] = len(ordinals)
    if len(held) > 1:
        held.sort(key=lambda item: (item.address.version, int(item.address)))
    return Holdings(handle_id, handle, tuple(held), counts)


def heal(tx: Transaction, found: Holdings) -> bool:
    """Stage what makes the handle's record true; False when it is already.

    Of many blocks that it counts wrongly only the first (`first_wrong`): the rest is for the next
    time.
    """
    if found.true or found.handle is None:
        return False
    counts, recorded, part = dict(found.counts), found.handle.blocks, first_wrong(tx, found)
    counts.update({cidr: recorded.get(cidr, 0) for cidr in found.wrong[len(part) :]})
    for cidr in part:
        if not _is_overcounted(found, cidr):
            continue
        block = tx.block(cidr)
        if block is None:
            tx.guard(BlockKey(cidr))
        else:
            tx.put(BlockKey(cidr), rules.touch(block))
    set_counts(tx, found.handle_id, found.handle, counts)
    return True


def first_wrong(tx: Transaction, found: Holdings) -> tuple[IPNetwork, ...]:
    """Of the blocks that a handle counts wrongly those that one commit can mend (`room`)."""
    portion, part = Portion(), list[IPNetwork]()
    for cidr in found.wrong[:HEALED]:
        block = tx.block(cidr) if _is_overcounted(found, cidr) else None
        if block is not None and not portion.takes(block):
            break
        part.append(cidr)
    return tuple(part)


def _is_overcounted(found: Holdings, cidr: IPNetwork) -> bool:
    """Whether a block gives a handle less than its record says: then it is written, too."""
    recorded = found.handle.blocks if found.handle else {}
    return recorded.get(cidr, 0) > found.counts.get(cidr, 0)


def set_counts(
    tx: Transaction, handle_id: str, handle: Handle | None, counts: Mapping[IPNetwork, int]
) -> None:
    """Stage the counts of a handle, as it is now; a handle without addresses is deleted."""
    key = HandleKey(handle_id)
    positive = {cidr: count for cidr, count in counts.items() if count > 0}
    if positive:
        tx.put(key, replace(handle, blocks=positive) if handle else Handle(blocks=positive))
    else:
        tx.remove(key)
