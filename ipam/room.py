"""How much a commit may write: the limits of etcd, which also stands behind a Kubernetes API.

etcd refuses more than 128 operations in a transaction (`--max-txn-ops`) and requests of more than
1.5 MiB (`--max-request-bytes`). So a block whose text grows that long is full before its addresses
are all given, and what changes many blocks does so in several commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from libtortie.datastore.attribute_codec import attribute_text
from libtortie.datastore.ipam_codec import block_to_text
from libtortie.model.ipam import Block

FULL = 5 << 18
"""Bytes of a block's text (1.25 MiB) above which nothing more is given of it."""

GROWN = 1_450_000
"""Bytes to which a block may grow without anything more being given of it: by the second owners of
VMs that migrate, all at once, who come to addresses that are held already."""

MOST_BYTES = 1_400_000
"""Of all blocks of one commit: their keys, handles and conditions are written beside them."""

MOST_BLOCKS = 48
"""Changed by one commit: each may take its affinity with it, and there are conditions."""

FEW = 320
"""Attributes of all blocks together that no commit is too long for, with the longest names of two
owners each (3,000 bytes) and what stands beside them: they are not measured."""


def is_light(blocks: Iterable[Block]) -> bool:
    """Whether a commit of these blocks is short, whatever they say: told at once."""
    return sum([len(block.attributes) for block in blocks]) <= FEW


def size_of(block: Block) -> int:
    """Bytes of a block's text."""
    return len(block_to_text(block))


def is_heavy(block: Block, beside: Iterable[Block]) -> bool:
    """Whether a block is too long for another address, in a commit that also writes `beside`."""
    size = size_of(block)
    if size > FULL or size + sum(map(size_of, beside)) > MOST_BYTES:
        return True
    return size + _second_owners(block) > GROWN


def _second_owners(block: Block) -> int:
    """Bytes by which a block grows when all of its VMs migrate: no more than they have now."""
    return sum(
        len(attribute_text(attribute))
        for attribute in block.attributes
        if "vmi-name" in attribute.active and not attribute.alternate
    )


@dataclass(slots=True)
class Portion:
    """The blocks of one commit among many that are to be changed; always at least one."""

    _blocks: list[Block] = field(default_factory=list)
    _measured: int = 0
    _size: int = 0

    def takes(self, block: Block) -> bool:
        """Whether a block, as it will be written, still goes into this commit; it then counts."""
        wanted = [*self._blocks, block]
        if self._blocks and (len(wanted) > MOST_BLOCKS or not self._fits(wanted)):
            return False
        self._blocks = wanted
        return True

    def _fits(self, blocks: Sequence[Block]) -> bool:
        """Whether a commit has room for these; each is measured once, and not before it matters."""
        if is_light(blocks):
            return True
        known = self._blocks[self._measured :]
        self._size += sum(map(size_of, known))
        self._measured += len(known)
        return self._size + size_of(blocks[-1]) <= MOST_BYTES
