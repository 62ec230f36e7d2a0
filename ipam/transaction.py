"""One compare-and-swap: what was read, what shall change, and the commit of both.

A transaction reads every key at most once, remembers its revision, and commits all changes at
once: each against the revision that was read. Keys a decision rested on without changing them
are *guarded*: the commit requires that they are still the same. Nothing is written before
`commit`. Changes are committed in the order in which they were staged, because a store without
transactions can stop between any two.

A transaction may *recall*: take from a `Cache` what it would else have to read. THE RULE: what
comes of recalled reads counts only if it ends in a commit, and that commit validates them. So each
recalled key that a decision looked at is guarded by itself, or it is changed against its revision.
Every answer that is no commit (an error, nothing to do) has to be decided again on fresh reads.

Several decisions may share a transaction, each seeing what the ones before it staged; one that
fails is taken back to its `mark`. Its guards stay: too much is then required, never too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    KeyOp,
    Listing,
    Op,
    Record,
    Unchanged,
    Update,
    Value,
)
from libtortie.errors import Conflict, Malformed, PartialCommit, TortieError
from libtortie.model.ipam import Block, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, IPNetwork, Key, Scope, path_of

from .annals import Annals, Change
from .cache import Cache
from .reading import UNSTAGED, Entry, Reading

V = TypeVar("V", bound=Value)


class Mark(NamedTuple):
    """A point to which a transaction can be taken back: lengths of its order and its journal."""

    staged: int
    changes: int


class Transaction(Reading):
    """Reads with memory and staged writes over one store. Use once."""

    def __init__(
        self,
        store: Datastore,
        cache: Cache | None = None,
        *,
        recall: bool = False,
        annals: Annals | None = None,
    ) -> None:
        super().__init__(store, cache, recall=recall)
        self._annals = annals
        self._guarded: list[Entry] = []
        self._scopes: dict[Scope, None] = {}
        self._journal: list[tuple[Entry, object]] = []

    def record(self, key: Key) -> Record | None:
        """The stored record of a key, None when it is absent. Raises `Malformed`."""
        entry = self._entry(key)
        if entry.broken:
            raise Malformed(entry.broken)
        return entry.record

    def value(self, key: Key, kind: type[V]) -> V | None:
        """The value of a key as this transaction would leave it. Raises `Malformed`."""
        entry = self._entries.get(key) or self._entry(key)
        if entry.recalled and not entry.guarded:
            self._require(entry)
        return _of_kind(entry, kind)

    def glance(self, key: Key, kind: type[V]) -> V | None:
        """As `value`, for what may as well be outdated: nothing rests on it until it is staged."""
        return _of_kind(self._entries.get(key) or self._entry(key), kind)

    def block(self, cidr: IPNetwork) -> Block | None:
        """A block, as this transaction would leave it."""
        return self.value(BlockKey(cidr), Block)

    def handle(self, handle_id: str) -> Handle | None:
        """A handle, as this transaction would leave it."""
        return self.value(HandleKey(handle_id), Handle)

    def affinity(self, key: AffinityKey) -> BlockAffinity | None:
        """An affinity, as this transaction would leave it."""
        return self.value(key, BlockAffinity)

    def guard(self, key: Key) -> None:
        """Require at commit that a key is as it was read."""
        entry = self._entry(key)
        if entry.broken:
            raise Malformed(entry.broken)
        self._require(entry)

    def guard_listing(self, scope: Scope) -> None:
        """Require at commit that nothing came to a scope, or was changed, since it was listed."""
        self.listing(scope)
        self._scopes[scope] = None

    def guard_recalled_listing(self, scope: Scope) -> None:
        """The same, if the listing was recalled: what was just read may be used as it is."""
        self.listing(scope)
        if scope in self._recalled_lists:
            self._scopes[scope] = None

    def put(self, key: Key, value: Value) -> None:
        """Stage a new value; the first staging of a key gives its place in the order."""
        self._stage(key, value)

    def remove(self, key: Key) -> None:
        """Stage a deletion."""
        self._stage(key, None)

    def mark(self) -> Mark:
        """Where `rollback` can come back to."""
        return Mark(len(self._staged), len(self._journal))

    def changed_since(self, mark: Mark) -> bool:
        """Whether anything was staged since."""
        return len(self._journal) > mark.changes

    def rollback(self, mark: Mark) -> None:
        """Forget what was staged since."""
        for entry, before in reversed(self._journal[mark.changes :]):
            entry.staged = before  # type: ignore[assignment]  # as it was
        del self._journal[mark.changes :]
        del self._staged[mark.staged :]
        self.claims += 1

    @property
    def dirty(self) -> bool:
        """Whether anything is staged."""
        return bool(self._staged)

    @property
    def size(self) -> int:
        """The most operations that the commit can have."""
        return len(self._staged) + len(self._guarded) + len(self._scopes)

    def ops(self) -> list[Op]:
        """Guards first, then the changes in order."""
        guards = [_check(entry) for entry in self._guarded if entry.staged is UNSTAGED]
        scopes = [_unchanged(scope, self._lists[scope]) for scope in self._scopes]
        return [*guards, *scopes, *map(_change, self._staged)]

    def commit(self) -> None:
        """Write everything staged. Raises `Conflict`, `PartialCommit`, `Unavailable`.

        The cache forgets what a failed commit rested on, and learns what was written. A store that
        turns out to have been put back to a backup since anything was read is a `Conflict`; if it
        is this commit's own answer that tells, what was written is taken back.
        """
        if not self.dirty:
            return
        ops = self.ops()
        self._require_era()
        try:
            written = self._store.commit(ops)
        except BaseException as error:
            if self._cache is not None:
                self._cache.forget(self._entries, self._lists)
            if isinstance(error, PartialCommit):
                self._tell(error.done - len(ops))
            raise
        if self._store.rewinds != self._era:
            self._take_back(ops, written)
        self._require_era()
        if self._cache is not None:
            changes = zip(self._staged, written[len(ops) - len(self._staged) :], strict=True)
            self._cache.learn_all(((entry.key, new) for entry, new in changes), self._era)
        self._tell(0)

    def _tell(self, missing: int) -> None:
        """Have the history told of what was staged; the last `-missing` were not written."""
        if self._annals is None:
            return
        done = self._staged[: max(0, len(self._staged) + missing)]
        self._annals.note(_change_of(entry) for entry in done if isinstance(entry.key, BlockKey))

    def _require_era(self) -> None:
        if self._store.rewinds != self._era:
            raise Conflict(
                "the datastore was put back to an earlier state: everything is read anew"
            )

    def _take_back(self, ops: Sequence[Op], written: Sequence[Record | None]) -> None:
        """Undo a commit, if all of it still stands. Raises `PartialCommit` when it may not."""
        undo = [
            _undoing(op, record, self._entries[op.key])
            for op, record in zip(ops, written, strict=True)
            if isinstance(op, Create | Update | Delete)
        ]
        try:
            self._store.commit(undo[::-1])
        except TortieError as error:
            raise PartialCommit(len(ops), f"written to a store put back: {error}") from error

    def _require(self, entry: Entry) -> None:
        if not entry.guarded:
            entry.guarded = True
            self._guarded.append(entry)

    def _stage(self, key: Key, value: Value | None) -> None:
        entry = self._entries.get(key) or self._entry(key)
        if entry.broken:
            raise Malformed(entry.broken)
        self._journal.append((entry, entry.staged))
        if entry.staged is UNSTAGED:
            self._staged.append(entry)
            self.claims += isinstance(key, AffinityKey)
        entry.staged = value


def _change_of(entry: Entry) -> Change:
    """A block before and after."""
    before, after = entry.record.value if entry.record else None, entry.staged
    return (
        before if isinstance(before, Block) else None,
        after if isinstance(after, Block) else None,
    )


def _of_kind(entry: Entry, kind: type[V]) -> V | None:
    value = entry.now if entry.staged is UNSTAGED else entry.staged
    if value is None or isinstance(value, kind):
        return value
    raise Malformed(f"{path_of(entry.key)} holds a {type(value).__name__}")


def _undoing(op: KeyOp, written: Record | None, before: Entry) -> Op:
    """The operation that leaves a key as it was before one that wrote it."""
    was = before.record
    if written is None:
        return Create(op.key, was.value) if was else Check(op.key, None)
    if was is None:
        return Delete(op.key, written.revision)
    return Update(op.key, was.value, written.revision)


def _check(entry: Entry) -> Check:
    return Check(entry.key, entry.record.revision if entry.record else None)


def _unchanged(scope: Scope, listing: Listing) -> Unchanged:
    return Unchanged(scope, listing.newest or listing.revision)


def _change(entry: Entry) -> Op:
    """The operation that leaves a key so; what is made and removed at once must be absent."""
    key, record, value = entry.key, entry.record, entry.staged
    if value is UNSTAGED:
        raise AssertionError(f"{key} is in the order of changes without one")
    if record is None:
        return Check(key, None) if value is None else Create(key, value)
    if value is None:
        return Delete(key, record.revision)
    return Update(key, value, record.revision)
