"""IPAM's stored records as immutable values: block, affinity, handle, configuration.

These are data; the rules that change them live in `ipam/`. Fields that Calico writes and we do
not use are kept in `extra` and written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from libtortie.model.keys import IPNetwork

IPAddress = IPv4Address | IPv6Address

Owner = Mapping[str, str]
"""Calico's owner attributes: `pod namespace node timestamp vmi-name vmi-uid vm-uid vmim-uid`,
and ours, which Calico keeps on rewrite: `container-id pod-uid`. Empty means no owner."""


class AffinityState(StrEnum):
    """Life of a claim; an empty stored state reads as confirmed."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    PENDING_DELETION = "pendingDeletion"


class Persistence(StrEnum):
    """`kubeVirtVMAddressPersistence`: whether a VM keeps its address across pods."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Who holds the ordinals that point here. `active` is stored as `secondary`."""

    handle_id: str | None = None
    active: Owner = field(default_factory=dict)
    alternate: Owner = field(default_factory=dict)
    released_at: datetime | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation block of 2**n addresses.

    `allocations[ordinal]` is an index into `attributes` or None; `unallocated` is the FIFO of
    free ordinals. `affinity` is `host:<node>`, `virtual:<name>` or None. Sequence numbers are
    64-bit integers seeded from wall-clock nanoseconds.
    """

    cidr: IPNetwork
    affinity: str | None
    allocations: tuple[int | None, ...]
    unallocated: tuple[int, ...]
    attributes: tuple[Attribute, ...] = ()
    affinity_claim_time: datetime | None = None
    sequence_number: int = 0
    sequence_numbers: Mapping[int, int] = field(default_factory=dict)
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The node the block is affine to, if it is a node's."""
        if self.affinity and self.affinity.startswith("host:"):
            return self.affinity.removeprefix("host:")
        return None

    def address(self, ordinal: int) -> IPAddress:
        """The address of an ordinal."""
        return self.cidr.network_address + ordinal

    def ordinal(self, address: IPAddress) -> int:
        """The ordinal of an address; ValueError if it is not in this block."""
        ordinal = int(address) - int(self.cidr.network_address)
        if address.version != self.cidr.version or not 0 <= ordinal < len(self.allocations):
            raise ValueError(f"{address} is not in block {self.cidr}")
        return ordinal

    def attribute(self, ordinal: int) -> Attribute | None:
        """The attribute an ordinal is allocated under, or None when it is free."""
        index = self.allocations[ordinal]
        return None if index is None else self.attributes[index]


@dataclass(frozen=True, slots=True)
class BlockAffinity:
    """A node's claim on a block; node, CIDR and type are in its key."""

    state: AffinityState = AffinityState.CONFIRMED
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handle:
    """How many addresses a handle holds in each block; the id is in its key."""

    blocks: Mapping[IPNetwork, int]
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IPAMConfig:
    """What allocation obeys. These defaults hold when nothing is stored.

    `max_blocks_per_host` 0 means 20 per family, as in Calico.
    """

    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = 0
    kubevirt_persistence: Persistence = Persistence.ENABLED
    cooldown_seconds: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
