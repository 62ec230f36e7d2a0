"""Where the next address comes from: an affine block, a newly claimed one, a borrowed one.

`Allocator` reads through a transaction and returns a decision; `stage_*` writes a decision into
the transaction. A claim is a commit of its own (affinity `pending`, then the block, empty); the
affinity becomes `confirmed` together with the block's first allocation. So no commit that stops
in the middle leaves a confirmed affinity without its block, and every handle names blocks that
existed before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice

from libtortie.errors import (
    Conflict,
    InvalidInput,
    Malformed,
    NoFreeAddresses,
    OwnerMismatch,
)
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, IPAddress, IPAMConfig, Owner
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork

from . import affinity as rules
from . import block as blocks
from .affinity import Reservations, Standing
from .holdings import set_counts
from .ownership import OwnerGone, is_pod
from .pools import WORKLOAD, Lan, Pool, Wanted, choosy, described, eligible, pool_of, serves
from .room import FULL, is_heavy, is_light, size_of
from .settings import POOLS, guard_pool
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Pick:
    """Take this ordinal, the `address`; `evicted` is the handle of a dead holder that has it."""

    pool: Pool
    cidr: IPNetwork
    ordinal: int
    address: IPAddress
    evicted: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make this block ours first. `loser` is the affinity of the node that had it, empty."""

    pool: Pool
    block: Block
    loser: AffinityKey | None = None


@dataclass(slots=True)
class Plan:
    """Where addresses of one kind come from first, as of the `claims` of the transaction.

    `owned` and `unfinished` are blocks with their pools; `full` are blocks found without a free
    address.
    """

    pools: Sequence[Pool]
    claims: int
    owned: Mapping[IPNetwork, Pool]
    unfinished: Mapping[IPNetwork, Pool]
    full: dict[IPNetwork, Block] = field(default_factory=dict)


