"""Rules of one allocation block, as pure functions from block to block.

They promise: an ordinal is either free (listed once in `unallocated`), cooling down, or held by
one handle; every attribute is pointed at; identical attributes are shared. No function changes
its argument. Sequence numbers follow Calico: seeded with wall-clock nanoseconds, one more for
each change, and an allocation remembers the value its block had before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from libtortie.errors import NoFreeAddresses, OwnerMismatch
from libtortie.model.ipam import Attribute, Block, IPAddress, Owner
from libtortie.model.keys import IPNetwork

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = 2**64
"""Sequence numbers there are."""

Reserved = Callable[[IPAddress], bool]


def nothing_reserved(_: IPAddress) -> bool:
    """The reservation of a cluster without IPReservations."""
    return False


def new_block(cidr: IPNetwork, *, node: str | None, now: datetime) -> Block:
    """An empty block, affine to `node` if one is given."""
    return Block(
        cidr=cidr,
        affinity=f"host:{node}" if node else None,
        allocations=(None,) * cidr.num_addresses,
        unallocated=tuple(range(cidr.num_addresses)),
        affinity_claim_time=whole_seconds(now) if node else None,
        sequence_number=_nanoseconds(now),
    )


def touch(block: Block) -> Block:
    """The same block one sequence number later: a writer that read the old one must fail."""
    return replace(block, sequence_number=_after(block.sequence_number))


def claim_for(block: Block, node: str, now: datetime) -> Block:
    """Make the block affine to a node."""
    affine = replace(block, affinity=f"host:{node}", affinity_claim_time=whole_seconds(now))
    return touch(affine)


def free_ordinals(block: Block, reserved: Reserved = nothing_reserved) -> Iterator[int]:
    """Ordinals that may be assigned automatically, the one that was free longest first."""
    if reserved is nothing_reserved:
        return iter(block.unallocated)
    return (o for o in block.unallocated if not reserved(block.address(o)))


def held_by(block: Block, handle_id: str) -> tuple[int, ...]:
    """Ordinals a handle holds, in order."""
    attributes = enumerate(block.attributes)
    mine = [i for i, a in attributes if a.handle_id == handle_id and a.released_at is None]
    if not mine:
        return ()
    if len(mine) == 1 and block.allocations.count(mine[0]) == 1:  # as a rule: in C's time
        return (block.allocations.index(mine[0]),)
    return tuple([o for o, index in enumerate(block.allocations) if index in mine])


def is_empty(block: Block) -> bool:
    """No ordinal is held or cooling down."""
    return not block.attributes or block.allocations.count(None) == len(block.allocations)


def assign(
    block: Block,
    count: int,
    *,
    handle_id: str,
    owner: Owner,
    reserved: Reserved = nothing_reserved,
) -> tuple[Block, tuple[int, ...]]:
    """Give `count` free ordinals to a handle. Raises `NoFreeAddresses` (none is then given)."""
    chosen: list[int] = []
    for ordinal in free_ordinals(block, reserved):
        if len(chosen) == count:
            break
        chosen.append(ordinal)
    if len(chosen) < count:
        raise NoFreeAddresses(f"block {block.cidr} has {len(chosen)} of {count} addresses free")
    return _give(block, chosen, Attribute(handle_id=handle_id, active=dict(owner))), tuple(chosen)


def assign_ordinal(block: Block, ordinal: int, *, handle_id: str, owner: Owner) -> Block:
    """Give one particular ordinal to a handle. Raises `OwnerMismatch` when it isn't free."""
    if ordinal not in block.unallocated:
        raise OwnerMismatch(f"{block.address(ordinal)} is not free: {holder(block, ordinal)}")
    return _give(block, [ordinal], Attribute(handle_id=handle_id, active=dict(owner)))


def holder(block: Block, ordinal: int) -> str:
    """Who has an ordinal, in words for an error."""
    attribute = block.attribute(ordinal)
    if attribute is None:
        return "free"
    if attribute.released_at is not None:
        return f"released at {attribute.released_at.isoformat()} and cooling down"
    owner = attribute.active or attribute.alternate
    pod = f"{owner.get('namespace', '?')}/{owner.get('pod', owner.get('vmi-name', '?'))}"
    where = f"pod {pod} on node {owner.get('node', '?')}" if owner else "no owner"
    return f"held by handle {attribute.handle_id} ({where})"


def release(block: Block, ordinals: Iterable[int], *, now: datetime, cooldown: int) -> Block:
    """Take ordinals back; with a cooldown (seconds) they stay unavailable that long."""
    held = [o for o in sorted(set(ordinals)) if block.allocations[o] is not None]
    if not held:
        return block
    if cooldown <= 0:
        return _free(block, held, touched=True)
    resting = Attribute(released_at=whole_seconds(now))
    return touch(_repoint(block, dict.fromkeys(held, resting)))


