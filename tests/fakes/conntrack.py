"""A connection table in memory (`felix_shim.drivers.conntrack.Table`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from libtortie.errors import KernelError
from libtortie.linux.flows import Flow, FlowTuple
from libtortie.model.ipam import IPAddress


def indexed(*flows: Flow) -> dict[FlowTuple, Flow]:
    """Flows by both their tuples."""
    return {one: item for item in flows for one in (item.original, item.reply)}


@dataclass
class FakeTable:
    """A connection table that refuses what its tuples clash with, as the kernel's does."""

    entries: dict[FlowTuple, Flow] = field(default_factory=dict)
    refuses: set[FlowTuple] = field(default_factory=set)
    read_at: list[float] = field(default_factory=list)
    """When it was read, by the monotonic clock."""

    def flows(self, addresses: Iterable[IPAddress]) -> tuple[Flow, ...]:
        self.read_at.append(time.monotonic())
        wanted = tuple(addresses)
        return tuple(f for f in self.entries.values() if any(f.touches(a) for a in wanted))

    def create(self, flow: Flow) -> bool:
        if flow.original in self.refuses:
            raise KernelError("no memory")
        taken = indexed(*self.entries.values())
        if flow.original in taken or flow.reply in taken:
            return False
        self.entries[flow.original] = flow
        return True

    def update(self, flow: Flow) -> bool:
        if flow.original not in self.entries:
            return False
        self.entries[flow.original] = flow
        return True

    def delete(self, flow: Flow) -> bool:
        return self.entries.pop(flow.original, None) is not None