@dataclass(slots=True)
class Allocator:
    """Decides for one node within one transaction, for one request after another.

    `pools` are all pools that can be read, `broken` says what is wrong with each of the others.
    """

    tx: Transaction
    node: str
    now: datetime
    config: IPAMConfig
    pools: Sequence[Pool]
    reservations: Reservations
    broken: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    unlabelled: str = ""
    """Why the node's labels are not known."""
    tidy: list[AffinityKey] = field(default_factory=list)
    """What this node has for nothing (`tidy`): to be removed, when possible."""
    unreadable: list[str] = field(default_factory=list)
    """Blocks that were looked at and cannot be read, by name."""
    chosen: list[IPNetwork] = field(default_factory=list)
    """Blocks of this request's picks so far."""
    heavy: dict[IPNetwork, int] = field(default_factory=dict)
    """Blocks that are full for their length, in bytes."""
    plans: dict[object, Plan] = field(default_factory=dict)
    """What was found out for each kind of request: as long as nothing is claimed it holds."""

    def pick(self, wanted: Wanted) -> Pick | Claim:
        """An address of a family. Raises `NoFreeAddresses`, `InvalidInput` (requested pools)."""
        plan = self._plan(wanted)
        pools, owned = plan.pools, plan.owned
        decision = (
            self._first_free(plan, wanted.lan)
            or self._fresh(pools, owned, plan.unfinished)
            or self._search(pools, owned, wanted.lan)
        )
        if decision is None:
            raise NoFreeAddresses(self._exhausted(wanted.version, pools, owned))
        return decision

    def _plan(self, wanted: Wanted) -> Plan:
        """The pools and own blocks for a request, found out once for all that are alike."""
        spaces = frozenset(wanted.namespace_labels.items())
        kind = (wanted.version, tuple(wanted.requested), spaces, wanted.use, wanted.lan)
        claims, plan = self.tx.claims, self.plans.get(kind)
        if plan is None or plan.claims != claims:
            pools = plan.pools if plan else self._eligible(wanted)
            if not pools:
                raise NoFreeAddresses(
                    f"no IPv{wanted.version} pool is eligible on node {self.node} for use "
                    f"{wanted.use} (pools: {described(self.pools) or 'none'}){self._unread()}"
                )
            plan = self.plans[kind] = Plan(pools, claims, *self._own(pools))
        return plan

    def _eligible(self, wanted: Wanted) -> tuple[Pool, ...]:
        """The pools for a request. Raises `Malformed` if that is up to labels nobody knows."""
        picky = choosy(self.pools, wanted) if self.unlabelled else ()
        if picky:
            raise Malformed(
                f"{self.unlabelled}: so nobody knows which labels node {self.node} has, by which "
                f"pools choose (nodeSelector): {described(picky)}"
            )
        return eligible(self.pools, wanted)

    def pick_address(
        self, address: IPAddress, owner: Owner, gone: OwnerGone, use: str = WORKLOAD
    ) -> Pick | Claim:
        """One particular address; reservations and selectors don't count.

        Raises `InvalidInput` (in no enabled pool of the use, or in a block of another size),
        `OwnerMismatch` (held, or in another node's block under strict affinity),
        `NoFreeAddresses` (cooling down).
        """
        around = [pool for pool in self.pools if address in pool.cidr]
        pool = next((p for p in around if p.enabled and use in p.allowed_uses), None)
        if pool is None:
            where = f" (in pools: {described(around)})" if around else ""
            raise InvalidInput(
                f"{address} is not in an enabled pool for use {use}{where}{self._unread()}"
            )
        cidr = pool.block_of(address)
        block = self._block(cidr)
        if block is None:
            if self.tx.block(cidr) is not None:
                raise Conflict(f"block {cidr} is being deleted")
            if odd := [c for c in self.tx.block_names(cidr.version) if c.overlaps(cidr)]:
                raise InvalidInput(
                    f"{address}: a block {cidr} of pool {pool.name} would overlap block {odd[0]}, "
                    "which is of another size and still in use"
                )
            return Claim(pool, blocks.new_block(cidr, node=self.node, now=self.now))
        if block.node != self.node and self.config.strict_affinity:
            if block.affinity is None:
                return Claim(pool, blocks.claim_for(block, self.node, self.now))
            raise OwnerMismatch(
                f"{address} is in block {cidr} of {block.affinity} and affinity is strict"
            )
        ordinal = block.ordinal(address)
        if ordinal not in block.unallocated:
            return Pick(pool, cidr, ordinal, address, _evict(block, ordinal, owner, gone))
        if self._is_heavy(block):
            raise NoFreeAddresses(f"{address} is not given: {self._too_long(cidr)}")
        return Pick(pool, cidr, ordinal, address)

    def _block(self, cidr: IPNetwork) -> Block | None:
        """A block with its rested ordinals free; one that is being deleted is left alone."""
        block = self.tx.glance(BlockKey(cidr), Block)
        if block is None or block.deleted:
            return None
        return self._rested(block)

    def _rested(self, block: Block) -> Block:
        return blocks.expire_cooldown(block, now=self.now, cooldown=self.config.cooldown_seconds)

    def _own(self, pools: Sequence[Pool]) -> tuple[dict[IPNetwork, Pool], dict[IPNetwork, Pool]]:
        """Blocks this node owns in some pools, and claims it may finish; in pool order."""
        found: dict[Standing, list[IPNetwork]] = {kind: [] for kind in Standing}
        for key in self.tx.affinities(self.node):
            try:
                block = self.tx.glance(BlockKey(key.cidr), Block)
            except Malformed:
                continue  # nothing can be said of it: the search names it
            if pool_of(pools, key.cidr) is None:
                self._consider(key)
                continue
            claim = self.tx.glance(key, BlockAffinity) or BlockAffinity()
            kind = rules.standing(claim, block, self.node)
            found[kind].append(key.cidr)
            if kind in (Standing.FALSE, Standing.LEAVING):
                self.tidy.append(key)
        ranked = [_by_pool(pools, found[k]) for k in (Standing.OWNED, Standing.UNFINISHED)]
        return ranked[0], ranked[1]

    def _consider(self, key: AffinityKey) -> None:
        """Give an affinity up whose pool is gone or has other nodes, if its block is empty."""
        if self.broken or self.unlabelled or serves(key.cidr, self.pools, self.labels):
            return
        block = self._block(key.cidr)
        if block is None or (block.node == self.node and blocks.is_empty(block)):
            self.tidy.append(key)

    def _first_free(self, plan: Plan, lan: Lan | None) -> Pick | None:
        for cidr, pool in plan.owned.items():
            stored = self.tx.glance(BlockKey(cidr), Block)
            if stored is None or stored.deleted or plan.full.get(cidr) is stored:
                continue
            if pick := self._pick_in(pool, self._rested(stored), lan):
                return pick
            plan.full[cidr] = stored
        return None

    def _pick_in(self, pool: Pool | None, block: Block, lan: Lan | None) -> Pick | None:
        if pool is None:
            return None
        for ordinal in blocks.free_ordinals(block, self.reservations.rule):
            address = block.address(ordinal)
            if lan is None or not lan.spares(address, block.cidr, pool.cidr):
                heavy = self._is_heavy(block)
                return None if heavy else Pick(pool, block.cidr, ordinal, address)
        return None

    def _is_heavy(self, block: Block) -> bool:
        """Whether a block's text is too long for another address (`room`), free as some are.

        What others of a batch write counts only beside a block that is long itself: where all of
        them are together too long, each goes on alone.
        """
        if is_light([block, *self._read(block.cidr, self.chosen)]):
            return False
        if is_heavy(block, self._read(block.cidr, [*self.tx.staged_blocks(), *self.chosen])):
            self.heavy[block.cidr] = size_of(block)
            return True
        return False

    def _read(self, but: IPNetwork, cidrs: Iterable[IPNetwork]) -> list[Block]:
        """Blocks that are written beside one."""
        found = (self.tx.glance(BlockKey(one), Block) for one in {*cidrs} - {but})
        return [block for block in found if block is not None]

    def _fresh(
        self,
        pools: Sequence[Pool],
        owned: Collection[IPNetwork],
        unfinished: Collection[IPNetwork],
    ) -> Claim | None:
        """A place where no block is: found by the names of those that are, not by their values."""
        if not self._may_claim(owned):
            return None
        taken = dict.fromkeys(self.tx.block_names(pools[0].cidr.version))
        for cidr in (*unfinished, *self._candidates(pools, taken)):
            pool = pool_of(pools, cidr)
            if pool and cidr not in taken and not self.reservations.exhausts(cidr):
                return Claim(pool, blocks.new_block(cidr, node=self.node, now=self.now))
        return None

    def _candidates(
        self, pools: Sequence[Pool], taken: Mapping[IPNetwork, None]
    ) -> Iterator[IPNetwork]:
        """The first candidate of each pool, in pool order."""
        for pool in pools:
            walk = rules.candidates(
                pool,
                node=self.node,
                taken=taken.keys(),
                reservations=self.reservations,
                now=self.now,
            )
            yield from islice(filter(self._claimable, walk), 1)

    def _claimable(self, cidr: IPNetwork) -> bool:
        return _readable(self.tx, AffinityKey(self.node, cidr))

    def _search(
        self, pools: Sequence[Pool], owned: Collection[IPNetwork], lan: Lan | None
    ) -> Pick | Claim | None:
        """Look at every block: for one of this node without an affinity, for one that may be taken
        over, and only then for one to borrow from."""
        borrowed: Pick | None = None
        for block in self._others(pools):
            pick = self._pick_in(pool_of(pools, block.cidr), block, lan)
            if pick is not None and block.node == self.node and block.cidr not in owned:
                return pick
            if self._may_claim(owned) and (claim := self._take_over(pools, block)):
                return claim
            borrowed = borrowed or pick
        return None if self.config.strict_affinity else borrowed

    def _others(self, pools: Sequence[Pool]) -> Iterator[Block]:
        """Every block of some pools, in pool order, from a start that depends on the node."""
        self.unreadable.clear()
        cidrs = self.tx.block_names(pools[0].cidr.version)
        turn = rules.fnv1(self.node) % len(cidrs) if cidrs else 0
        for found in self.tx.scan(tuple(_by_pool(pools, cidrs[turn:] + cidrs[:turn]))):
            if isinstance(found, Malformed):
                self.unreadable.append(str(found))
            elif not found.deleted:
                yield self._rested(found)

    def _take_over(self, pools: Sequence[Pool], block: Block) -> Claim | None:
        pool = pool_of(pools, block.cidr)
        if pool is None or self.reservations.exhausts(block.cidr):
            return None
        if not rules.reclaimable(block, self.node, self.now) or not self._claimable(block.cidr):
            return None
        loser = AffinityKey(block.node, block.cidr) if block.node else None
        if loser and not _readable(self.tx, loser):
            loser = None  # it stays, and is never trusted
        return Claim(pool, blocks.claim_for(block, self.node, self.now), loser)

    def _may_claim(self, owned: Collection[IPNetwork]) -> bool:
        return self.config.auto_allocate_blocks and not self._at_limit(owned)

    def _at_limit(self, owned: Collection[IPNetwork]) -> bool:
        return len(owned) >= rules.block_limit(self.config)

    def _exhausted(self, version: int, pools: Sequence[Pool], owned: Collection[IPNetwork]) -> str:
        why = [f"no free IPv{version} address for node {self.node} in pools {described(pools)}"]
        if not self.config.auto_allocate_blocks:
            why.append("new blocks are not allocated automatically")
        elif self._at_limit(owned):
            limit = rules.block_limit(self.config)
            why.append(f"cannot allocate new block due to per host block limit ({limit})")
        if self.config.strict_affinity:
            why.append("affinity is strict, so no address is borrowed from other nodes")
        ranges = [pool.cidr for pool in pools]
        odd = [
            str(cidr)
            for cidr in self.tx.block_names(version)
            if pool_of(pools, cidr) is None and any(cidr.overlaps(one) for one in ranges)
        ]
        if odd:
            why.append(f"blocks of another size are in the way: {', '.join(odd)}")
        why += map(self._too_long, self.heavy)
        why += [f"not readable: {name}" for name in self.unreadable]
        return "; ".join(why) + self._unread()

    def _too_long(self, cidr: IPNetwork) -> str:
        size = self.heavy[cidr]
        much = (
            "as much as"
            if size > FULL
            else "and with the blocks written beside it, or when its VMs migrate, more than"
        )
        return (
            f"block {cidr} has {size} bytes, {much} the datastore takes in one request, so none of "
            "it is given any more (smaller blocks, in a new pool, are not full)"
        )

    def _unread(self) -> str:
        return "".join(f"; not readable: {reason}" for reason in self.broken)


