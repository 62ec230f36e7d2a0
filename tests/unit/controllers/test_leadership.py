"""Terms of work: they begin and end with the lease, and nothing is written outside of one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from controllers.candidate import Candidate
from controllers.election import Timing
from controllers.leadership import LedStore, Term, work_in_terms
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey
from tests.fakes.electorate import Electorate
from tests.fakes.node_process import until

QUICK = Timing(lease=3600, renew=1800, retry=0.01)
"""Attempts follow each other, and only the test's clock ends a lease."""


@dataclass
class Office:
    """Work that lasts as long as its term, on a thread that `close` ends."""

    site: Electorate
    candidate: Candidate
    stop: threading.Event = field(default_factory=threading.Event)
    terms: list[Term] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    led_at_the_end: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.ended.append(work_in_terms(self.candidate, self.stop, self.work))
        except Exception as error:
            self.failures.append(error)

    def work(self, term: Term) -> bool:
        self.terms.append(term)
        term.wait()
        self.led_at_the_end.append(self.candidate.leads())
        return True

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


def test_a_term_lasts_until_it_is_told_to_stop_and_then_the_lease_is_given_up() -> None:
    site = Electorate(QUICK)
    office = Office(site, site.candidate("a"))
    until("a term", lambda: office.terms)
    office.close()
    assert office.ended == [True]
    assert office.led_at_the_end == [True], "the lease is kept while the work ends"
    assert site.lease().spec.holder_identity == ""
    assert site.leaders == []


def test_the_lease_is_renewed_while_the_work_ends() -> None:
    site = Electorate(QUICK)
    stop = threading.Event()

    def renewals() -> int:
        return site.kube.calls.count(("update", "leases"))

    def slow(term: Term) -> bool:
        stop.set()
        term.wait()
        before = renewals()
        until("a renewal", lambda: renewals() > before)
        return True

    assert work_in_terms(site.candidate("a"), stop, slow)


def test_a_lost_lease_ends_a_term_and_another_one_follows() -> None:
    site = Electorate(QUICK)
    office = Office(site, site.candidate("a"))
    try:
        until("a term", lambda: office.terms)
        site.edit(holderIdentity="b")
        until("its end", lambda: office.led_at_the_end)
        assert office.led_at_the_end == [False]
        site.edit(holderIdentity="")
        until("the next term", lambda: len(office.terms) == 2)
        assert not office.terms[1].is_set()
    finally:
        office.close()


def test_a_lease_that_was_anothers_in_between_is_a_new_term() -> None:
    """Nobody may have looked while it was: what was observed before is worth nothing."""
    site = Electorate(QUICK)
    office = Office(site, site.candidate("a"))
    try:
        until("a term", lambda: office.terms)
        site.edit(holderIdentity="")
        until("the next term", lambda: len(office.terms) == 2)
        assert office.terms[0].is_set()
    finally:
        office.close()


def test_who_never_leads_never_works_and_leaves_the_lease_alone() -> None:
    site = Electorate(QUICK)
    site.candidate("first").attempt()
    office = Office(site, site.candidate("second"))
    until("a look", lambda: ("get", "leases") in site.kube.calls)
    office.close()
    assert office.terms == []
    assert office.ended == [True]
    assert site.lease().spec.holder_identity == "first"


def test_work_that_fails_ends_it_all() -> None:
    site = Electorate(QUICK)

    def fail(_: Term) -> bool:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        work_in_terms(site.candidate("a"), threading.Event(), fail)
    assert site.lease().spec.holder_identity == ""
    assert not work_in_terms(site.candidate("b"), threading.Event(), lambda _: False)


def test_a_bug_in_the_election_is_told_by_the_caller() -> None:
    site = Electorate(QUICK)
    office = Office(site, site.candidate("a"))

    def broken(_: str) -> None:
        site.before = lambda verb: None
        raise ZeroDivisionError

    until("a term", lambda: office.terms)
    site.before = broken
    office.thread.join()
    assert [type(error) for error in office.failures] == [ZeroDivisionError]


def test_nothing_is_written_while_another_may_lead() -> None:
    site = Electorate()
    candidate = site.candidate("a")
    store = LedStore(MemoryDatastore(), candidate.leads)
    key, value = HandleKey("h"), Handle({})
    for write in (
        lambda: store.create(key, value),
        lambda: store.update(key, value, "1"),
        lambda: store.delete(key),
        lambda: store.commit([]),
    ):
        with pytest.raises(Unavailable, match="another instance may lead"):
            write()
    candidate.attempt()
    made = store.create(key, value)
    assert store.get(key).value == value
    site.now += 10
    with pytest.raises(Unavailable, match="another instance may lead"):
        store.delete(key, made.revision)
    assert store.get(key).value == value
