"""How much a commit may write: the limits of etcd, which also stands behind a Kubernetes API.

etcd refuses more than 128 operations in a transaction (`--max-txn-ops`) and requests of more than
1.5 MiB (`--max-request-bytes`). So a block whose text grows that long is full before its addresses
are all given, and what changes many blocks does so in several commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libtortie.datastore.ipam_codec import block_to_text
from libtortie.model.ipam import Block

FULL = 5 << 18
"""Bytes of a block's text (1.25 MiB) above which nothing more is given of it: the rest is for the
second owners of VMs that migrate, who come to addresses that are held already."""

MOST_BYTES = 1_400_000
"""Of all blocks of one commit: their keys, handles and conditions are written beside them."""

MOST_BLOCKS = 48
"""Changed by one commit: each may take its affinity with it, and there are conditions."""

FEW = 1024
"""Attributes with which a block is never measured: it stays below `FULL` with the longest names."""

_USUAL = 400
"""Bytes of an attribute with its ordinal and its number, as most pods have them."""


def size_of(block: Block) -> int:
    """Bytes of a block's text; estimated where it cannot matter."""
    count = len(block.attributes)
    return _USUAL * count if count <= FEW else len(block_to_text(block))


def is_heavy(block: Block, beside: Callable[[], Iterable[Block]]) -> bool:
    """Whether a block is too long for another address, in a commit that also writes `beside`."""
    if len(block.attributes) <= FEW:
        return False
    size = size_of(block)
    return size > FULL or size + sum(map(size_of, beside())) > MOST_BYTES


@dataclass(slots=True)
class Portion:
    """The blocks of one commit among many that are to be changed; always at least one."""

    count: int = 0
    size: int = 0

    def takes(self, block: Block) -> bool:
        """Whether a block, as it will be written, still goes into this commit; it then counts."""
        size = size_of(block)
        if self.count and (self.count >= MOST_BLOCKS or self.size + size > MOST_BYTES):
            return False
        self.count += 1
        self.size += size
        return True
