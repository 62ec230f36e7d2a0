"""IPAMClient: assign, claim, disown, promote, release.

Each operation is a decision over one `Transaction`, run by the compare-and-swap loop in
`attempts`, the only one there is. It promises: no address has two holders; block, handle and
affinity change in one commit; an operation whose answer was lost finds its own work when it is
repeated; a request for two families gets both or none. Nothing is kept between calls but a
lock, which keeps this node's allocations from racing each other for one block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError
from libtortie.model.ipam import IPAddress, IPAMConfig, Owner
from libtortie.model.keys import AffinityKey, BlockKey, Blocks, IPNetwork

from . import affinity, ownership, vm
from .allocate import (
    Allocator,
    Claim,
    Pick,
    stage_claim,
    stage_confirmations,
    stage_picks,
)
from .attempts import AGAIN, DEFAULT_RETRY, Again, Attempts, Progress, Retry
from .holdings import heal, holdings
from .ownership import OwnerGone, Owners, PodLives, nobody_is_gone, nobody_lives
from .request import AddressRequest, Allocation, allocations, missing_families
from .settings import (
    read_config,
    read_node_labels,
    read_pools,
    read_reservations,
    require_ready,
)
from .transaction import Transaction
from .witness import Witness, answered

__all__ = ["AddressRequest", "Allocation", "IPAMClient", "Retry"]

CLEAN_UP = Retry(attempts=10, seconds=5.0)
"""A failed allocation's undo has time of its own."""


@dataclass(slots=True)
class _Job:
    """One allocation: what is asked, and what was learnt over its attempts."""

    handle_id: str
    owner: Owner
    want: AddressRequest
    change: Callable[[Owners], Owners]
    gone: OwnerGone
    progress: Progress = field(default_factory=Progress)
    before: frozenset[IPAddress] | None = None
    tidy: list[AffinityKey] = field(default_factory=list)


