"""etcd's messages, made from the port's operations and read into rows.

A commit is one transaction: every operation's expectation is a compare, and what is read when a
compare fails tells which one it was. Reads are linearizable, also those of a failed transaction:
a transaction without any read could be judged by a member that lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from libtortie.datastore.etcd_rpc import Message, pb
from libtortie.datastore.etcd_wire import fields, number, text
from libtortie.datastore.port import Check, Create, Delete, Op
from libtortie.datastore.records import Change, Stored
from libtortie.errors import InvalidInput, Malformed, Unavailable
from libtortie.model.keys import path_of

MAX_OPS = 128
"""etcd's default `--max-txn-ops`."""

# Field numbers and enumerations of etcd's rpc.proto: TxnRequest, RequestOp, Compare, TxnResponse.
_COMPARE, _SUCCESS, _FAILURE = 1, 2, 3
_RANGE, _PUT, _DELETE = 1, 2, 3
_EQUAL, _GREATER = 0, 1
_VERSION, _MOD = 0, 2
_HEADER, _SUCCEEDED, _REVISION = 1, 2, 3
_KEYS_ONLY = number(8, 1)

_LARGEST = 2**63 - 1
_NEVER = -1
"""A revision that no key has: not even an absent one, which has 0."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A transaction's answer without what its operations said."""

    succeeded: bool
    revision: int


def name_of(path: str) -> bytes:
    """The key's bytes. `InvalidInput` for a path that is no text (lone surrogates)."""
    try:
        return path.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{path!r} cannot be stored: {error}") from error


def number_of(revision: str) -> int:
    """A revision as etcd counts; one that etcd never gives matches nothing."""
    if revision.isascii() and revision.isdecimal() and revision[0] != "0":
        return int(revision) if len(revision) < 20 and int(revision) <= _LARGEST else _NEVER
    return _NEVER


def get(path: str) -> Message:
    """Read one key."""
    return pb.RangeRequest(key=name_of(path))


def scan(low: bytes, high: bytes, *, limit: int = 0, revision: int = 0) -> Message:
    """Read a half-open range in key order: `limit` 0 all of it, `revision` 0 as it is now."""
    return pb.RangeRequest(key=low, range_end=high, limit=limit, revision=revision)


def where_are_we(path: str) -> Message:
    """A read, of a key one may read, that is made for the revision in its answer."""
    return pb.RangeRequest(key=name_of(path), count_only=True)


def transaction(ops: Sequence[Op], payloads: Sequence[bytes | None]) -> bytes:
    """All operations or none; when none, the rows of all their keys without their values."""
    keys = [name_of(path_of(op.key)) for op in ops]
    changes = map(_change, ops, keys, payloads)
    return b"".join(
        [
            *(text(_COMPARE, _expectation(op, key)) for op, key in zip(ops, keys, strict=True)),
            *(text(_SUCCESS, change) for change in changes if change is not None),
            *(text(_FAILURE, text(_RANGE, text(1, key) + _KEYS_ONLY)) for key in keys),
        ]
    )


def removal(path: str) -> bytes:
    """Remove a key at whatever revision, if it is there."""
    key = name_of(path)
    exists = number(1, _GREATER) + number(2, _VERSION) + text(3, key) + number(4, 0)
    return text(_COMPARE, exists) + text(_SUCCESS, text(_DELETE, text(1, key)))


def reading(paths: Iterable[str]) -> bytes:
    """Read several keys at one revision."""
    return b"".join(text(_SUCCESS, text(_RANGE, text(1, name_of(path)))) for path in paths)


def watching(low: str, high: str, start: int) -> Message:
    """Watch a half-open range, from a revision on."""
    return pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=name_of(low), range_end=name_of(high), start_revision=start
        )
    )


def progress() -> Message:
    """Ask a watch stream for a sign of life. etcd 3.4's field 3, younger than etcd3's messages."""
    return pb.WatchRequest.FromString(b"\x1a\x00")


def authentication(username: str, password: str) -> Message:
    """Ask for a token."""
    return pb.AuthenticateRequest(name=username, password=password)


def rows_of(response: Message) -> list[Stored]:
    """The rows of a range, in key order."""
    return [Stored(_path(kv.key), kv.mod_revision, kv.value) for kv in response.kvs]


def rows_read(answer: bytes) -> list[Stored | None]:
    """What each read of a transaction found."""
    responses = pb.TxnResponse.FromString(answer).responses
    return [next(iter(rows_of(one.response_range)), None) for one in responses]


def outcome_of(answer: bytes) -> Outcome:
    """Whether a transaction's compares held, and the revision it was judged or carried out at.

    Raises `Unavailable` for an answer that cannot be read.
    """
    succeeded, revision = False, 0
    try:
        for field, value in fields(answer):
            if field == _HEADER and isinstance(value, bytes):
                revision = next((int(n) for place, n in fields(value) if place == _REVISION), 0)
            elif field == _SUCCEEDED:
                succeeded = value == 1
    except Malformed as error:
        raise Unavailable(f"outcome unknown, read again: {error}") from error
    return Outcome(succeeded, revision)


def changes_of(response: Message) -> Iterator[Change]:
    """The events of a watch response, in commit order."""
    for event in response.events:
        removed = event.type == event.DELETE
        yield Change(
            event.kv.mod_revision, _path(event.kv.key), None if removed else event.kv.value
        )


def _expectation(op: Op, key: bytes) -> bytes:
    expected = None if isinstance(op, Create) else op.revision
    if expected is None:
        return number(1, _EQUAL) + number(2, _VERSION) + text(3, key) + number(4, 0)
    revision = number(6, number_of(expected))
    return number(1, _EQUAL) + number(2, _MOD) + text(3, key) + revision


def _change(op: Op, key: bytes, payload: bytes | None) -> bytes | None:
    match op:
        case Delete():
            return text(_DELETE, text(1, key))
        case Check():
            return None
        case _:
            return text(_PUT, text(1, key) + text(2, payload or b""))


def _path(key: bytes) -> str:
    """A key as a path; one that is no text becomes a path that no key of ours has."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"{key!r} (not UTF-8)"
