"""etcd's requests, made from the port's operations.

A commit is one transaction: every operation's expectation is a compare, and what is read when a
compare fails tells which one it was. Reads are linearizable, also those of a failed transaction:
a transaction without any read could be judged by a member that lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from libtortie.datastore.codec import name_of
from libtortie.datastore.etcd_rpc import Message, pb
from libtortie.datastore.etcd_wire import number, text
from libtortie.datastore.operations import position_of
from libtortie.datastore.port import Check, Create, Delete, KeyOp, Op, Unchanged
from libtortie.datastore.records import counted
from libtortie.model.keys import path_of, scope_bounds

MAX_OPS = 128
"""etcd's default `--max-txn-ops`."""

# Field numbers and enumerations of etcd's rpc.proto: TxnRequest, RequestOp, Compare, RangeRequest.
_COMPARE, _SUCCESS, _FAILURE = 1, 2, 3
_RANGE, _PUT, _DELETE = 1, 2, 3
_EQUAL, _GREATER, _LESS = 0, 1, 2
_VERSION, _MOD = 0, 2
_KEYS_ONLY = number(8, 1)
_EQUAL_VERSION = number(1, _EQUAL) + number(2, _VERSION)
_EQUAL_MOD = number(1, _EQUAL) + number(2, _MOD)
_LESS_MOD = number(1, _LESS) + number(2, _MOD)
_NONE = number(4, 0)
_GUARDS = (Check, Unchanged)

_NEVER = -1
"""A revision that no key has: not even an absent one, which has 0. `counted` says it, too."""


def number_of(revision: str) -> int:
    """A revision as etcd counts; one that etcd never gives matches nothing."""
    return _NEVER if revision.startswith("0") else counted(revision)


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
    """All operations or none; when none, what stands against each, without its value.

    Those that write have a payload.
    """
    expectations, changes, evidence = [], [], []
    for op, payload in zip(ops, payloads, strict=True):
        if isinstance(op, _GUARDS):
            expectation, found = _guard(op)
            expectations.append(expectation)
            evidence.append(found)
            continue
        name = name_of(path_of(op.key))
        key = text(1, name)
        expectations.append(text(_COMPARE, _expectation(op, name)))
        evidence.append(text(_FAILURE, text(_RANGE, key + _KEYS_ONLY)))
        if payload is not None:
            changes.append(text(_SUCCESS, text(_PUT, key + text(2, payload))))
        elif isinstance(op, Delete):
            changes.append(text(_SUCCESS, text(_DELETE, key)))
    return b"".join([*expectations, *changes, *evidence])


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


@lru_cache(maxsize=256)
def _guard(op: Check | Unchanged) -> tuple[bytes, bytes]:
    """The compare, and what is read when it fails; remembered: guards stay the same."""
    if isinstance(op, Check):
        name = name_of(path_of(op.key))
        expectation, found = _expectation(op, name), text(1, name) + _KEYS_ONLY
    else:
        low, high = map(name_of, scope_bounds(op.scope))
        next_revision = position_of(op) + 1
        expectation = _untouched(low, high, next_revision)
        found = scan(low, high, 1, keys_only=True) + number(10, next_revision)
    return text(_COMPARE, expectation), text(_FAILURE, text(_RANGE, found))


def _untouched(low: bytes, high: bytes, revision: int) -> bytes:
    """The compare that holds where all of a range is older than a revision."""
    return _LESS_MOD + text(3, low) + number(6, revision) + text(64, high)


def _expectation(op: KeyOp, name: bytes) -> bytes:
    """The compare that holds where an operation on one key may go ahead."""
    expected = None if isinstance(op, Create) else op.revision
    if expected is None:
        return _EQUAL_VERSION + text(3, name) + _NONE
    return _EQUAL_MOD + text(3, name) + _at(expected)


@lru_cache(maxsize=256)
def _at(revision: str) -> bytes:
    return number(6, number_of(revision))