class IPAMClient:
    """Addresses for one node's attachments. Safe to use from several threads."""

    def __init__(
        self,
        store: Datastore,
        node: str,
        *,
        now: Callable[[], datetime],
        node_labels: Mapping[str, str] | None = None,
        retry: Retry = DEFAULT_RETRY,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._node = node
        self._now = now
        self._node_labels = dict(node_labels or {})
        self._loop = Attempts(store, retry, monotonic, sleep)
        self._lock = threading.Lock()

    def config(self) -> IPAMConfig:
        """The datastore's configuration. Raises what the store raises; it never guesses.

        Whether a VM's addresses persist is for `ipam.persistence` to say: the API comes first.
        """
        return read_config(Transaction(self._store))

    def by_handle(self, handle_id: str) -> tuple[Allocation, ...]:
        """What a handle holds, whatever became of the pools; () for an unknown handle."""
        return allocations(holdings(Transaction(self._store), handle_id))

    def owner_of(self, address: IPAddress) -> Allocation | None:
        """The allocation of one address; None when it is free or cooling down.

        Raises `Malformed` when a block that may hold it cannot be read.
        """
        tx = Transaction(self._store)
        pools, _ = read_pools(tx)  # only the shorter way: without it every block is read
        for pool in pools:
            if address in pool.cidr and tx.block(pool.block_of(address)):
                return _allocation_in(tx, pool.block_of(address), address)
        for record in tx.records(Blocks(address.version)):
            if isinstance(record.key, BlockKey) and address in record.key.cidr:
                return _allocation_in(tx, record.key.cidr, address)
        return None

    def assign(
        self,
        handle_id: str,
        owner: Owner,
        want: AddressRequest,
        *,
        previous_owner_gone: OwnerGone = nobody_is_gone,
    ) -> tuple[Allocation, ...]:
        """Addresses of an ordinary attachment; what the handle holds already counts.

        All families asked for or none. An explicit address that another sandbox of the same pod
        name holds is taken over only when `previous_owner_gone` says so of its owner.
        Raises `NoFreeAddresses`, `OwnerMismatch`, `InvalidInput`, `Conflict`, `Unavailable`.
        """
        gone = Witness(previous_owner_gone)
        job = _Job(handle_id, owner, want, lambda owners: owners, gone)
        return self._allocate(job, gone)

    def claim_vm(
        self,
        handle_id: str,
        owner: Owner,
        want: AddressRequest,
        *,
        previous_owner_gone: OwnerGone = nobody_is_gone,
        rival_lives: PodLives = nobody_lives,
    ) -> tuple[Allocation, ...]:
        """All addresses of a VM, with its new pod as active owner; missing families are added.

        The caller has verified the pod with the API. Addresses of another VM that had the same
        name are handed over only when `previous_owner_gone` says so of their owner; another pod
        of the VM keeps them while `rival_lives` says so of it. Both are asked about whoever holds
        the addresses when the decision is made, once for each. Raises `OwnerMismatch` naming both,
        and what `assign` raises.
        """
        gone, lives = Witness(previous_owner_gone), Witness(rival_lives)

        def change(owners: Owners) -> Owners:
            return ownership.claim(owners, owner, gone, lives)

        job = _Job(handle_id, owner, want, change, nobody_is_gone)
        return self._allocate(job, gone, lives)

    def claim_vm_target(
        self,
        handle_id: str,
        owner: Owner,
        *,
        rival_lives: PodLives = nobody_lives,
        named: bool = False,
    ) -> tuple[Allocation, ...]:
        """Make a migration target the alternate owner of every address of the VM.

        `named`: the API names this pod as the migration's target, so that no other keeps the
        seat. The caller knows that addresses persist (`ipam.persistence`). Raises
        `MigrationRefused` when the VM has no address or belongs to another VM, `OwnerMismatch`
        while `rival_lives` says so of another target of the same migration.
        """
        lives = Witness(rival_lives)

        def attempt() -> tuple[Allocation, ...]:
            return self._loop.run(
                f"claim {handle_id} for a target",
                lambda tx: vm.claim_target(tx, handle_id, owner, lives, named=named),
            )

        return answered(attempt, lives)

    def promote(self, handle_id: str, target: Owner) -> bool:
        """Make a migration target the active owner; True once the store says so.

        `target` with a `vmim-uid` is promoted as the target of that migration; without one as
        the pod in which the VM is seen to run, whatever migrated. Raises `OwnerMismatch`
        (final), `Conflict` or `Unavailable` (try again).
        """
        return self._loop.run(
            f"promote in {handle_id}", lambda tx: vm.promote(tx, handle_id, target)
        )

    def seats_of(self, container_id: str) -> tuple[tuple[str, Owner], ...]:
        """(handle, owner) wherever a sandbox of this node is active or alternate owner.

        Found in the blocks, all of them: a VM brings its address from another node's. Nobody has
        to be asked whose the sandbox was. Raises what the store raises.
        """
        return vm.seats(Transaction(self._store), self._node, container_id)

    def disown_vm(self, handle_id: str, owner: Owner, *, vm_deleting: bool) -> bool:
        """Take a deleted sandbox out of the owners; True when the addresses were freed.

        They are freed when the VM is being deleted and no pod owns any of them. An unknown
        handle is success.
        """
        freed = False

        def decide(tx: Transaction) -> bool | Again:
            nonlocal freed
            result = vm.disown(tx, handle_id, owner, vm_deleting=vm_deleting, now=self._now())
            if result is None:
                return freed  # by an attempt of ours whose answer was lost
            freed = result is True
            return result

        return self._loop.run(f"disown {handle_id}", decide)

    def release(self, handle_id: str) -> tuple[IPAddress, ...]:
        """Free everything a handle holds and return it; () for an unknown handle."""
        freed: dict[IPAddress, None] = {}

        def decide(tx: Transaction) -> Again | None:
            require_ready(tx)
            found = holdings(tx, handle_id)
            if heal(tx, found):
                return AGAIN
            freed.update(dict.fromkeys(item.address for item in found.held))
            vm.stage_release(tx, found, found.held, now=self._now())
            return None

        self._loop.run(f"release {handle_id}", decide)
        return tuple(freed)

    def _allocate(self, job: _Job, *witnesses: Witness) -> tuple[Allocation, ...]:
        try:
            got = answered(
                lambda: self._loop.run(
                    f"allocate for {job.handle_id}",
                    lambda tx: self._decide(tx, job),
                    progress=job.progress,
                    lock=self._lock,
                ),
                *witnesses,
            )
        except TortieError:
            if job.progress.uncertain and job.before is not None:
                self._undo(job, job.before)
            raise
        self._tidy(job.tidy)
        return got

    def _decide(self, tx: Transaction, job: _Job) -> tuple[Allocation, ...] | Again:
        require_ready(tx)
        found = holdings(tx, job.handle_id)
        if job.before is None:
            job.before = frozenset(item.address for item in found.held)
        if heal(tx, found):
            return AGAIN
        vm.change_owners(tx, found, job.change)
        missing = missing_families(found, job.want)
        if missing:
            tx_config, now = read_config(tx), self._now()
            pools, _ = read_pools(tx)  # one that cannot be read gives nothing; others do
            allocator = Allocator(tx, self._node, now, tx_config, pools, read_reservations(tx))
            picks = self._pick(allocator, job, missing)
            job.tidy = allocator.tidy
            if picks is None:
                return AGAIN
            stage_picks(
                tx,
                picks,
                handle_id=job.handle_id,
                owner=job.owner,
                now=now,
                cooldown=tx_config.cooldown_seconds,
            )
        held = holdings(tx, job.handle_id)
        stage_confirmations(tx, self._node, held.counts)
        return allocations(held)

    def _pick(self, allocator: Allocator, job: _Job, versions: Iterable[int]) -> list[Pick] | None:
        """A pick for each family; None when blocks have to be claimed first (then staged)."""
        labels = read_node_labels(allocator.tx, self._node, self._node_labels)
        decisions: list[Pick | Claim] = []
        for version in versions:
            address = job.want.explicit(version)
            if address is not None:
                decisions.append(allocator.pick_address(address, job.owner, job.gone))
                continue
            wanted = affinity.Wanted(
                version, job.want.pools(version), labels, job.want.namespace_labels
            )
            decisions.append(allocator.pick(wanted))
        claims = [decision for decision in decisions if isinstance(decision, Claim)]
        for claim in claims:
            stage_claim(allocator.tx, claim, self._node)
        return None if claims else [d for d in decisions if isinstance(d, Pick)]

    def _undo(self, job: _Job, keep: frozenset[IPAddress]) -> None:
        """Give back what a failed allocation may have stored.

        If that fails too, the handle still names it: the attachment's DEL frees it.
        """

        def decide(tx: Transaction) -> Again | None:
            found = holdings(tx, job.handle_id)
            if heal(tx, found):
                return AGAIN
            ours = [
                item
                for item in found.held
                if item.address not in keep
                and ownership.same_sandbox(item.attribute.active, job.owner)
            ]
            vm.stage_release(tx, found, ours, now=self._now())
            return None

        try:
            replace(self._loop, retry=CLEAN_UP).run(f"undo {job.handle_id}", decide)
        except TortieError:
            return

    def _tidy(self, keys: Iterable[AffinityKey]) -> None:
        """Delete false affinities; one that resists does no harm, it is never trusted."""
        for key in keys:
            try:
                tx = Transaction(self._store)
                claim, block = tx.affinity(key), tx.block(key.cidr)
                if claim and affinity.is_void(claim, block, self._node):
                    tx.guard(BlockKey(key.cidr))
                    tx.remove(key)
                    tx.commit()
            except TortieError:
                continue


def _allocation_in(tx: Transaction, cidr: IPNetwork, address: IPAddress) -> Allocation | None:
    block = tx.block(cidr)
    attribute = block.attribute(block.ordinal(address)) if block else None
    if attribute is None or attribute.released_at is not None:
        return None
    return Allocation(
        address=address,
        handle_id=attribute.handle_id or "",
        active=attribute.active,
        alternate=attribute.alternate,
        block=cidr,
    )
