"""What an operation of a commit expects and writes: for every store of paths."""

from __future__ import annotations

from collections.abc import Sequence

from libtortie.datastore.codec import decode, encode
from libtortie.datastore.port import (
    Check,
    Create,
    Delete,
    KeyOp,
    Op,
    Record,
    Unchanged,
    Update,
    Value,
)
from libtortie.datastore.records import LARGEST, Stored, counted
from libtortie.datastore.stamps import Stamps, is_marked
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, Malformed, NotFound
from libtortie.model.keys import Key, path_of, scope_path


def require_distinct(ops: Sequence[Op]) -> None:
    """Raise `InvalidInput` when a key, or the scope of an `Unchanged`, is named twice."""
    keys = set(map(path_of, [op.key for op in ops if not isinstance(op, Unchanged)]))
    scopes = {op.scope for op in ops if isinstance(op, Unchanged)}
    if len(keys) + len(scopes) < len(ops):
        raise InvalidInput("a commit may name each key and each scope only once")


def payload_of(op: Op, stamps: Stamps) -> bytes | None:
    """The bytes to write, where they do not depend on what is stored."""
    if isinstance(op, Create):
        return encode(op.key, stamps.born(op.value))
    if isinstance(op, Update):
        data = encode(op.key, op.value)
        return data if is_marked(op.value) else None
    return None


def replacement(op: Update, stored: Stored | None, stamps: Stamps) -> bytes:
    """The bytes of an update whose value takes its marks from what is stored."""
    return encode(op.key, stamps.replacing(op.value, _readable(op.key, stored)))


def position_of(op: Unchanged) -> int:
    """The revision of a listing as a number. `Conflict` for what no listing of ours ever said."""
    number = counted(op.revision)
    if 0 <= number < LARGEST:
        return number
    named = f"{op.revision[:40]!r} is no revision of this store"
    raise Conflict(f"{scope_path(op.scope)}: {named}: list again")


def verify_scope(op: Unchanged, newer: Stored | None) -> None:
    """Raise `Conflict` where something of the scope is newer than its listing."""
    if newer is not None:
        raise Conflict(
            f"{newer.path} changed: it is of revision {newer.revision}, and "
            f"{scope_path(op.scope)} was listed at {op.revision}"
        )


def verify(op: KeyOp, stored: Stored | None) -> None:
    """Raise unless the stored state is what the operation expects."""
    path = path_of(op.key)
    actual = None if stored is None else str(stored.revision)
    match op:
        case Create() if actual is not None:
            raise AlreadyExists(f"{path} already exists, at revision {actual}")
        case Update() | Delete() if actual is None:
            raise NotFound(f"{path} does not exist")
        case Update(_, _, expected) | Delete(_, expected) | Check(_, expected) if (
            actual != expected
        ):
            raise Conflict(f"{path} changed: expected revision {expected}, found {actual}")
        case _:
            return


def only(records: tuple[Record | None, ...]) -> Record:
    """The record of a single write."""
    (record,) = records
    if record is None:
        raise AssertionError("a write always makes a record")
    return record


def _readable(key: Key, stored: Stored | None) -> Value | None:
    """The stored value, or None where it cannot be read: an update may mend it."""
    if stored is None:
        return None
    try:
        return decode(key, stored.data)
    except Malformed:
        return None
