"""What etcd's answers say, as rows and outcomes: the other half of `etcd_messages`.

An answer that cannot be read is `Unavailable`: the request may have been carried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from libtortie.datastore.etcd_rpc import Message
from libtortie.datastore.etcd_wire import fields, text
from libtortie.datastore.records import Change, Stored
from libtortie.errors import Malformed, Unavailable

# Field numbers of etcd's rpc.proto and kv.proto.
_HEADER, _CLUSTER, _REVISION, _TERM = 1, 1, 3, 4
_KVS, _MORE = 2, 3
_KEY, _MOD_REVISION, _VALUE = 1, 3, 5
_SUCCEEDED, _RESPONSES = 2, 3
_RANGE = 1
_RANGE_FIELD = text(_RANGE, b"")[:1]


@dataclass(frozen=True, slots=True)
class Page:
    """What one range found, in key order; `last` is the last row's key as etcd has it."""

    rows: tuple[Stored, ...]
    last: bytes = b""
    more: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a transaction's compares held, the store's revision then, what its reads found."""

    succeeded: bool
    revision: int
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Which cluster answered, at which revision of its store, in which term of raft's.

    `wrote`: the revision is that of what was asked for itself.
    """

    cluster: int = 0
    revision: int = 0
    term: int = 0
    wrote: bool = False

    def is_before(self, known: Header) -> bool:
        """Whether a cluster that had answered so can no more, unless it was put back."""
        other = bool(known.cluster) and self.cluster != known.cluster
        earlier = self.revision < known.revision + (self.wrote and bool(known.revision))
        return other or earlier or self.term < known.term


def header_of(answer: bytes, *, transaction: bool = False) -> Header:
    """The header of an answer; an empty one where there is none that can be read."""
    found: dict[int, int | bytes] = {}
    wrote = False
    with suppress(Malformed):
        for field, value in fields(answer):
            if field == _HEADER:
                found = dict(fields(_bytes(value)))
            if not transaction or (wrote and found):
                break
            wrote |= field == _RESPONSES and next(fields(_bytes(value)), (_RANGE, 0))[0] != _RANGE
        cluster, revision, term = (_number(found.get(at, 0)) for at in (_CLUSTER, _REVISION, _TERM))
        return Header(cluster, revision, term, wrote)
    return Header()


def range_of(answer: bytes) -> Outcome:
    """A range's answer, as that of a transaction of this one read."""
    with _read_again():
        return Outcome(True, _revision(answer), (_page(answer),))


def outcome_of(answer: bytes) -> Outcome:
    """A transaction's answer."""
    succeeded, revision = False, 0
    pages: list[Page] = []
    with _read_again():
        for field, value in fields(answer):
            if field == _HEADER:
                revision = _revision_in(_bytes(value))
            elif field == _SUCCEEDED:
                succeeded = value == 1
            elif field == _RESPONSES:
                pages += _pages_in(_bytes(value))
        return Outcome(succeeded, revision, tuple(pages))


def changes_of(response: Message) -> Iterator[Change]:
    """The events of a watch response, in commit order."""
    for event in response.events:
        removed = event.type == event.DELETE
        yield Change(
            event.kv.mod_revision, _path(event.kv.key), None if removed else event.kv.value
        )


def _pages_in(response: bytes) -> Iterator[Page]:
    """What a read found; of a write, which has one field as every response has, nothing is read."""
    if response.startswith(_RANGE_FIELD):
        for field, value in fields(response):
            if field == _RANGE:
                yield _page(_bytes(value))


def _page(answer: bytes) -> Page:
    rows: list[Stored] = []
    last, more = b"", False
    for field, value in fields(answer):
        if field == _KVS:
            last, row = _row(_bytes(value))
            rows.append(row)
        elif field == _MORE:
            more = value == 1
    return Page(tuple(rows), last, more)


def _row(message: bytes) -> tuple[bytes, Stored]:
    key, revision, data = b"", 0, b""
    for field, value in fields(message):
        if field == _KEY:
            key = _bytes(value)
        elif field == _VALUE:
            data = _bytes(value)
        elif field == _MOD_REVISION:
            revision = _number(value)
    return key, Stored(_path(key), revision, data)


def _revision(answer: bytes) -> int:
    for field, value in fields(answer):
        if field == _HEADER:
            return _revision_in(_bytes(value))
    return 0


def _revision_in(header: bytes) -> int:
    return next((_number(n) for place, n in fields(header) if place == _REVISION), 0)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise Malformed("etcd's answer: a number where a message belongs")


def _number(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise Malformed("etcd's answer: a message where a number belongs")


def _path(key: bytes) -> str:
    """A key as a path; one that is no text becomes a path that no key of ours has."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"{key!r} (not UTF-8)"


@contextmanager
def _read_again() -> Iterator[None]:
    try:
        yield
    except Malformed as error:
        raise Unavailable(f"outcome unknown, read again: {error}") from error
