"""Where the next address comes from: an affine block, a newly claimed one, a borrowed one.

`Allocator` reads through a transaction and returns a decision; `stage_*` writes a decision into
the transaction. A claim is a commit of its own (affinity `pending`, then the block, empty); the
affinity becomes `confirmed` together with the block's first allocation. So no commit that stops
in the middle leaves a confirmed affinity without its block, and every handle names blocks that
existed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from libtortie.errors import Conflict, InvalidInput, NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, IPAddress, IPAMConfig, Owner
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, Blocks, IPNetwork

from . import affinity as rules
from . import block as blocks
from .affinity import WORKLOAD, Pool, Reservations, Standing
from .holdings import set_counts
from .ownership import OwnerGone, is_pod
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Pick:
    """Take this ordinal; `evicted` is the handle of a dead holder that has it."""

    pool: Pool
    cidr: IPNetwork
    ordinal: int
    evicted: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make this block ours first. `loser` is the affinity of the node that had it, empty."""

    pool: Pool
    block: Block
    loser: AffinityKey | None = None


@dataclass(slots=True)
class Allocator:
    """Decides for one node within one transaction. `pools` are all pools that can be read."""

    tx: Transaction
    node: str
    now: datetime
    config: IPAMConfig
    pools: Sequence[Pool]
    reservations: Reservations
    tidy: list[AffinityKey] = field(default_factory=list)
    """Affinities of this node found to be false or half deleted: to be removed, when possible."""

    def pick(self, wanted: rules.Wanted) -> Pick | Claim:
        """An address of a family. Raises `NoFreeAddresses`, `InvalidInput` (requested pools)."""
        pools = rules.eligible(self.pools, wanted)
        if not pools:
            raise NoFreeAddresses(
                f"no IPv{wanted.version} pool is eligible on node {self.node} "
                f"for use {wanted.use} (pools: {_names(self.pools) or 'none'})"
            )
        owned, unfinished = self._own(pools)
        decision = (
            self._first_free(pools, owned)
            or self._claim(pools, owned, unfinished)
            or self._borrow(pools)
        )
        if decision is None:
            raise NoFreeAddresses(self._exhausted(wanted.version, pools, owned))
        return decision

    def pick_address(self, address: IPAddress, owner: Owner, gone: OwnerGone) -> Pick | Claim:
        """One particular address; reservations and selectors don't count.

        Raises `InvalidInput` (in no enabled pool), `OwnerMismatch` (held, or in another node's
        block under strict affinity), `NoFreeAddresses` (cooling down).
        """
        pool = next((p for p in self.pools if address in p.cidr and p.enabled), None)
        if pool is None or WORKLOAD not in pool.allowed_uses:
            raise InvalidInput(f"{address} is not in an enabled pool for workloads")
        cidr = pool.block_of(address)
        block = self._block(cidr)
        if block is None:
            if self.tx.block(cidr) is not None:
                raise Conflict(f"block {cidr} is being deleted")
            return Claim(pool, blocks.new_block(cidr, node=self.node, now=self.now))
        if block.node != self.node and self.config.strict_affinity:
            if block.affinity is None:
                return Claim(pool, blocks.claim_for(block, self.node, self.now))
            raise OwnerMismatch(
                f"{address} is in block {cidr} of {block.affinity} and affinity is strict"
            )
        ordinal = block.ordinal(address)
        evicted = "" if ordinal in block.unallocated else _evict(block, ordinal, owner, gone)
        return Pick(pool, cidr, ordinal, evicted)

    def _block(self, cidr: IPNetwork) -> Block | None:
        """A block with its rested ordinals free; one that is being deleted is left alone."""
        block = self.tx.block(cidr)
        if block is None or block.deleted:
            return None
        return blocks.expire_cooldown(block, now=self.now, cooldown=self.config.cooldown_seconds)

    def _own(self, pools: Sequence[Pool]) -> tuple[list[IPNetwork], list[IPNetwork]]:
        """Blocks this node owns in some pools, and claims it may finish; in pool order."""
        found: dict[Standing, list[IPNetwork]] = {kind: [] for kind in Standing}
        for record in self.tx.listing(Affinities(self.node)).records:
            if not isinstance(record.key, AffinityKey):
                continue
            cidr = record.key.cidr
            if rules.pool_of(pools, cidr) is None:
                continue
            claim = self.tx.affinity(record.key) or BlockAffinity()
            kind = rules.standing(claim, self.tx.block(cidr), self.node)
            found[kind].append(cidr)
            if kind in (Standing.FALSE, Standing.LEAVING):
                self.tidy.append(record.key)
        ranked = [_by_pool(pools, found[k]) for k in (Standing.OWNED, Standing.UNFINISHED)]
        return ranked[0], ranked[1]

    def _first_free(self, pools: Sequence[Pool], cidrs: Iterable[IPNetwork]) -> Pick | None:
        for cidr in cidrs:
            block, pool = self._block(cidr), rules.pool_of(pools, cidr)
            if block is None or pool is None:
                continue
            ordinal = next(blocks.free_ordinals(block, self.reservations.covers), None)
            if ordinal is not None:
                return Pick(pool, cidr, ordinal)
        return None

    def _claim(
        self, pools: Sequence[Pool], owned: Sequence[IPNetwork], unfinished: Sequence[IPNetwork]
    ) -> Pick | Claim | None:
        existing = dict(self._existing(pools[0].cidr.version))
        lost = [c for c, b in existing.items() if b.node == self.node and c not in owned]
        if again := self._first_free(pools, _by_pool(pools, lost)):
            return again
        if not self.config.auto_allocate_blocks or self._at_limit(owned):
            return None
        return self._fresh(pools, existing, unfinished) or self._reclaim(pools, existing)

    def _fresh(
        self,
        pools: Sequence[Pool],
        existing: dict[IPNetwork, Block],
        unfinished: Sequence[IPNetwork],
    ) -> Claim | None:
        for cidr in (*unfinished, *self._candidates(pools, existing)):
            pool = rules.pool_of(pools, cidr)
            if pool and cidr not in existing and not self.reservations.exhausts(cidr):
                return Claim(pool, blocks.new_block(cidr, node=self.node, now=self.now))
        return None

    def _candidates(
        self, pools: Sequence[Pool], existing: dict[IPNetwork, Block]
    ) -> Iterator[IPNetwork]:
        """The first candidate of each pool, in pool order."""
        for pool in pools:
            walk = rules.candidates(
                pool,
                node=self.node,
                taken=existing.keys(),
                reservations=self.reservations,
                now=self.now,
            )
            yield from islice(walk, 1)

    def _reclaim(self, pools: Sequence[Pool], existing: dict[IPNetwork, Block]) -> Claim | None:
        for cidr in _by_pool(pools, existing):
            block, pool = self._block(cidr), rules.pool_of(pools, cidr)
            if block is None or pool is None or self.reservations.exhausts(cidr):
                continue
            if rules.reclaimable(block, self.node, self.now):
                loser = AffinityKey(block.node, cidr) if block.node else None
                return Claim(pool, blocks.claim_for(block, self.node, self.now), loser)
        return None

    def _borrow(self, pools: Sequence[Pool]) -> Pick | None:
        if self.config.strict_affinity:
            return None
        cidrs = [cidr for cidr, _ in self._existing(pools[0].cidr.version)]
        turn = rules.fnv1(self.node) % len(cidrs) if cidrs else 0
        return self._first_free(pools, _by_pool(pools, cidrs[turn:] + cidrs[:turn]))

    def _existing(self, version: int) -> list[tuple[IPNetwork, Block]]:
        """The blocks that can be read. Claiming another's place is `Malformed`: it is read then."""
        return [
            (record.key.cidr, record.value)
            for record in self.tx.listing(Blocks(version)).records
            if isinstance(record.key, BlockKey) and isinstance(record.value, Block)
        ]

    def _at_limit(self, owned: Sequence[IPNetwork]) -> bool:
        return len(owned) >= rules.block_limit(self.config)

    def _exhausted(self, version: int, pools: Sequence[Pool], owned: Sequence[IPNetwork]) -> str:
        why = [f"no free IPv{version} address for node {self.node} in pools {_names(pools)}"]
        if not self.config.auto_allocate_blocks:
            why.append("new blocks are not allocated automatically")
        elif self._at_limit(owned):
            limit = rules.block_limit(self.config)
            why.append(f"cannot allocate new block due to per host block limit ({limit})")
        if self.config.strict_affinity:
            why.append("affinity is strict, so no address is borrowed from other nodes")
        why += [f"not readable: {name}" for name in self.tx.listing(Blocks(version)).malformed]
        return "; ".join(why)


