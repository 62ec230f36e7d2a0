"""The decision to give an attachment its addresses, over one transaction.

All families asked for or none. Where a commit is atomic, a block that has to be claimed is claimed
in the commit that gives its first address; elsewhere the claim is a commit of its own before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from libtortie.errors import Malformed
from libtortie.model.ipam import IPAddress, Owner
from libtortie.model.keys import AffinityKey

from . import ownership, vm
from .allocate import Allocator
from .attempts import AGAIN, Again
from .holdings import heal, holdings
from .ownership import OwnerGone, Owners
from .particular import pick_address
from .pools import EVERY_NODE, Wanted
from .request import AddressRequest, Allocation, allocations, missing_families
from .settings import (
    read_config,
    read_node_labels,
    read_pools,
    read_reservations,
    require_ready,
)
from .staging import Claim, Pick, stage_claim, stage_confirmations, stage_picks
from .transaction import Transaction


@dataclass(slots=True)
class Assignment:
    """What is asked for, and what was learnt over the attempts."""

    node: str
    node_labels: Mapping[str, str]
    now: Callable[[], datetime]
    handle_id: str
    owner: Owner
    want: AddressRequest
    change: Callable[[Owners], Owners]
    gone: OwnerGone
    picked: set[IPAddress] = field(default_factory=set)
    """What any attempt wanted to give, stored or not."""
    tidy: list[AffinityKey] = field(default_factory=list)

    def decide(self, tx: Transaction) -> tuple[Allocation, ...] | Again:
        """Stage what is missing; what the handle holds already counts."""
        require_ready(tx)
        found = holdings(tx, self.handle_id)
        if heal(tx, found):
            return AGAIN
        if found.held and not vm.change_owners(tx, found, self.change):
            return AGAIN
        missing = missing_families(found, self.want)
        picks = self._give(tx, missing) if missing else ()
        if picks is None:
            return AGAIN
        if found.held:
            found = holdings(tx, self.handle_id)
            if picks and vm.share_alternate(tx, found):
                found = holdings(tx, self.handle_id)
        stage_confirmations(tx, self.node, [*found.counts, *(pick.cidr for pick in picks)])
        return allocations(found) or tuple(map(self._given, picks))

    def undo(self, tx: Transaction) -> Again | None:
        """Give back what attempts may have stored, and nothing that others gave."""
        found = holdings(tx, self.handle_id)
        if heal(tx, found):
            return AGAIN
        ours = [
            item
            for item in found.held
            if item.address in self.picked
            and ownership.same_sandbox(item.attribute.active, self.owner)
        ]
        return None if vm.stage_release(tx, found, ours, now=self.now()) else AGAIN

    def _given(self, pick: Pick) -> Allocation:
        return Allocation(pick.address, self.handle_id, dict(self.owner), {}, pick.cidr)

    def _give(self, tx: Transaction, versions: Iterable[int]) -> Sequence[Pick] | None:
        """Stage an address of each family, or else (None) the claims that have to come first."""
        allocator = tx.noted("allocator", lambda: self._allocator(tx))
        decisions: list[Pick | Claim] = []
        for version in versions:
            allocator.chosen = [one.cidr for one in decisions if isinstance(one, Pick)]
            decisions.append(self._pick(allocator, version))
        self.tidy, allocator.tidy = allocator.tidy, []
        picks = [decision for decision in decisions if isinstance(decision, Pick)]
        if len(picks) < len(decisions):
            return None
        self.picked.update(pick.address for pick in picks)
        stage_picks(
            tx,
            picks,
            handle_id=self.handle_id,
            owner=self.owner,
            now=allocator.now,
            cooldown=allocator.config.cooldown_seconds,
        )
        return picks

    def _allocator(self, tx: Transaction) -> Allocator:
        pools, broken = read_pools(tx)  # one that cannot be read gives nothing; others do
        labels, unlabelled = self.node_labels, ""
        if any(pool.node_selector not in EVERY_NODE for pool in pools):
            try:
                labels = read_node_labels(tx, self.node, self.node_labels)
            except Malformed as error:  # a trouble only for the pools that choose
                unlabelled = str(error)
        return Allocator(
            tx,
            self.node,
            self.now(),
            read_config(tx),
            pools,
            read_reservations(tx),
            broken,
            labels,
            unlabelled,
        )

    def _pick(self, allocator: Allocator, version: int) -> Pick | Claim:
        """A pick, or a claim that is staged and has to be committed before there can be one."""
        decision = self._choose(allocator, version)
        if isinstance(decision, Claim):
            stage_claim(allocator.tx, decision, self.node)
            if allocator.tx.atomic:
                decision = self._choose(allocator, version)
                if isinstance(decision, Claim):  # what was claimed has nothing that may be given
                    stage_claim(allocator.tx, decision, self.node)
        return decision

    def _choose(self, allocator: Allocator, version: int) -> Pick | Claim:
        want, address = self.want, self.want.explicit(version)
        if address is not None:
            return pick_address(allocator, address, self.owner, self.gone, want.use)
        pools, spaces = want.pools(version), want.namespace_labels
        return allocator.pick(Wanted(version, pools, allocator.labels, spaces, want.use, want.lan))
