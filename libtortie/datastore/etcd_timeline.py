"""Whether an etcd went back: put back to a backup, it forgets what came since.

Every answer names the cluster, its revision and raft's term. All requests are linearizable, so
neither number may be lower than one that had been answered when the request was sent, and a
write's revision is higher. Whoever
remembers something of the store compares `rewinds`: it is counted at the first answer that tells.
A restored store that was written to beyond what we know, by the same cluster's name and in no
lower term, is not told apart. Thread-safe.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from libtortie.datastore.etcd_answers import Header


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known when a request was sent: nothing older may be answered."""

    rewinds: int
    known: Header


@dataclass(slots=True)
class Timeline:
    """The latest that any answer said. `rewinds`: how often an answer was of an earlier time."""

    rewinds: int = 0
    _known: Header = field(default_factory=Header)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def moment(self) -> Moment:
        """To be taken before a request is sent."""
        with self._lock:
            return Moment(self.rewinds, self._known)

    def learn(self, header: Header, sent: Moment) -> None:
        """An answer to what was sent at a moment; one without a header says nothing."""
        if not header.revision:
            return
        with self._lock:
            if sent.rewinds == self.rewinds and header.is_before(sent.known):
                self.rewinds += 1
                self._known = header
            elif not header.is_before(self._known):
                self._known = header