def stage_claim(tx: Transaction, claim: Claim, node: str) -> None:
    """Affinity first, as pending; then the block; last the affinity of the node that lost it."""
    pending = BlockAffinity(state=AffinityState.PENDING)
    tx.put(AffinityKey(node, claim.block.cidr), pending)
    tx.put(BlockKey(claim.block.cidr), claim.block)
    if claim.loser is not None:
        tx.remove(claim.loser)


def stage_picks(
    tx: Transaction,
    picks: Sequence[Pick],
    *,
    handle_id: str,
    owner: Owner,
    now: datetime,
    cooldown: int,
) -> None:
    """The handle first, then its blocks, then the handles of dead holders."""
    handle = tx.handle(handle_id)
    counts = dict(handle.blocks) if handle else {}
    for pick in picks:
        counts[pick.cidr] = counts.get(pick.cidr, 0) + 1
    set_counts(tx, handle_id, counts)
    for pick in picks:
        block = tx.block(pick.cidr)
        if block is None:
            raise AssertionError(f"block {pick.cidr} was picked and not read")
        block = blocks.expire_cooldown(block, now=now, cooldown=cooldown)
        if pick.evicted:
            block = blocks.release(block, [pick.ordinal], now=now, cooldown=0)
        given = blocks.assign_ordinal(block, pick.ordinal, handle_id=handle_id, owner=owner)
        tx.put(BlockKey(pick.cidr), given)
        tx.guard(pick.pool.key)
    for pick in picks:
        if pick.evicted:
            _uncount(tx, pick.evicted, pick.cidr)


