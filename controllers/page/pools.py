"""IPAM's use, by pool and by block. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controllers.page.sheet import Cell, Link, Part, Table, table_of
from ipam.pools import Pool
from ipam.usage import Use, inside_of, use_of
from libtortie.model.ipam import Block
from libtortie.model.keys import IPNetwork

NUMBERS = (
    ("total", "Addresses"),
    ("used", "In use"),
    ("reserved", "Reserved"),
    ("free", "Free"),
    ("used_percent", "In use, %"),
)
POOL_COLUMNS = (
    ("cidr", "Pool"),
    ("name", "Name"),
    ("state", "State"),
    ("blocks", "Blocks"),
    ("nodes", "Nodes"),
    *NUMBERS,
)
BLOCK_COLUMNS = (("cidr", "Block"), ("node", "Node"), ("pool", "Pool"), *NUMBERS)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool; `nodes` counts those that have blocks of it."""

    name: str
    cidr: IPNetwork
    unusable: str
    blocks: int
    nodes: int
    use: Use


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block; `pool` is its pool's CIDR, "" for none."""

    cidr: IPNetwork
    node: str
    pool: str
    use: Use


def pool_uses(
    pools: Iterable[Pool], blocks: Sequence[Block], reserved: Sequence[IPNetwork]
) -> tuple[PoolUse, ...]:
    """Every pool, by family and address."""
    found = []
    for pool in sorted(pools, key=lambda one: _place(one.cidr)):
        inside = [block for block in blocks if inside_of(block.cidr, pool.cidr)]
        nodes = {block.node for block in inside} - {None}
        use = use_of(pool.cidr, inside, reserved)
        one = PoolUse(pool.name, pool.cidr, pool.unusable, len(inside), len(nodes), use)
        found.append(one)
    return tuple(found)


def block_uses(
    pools: Sequence[Pool], blocks: Iterable[Block], reserved: Sequence[IPNetwork]
) -> tuple[BlockUse, ...]:
    """Every block, by family and address."""
    return tuple(
        BlockUse(
            block.cidr,
            block.node or block.affinity or "",
            next((str(pool.cidr) for pool in pools if inside_of(block.cidr, pool.cidr)), ""),
            use_of(block.cidr, [block], reserved),
        )
        for block in sorted(blocks, key=lambda one: _place(one.cidr))
    )


def _place(cidr: IPNetwork) -> tuple[int, int, int]:
    return cidr.version, int(cidr.network_address), cidr.prefixlen


def pools_table(found: Sequence[PoolUse]) -> Table:
    """A row for each pool."""

    def row(one: PoolUse) -> tuple[Cell, ...]:
        link = Link(str(one.cidr), f"/ipam?pool={one.cidr}")
        state = one.unusable or "enabled"
        return (link, one.name, state, one.blocks, one.nodes, *_numbers(one.use))

    return table_of("pools", "Pools", POOL_COLUMNS, found, row, part=Part(size=len(found) or 1))


def blocks_table(
    found: Sequence[BlockUse], part: Part, pager: Callable[[int], str] | None = None
) -> Table:
    """A row for each block of a part of the list."""

    def row(one: BlockUse) -> tuple[Cell, ...]:
        return (str(one.cidr), one.node, one.pool, *_numbers(one.use))

    return table_of("blocks", "Blocks", BLOCK_COLUMNS, found, row, part=part, pager=pager)


def _numbers(use: Use) -> tuple[Cell, ...]:
    share = round(100 * use.used / use.total, 1) if use.total else 0.0
    return _size(use.total), use.used, _size(use.reserved), _size(use.free), share


def _size(count: int) -> Cell:
    """A count; one of IPv6 that no JSON reader holds exactly is text."""
    return count if count < 1 << 53 else f"{count:.5g}"
