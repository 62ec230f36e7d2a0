"""Operations that wait at the same time share one commit.

The first caller leads: it takes all that wait, lets each decide over one transaction, in which
each sees what the others staged, commits once and hands out the results. There is no thread of
its own: whoever waits next leads next. A leader who knows of a crowd (the callers of the last
batch, and those that came meanwhile) waits a moment for it: else those that are just being served
would form two halves that take turns. Who completes the crowd leads in his place, awake as he is.
Who is by himself never waits.

Those that were served wake each other, a few abreast: all at once would only wait again, for the
interpreter's lock.

First everybody decides on what is remembered, then, whoever that did not serve, on fresh reads.
An outcome counts only if the commit validated it (`transaction`); what is not one (an error, a
preparation, nothing to do) is taken back out of the batch. What neither round could do is `Alone`:
its caller goes on by itself, through the loop in `attempts`, with its own patience and deadline.
So nobody leaves a batch early, and nothing is left behind that its caller does not know of.

A decision that has a question for the outside ends in that question, which its caller asks with
nothing held. No decision may block on anything but the store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from libtortie.datastore.port import Datastore
from libtortie.errors import Conflict, PartialCommit, TortieError, Unavailable

from .annals import Annals
from .attempts import Again, Progress, is_transient
from .cache import Cache
from .reads import Reads, prepare
from .transaction import Transaction
from .witness import Question

T = TypeVar("T")

MOST_OPERATIONS = 32
"""Of one batch: each takes a few keys of those that one commit may have."""
LINGER = 0.001
"""Seconds a leader waits for a crowd that may have gone."""
ABREAST = 2
"""Threads of a batch that are woken at once."""
MOST_KEYS = 128
"""Of one commit, as etcd has it."""


@dataclass(slots=True)
class Operation(Generic[T]):
    """A decision that any thread may run, more than once."""

    what: str
    reads: Reads
    decide: Callable[[Transaction], T | Again]
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """It is committed, or fresh reads said that there is nothing to do."""

    value: T


@dataclass(frozen=True, slots=True)
class Raised:
    """It ended in an error, decided on fresh reads, or in a question."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Alone:
    """To be done by its caller. `failed` is how an attempt failed that counts."""

    failed: TortieError | None = None


Verdict = Done[object] | Raised | Alone


@dataclass(slots=True, eq=False)
class _Ticket:
    """An operation in the queue.

    `called` is released when it has a verdict or is to lead. `led` are those that it took, as a
    leader: more than one batch if it was called to lead while another served it. `row` are those
    of its batch that nobody has woken yet. `gone`: nobody has to.
    """

    operation: Operation[object]
    called: threading.Lock
    verdict: Verdict | None = None
    lingers: bool = False
    led: Sequence[_Ticket] = ()
    row: deque[_Ticket] | None = None
    gone: bool = False


class Batches:
    """The queue of one node's operations on a store with transactions."""

    def __init__(
        self,
        store: Datastore,
        node: str,
        cache: Cache,
        lock: AbstractContextManager[object],
        annals: Annals | None = None,
    ) -> None:
        """`lock` is held while a batch decides and commits."""
        self._annals = annals
        self._store = store
        self._node = node
        self._cache = cache
        self._lock = lock
        self._queue_lock = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._crowd = 0
        self._leader: _Ticket | None = None

    def run(self, operation: Operation[T]) -> Done[T] | Raised | Alone:
        """What became of an operation, with those of others that wait now."""
        ticket = _Ticket(cast("Operation[object]", operation), threading.Lock())
        ticket.called.acquire()
        try:
            if not self._enter(ticket):
                ticket.called.acquire()
            while ticket.verdict is None:
                self._lead(ticket)
        finally:
            self._certainly_leave(ticket)
        return cast("Done[T] | Raised | Alone", ticket.verdict)

    def _enter(self, ticket: _Ticket) -> bool:
        """Join the queue; True for who has to lead."""
        with self._queue_lock:
            self._waiting.append(ticket)
            leader = self._leader
            if leader is None:
                self._leader = ticket
            elif leader.lingers and len(self._waiting) >= self._crowd:
                leader.lingers = False
                self._leader = ticket
            return self._leader is ticket

    def _lead(self, leader: _Ticket) -> None:
        """Serve a batch, one's own operation among it, unless another came to lead."""
        if not self._await_crowd(leader):
            return
        with self._lock:
            with self._queue_lock:
                batch = self._waiting[:MOST_OPERATIONS]
                leader.led = (*leader.led, *batch)
                del self._waiting[:MOST_OPERATIONS]
            self._serve(batch)

    def _certainly_leave(self, ticket: _Ticket) -> None:
        """Leave, whatever interrupts: then again, by way of what may be done more than once."""
        try:
            self._leave(ticket)
        except BaseException:
            while True:
                try:
                    self._break_up(ticket)
                    break
                except BaseException:  # it is the first that is raised
                    continue
            raise

    def _break_up(self, ticket: _Ticket) -> None:
        """Leave without knowing how far one came: who may be waiting for this one is called."""
        with self._queue_lock:
            ticket.gone = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            _settle(ticket)
            for one in (*ticket.led, *(ticket.row or ())):
                if not one.gone:
                    _call(one)
            if self._waiting:
                self._leader = self._waiting[0]  # it may lead beside another: that takes turns
                _call(self._leader)
            elif self._leader is ticket:
                self._leader = None

    def _leave(self, ticket: _Ticket) -> None:
        """Let the next one lead, and those be woken that were led.

        Also for who was interrupted, wherever he was: nobody may wait for one that is gone.
        """
        with self._queue_lock:
            ticket.gone = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if ticket.led:
                self._crowd = min(len(ticket.led) + len(self._waiting), MOST_OPERATIONS)
                _line_up(ticket)
            if self._leader is ticket:
                self._leader = self._waiting[0] if self._waiting else None
                if self._leader is not None:
                    _call(self._leader)
            if ticket.row:
                for _ in range(ABREAST if ticket.led else 1):
                    _wake(ticket.row)

    def _await_crowd(self, leader: _Ticket) -> bool:
        """Linger for who may come; False for who was called meanwhile, served or to lead anew."""
        with self._queue_lock:
            lingers = leader.lingers = len(self._waiting) < self._crowd
        if not lingers:
            return True
        called = leader.called.acquire(timeout=LINGER)
        with self._queue_lock:
            leads, leader.lingers = leader.lingers, False
        if not leads and not called:
            leader.called.acquire()
        return leads

    def _serve(self, batch: Sequence[_Ticket]) -> None:
        for recall in (True, False):
            left = [ticket for ticket in batch if ticket.verdict is None]
            if left:
                store, cache, annals = self._store, self._cache, self._annals
                tx = Transaction(store, cache, recall=recall, annals=annals)
                _Round(tx, left).play(self._node)
        for ticket in batch:
            ticket.verdict = ticket.verdict or Alone()