def stage_claim(tx: Transaction, claim: Claim, node: str) -> None:
    """Affinity first, as pending; then the block; last the affinity of the node that lost it.

    Only while the pools are what they were: one that has taken this one's place, or comes before
    it where they overlap, may have blocks of another size.
    """
    guard_pool(tx, claim.pool)
    tx.guard_listing(POOLS)
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
    set_counts(tx, handle_id, handle, counts)
    for pick in picks:
        block = tx.block(pick.cidr)
        if block is None:
            raise AssertionError(f"block {pick.cidr} was picked and not read")
        block = blocks.expire_cooldown(block, now=now, cooldown=cooldown)
        if pick.evicted:
            block = blocks.release(block, [pick.ordinal], now=now, cooldown=0)
        given = blocks.assign_ordinal(block, pick.ordinal, handle_id=handle_id, owner=owner)
        tx.put(BlockKey(pick.cidr), given)
        guard_pool(tx, pick.pool)
    for pick in picks:
        if pick.evicted:
            _uncount(tx, pick.evicted, pick.cidr)


def stage_confirmations(tx: Transaction, node: str, cidrs: Iterable[IPNetwork]) -> None:
    """Confirm the node's affinities to those blocks of its own that are in use.

    One that cannot be read stays so: it is only an index.
    """
    for cidr in cidrs:  # each once, as long as no other claims are staged
        tx.noted(("confirmed", cidr, tx.claims), partial(_confirm, tx, node, cidr))


