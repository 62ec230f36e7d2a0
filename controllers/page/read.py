"""What the page is made of, read from datastore and API: each part by itself, and never written.

A part that fails hides no other; what cannot be read is named. Values are small: a page is kept
for some seconds, and a cluster's records are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from controllers.page.machines import Instance, instance_of
from controllers.page.past import Past, read_past
from controllers.page.pools import BlockUse, PoolUse, block_uses, pool_uses
from controllers.page.problems import Health, health_of
from ipam.block import expire_cooldown
from ipam.check import examine
from ipam.gc import Means, opinions
from ipam.settings import read_config, read_pools, read_reservations
from ipam.transaction import Transaction
from ipam.vm_handles import VMHandle, by_vm, vm_handles
from libtortie.datastore.port import Datastore
from libtortie.errors import Compacted, Malformed
from libtortie.kube.migrations import Migration
from libtortie.kube.objects import KubeObject, VirtualMachineInstance
from libtortie.kube.port import KubeReader, NotServed
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, IPNetwork

T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")

NO_API = "no Kubernetes API is configured: what it says of VMs is not known"


@dataclass(frozen=True, slots=True)
class Network:
    """What IPAM has stored."""

    pools: tuple[PoolUse, ...] = ()
    blocks: tuple[BlockUse, ...] = ()
    handles: Mapping[tuple[str, str], VMHandle] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instances:
    """Every VM that has an instance; `note` is why there may be more."""

    found: tuple[Instance, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Every migration that the API still has; `note` is why there may be more."""

    found: tuple[Migration, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where all of it is read."""

    store: Datastore
    kube: KubeReader | None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def network(self) -> Network:
        """IPAM's blocks and pools."""
        unreadable: list[str] = []
        tx = Transaction(self.store)
        pools, broken = read_pools(tx)
        reserved: tuple[IPNetwork, ...] = ()
        seconds = None
        try:
            reserved = read_reservations(tx).networks
            seconds = read_config(tx).cooldown_seconds
        except Malformed as error:
            unreadable.append(str(error))
        now = self.now()
        blocks: list[Block] = []
        for scope in (Blocks(4), Blocks(6)):
            for part in self.store.parts(scope):
                blocks += [one.value for one in part.records if isinstance(one.value, Block)]
                unreadable += part.malformed
        if seconds is not None:
            blocks = [expire_cooldown(one, now=now, cooldown=seconds) for one in blocks]
        return Network(
            pools=pool_uses(pools, blocks, reserved),
            blocks=block_uses(pools, blocks, reserved),
            handles=by_vm(vm_handles(tuple(blocks))),
            unreadable=tuple(dict.fromkeys([*unreadable, *broken])),
        )

    def instances(self) -> Instances:
        """KubeVirt's instances."""
        if self.kube is None:
            return Instances(note=NO_API)
        try:
            return Instances(_all(self.kube, VirtualMachineInstance, instance_of))
        except NotServed as error:
            return Instances(note=str(error))

    def jobs(self) -> Jobs:
        """KubeVirt's migrations."""
        if self.kube is None:
            return Jobs(note=NO_API)
        try:
            return Jobs(_all(self.kube, Migration, lambda one: one))
        except NotServed as error:
            return Jobs(note=str(error))

    def history(self) -> Past:
        """What agents have recorded."""
        return read_past(self.store)

    def health(self) -> Health:
        """What is wrong with IPAM's records, by one observation of the whole cluster."""
        return health_of(examine(opinions(Means(self.store, self.kube, self.now))))


def _all(kube: KubeReader, kind: type[T], make: Callable[[T], V]) -> tuple[V, ...]:
    """What is made of every object of a kind, never all of them in memory."""
    try:
        return _made(kube.pages(kind), make)
    except Compacted:  # the pages' state is gone meanwhile: all at once
        return _made([kube.list(kind)], make)


def _made(pages: Iterable[tuple[tuple[T, ...], str]], make: Callable[[T], V]) -> tuple[V, ...]:
    return tuple(make(one) for objects, _ in pages for one in objects)
