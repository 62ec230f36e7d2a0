"""etcd's messages, made from the port's operations and read into rows.

A commit is one transaction: every operation's expectation is a compare, and what is read when a
compare fails tells which one it was. Reads are linearizable, also those of a failed transaction:
a transaction without any read could be judged by a member that lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from libtortie.datastore.etcd_rpc import Message, pb
from libtortie.datastore.port import Check, Create, Delete, Op
from libtortie.datastore.records import Change, Stored
from libtortie.errors import InvalidInput
from libtortie.model.keys import path_of

MAX_OPS = 128
"""etcd's default `--max-txn-ops`."""

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


def get(path: str) -> Message:
    """Read one key."""
    return pb.RangeRequest(key=name_of(path))


def scan(low: bytes, high: bytes, *, limit: int = 0, revision: int = 0) -> Message:
    """Read a half-open range in key order: `limit` 0 all of it, `revision` 0 as it is now."""
    return pb.RangeRequest(key=low, range_end=high, limit=limit, revision=revision)


def where_are_we(path: str) -> Message:
    """A read, of a key one may read, that is made for the revision in its answer."""
    return pb.RangeRequest(key=name_of(path), count_only=True)


def transaction(ops: Sequence[Op], payloads: Sequence[bytes | None]) -> Message:
    """All operations or none; when none, the rows of all their keys without their values."""
    return pb.TxnRequest(
        compare=[_expectation(op) for op in ops],
        success=[
            change
            for op, payload in zip(ops, payloads, strict=True)
            if (change := _change(op, payload)) is not None
        ],
        failure=[
            pb.RequestOp(
                request_range=pb.RangeRequest(key=name_of(path_of(op.key)), keys_only=True)
            )
            for op in ops
        ],
    )


def removal(path: str) -> Message:
    """Remove a key at whatever revision, if it is there."""
    return pb.TxnRequest(
        compare=[
            pb.Compare(
                key=name_of(path), target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0
            )
        ],
        success=[_removed(path)],
    )


def reading(paths: Iterable[str]) -> Message:
    """Read several keys at one revision."""
    reads = [pb.RequestOp(request_range=get(path)) for path in paths]
    return pb.TxnRequest(success=reads)


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
    return [Stored(_text(kv.key), kv.mod_revision, kv.value) for kv in response.kvs]


def rows_read(response: Message) -> list[Stored | None]:
    """What each read of a transaction found."""
    return [next(iter(rows_of(one.response_range)), None) for one in response.responses]


def changes_of(response: Message) -> Iterator[Change]:
    """The events of a watch response, in commit order."""
    for event in response.events:
        removed = event.type == event.DELETE
        yield Change(
            event.kv.mod_revision, _text(event.kv.key), None if removed else event.kv.value
        )


def _expectation(op: Op) -> Message:
    key = name_of(path_of(op.key))
    expected = None if isinstance(op, Create) else op.revision
    if expected is None:
        return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)
    return pb.Compare(
        key=key,
        target=pb.Compare.MOD,
        result=pb.Compare.EQUAL,
        mod_revision=number_of(expected),
    )


def _change(op: Op, payload: bytes | None) -> Message | None:
    path = path_of(op.key)
    match op:
        case Delete():
            return _removed(path)
        case Check():
            return None
        case _:
            return pb.RequestOp(request_put=pb.PutRequest(key=name_of(path), value=payload))


def _removed(path: str) -> Message:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name_of(path)))


def _text(key: bytes) -> str:
    """A key as a path; one that is no text becomes a path that no key of ours has."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"{key!r} (not UTF-8)"
