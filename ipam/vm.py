"""Decisions about a VM's addresses, over one transaction: new owners for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from libtortie.errors import Malformed, MigrationRefused, OwnerMismatch
from libtortie.model.ipam import Owner
from libtortie.model.keys import BlockKey, IPNetwork

from . import block as blocks
from . import ownership, tidy
from .attempts import AGAIN, Again
from .holdings import Held, Holdings, heal, holdings, set_counts
from .ownership import Owners, PodLives
from .request import Allocation, allocations
from .room import Portion
from .settings import read_config, require_ready
from .transaction import Transaction


def claim_target(
    tx: Transaction,
    handle_id: str,
    target: Owner,
    lives: PodLives,
    *,
    named: bool,
    runs_in: str = "",
) -> tuple[Allocation, ...] | Again:
    """Make a migration target the alternate owner of everything the VM holds.

    That addresses persist was decided before, where the pod was identified (`persistence`).
    """
    require_ready(tx)
    found = holdings(tx, handle_id)
    if heal(tx, found):
        return AGAIN
    if not found.held:
        raise MigrationRefused(
            f"migration target pod but no IP allocated to VM handle {handle_id}: if the VM was "
            "started before kubeVirtVMAddressPersistence was enabled, restart it"
        )

    def change(owners: Owners) -> Owners:
        return ownership.claim_target(owners, target, lives, named=named, runs_in=runs_in)

    if not change_owners(tx, found, change):
        return AGAIN
    return allocations(holdings(tx, handle_id))


def promote(tx: Transaction, handle_id: str, target: Owner) -> bool | Again:
    """Make a migration target the active owner of everything the VM holds, or of nothing."""
    require_ready(tx)
    found = holdings(tx, handle_id)
    if heal(tx, found):
        return AGAIN
    if not found.held:
        raise OwnerMismatch(f"no address is allocated to handle {handle_id}")
    whole = change_owners(tx, found, lambda owners: ownership.promote(owners, target))
    return True if whole else AGAIN


def disown(
    tx: Transaction, handle_id: str, leaver: Owner, *, vm_deleting: bool, now: datetime
) -> bool | Again | None:
    """Take a sandbox out of all owners; True: the addresses were freed, None: there were none."""
    require_ready(tx)
    found = holdings(tx, handle_id)
    if heal(tx, found):
        return AGAIN
    if not found.held:
        return None
    left = [ownership.disown(owners_of(item), leaver) for item in found.held]
    if vm_deleting and all(ownership.may_free(owners, leaver) for owners in left):
        return True if stage_release(tx, found, found.held, now=now) else AGAIN
    whole = change_owners(tx, found, lambda owners: ownership.disown(owners, leaver))
    return False if whole else AGAIN


def seats(tx: Transaction, node: str, container_id: str) -> tuple[tuple[str, Owner], ...]:
    """(handle, owner) wherever a sandbox of a node is active or alternate owner.

    Raises `Malformed` when a block cannot be read: it may have a seat.
    """
    found: list[tuple[str, Owner]] = []
    for version in (4, 6):
        for block in tx.scan(tx.block_names(version)):
            if isinstance(block, Malformed):
                raise block
            for held in block.attributes:
                for owner in (held.active, held.alternate):
                    seat = (held.handle_id or "", owner)
                    mine = (owner.get("node"), owner.get("container-id")) == (node, container_id)
                    if mine and held.handle_id and seat not in found:
                        found.append(seat)
    return tuple(found)


def owners_of(item: Held) -> Owners:
    """The owners of one address."""
    return Owners(item.attribute.active, item.attribute.alternate)


def change_owners(tx: Transaction, found: Holdings, change: Callable[[Owners], Owners]) -> bool:
    """Stage new owners of all held addresses; a block whose owners stay is not written.

    False when one commit cannot write all of it (`room`): commit what is staged, decide again.
    """
    portion = Portion()
    for cidr, items in found.by_block().items():
        block = tx.block(cidr)
        if block is None:
            continue
        wanted = {item.ordinal: change(owners_of(item)) for item in items}
        changed = blocks.set_owners(
            block, {ordinal: (o.active, o.alternate) for ordinal, o in wanted.items()}
        )
        if changed != block:
            if not portion.takes(changed):
                return False
            tx.put(BlockKey(cidr), changed)
    return True


def share_alternate(tx: Transaction, found: Holdings) -> bool:
    """Let an address that came during a migration have the alternate owner of the others: they
    are promoted together or not at all. True when there is one."""
    known = next((item.attribute.alternate for item in found.held if item.attribute.alternate), {})
    if known:
        change_owners(tx, found, lambda owners: Owners(owners.active, owners.alternate or known))
    return bool(known)


def stage_release(
    tx: Transaction, found: Holdings, items: Iterable[Held], *, now: datetime
) -> bool:
    """Blocks first, the handle last. An empty block that serves nobody is deleted.

    False when one commit cannot write all of it (`room`): the handle then counts what is left.
    """
    items, portion, whole = tuple(items), Portion(), True
    if not items:
        return True
    counts, cooldown = dict(found.counts), read_config(tx).cooldown_seconds
    leaving: dict[IPNetwork, list[int]] = {}
    for item in items:
        leaving.setdefault(item.cidr, []).append(item.ordinal)
    for cidr, ordinals in leaving.items():
        block = tx.block(cidr)
        if block is None:
            continue
        left = blocks.release(block, ordinals, now=now, cooldown=cooldown)
        if not portion.takes(left):
            whole = False
            break
        counts[cidr] -= len(ordinals)
        if blocks.is_empty(left):
            tidy.stage_emptied(tx, left)
        else:
            tx.put(BlockKey(cidr), left)
    set_counts(tx, found.handle_id, found.handle, counts)
    return whole
