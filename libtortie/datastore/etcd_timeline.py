"""Whether an etcd may have gone back: put back to a backup, it forgets what came since.

Every answer names the cluster, its revision and raft's term. All requests are linearizable, so
neither number may be lower than one that had been answered when the request was sent, and a
write's revision is higher. But one that was put back and then written to beyond what we know, by
the same cluster's name and in no lower term, says the same as one that never was. No header, nor
any key's revision and version, tells these apart. What does: nobody puts back an etcd that runs.
So what was learnt counts as long as the connection lasts over which it came.

Whoever remembers something of the store compares `rewinds`: it is counted as soon as a connection
is known to be over, and at the first answer that tells. Thread-safe.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

from libtortie.datastore.etcd_answers import Header


class Lasting(Protocol):
    """What an answer came over; another one may be to another process."""

    @property
    def over(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known when a request was sent: nothing older may be answered."""

    rewinds: int
    known: Header


@dataclass(slots=True)
class Timeline:
    """The latest that any answer said, and over what it was said."""

    _rewinds: int = 0
    _known: Header = field(default_factory=Header)
    _by_way_of: Lasting | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rewinds(self) -> int:
        """How often it may have gone back."""
        with self._lock:
            self._look()
            return self._rewinds

    def moment(self) -> Moment:
        """To be taken before a request is sent."""
        with self._lock:
            self._look()
            return Moment(self._rewinds, self._known)

    def learn(self, header: Header, sent: Moment, by_way_of: Lasting) -> None:
        """An answer to what was sent at a moment; one without a header says nothing."""
        if not header.revision:
            return
        with self._lock:
            back = sent.rewinds == self._rewinds and header.is_before(sent.known)
            elsewhere = self._by_way_of is not None and self._by_way_of is not by_way_of
            if back or elsewhere:
                self._rewinds += 1
            if back or not header.is_before(self._known):
                self._known = header
            self._by_way_of = by_way_of
            self._look()

    def _look(self) -> None:
        if self._by_way_of is not None and self._by_way_of.over:
            self._rewinds += 1
            self._by_way_of = None
