"""A small cluster for IPAM tests: a store with pools, a clock, clients, and the audit.

`audit` states what must hold in the store after any story: it is the judge of the property
tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ipam.client import IPAMClient, Retry
from ipam.ownership import pod_owner
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, Value
from libtortie.errors import NotFound
from libtortie.model.ipam import Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    IPAMConfigKey,
    IPNetwork,
    Key,
    Kind,
    ResourceKey,
)
from libtortie.model.resources import IPPool, parse_resource

START = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
UNHURRIED = Retry(attempts=50, seconds=3600.0, pause=0.0, longest_pause=0.0)


def pool(name: str, cidr: str, **spec: Any) -> IPPool:
    """An IPPool resource; further keys as on the wire (`blockSize=30`)."""
    wire = {"kind": "IPPool", "metadata": {"name": name}, "spec": {"cidr": cidr, **spec}}
    resource = parse_resource(Kind.IP_POOL, wire)
    assert isinstance(resource, IPPool)
    return resource


@dataclass
class World:
    """One store, one clock."""

    store: Datastore = field(default_factory=MemoryDatastore)
    time: datetime = START

    def now(self) -> datetime:
        return self.time

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def pools(self, *pools: IPPool) -> World:
        for resource in pools:
            self.put(resource.key, resource)
        return self

    def config(self, **fields: Any) -> World:
        self.put(IPAMConfigKey(), IPAMConfig(**fields))
        return self

    def resource(self, kind: Kind, name: str, spec: Mapping[str, Any]) -> None:
        wire = {"kind": kind.value, "metadata": {"name": name}, "spec": dict(spec)}
        self.put(ResourceKey(kind, name), parse_resource(kind, wire))

    def put(self, key: Key, value: Value) -> None:
        """Create or replace, as an operator would."""
        try:
            record = self.store.get(key)
        except NotFound:
            self.store.create(key, value)
        else:
            self.store.update(key, value, record.revision)

    def client(
        self, node: str = "n1", store: Datastore | None = None, retry: Retry = UNHURRIED, **kw: Any
    ) -> IPAMClient:
        return IPAMClient(
            store or self.store,
            node,
            now=self.now,
            retry=retry,
            sleep=kw.pop("sleep", lambda seconds: None),
            **kw,
        )

    def block(self, cidr: IPNetwork) -> Block:
        value = self.store.get(BlockKey(cidr)).value
        assert isinstance(value, Block)
        return value

    def blocks(self) -> list[Block]:
        records = [r for version in (4, 6) for r in self.store.list(Blocks(version)).records]
        return [r.value for r in records if isinstance(r.value, Block)]

    def handles(self) -> dict[str, Handle]:
        return {
            r.key.handle_id: r.value
            for r in self.store.list(Handles()).records
            if isinstance(r.key, HandleKey) and isinstance(r.value, Handle)
        }

    def affinities(self, node: str = "") -> dict[AffinityKey, BlockAffinity]:
        return {
            r.key: r.value
            for r in self.store.list(Affinities(node)).records
            if isinstance(r.key, AffinityKey) and isinstance(r.value, BlockAffinity)
        }

    def allocated(self) -> Counter[str]:
        """Addresses held per handle, read from the blocks."""
        held: Counter[str] = Counter()
        for block in self.blocks():
            for index in block.allocations:
                if index is not None and block.attributes[index].handle_id:
                    held[block.attributes[index].handle_id or ""] += 1
        return held

    def audit(self, *, exact: bool = True) -> None:
        """Blocks are sound, handles agree with them, no affinity claims another's block."""
        counted: dict[tuple[str, IPNetwork], int] = {}
        for block in self.blocks():
            check_block(block)
            for index in block.allocations:
                handle_id = None if index is None else block.attributes[index].handle_id
                if handle_id is not None:
                    place = (handle_id, block.cidr)
                    counted[place] = counted.get(place, 0) + 1
        recorded = {
            (handle_id, cidr): count
            for handle_id, handle in self.handles().items()
            for cidr, count in handle.blocks.items()
        }
        if exact:
            assert recorded == counted
            assert all(handle.blocks for handle in self.handles().values())
        else:
            assert all(recorded.get(place, 0) >= count for place, count in counted.items())


def check_block(block: Block) -> None:
    """The invariants of a stored block."""
    size = block.cidr.num_addresses
    assert len(block.allocations) == size
    free = list(block.unallocated)
    assert len(set(free)) == len(free)
    assert sorted(free) == [o for o, index in enumerate(block.allocations) if index is None]
    used = {index for index in block.allocations if index is not None}
    assert used == set(range(len(block.attributes)))
    for attribute in block.attributes:
        assert (attribute.handle_id is None) == (attribute.released_at is not None)
    assert len({repr(a) for a in block.attributes}) == len(block.attributes)
    assert set(block.sequence_numbers) == set(range(size)) - set(free)
    assert all(n < block.sequence_number for n in block.sequence_numbers.values())


def vm_pod(
    pod: str,
    *,
    node: str = "n1",
    vm: str = "db",
    container: str = "",
    vmi_uid: str = "vmi-1",
    vm_uid: str = "vm-1",
    vmim_uid: str = "",
    at: Callable[[], datetime] = lambda: START,
) -> dict[str, str]:
    """The owner attributes of a launcher pod."""
    return pod_owner(
        namespace="shop",
        pod=pod,
        node=node,
        timestamp=at(),
        container_id=container or f"c-{pod}",
        pod_uid=f"u-{pod}",
        vmi_name=vm,
        vmi_uid=vmi_uid,
        vm_uid=vm_uid,
        vmim_uid=vmim_uid,
    )


def plain_pod(pod: str, *, node: str = "n1", container: str = "", uid: str = "") -> dict[str, str]:
    """The owner attributes of an ordinary pod."""
    return pod_owner(
        namespace="shop",
        pod=pod,
        node=node,
        timestamp=START,
        container_id=container or f"c-{pod}",
        pod_uid=uid or f"u-{pod}",
    )
