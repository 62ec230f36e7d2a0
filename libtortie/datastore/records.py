"""From stored rows to the port's records, listings and events: for every store of paths.

A value that cannot be read is named in a listing and breaks a watch: whoever follows lists
again, and finds it named there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from libtortie.datastore.codec import decode
from libtortie.datastore.port import Event, Listing, Put, Record, Removed, Snapshot
from libtortie.errors import Malformed, Unavailable
from libtortie.model.keys import Key, Scope, parse_path

LARGEST = 2**63 - 1
"""The last revision there can be."""


def counted(revision: str) -> int:
    """A revision as stores of paths count; -1 for what none of them ever said."""
    if not (revision.isascii() and revision.isdecimal() and len(revision) < 20):
        return -1
    return int(revision) if int(revision) <= LARGEST else -1


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value's bytes and the revision that wrote them."""

    path: str
    revision: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """One logged change; `data` is None for a deletion."""

    revision: int
    path: str
    data: bytes | None


def listing_of(found: Iterable[Stored], revision: int) -> Listing:
    """The listing of rows that are already in path order."""
    records: list[Record] = []
    malformed: list[str] = []
    newest = 0
    for stored in found:
        newest = max(newest, stored.revision)
        try:
            key = parse_path(stored.path)
            records.append(Record(key, decode(key, stored.data), str(stored.revision)))
        except Malformed as error:
            malformed.append(str(error))
    return Listing(tuple(records), str(revision), tuple(malformed), str(newest))


def names_of(paths: Iterable[str]) -> tuple[Key, ...]:
    """The keys of paths, without those that are no path of ours."""
    found: list[Key] = []
    for path in paths:
        with contextlib.suppress(Malformed):
            found.append(parse_path(path))
    return tuple(found)


def snapshot_of(rows: Mapping[Key, Stored | None], listings: Mapping[Scope, Listing]) -> Snapshot:
    """The snapshot of what was found under keys and scopes."""
    records: dict[Key, Record] = {}
    broken: dict[Key, str] = {}
    for key, stored in rows.items():
        if stored is None:
            continue
        try:
            records[key] = Record(key, decode(key, stored.data), str(stored.revision))
        except Malformed as error:
            broken[key] = str(error)
    return Snapshot(records, listings, broken)


def event_of(change: Change) -> Event:
    """The event of a change. Raises `Unavailable`, which means "list again", if unreadable."""
    try:
        key = parse_path(change.path)
        if change.data is None:
            return Removed(key)
        return Put(Record(key, decode(key, change.data), str(change.revision)))
    except Malformed as error:
        raise Unavailable(f"watch met a malformed value, list again: {error}") from error
