"""etcd's requests, made from the port's operations.

A commit is one transaction: every operation's expectation is a compare, and what is read when a
compare fails tells which one it was. Reads are linearizable, also those of a failed transaction:
a transaction without any read could be judged by a member that lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from libtortie.datastore.etcd_rpc import Message, pb
from libtortie.datastore.etcd_wire import number, text
from libtortie.datastore.operations import position_of
from libtortie.datastore.port import Create, Delete, Op, Unchanged, Update
from libtortie.errors import InvalidInput
from libtortie.model.keys import path_of, scope_bounds

MAX_OPS = 128
"""etcd's default `--max-txn-ops`."""

# Field numbers and enumerations of etcd's rpc.proto: TxnRequest, RequestOp, Compare, RangeRequest.
_COMPARE, _SUCCESS, _FAILURE = 1, 2, 3
_RANGE, _PUT, _DELETE = 1, 2, 3
_EQUAL, _GREATER, _LESS = 0, 1, 2
_VERSION, _MOD = 0, 2
_KEYS_ONLY = number(8, 1)

_LARGEST = 2**63 - 1
_NEVER = -1
"""A revision that no key has: not even an absent one, which has 0."""


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


def scan(
    low: bytes, high: bytes, limit: int = 0, *, revision: int = 0, keys_only: bool = False
) -> bytes:
    """Read a half-open range in key order, or without a `high` the one key `low`.

    `limit` 0 reads all of it, `revision` 0 as it is now.
    """
    end = text(2, high) if high else b""  # an empty one that is there would mean "to the last key"
    return text(1, low) + end + number(3, limit) + number(4, revision) + number(8, keys_only)


def where_are_we(path: str) -> bytes:
    """A read, of a key one may read, that is made for the revision in its answer."""
    return text(1, name_of(path)) + number(9, 1)


def transaction(ops: Sequence[Op], payloads: Sequence[bytes | None]) -> bytes:
    """All operations or none; when none, what stands against each, without its value."""
    changes = map(_change, ops, payloads)
    return b"".join(
        [
            *(text(_COMPARE, _expectation(op)) for op in ops),
            *(text(_SUCCESS, change) for change in changes if change is not None),
            *(text(_FAILURE, text(_RANGE, _evidence(op))) for op in ops),
        ]
    )


def removal(path: str) -> bytes:
    """Remove a key at whatever revision, if it is there."""
    key = name_of(path)
    exists = number(1, _GREATER) + number(2, _VERSION) + text(3, key) + number(4, 0)
    return text(_COMPARE, exists) + text(_SUCCESS, text(_DELETE, text(1, key)))


def reading(requests: Iterable[bytes]) -> bytes:
    """Several reads at one revision."""
    return b"".join(text(_SUCCESS, text(_RANGE, request)) for request in requests)


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


def _expectation(op: Op) -> bytes:
    """The compare that holds where an operation may go ahead."""
    if isinstance(op, Unchanged):
        low, high = map(name_of, scope_bounds(op.scope))
        older = number(6, position_of(op) + 1)
        return number(1, _LESS) + number(2, _MOD) + text(3, low) + older + text(64, high)
    key = name_of(path_of(op.key))
    expected = None if isinstance(op, Create) else op.revision
    if expected is None:
        return number(1, _EQUAL) + number(2, _VERSION) + text(3, key) + number(4, 0)
    revision = number(6, number_of(expected))
    return number(1, _EQUAL) + number(2, _MOD) + text(3, key) + revision


def _evidence(op: Op) -> bytes:
    """The read that tells whether it was this operation that failed, and why."""
    if isinstance(op, Unchanged):
        low, high = map(name_of, scope_bounds(op.scope))
        return scan(low, high, 1, keys_only=True) + number(10, position_of(op) + 1)
    return text(1, name_of(path_of(op.key))) + _KEYS_ONLY


def _change(op: Op, payload: bytes | None) -> bytes | None:
    match op:
        case Create(key) | Update(key):
            return text(_PUT, text(1, name_of(path_of(key))) + text(2, payload or b""))
        case Delete(key):
            return text(_DELETE, text(1, name_of(path_of(key))))
        case _:
            return None