def _line_up(leader: _Ticket) -> None:
    """Have those of a batch wake each other: whoever goes, for whatever reason, wakes one."""
    _settle(leader)
    row = deque[_Ticket]() if leader.row is None else leader.row  # who is led by another, too
    row.extend(one for one in leader.led if not one.gone)
    for one in (leader, *row):
        one.row = row


def _settle(leader: _Ticket) -> None:
    """Send those home that a leader has not served: nobody knows how far it came."""
    for one in leader.led:
        if one.verdict is None:
            one.operation.progress.uncertain = True
            one.verdict = Alone()


def _wake(row: deque[_Ticket]) -> None:
    if row:
        _call(row.popleft())


def _call(ticket: _Ticket) -> None:
    """Release who waits, or will; once more does nothing. With the queue's lock held."""
    if ticket.called.locked():
        ticket.called.release()


@dataclass(slots=True)
class _Round:
    """Some operations over one transaction."""

    tx: Transaction
    tickets: Sequence[_Ticket]
    staged: list[tuple[_Ticket, object]] = field(default_factory=list)

    def play(self, node: str) -> None:
        """Give a verdict to each operation that this transaction can serve."""
        try:
            prepare(self.tx, node, [ticket.operation.reads for ticket in self.tickets])
        except TortieError as error:
            self._fail(self.tickets, error)
            return
        for ticket in self.tickets:
            self._decide(ticket)
        self._commit()

    @property
    def _counts(self) -> bool:
        """Whether an answer counts that is not committed."""
        return len(self.tickets) == 1 and self.tx.fresh

    def _decide(self, ticket: _Ticket) -> None:
        mark = self.tx.mark()
        try:
            result = ticket.operation.decide(self.tx)
        except Question as question:
            self.tx.rollback(mark)
            ticket.verdict = Raised(question)
        except Exception as error:
            self.tx.rollback(mark)
            if self._counts:
                ticket.verdict = _verdict_on(error)
        else:
            preparation = isinstance(result, Again)
            changed = self.tx.changed_since(mark)
            if changed and not preparation and self.tx.size <= MOST_KEYS:
                self.staged.append((ticket, result))
                return
            self.tx.rollback(mark)
            if self._counts:
                ticket.verdict = Alone() if changed else Done(result)

    def _commit(self) -> None:
        try:
            self.tx.commit()
        except TortieError as error:
            for ticket, _ in self.staged:
                lost = isinstance(error, PartialCommit | Unavailable)
                ticket.operation.progress.uncertain |= lost
            self._fail([ticket for ticket, _ in self.staged], error)
        else:
            for ticket, result in self.staged:
                ticket.verdict = Done(result)

    def _fail(self, tickets: Sequence[_Ticket], error: TortieError) -> None:
        """A conflict of recalled reads is for the next round, all else for each caller itself."""
        if self.tx.fresh or not isinstance(error, Conflict):
            for ticket in tickets:
                ticket.verdict = Alone(error if is_transient(error) else None)


def _verdict_on(error: Exception) -> Verdict:
    if isinstance(error, TortieError) and is_transient(error):
        return Alone(error)
    return Raised(error)
