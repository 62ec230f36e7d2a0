"""IPAMClient: assign, claim, disown, promote, release.

Each operation is a decision over one `Transaction`. It promises: no address has two holders;
block, handle and affinity change in one commit; an operation whose answer was lost finds its own
work when it is repeated; a request for two families gets both or none.

On a store with transactions, operations that wait at the same time share a commit (`batch`), and
what is remembered of the store (`cache`) takes the place of reads: then the commit validates it.
What that cannot do, and everything on other stores, goes through the compare-and-swap loop in
`attempts`. This node's allocations never race each other for one block.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from libtortie.datastore.port import Datastore
from libtortie.errors import NoFreeAddresses, TortieError
from libtortie.model.ipam import IPAddress, IPAMConfig, Owner
from libtortie.model.keys import AffinityKey, BlockKey, Blocks, IPNetwork

from . import cooldown, ownership, tidy, vm
from .assign import Assignment
from .attempts import AGAIN, DEFAULT_RETRY, Again, Attempts, Progress, Retry
from .batch import Alone, Batches, Done, Operation, Raised
from .cache import Cache
from .holdings import heal, holdings
from .ownership import OwnerGone, Owners, PodLives, nobody_is_gone, nobody_lives
from .reads import Reads, prepare
from .request import AddressRequest, Allocation, allocations
from .settings import read_config, read_pools, require_ready
from .transaction import Transaction
from .witness import Witness, answered

__all__ = ["AddressRequest", "Allocation", "IPAMClient", "Retry"]

T = TypeVar("T")

CLEAN_UP = Retry(attempts=10, seconds=5.0)
"""A failed allocation's undo has time of its own."""


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
        self._lock = threading.Lock()
        cache = Cache(node) if store.atomic else None
        self._loop = Attempts(store, retry, monotonic, sleep, cache)
        self._batches = Batches(store, node, cache, self._lock) if cache else None

    def with_retry(self, retry: Retry) -> IPAMClient:
        """The same client, which knows the same, for operations of another patience."""
        other = copy.copy(self)
        other._loop = replace(self._loop, retry=retry)
        return other

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
        return next(iter(self.owners_of((address,))), None)

    def owners_of(self, addresses: Iterable[IPAddress]) -> Iterator[Allocation]:
        """As `owner_of`, of each that has an owner, by one reading for all of them."""
        tx = Transaction(self._store)
        for address in addresses:
            if found := _allocated(tx, address):
                yield found

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
        job = self._assignment(handle_id, owner, want, lambda owners: owners, gone)
        return self._allocate(job, gone, new=True)

    def rehearse(self, want: AddressRequest) -> None:
        """What `assign` would raise now for a new attachment; nothing is changed.

        Whether addresses are free is not said where some pools are for some namespaces only.
        """
        tx = Transaction(self._store)
        job = self._assignment("rehearsal", {}, want, lambda owners: owners, nobody_is_gone)
        try:
            job.decide(tx)
        except NoFreeAddresses:
            pools, _ = read_pools(tx)
            if not any(pool.enabled and pool.for_some_namespaces for pool in pools):
                raise

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

        job = self._assignment(handle_id, owner, want, change, nobody_is_gone)
        return self._allocate(job, gone, lives)

    def claim_vm_target(
        self,
        handle_id: str,
        owner: Owner,
        *,
        rival_lives: PodLives = nobody_lives,
        named: bool = False,
        runs_in: str = "",
    ) -> tuple[Allocation, ...]:
        """Make a migration target the alternate owner of every address of the VM.

        `named`: the API names this pod as the migration's target, so that no other keeps the
        seat; `runs_in`: the pod that has the VM, as it says. The caller knows that addresses
        persist (`ipam.persistence`). Raises
        `MigrationRefused` when the VM has no address or belongs to another VM, `OwnerMismatch`
        while `rival_lives` says so of another target of the same migration.
        """
        lives = Witness(rival_lives)

        def attempt() -> tuple[Allocation, ...]:
            operation = Operation(
                f"claim {handle_id} for a target",
                Reads(handle_id),
                lambda tx: vm.claim_target(
                    tx, handle_id, owner, lives, named=named, runs_in=runs_in
                ),
            )
            return self._run(operation)

        return answered(attempt, lives)

    def promote(self, handle_id: str, target: Owner) -> bool:
        """Make a migration target the active owner; True once the store says so.

        `target` with a `vmim-uid` is promoted as the target of that migration; without one as
        the pod in which the VM is seen to run, whatever migrated. Raises `OwnerMismatch`
        (final), `Conflict` or `Unavailable` (try again).
        """
        return self._run(
            Operation(
                f"promote in {handle_id}",
                Reads(handle_id),
                lambda tx: vm.promote(tx, handle_id, target),
            )
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
        progress = Progress()

        def decide(tx: Transaction) -> bool | Again:
            nonlocal freed
            result = vm.disown(tx, handle_id, owner, vm_deleting=vm_deleting, now=self._now())
            if result is None:
                return freed and progress.uncertain  # by an attempt whose answer was lost
            freed = result is True
            return result

        return self._run(Operation(f"disown {handle_id}", Reads(handle_id), decide, progress))

    def give_up_stranded(self) -> tuple[IPNetwork, ...]:
        """Give up this node's empty blocks that no pool has for it any more, and return them.

        Allocation does so, too, and release where it remembers the pools: this is for a node
        whose pools changed and which has nothing to do. Raises what the store raises.
        """
        tx = Transaction(self._store)
        keys = tidy.stranded(tx, self._node, self._node_labels, self._now())
        self._tidy(keys)
        return tuple(key.cidr for key in keys)

    def release(self, handle_id: str) -> tuple[IPAddress, ...]:
        """Free everything a handle holds and return it; () for an unknown handle."""
        freed: dict[IPAddress, None] = {}
        progress, begun = Progress(), False

        def decide(tx: Transaction) -> tuple[IPAddress, ...] | Again:
            nonlocal begun
            require_ready(tx)
            found = holdings(tx, handle_id)
            if heal(tx, found):
                return AGAIN
            if not progress.uncertain and not begun:
                freed.clear()  # what an attempt wanted to free that certainly did not
            freed.update(dict.fromkeys(item.address for item in found.held))
            if not vm.stage_release(tx, found, found.held, now=self._now()):
                begun = True
                return AGAIN
            return tuple(freed)

        return self._run(Operation(f"release {handle_id}", Reads(handle_id), decide, progress))

    def _assignment(
        self,
        handle_id: str,
        owner: Owner,
        want: AddressRequest,
        change: Callable[[Owners], Owners],
        gone: OwnerGone,
    ) -> Assignment:
        return Assignment(
            self._node, self._node_labels, self._now, handle_id, owner, want, change, gone
        )

    def _allocate(
        self, job: Assignment, *witnesses: Witness, new: bool = False
    ) -> tuple[Allocation, ...]:
        operation = Operation(
            f"allocate for {job.handle_id}",
            Reads(job.handle_id, allocates=True, new=new),
            job.decide,
        )
        try:
            got = answered(lambda: self._run(operation), *witnesses)
        except TortieError as error:
            if operation.progress.uncertain and job.picked:
                self._undo(job)
            if isinstance(error, NoFreeAddresses):
                cooldown.restart_all(self._store, self._now())
            raise
        self._tidy(job.tidy)
        return got

    def _run(self, operation: Operation[T]) -> T:
        """Together with others, or else alone."""
        verdict = self._batches.run(operation) if self._batches is not None else Alone()
        return self._finish(operation, verdict)

    def _finish(self, operation: Operation[T], verdict: Done[T] | Raised | Alone) -> T:
        """What a batch made of an operation, which goes on alone if it has to."""
        if isinstance(verdict, Raised):
            raise verdict.error
        if isinstance(verdict, Done):
            return verdict.value

        def decide(tx: Transaction) -> T | Again:
            if tx.atomic:  # elsewhere each key is a request: those that turn out to be needed
                prepare(tx, self._node, [operation.reads])
            return operation.decide(tx)

        return self._loop.run(
            operation.what,
            decide,
            progress=operation.progress,
            lock=self._lock,
            failed=verdict.failed,
        )

    def _undo(self, job: Assignment) -> None:
        """Give back what a failed allocation may have stored.

        If that fails too, the handle still names it: the attachment's DEL frees it.
        """
        try:
            replace(self._loop, retry=CLEAN_UP).run(f"undo {job.handle_id}", job.undo)
        except TortieError:
            return

    def _tidy(self, keys: Iterable[AffinityKey]) -> None:
        """Give up what is kept for nothing; what resists does no harm, it is never trusted."""
        for key in keys:
            known = self._node_labels if key.node == self._node else {}
            try:
                tx = Transaction(self._store, self._loop.cache)
                tx.prefetch([key, BlockKey(key.cidr)])
                tidy.stage(tx, key, known, self._now())
                tx.commit()
            except TortieError:
                continue


def _allocated(tx: Transaction, address: IPAddress) -> Allocation | None:
    pools, _ = read_pools(tx)  # only the shorter way: without it every block is read
    for pool in pools:
        if address in pool.cidr and tx.block(pool.block_of(address)):
            return _allocation_in(tx, pool.block_of(address), address)
    for record in tx.records(Blocks(address.version)):
        if isinstance(record.key, BlockKey) and address in record.key.cidr:
            return _allocation_in(tx, record.key.cidr, address)
    return None


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
