"""Where the next address comes from: an affine block, a newly claimed one, a borrowed one.

`Allocator` reads through a transaction and returns a decision, which `staging` writes into the
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from libtortie.errors import Malformed, NoFreeAddresses
from libtortie.model.ipam import Block, BlockAffinity
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork

from . import affinity as rules
from . import block as blocks
from .affinity import Standing
from .claiming import fresh_block, take_over
from .pools import Lan, Pool, Wanted, choosy, described, eligible, pool_of, serves
from .staging import Claim, Pick
from .view import View


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
class Allocator(View):
    """Decides for one node within one transaction, for one request after another."""

    plans: dict[object, Plan] = field(default_factory=dict)
    """What was found out for each kind of request: as long as nothing is claimed it holds."""

    def pick(self, wanted: Wanted) -> Pick | Claim:
        """An address of a family. Raises `NoFreeAddresses`, `InvalidInput` (requested pools)."""
        plan = self._plan(wanted)
        pools, owned = plan.pools, plan.owned
        decision = (
            self._first_free(plan, wanted.lan)
            or fresh_block(self, pools, owned, plan.unfinished)
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
                    f"{wanted.use} (pools: {described(self.pools) or 'none'}){self.unread()}"
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
        block = self.block(key.cidr)
        if block is None or (block.node == self.node and blocks.is_empty(block)):
            self.tidy.append(key)

    def _first_free(self, plan: Plan, lan: Lan | None) -> Pick | None:
        for cidr, pool in plan.owned.items():
            stored = self.tx.glance(BlockKey(cidr), Block)
            if stored is None or stored.deleted or plan.full.get(cidr) is stored:
                continue
            if pick := self.pick_in(pool, self.rested(stored), lan):
                return pick
            plan.full[cidr] = stored
        return None

    def _search(
        self, pools: Sequence[Pool], owned: Collection[IPNetwork], lan: Lan | None
    ) -> Pick | Claim | None:
        """Look at every block: for one of this node without an affinity, for one that may be taken
        over, and only then for one to borrow from."""
        borrowed: Pick | None = None
        for block in self._others(pools):
            pick = self.pick_in(pool_of(pools, block.cidr), block, lan)
            if pick is not None and block.node == self.node and block.cidr not in owned:
                return pick
            if self.may_claim(owned) and (claim := take_over(self, pools, block)):
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
                yield self.rested(found)

    def _exhausted(self, version: int, pools: Sequence[Pool], owned: Collection[IPNetwork]) -> str:
        why = [f"no free IPv{version} address for node {self.node} in pools {described(pools)}"]
        if not self.config.auto_allocate_blocks:
            why.append("new blocks are not allocated automatically")
        elif self.at_limit(owned):
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
        why += map(self.too_long, self.heavy)
        why += [f"not readable: {name}" for name in self.unreadable]
        return "; ".join(why) + self.unread()


def _by_pool(pools: Sequence[Pool], cidrs: Collection[IPNetwork]) -> dict[IPNetwork, Pool]:
    """Blocks of some pools with their pool, those of the first pool first, else in that order."""
    return {cidr: pool for pool in pools for cidr in cidrs if pool.has(cidr)}
