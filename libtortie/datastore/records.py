"""From stored rows to the port's records, listings and events: for every store of paths.

A value that cannot be read is named in a listing and breaks a watch: whoever follows lists
again, and finds it named there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libtortie.datastore.codec import decode
from libtortie.datastore.port import Event, Listing, Put, Record, Removed
from libtortie.errors import Malformed, Unavailable
from libtortie.model.keys import parse_path


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
    for stored in found:
        try:
            key = parse_path(stored.path)
            records.append(Record(key, decode(key, stored.data), str(stored.revision)))
        except Malformed as error:
            malformed.append(str(error))
    return Listing(tuple(records), str(revision), tuple(malformed))


def event_of(change: Change) -> Event:
    """The event of a change. Raises `Unavailable`, which means "list again", if unreadable."""
    try:
        key = parse_path(change.path)
        if change.data is None:
            return Removed(key)
        return Put(Record(key, decode(key, change.data), str(change.revision)))
    except Malformed as error:
        raise Unavailable(f"watch met a malformed value, list again: {error}") from error
