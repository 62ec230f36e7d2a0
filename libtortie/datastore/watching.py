"""Watches over a change log: a scope, a position in the log, and the feed that moves it on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from libtortie.datastore.feed import Feed
from libtortie.datastore.port import Event
from libtortie.datastore.records import counted, event_of
from libtortie.errors import Compacted
from libtortie.model.keys import Scope, scope_bounds


class LogWatch:
    """The `Watch` of the port: events of a scope after a revision, in commit order."""

    def __init__(self, scope: Scope, revision: str, feed: Feed) -> None:
        self._feed = feed
        self._member = feed.member(*scope_bounds(scope), counted(revision))

    def __iter__(self) -> Iterator[Event]:
        try:
            while (change := self._feed.next(self._member)) is not None:
                yield event_of(change)
        finally:
            self._feed.leave(self._member)

    def close(self) -> None:
        """End the watch, from any thread; nothing more is yielded."""
        self._feed.close_member(self._member)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_history(after: int, compacted: int, current: int) -> None:
    """Raise `Compacted` unless the log holds everything after a position."""
    if after < compacted:
        raise Compacted(f"revision {after} is gone, history begins at {compacted}: list again")
    if after > current:
        raise Compacted(f"revision {after} is not of this store, which is at {current}: list again")