def stage_confirmations(tx: Transaction, node: str, cidrs: Iterable[IPNetwork]) -> None:
    """Confirm the node's affinities to those blocks of its own that are in use."""
    for cidr in cidrs:
        block, key = tx.block(cidr), AffinityKey(node, cidr)
        if block is None or block.node != node:
            continue
        stored = tx.affinity(key)
        if stored is None or stored.state is not AffinityState.CONFIRMED:
            wanted = replace(stored or BlockAffinity(), state=AffinityState.CONFIRMED)
            tx.put(key, wanted)


def _uncount(tx: Transaction, handle_id: str, cidr: IPNetwork) -> None:
    handle = tx.handle(handle_id)
    if handle is not None:
        counts = dict(handle.blocks)
        counts[cidr] = counts.get(cidr, 0) - 1
        set_counts(tx, handle_id, counts)


def _evict(block: Block, ordinal: int, owner: Owner, gone: OwnerGone) -> str:
    """The handle that must give up an ordinal to `owner`, a new sandbox of the same pod name.

    Raises when the holder is another pod, a VM, or not proved to be gone.
    """
    attribute, address = block.attribute(ordinal), block.address(ordinal)
    who = blocks.holder(block, ordinal)
    if attribute is None or attribute.released_at is not None:
        raise NoFreeAddresses(f"{address} is not free: {who}")
    held_by = attribute.active
    named = all(held_by.get(key) == owner.get(key) for key in ("namespace", "pod"))
    replaceable = named and is_pod(held_by) and not attribute.alternate
    if not replaceable or "vmi-name" in held_by or not attribute.handle_id or not gone(held_by):
        raise OwnerMismatch(f"{address} is not free: {who}")
    return attribute.handle_id


def _by_pool(pools: Sequence[Pool], cidrs: Iterable[IPNetwork]) -> list[IPNetwork]:
    """CIDRs that lie in some pools, those of the first pool first, else in the order given."""
    cidrs = tuple(cidrs)
    return [cidr for pool in pools for cidr in cidrs if rules.pool_of([pool], cidr) is not None]


def _names(pools: Iterable[Pool]) -> str:
    return ", ".join(pool.name for pool in pools)
