"""How much of a range of addresses is used, reserved and free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import collapse_addresses

from libtortie.model.ipam import Block
from libtortie.model.keys import IPNetwork


@dataclass(frozen=True, slots=True)
class Use:
    """Addresses of a range. Those cooling down count as used: nobody can have them."""

    total: int
    used: int
    reserved: int

    @property
    def free(self) -> int:
        """What is neither used nor reserved."""
        return self.total - self.used - self.reserved


def use_of(cidr: IPNetwork, blocks: Iterable[Block], reserved: Sequence[IPNetwork]) -> Use:
    """How a range is used by the blocks inside it."""
    held = [
        block.address(ordinal)
        for block in blocks
        for ordinal, index in enumerate(block.allocations)
        if index is not None
    ]
    kept = _common(cidr, reserved)
    taken = sum(any(address in network for network in kept) for address in held)
    return Use(cidr.num_addresses, len(held), sum(n.num_addresses for n in kept) - taken)


def inside_of(inner: IPNetwork, outer: IPNetwork) -> bool:
    """Whether a range begins in another: of a block and a pool, whether it is the pool's."""
    return inner.version == outer.version and inner.network_address in outer


def _common(cidr: IPNetwork, networks: Iterable[IPNetwork]) -> list[IPNetwork]:
    """The part of a range that networks cover, without overlaps."""
    shared = [
        network if inside_of(network, cidr) and network.prefixlen >= cidr.prefixlen else cidr
        for network in networks
        if network.version == cidr.version and network.overlaps(cidr)
    ]
    return [*collapse_addresses(shared)]  # type: ignore[type-var]  # all of one family
