"""One reading of a change log for all of its watches, and only those woken whom it concerns.

What is handed out is the log itself, in order: either a commit of this process that follows on
what was handed out before, or what one of the waiting watches reads for all. A word that the log
has grown only says "look", so one that is lost, late or spurious costs time, never an event. A
watch that is new, slow, or met an error reads for itself until it has caught up again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libtortie.datastore.records import Change
from libtortie.errors import TortieError, Unavailable

BATCH = 256
"""Changes that are read at once; also how many may wait for a watch before it reads for itself."""

_EVERYTHING = ("", "\U0010ffff")


@dataclass(frozen=True, slots=True)
class History:
    """Changes of a range after a position, and the position a reader has then reached."""

    changes: tuple[Change, ...]
    position: int

    @property
    def complete(self) -> bool:
        """Whether nothing was left out of it."""
        return len(self.changes) < BATCH


Read = Callable[[str, str, int], History]
"""Some changes of a half-open range after a revision, oldest first. Raises `Compacted`,
`Unavailable`."""


class Member:
    """One watch's share of a feed: its range, how far it came, and what waits for it."""

    def __init__(self, low: str, high: str, position: int, lock: threading.Lock) -> None:
        self.low = low
        self.high = high
        self.position = position
        self.pending: deque[Change] = deque()
        self.joined = False
        self.closed = False
        self.waiting = False
        self.woken = threading.Condition(lock)

    def wants(self, change: Change) -> bool:
        """Whether a change is in its range, and news to it."""
        return self.low <= change.path < self.high and change.revision > self.position


class Feed:
    """What all watches of a store wait on. `read` reads the log."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._members: list[Member] = []
        """Who has joined; those last concerned first, for the next change is likely theirs."""
        self._position = 0
        """All members have been handed everything up to here."""
        self._heard = 0
        """How often the log was said to have grown in a way that has to be read."""
        self._obeyed = 0
        """How much of `_heard` the last complete reading answers."""
        self._reading = False
        self._failure: str | None = None
        self.closed = False

    def member(self, low: str, high: str, position: int) -> Member:
        """A new watch's share; it joins when it has caught up."""
        return Member(low, high, position, self._lock)

    # -- what the log did ------------------------------------------------------------------------

    def committed(self, changes: Sequence[Change]) -> None:
        """This process committed these changes: handed out at once if nothing came before them."""
        with self._lock:
            if not self._members or changes[0].revision > self._position + 1:
                self._hear()
            else:
                self._hand_out(changes, changes[-1].revision)

    def reached(self, revision: int) -> None:
        """The log was seen to end at a revision, whoever wrote it; an earlier one is news, too."""
        with self._lock:
            if not self._members or revision != self._position:
                self._hear()

    def look(self) -> None:
        """Something was done to the log: somebody has to read it."""
        with self._lock:
            self._hear()

    def close(self) -> None:
        """Wake every watch, for the last time: they end."""
        with self._lock:
            self.closed = True
            self._wake_all()

    def fail(self, reason: str) -> None:
        """Wake every watch, for the last time: they raise `Unavailable`."""
        with self._lock:
            self._failure = reason
            self._wake_all()

    @property
    def failed(self) -> bool:
        """Whether `fail` was called: new watches need another feed."""
        return self._failure is not None

    # -- what a watch does -----------------------------------------------------------------------

    def next(self, member: Member) -> Change | None:
        """The next change of a watch, waited for; None at its end. One thread per member, which
        calls `leave` when it will not call this again: it may be the one who shall read.

        Raises `Compacted`, `Unavailable`.
        """
        has_read = False
        while True:
            with self._lock:
                while self._has_to_wait(member):
                    self._wait(member)
                if self.closed or member.closed:
                    return None
                if self._failure is not None:
                    raise Unavailable(self._failure)
                serving = member.joined and self._unread() and not (has_read and member.pending)
                if member.pending and not serving:
                    self._hand_on()
                    change = member.pending.popleft()
                    member.position = change.revision
                    return change
                self._reading |= serving
                after, heard = self._position, self._heard
            if serving:
                has_read = True
                self._serve(after, heard)
            else:
                self._catch_up(member, after, heard)

    def close_member(self, member: Member) -> None:
        """End a watch, from any thread; nothing more is handed to it."""
        with self._lock:
            member.closed = True
            member.woken.notify()

    def leave(self, member: Member) -> None:
        """Nobody takes a watch's changes any more, or not for now: it has to catch up then."""
        with self._lock:
            self._part_with(member)
            self._hand_on()

    # -- reading, without the lock ---------------------------------------------------------------

    def _serve(self, after: int, heard: int) -> None:
        """Read for all. If that fails, everybody meets the error in a reading of his own."""
        history: History | None = None
        try:
            history = self._read(*_EVERYTHING, after)
        except TortieError:
            pass
        finally:
            with self._lock:
                self._reading = False
                if history is None:
                    self._part_with_all()
                else:
                    self._hand_out(history.changes, history.position)
                    if history.complete:
                        self._obeyed = max(self._obeyed, heard)

    def _catch_up(self, member: Member, after: int, heard: int) -> None:
        """Read a watch's own range, and let it join when there was nothing.

        `after` is where all were before: a log that ends earlier now was put back to an older
        state, and whoever joined before has to find that out in a reading of his own.
        """
        try:
            history = self._read(member.low, member.high, member.position)
        except Unavailable:
            if self.closed or member.closed:
                return  # closed beneath our feet
            raise
        with self._lock:
            member.pending.extend(history.changes)
            if member.pending:
                return
            member.position = history.position
            if history.position < after:
                self._part_with_all()
            if not self._members:
                self._position, self._obeyed = history.position, heard
            if history.position >= self._position:  # else there is more to read by now
                self._members.append(member)
                member.joined = True

    # -- with the lock held ----------------------------------------------------------------------

    def _unread(self) -> bool:
        """Whether the log has to be read, and nobody does."""
        return self._obeyed != self._heard and not self._reading

    def _has_to_wait(self, member: Member) -> bool:
        over = self.closed or member.closed or self._failure is not None
        return member.joined and not (over or member.pending or self._unread())

    @staticmethod
    def _wait(member: Member) -> None:
        member.waiting = True
        try:
            member.woken.wait()
        finally:
            member.waiting = False

    def _hear(self) -> None:
        self._heard += 1
        self._hand_on()

    def _hand_on(self) -> None:
        """Have one of those who wait read, if it has to be done."""
        if self._unread():
            for member in self._members:
                if member.waiting:
                    member.woken.notify()
                    return

    def _hand_out(self, changes: Sequence[Change], position: int) -> None:
        """Give each member what it wants of the log up to a position."""
        for change in changes:
            if change.revision <= self._position:
                continue  # whoever read it was quicker than we, or our commit than the reading
            for member in [each for each in self._members if each.wants(change)]:
                if len(member.pending) >= BATCH:
                    self._part_with(member)
                    continue
                member.pending.append(change)
                member.woken.notify()
                if self._members[0] is not member:
                    self._members.remove(member)
                    self._members.insert(0, member)
        self._position = max(self._position, position)

    def _part_with(self, member: Member) -> None:
        """From now on a watch reads for itself, from the end of what it has been handed."""
        if not member.joined:
            return
        self._members.remove(member)
        member.joined = False
        if not member.pending:
            member.position = max(member.position, self._position)

    def _part_with_all(self) -> None:
        for member in tuple(self._members):
            self._part_with(member)
            member.woken.notify()

    def _wake_all(self) -> None:
        for member in self._members:
            member.woken.notify()
