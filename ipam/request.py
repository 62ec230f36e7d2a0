"""What is asked of IPAM and what it answers. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress, Owner
from libtortie.model.keys import IPNetwork

from .holdings import Holdings
from .pools import WORKLOAD, Lan


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """What an attachment wants.

    `ipv4_pools` and `ipv6_pools` hold pool names or CIDRs; empty means every eligible pool.
    `addresses` are explicit (at most one per family): then these and nothing else are wanted.
    `use` is what a pool must allow: a workload's address, or a node's own. `lan` is the link the
    address is for, None where it is routed by itself.
    """

    ipv4: bool = True
    ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    addresses: tuple[IPAddress, ...] = ()
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    use: str = WORKLOAD
    lan: Lan | None = None

    def families(self) -> tuple[int, ...]:
        """The families wanted, IPv4 first. Raises `InvalidInput` for none, or two of one."""
        if not self.addresses:
            versions = [4] * self.ipv4 + [6] * self.ipv6
        else:
            versions = sorted(address.version for address in self.addresses)
        if not versions:
            raise InvalidInput("an attachment must want IPv4, IPv6 or both")
        if len(set(versions)) < len(versions):
            raise InvalidInput("at most one explicit address per family can be asked for")
        return tuple(versions)

    def explicit(self, version: int) -> IPAddress | None:
        """The explicit address of a family."""
        return next((a for a in self.addresses if a.version == version), None)

    def pools(self, version: int) -> tuple[str, ...]:
        """The pools asked for in a family."""
        return self.ipv4_pools if version == 4 else self.ipv6_pools


@dataclass(frozen=True, slots=True)
class Allocation:
    """One address of a handle, its owners, and the block it is in."""

    address: IPAddress
    handle_id: str
    active: Owner
    alternate: Owner
    block: IPNetwork


def allocations(found: Holdings) -> tuple[Allocation, ...]:
    """What a handle holds, IPv4 first."""
    return tuple(
        Allocation(
            address=item.address,
            handle_id=found.handle_id,
            active=item.attribute.active,
            alternate=item.attribute.alternate,
            block=item.cidr,
        )
        for item in found.held
    )


def missing_families(found: Holdings, want: AddressRequest) -> list[int]:
    """The wanted families of which the handle holds no address.

    Raises `InvalidInput` when an explicit address would be answered with another one.
    """
    if not found.held:
        return list(want.families())
    held = {item.address for item in found.held}
    for item in found.held:
        asked = want.explicit(item.address.version)
        if asked is not None and asked not in held:
            raise InvalidInput(
                f"{asked} is asked for, but handle {found.handle_id} holds {item.address}: "
                "release that first, or ask for it"
            )
    have = {address.version for address in held}
    return [version for version in want.families() if version not in have]