def expire_cooldown(block: Block, *, now: datetime, cooldown: int) -> Block:
    """Free what has rested longer than `cooldown` seconds.

    Whole seconds are compared, as they are stored, so the rest is never shorter than asked.
    The sequence number stays: the result counts only as part of another change.
    """
    for attribute in block.attributes:
        if attribute.released_at is not None:
            break
    else:
        return block  # nothing rests, as a rule: told at once
    now = whole_seconds(now)
    rested = {
        i
        for i, a in enumerate(block.attributes)
        if a.released_at is not None
        and (cooldown <= 0 or (now - a.released_at).total_seconds() > cooldown)
    }
    if not rested:
        return block
    return _free(block, [o for o, index in enumerate(block.allocations) if index in rested])


def set_owners(block: Block, changes: Mapping[int, tuple[Owner, Owner]]) -> Block:
    """Write (active, alternate) of held ordinals; the ordinals' sequence numbers stay."""
    repointed: dict[int, Attribute] = {}
    for ordinal, (active, alternate) in changes.items():
        attribute = block.attribute(ordinal)
        if attribute is None or attribute.released_at is not None:
            raise OwnerMismatch(f"{block.address(ordinal)} is {holder(block, ordinal)}")
        wanted = replace(attribute, active=dict(active), alternate=dict(alternate))
        if wanted != attribute:
            repointed[ordinal] = wanted
    return touch(_repoint(block, repointed)) if repointed else block


def whole_seconds(moment: datetime) -> datetime:
    """A time as it is stored: UTC, without a fraction."""
    return moment.astimezone(UTC).replace(microsecond=0)


def _nanoseconds(moment: datetime) -> int:
    delta = moment.astimezone(UTC) - _EPOCH
    return (delta // timedelta(microseconds=1)) * 1000 % _NUMBERS


def _after(number: int) -> int:
    """The sequence number after one: it begins again after the last, as Calico's does."""
    return (number + 1) % _NUMBERS


def _give(block: Block, ordinals: Sequence[int], attribute: Attribute) -> Block:
    allocations, attributes = _repointed(block, dict.fromkeys(ordinals, attribute))
    unallocated = list(block.unallocated)
    for ordinal in ordinals:
        unallocated.remove(ordinal)  # of the first, as a rule: told at once
    return _with(
        block,
        allocations,
        attributes,
        unallocated=unallocated,
        numbers={**block.sequence_numbers, **dict.fromkeys(ordinals, block.sequence_number)},
        sequence_number=_after(block.sequence_number),
    )


def _free(block: Block, ordinals: Sequence[int], *, touched: bool = False) -> Block:
    allocations, numbers = list(block.allocations), dict(block.sequence_numbers)
    for ordinal in ordinals:
        allocations[ordinal] = None
        numbers.pop(ordinal, None)
    kept, attributes = _compacted(allocations, block.attributes)
    return _with(
        block,
        kept,
        attributes,
        unallocated=(*block.unallocated, *ordinals),
        numbers=numbers,
        sequence_number=_after(block.sequence_number) if touched else block.sequence_number,
    )


def _with(
    block: Block,
    allocations: Sequence[int | None],
    attributes: Sequence[Attribute],
    *,
    unallocated: Sequence[int],
    numbers: Mapping[int, int],
    sequence_number: int,
) -> Block:
    """The block with its changing parts anew: as `replace`, in a third of the time."""
    return Block(
        cidr=block.cidr,
        affinity=block.affinity,
        allocations=tuple(allocations),
        unallocated=tuple(unallocated),
        attributes=tuple(attributes),
        affinity_claim_time=block.affinity_claim_time,
        sequence_number=sequence_number,
        sequence_numbers=numbers,
        deleted=block.deleted,
        extra=block.extra,
    )


def _repoint(block: Block, changes: Mapping[int, Attribute]) -> Block:
    """Point ordinals at attributes; those that nothing points at any more are dropped."""
    allocations, attributes = _compacted(*_repointed(block, changes))
    return replace(block, allocations=tuple(allocations), attributes=tuple(attributes))


def _repointed(
    block: Block, changes: Mapping[int, Attribute]
) -> tuple[list[int | None], list[Attribute]]:
    """Ordinals pointed at attributes, sharing those that exist already."""
    attributes = list(block.attributes)
    allocations = list(block.allocations)
    for ordinal, attribute in changes.items():
        allocations[ordinal] = _place_of(attribute, attributes)
    return allocations, attributes


def _place_of(wanted: Attribute, attributes: list[Attribute]) -> int:
    """The index of an attribute, appended if it is not there."""
    for index, one in enumerate(attributes):
        if one.handle_id == wanted.handle_id and one == wanted:  # handles differ, as a rule
            return index
    attributes.append(wanted)
    return len(attributes) - 1


def _compacted(
    allocations: Sequence[int | None], attributes: Sequence[Attribute]
) -> tuple[Sequence[int | None], Sequence[Attribute]]:
    """Without the attributes nothing points at, the rest renumbered in their order."""
    used = set(allocations)
    used.discard(None)
    if len(used) == len(attributes):
        return allocations, attributes
    kept = sorted(index for index in used if index is not None)
    renumbered: dict[int | None, int] = dict(zip(kept, range(len(kept)), strict=True))
    return list(map(renumbered.get, allocations)), [attributes[index] for index in kept]