def _confirm(tx: Transaction, node: str, cidr: IPNetwork) -> None:
    block, key = tx.block(cidr), AffinityKey(node, cidr)
    if block is None or block.node != node or not _readable(tx, key):
        return
    stored = tx.affinity(key)
    if stored is None or stored.state is not AffinityState.CONFIRMED:
        wanted = replace(stored or BlockAffinity(), state=AffinityState.CONFIRMED)
        tx.put(key, wanted)


def _readable(tx: Transaction, key: AffinityKey) -> bool:
    """Whether an affinity is absent or can be read: else it cannot be written either."""
    try:
        tx.glance(key, BlockAffinity)
    except Malformed:
        return False
    return True


def _uncount(tx: Transaction, handle_id: str, cidr: IPNetwork) -> None:
    handle = tx.handle(handle_id)
    if handle is not None:
        counts = dict(handle.blocks)
        counts[cidr] = counts.get(cidr, 0) - 1
        set_counts(tx, handle_id, handle, counts)


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


def _by_pool(pools: Sequence[Pool], cidrs: Collection[IPNetwork]) -> dict[IPNetwork, Pool]:
    """Blocks of some pools with their pool, those of the first pool first, else in that order."""
    return {cidr: pool for pool in pools for cidr in cidrs if pool.has(cidr)}
