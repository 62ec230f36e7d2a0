"""Work that one of several instances does: while it holds the lease, and never a moment longer.

A thread renews the lease; the caller's thread works, one term after the other. A term that is over
(the lease is lost, or we are told to stop) ends the work; the store refuses what the work would
still write. The lease is given up after the work has ended, so that its successor never overlaps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from controllers.candidate import Candidate
from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.port import Op, Record, Value
from libtortie.errors import Unavailable
from libtortie.model.keys import Key

Term = threading.Event
"""Set when it is over."""


def work_in_terms(
    candidate: Candidate, stop: threading.Event, work: Callable[[Term], bool]
) -> bool:
    """Run `work` for each term of ours, until `stop`; whether none of them failed."""
    with _campaign(candidate, stop) as terms:
        while (term := terms.get()) is not None:
            if not work(term):
                return False
    return True


@contextmanager
def _campaign(candidate: Candidate, stop: threading.Event) -> Iterator[SimpleQueue[Term | None]]:
    """Terms as they begin, then None; the lease is given up at the end."""
    campaign = _Campaign(candidate, stop)
    thread = threading.Thread(target=campaign.run, name="election")
    thread.start()
    try:
        yield campaign.terms
    finally:
        campaign.closing.set()
        stop.set()
        thread.join()
        candidate.give_up()
    if campaign.failure is not None:
        raise campaign.failure


@dataclass(slots=True)
class _Campaign:
    candidate: Candidate
    stop: threading.Event
    closing: threading.Event = field(default_factory=threading.Event)
    terms: SimpleQueue[Term | None] = field(default_factory=SimpleQueue)
    failure: Exception | None = None
    _term: Term | None = None
    _reign: object = None

    def run(self) -> None:
        """Attempt until told to stop, then renew until the work has ended."""
        try:
            while not self.stop.is_set():
                self.candidate.attempt()
                self._judge()
                self.stop.wait(self.candidate.pause())
            self._end()
            self.terms.put(None)
            while self.candidate.leads() and not self.closing.wait(self.candidate.pause()):
                self.candidate.attempt()
        except Exception as error:  # a bug: told by whoever waits for terms
            self.failure = error
        finally:
            self._end()
            self.terms.put(None)

    def _judge(self) -> None:
        reign = self.candidate.election.reign
        if not self.candidate.leads() or reign != self._reign:
            self._end()
        if self._term is None and self.candidate.leads():
            self._reign = reign
            self._term = Term()
            self.terms.put(self._term)

    def _end(self) -> None:
        if self._term is not None:
            self._term.set()
            self._term = None


@dataclass(slots=True)
class LedStore(ForwardingDatastore):
    """A store that is written to while we lead only. Raises `Unavailable` else."""

    leads: Callable[[], bool]

    def create(self, key: Key, value: Value) -> Record:
        """As the store's."""
        self._permit()
        return self.inner.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """As the store's."""
        self._permit()
        return self.inner.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        """As the store's."""
        self._permit()
        self.inner.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """As the store's; the empty commit, which only reads, as well."""
        self._permit()
        return self.inner.commit(ops)

    def _permit(self) -> None:
        if not self.leads():
            raise Unavailable("another instance may lead by now: nothing is written")
