"""Which claims on blocks, and which empty blocks, stand for nothing. Pure.

A claim is an affinity's record and the block it names; either may be missing. A removed node's
block is given up: deleted when it is empty, else only its affinity goes, so that what is still
allocated there (the address of a VM that was migrated away) stays and others may borrow the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from libtortie.model.ipam import AffinityState, Block
from libtortie.model.keys import Affinities, AffinityKey, Blocks, IPNetwork

from .block import is_empty
from .gc_cluster import Cluster
from .gc_inventory import Inventory
from .gc_verdicts import Opinion, Unknown, blind, doubt, good
from .pools import pool_of


class Flaw(StrEnum):
    """What is wrong with a claim, which is also what is to be done about it."""

    NONE = "none"
    LOST_NODE = "removed node"
    FALSE = "block is another's"
    NO_BLOCK = "no block"
    NO_RECORD = "no record"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Claim:
    """One node's claim on a block (`node` "": nobody's block), as far as the flaw rests on it.

    `revision` is the affinity record's, `number` the block's sequence number where the flaw is
    that it is empty; None where there is none, or where it does not matter.
    """

    cidr: IPNetwork
    node: str
    flaw: Flaw
    revision: str | None = None
    number: int | None = None

    @property
    def key(self) -> str:
        """Unique among all that is judged."""
        return f"claim {self.cidr} {self.node}"

    @property
    def name(self) -> str:
        """For people."""
        return f"block {self.cidr} of " + (f"node {self.node}" if self.node else "no node")

    @property
    def action(self) -> str:
        """What is done about the flaw."""
        return "mend" if self.flaw is Flaw.NO_RECORD else "release"

    @property
    def affinity(self) -> AffinityKey:
        """Where its record is, or would be."""
        return AffinityKey(self.node, self.cidr)


def opine_all(inventory: Inventory, cluster: Cluster) -> Iterator[Opinion[Claim]]:
    """What one observation says of each claim and of each block that nobody claims."""
    spare = _spare(inventory)
    for key in inventory.affinities:
        yield _of_record(key, inventory, cluster, spare)
    for block in inventory.blocks.values():
        if block.node is None or AffinityKey(block.node, block.cidr) not in inventory.affinities:
            yield _of_block(block, inventory, cluster)


def _of_record(
    key: AffinityKey, inventory: Inventory, cluster: Cluster, spare: frozenset[IPNetwork]
) -> Opinion[Claim]:
    """An affinity that has a record."""
    cidr, node = key.cidr, key.node
    stored, block = inventory.affinities[key], inventory.blocks.get(cidr)
    sound = Claim(cidr, node, Flaw.NONE, stored.revision)
    if block is None:
        if Blocks(cidr.version) in inventory.blind:
            return blind(sound, "its block may be one that cannot be read")
        claim = Claim(cidr, node, Flaw.NO_BLOCK, stored.revision)
        return doubt(claim, f"the affinity is {stored.value.state} and there is no block")
    if block.node != node:
        claim = Claim(cidr, node, Flaw.FALSE, stored.revision)
        return doubt(claim, f"the block is of {block.affinity or 'no node'}")
    return _lost(sound, cluster) or _of_owned(sound, block, inventory, spare)


def _of_owned(
    sound: Claim, block: Block, inventory: Inventory, spare: frozenset[IPNetwork]
) -> Opinion[Claim]:
    """A living node's affinity and its block, which is the node's."""
    if not is_empty(inventory.rested(block)):
        return good(sound, "in use")
    cidr, stored = sound.cidr, inventory.affinities[sound.affinity]
    leaving = stored.value.state is AffinityState.PENDING_DELETION
    reason = "its release was not finished" if leaving else _needless(cidr, inventory, spare)
    if isinstance(reason, Unknown):
        return blind(sound, reason.reason)
    if not reason:
        return good(sound, "empty, and the only one of its node with room")
    number = block.sequence_number
    return doubt(Claim(cidr, sound.node, Flaw.EMPTY, sound.revision, number), reason)


def _needless(cidr: IPNetwork, inventory: Inventory, spare: frozenset[IPNetwork]) -> str | Unknown:
    """Why a living node can do without an empty block, or ""."""
    if inventory.pools is None or inventory.reservations is None:
        return Unknown("it is empty; a pool or a reservation cannot be read")
    if pool_of(inventory.pools, cidr) is None:
        return "it is empty and its pool is gone"
    return "it is empty and the node has another with room" if cidr in spare else ""


def _of_block(block: Block, inventory: Inventory, cluster: Cluster) -> Opinion[Claim]:
    """A block without any record of whom it belongs to."""
    node, cidr, number = block.node or "", block.cidr, block.sequence_number
    sound, empty = Claim(cidr, node, Flaw.NONE), Claim(cidr, node, Flaw.EMPTY, None, number)
    if block.affinity is not None and not node:
        return good(sound, f"of {block.affinity}, which is no node")
    if node:
        lost = _lost(sound, cluster)
        if lost is not None:
            return lost
        if Affinities() in inventory.blind:
            return blind(sound, "its affinity may be one that cannot be read")
    if is_empty(inventory.rested(block)):
        return doubt(empty, "it is empty and no affinity names it")
    if node:
        return doubt(Claim(cidr, node, Flaw.NO_RECORD), "it is in use and no affinity names it")
    return good(sound, "in use")


def _lost(sound: Claim, cluster: Cluster) -> Opinion[Claim] | None:
    """What there is to say if the claimant may be removed; None for one that exists."""
    if isinstance(cluster.nodes, Unknown):
        return blind(sound, cluster.nodes.reason)
    if sound.node in cluster.nodes:
        return None
    claim = Claim(sound.cidr, sound.node, Flaw.LOST_NODE, sound.revision)
    return doubt(claim, f"node {sound.node} is removed")


def _spare(inventory: Inventory) -> frozenset[IPNetwork]:
    """Empty blocks that leave their node another one with room, in the same pool.

    Of several empty ones the first stays: the answer is the same in every pass.
    """
    if inventory.pools is None or inventory.reservations is None:
        return frozenset()
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in inventory.blocks.values():
        pool = pool_of(inventory.pools, block.cidr)
        if block.node is not None and pool is not None:
            groups.setdefault((block.node, pool.name), []).append(inventory.rested(block))
    spare: set[IPNetwork] = set()
    for blocks in groups.values():
        roomy = [block for block in blocks if _has_room(block, inventory)]
        used = [block for block in roomy if not is_empty(block)]
        keep = (used or roomy)[:1]
        spare |= {block.cidr for block in blocks if keep and block not in keep and is_empty(block)}
    return frozenset(spare)


def _has_room(block: Block, inventory: Inventory) -> bool:
    """Whether something could be assigned from it."""
    reservations = inventory.reservations
    return reservations is not None and any(
        not reservations.covers(block.address(ordinal)) for ordinal in block.unallocated
    )
