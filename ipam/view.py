"""What a node sees of the blocks there are, within one transaction, and what a block gives it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from libtortie.model.ipam import Block, IPAMConfig
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork

from . import affinity as rules
from . import block as blocks
from .affinity import Reservations
from .pools import Lan, Pool
from .room import FULL, is_heavy, is_light, size_of
from .staging import Pick
from .transaction import Transaction


@dataclass(slots=True)
class View:
    """All that decisions for one node go by.

    `pools` are all pools that can be read, `broken` says what is wrong with each of the others.
    """

    tx: Transaction
    node: str
    now: datetime
    config: IPAMConfig
    pools: Sequence[Pool]
    reservations: Reservations
    broken: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    unlabelled: str = ""
    """Why the node's labels are not known."""
    tidy: list[AffinityKey] = field(default_factory=list)
    """What this node has for nothing (`tidy`): to be removed, when possible."""
    unreadable: list[str] = field(default_factory=list)
    """Blocks that were looked at and cannot be read, by name."""
    chosen: list[IPNetwork] = field(default_factory=list)
    """Blocks of this request's picks so far."""
    heavy: dict[IPNetwork, int] = field(default_factory=dict)
    """Blocks that are full for their length, in bytes."""

    def block(self, cidr: IPNetwork) -> Block | None:
        """A block with its rested ordinals free; one that is being deleted is left alone."""
        block = self.tx.glance(BlockKey(cidr), Block)
        if block is None or block.deleted:
            return None
        return self.rested(block)

    def rested(self, block: Block) -> Block:
        """A block with those ordinals free that have cooled down."""
        return blocks.expire_cooldown(block, now=self.now, cooldown=self.config.cooldown_seconds)

    def pick_in(self, pool: Pool | None, block: Block, lan: Lan | None) -> Pick | None:
        """The address of a block that is free longest, of those that may be given."""
        if pool is None:
            return None
        for ordinal in blocks.free_ordinals(block, self.reservations.rule):
            address = block.address(ordinal)
            if lan is None or not lan.spares(address, block.cidr, pool.cidr):
                heavy = self.is_heavy(block)
                return None if heavy else Pick(pool, block.cidr, ordinal, address)
        return None

    def is_heavy(self, block: Block) -> bool:
        """Whether a block's text is too long for another address (`room`), free as some are.

        What others of a batch write counts only beside a block that is long itself: where all of
        them are together too long, each goes on alone.
        """
        if is_light([block, *self._read(block.cidr, self.chosen)]):
            return False
        if is_heavy(block, self._read(block.cidr, [*self.tx.staged_blocks(), *self.chosen])):
            self.heavy[block.cidr] = size_of(block)
            return True
        return False

    def _read(self, but: IPNetwork, cidrs: Iterable[IPNetwork]) -> list[Block]:
        """Blocks that are written beside one."""
        found = (self.tx.glance(BlockKey(one), Block) for one in {*cidrs} - {but})
        return [block for block in found if block is not None]

    def may_claim(self, owned: Collection[IPNetwork]) -> bool:
        """Whether another block may be claimed beside those that the node has."""
        return self.config.auto_allocate_blocks and not self.at_limit(owned)

    def at_limit(self, owned: Collection[IPNetwork]) -> bool:
        """Whether the node has as many blocks as it may."""
        return len(owned) >= rules.block_limit(self.config)

    def too_long(self, cidr: IPNetwork) -> str:
        """Why nothing more is given of a block in `heavy`."""
        size = self.heavy[cidr]
        much = (
            "as much as"
            if size > FULL
            else "and with the blocks written beside it, or when its VMs migrate, more than"
        )
        return (
            f"block {cidr} has {size} bytes, {much} the datastore takes in one request, so none of "
            "it is given any more (smaller blocks, in a new pool, are not full)"
        )

    def unread(self) -> str:
        """The pools that cannot be read, for the end of a complaint."""
        return "".join(f"; not readable: {reason}" for reason in self.broken)
