"""What a commit did to addresses, as facts for the history. Derived from its blocks, whoever staged
them: no operation has to say what it did, and none can forget to.

Pure but for `Annals`, which hands the facts on after the commit. That must neither wait for the
datastore nor raise: nothing that gives an address depends on the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from libtortie.model.history import Fact, What
from libtortie.model.ipam import Attribute, Block, IPAddress, Owner
from libtortie.model.names import vm_of_handle

from .ownership import same_sandbox

MOST_ADDRESSES = 64
"""Of one fact; a handle that holds more is named with the first of them."""

Change = tuple[Block | None, Block | None]
"""A block before and after a commit."""


@dataclass(frozen=True, slots=True)
class Annals:
    """Tells the facts of commits. `by` is the node or the program; `write` keeps them."""

    by: str
    now: Callable[[], datetime]
    write: Callable[[Sequence[Fact]], None]

    def note(self, changes: Iterable[Change]) -> None:
        """What these changes were, now that they are committed."""
        facts = facts_of(changes, self.by, self.now())
        if facts:
            self.write(facts)


@dataclass(frozen=True, slots=True)
class _Deed:
    """What happened to one address: equal deeds of several are one fact."""

    what: What
    handle_id: str
    owner: tuple[tuple[str, str], ...]
    before: tuple[tuple[str, str], ...]


def facts_of(changes: Iterable[Change], by: str, at: datetime) -> tuple[Fact, ...]:
    """The facts of changes that were committed together."""
    found: dict[_Deed, list[IPAddress]] = {}
    for before, after in changes:
        for address, deed in _deeds(before, after):
            found.setdefault(deed, []).append(address)
    return tuple(_fact(deed, addresses, by, at) for deed, addresses in found.items())


def _deeds(before: Block | None, after: Block | None) -> Iterator[tuple[IPAddress, _Deed]]:
    block = after or before
    if block is None:
        return
    old, new = _held(before, block), _held(after, block)
    for ordinal in [o for o, (was, now) in enumerate(zip(old, new, strict=True)) if was is not now]:
        for deed in _between(old[ordinal], new[ordinal]):
            yield block.address(ordinal), deed


def _held(block: Block | None, like: Block) -> list[Attribute | None]:
    """Who holds each ordinal; what cools down is held by nobody."""
    if block is None:
        return [None] * len(like.allocations)
    holders = [None if one.released_at is not None else one for one in block.attributes]
    return [None if index is None else holders[index] for index in block.allocations]


def _between(was: Attribute | None, now: Attribute | None) -> Iterator[_Deed]:
    if was == now:
        return
    if was is None or now is None or was.handle_id != now.handle_id:
        if was is not None:
            yield _deed(What.RELEASED, was, was.active or was.alternate, {})
        if now is not None:
            yield _deed(What.GRANTED, now, now.active or now.alternate, {})
        return
    if not _same(was.active, now.active):
        promoted = bool(now.active.get("pod")) and _same(was.alternate, now.active)
        what = What.PROMOTED if promoted else What.HANDED_OVER
        yield _deed(what, now, now.active, was.active)
    elif now.alternate and not _same(was.alternate, now.alternate):
        yield _deed(What.TARGETED, now, now.alternate, now.active)


def _same(one: Owner, other: Owner) -> bool:
    if not one or not other:
        return not one and not other
    return same_sandbox(one, other) and one.get("node") == other.get("node")


def _deed(what: What, attribute: Attribute, owner: Owner, before: Owner) -> _Deed:
    handle = attribute.handle_id or ""
    return _Deed(what, handle, tuple(sorted(owner.items())), tuple(sorted(before.items())))


def _fact(deed: _Deed, addresses: list[IPAddress], by: str, at: datetime) -> Fact:
    owner, before = dict(deed.owner), dict(deed.before)
    known = vm_of_handle(deed.handle_id) or ("", "")
    details = {"source": before.get("node", ""), "migration_uid": owner.get("vmim-uid", "")}
    if deed.what not in (What.TARGETED, What.PROMOTED):
        details = {}
    return Fact(
        at=at,
        what=deed.what,
        by=by,
        handle_id=deed.handle_id,
        addresses=tuple(sorted(addresses, key=lambda one: (one.version, one))[:MOST_ADDRESSES]),
        namespace=owner.get("namespace", "") or known[0],
        vm=owner.get("vmi-name", "") or known[1],
        pod=owner.get("pod", ""),
        node=owner.get("node", ""),
        before=before.get("pod", ""),
        details={name: text for name, text in details.items() if text},
    )
