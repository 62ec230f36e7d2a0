"""One reading for all watches of a log, in every order in which commits and readings can come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from libtortie.datastore.feed import BATCH, Feed, History, Member
from libtortie.datastore.records import Change
from libtortie.errors import Compacted, TortieError, Unavailable
from tests.fakes.followed import DEADLINE


class Log:
    """A log that counts how often it is read; `before` and `after` each reading anything may be
    done, on the reader's thread."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.reads: list[tuple[str, int]] = []
        self.before: Callable[[], None] = nothing
        self.after: Callable[[], None] = nothing
        self.compacted = 0

    def write(self, *paths: str) -> list[Change]:
        """One commit."""
        first = len(self.changes) + 1
        made = [Change(first + at, path, b"") for at, path in enumerate(paths)]
        self.changes += made
        return made

    def read(self, low: str, high: str, after: int) -> History:
        self.before()
        if after < self.compacted:
            raise Compacted("gone")
        found = [c for c in self.changes if c.revision > after and low <= c.path < high][:BATCH]
        end = found[-1].revision if len(found) == BATCH else len(self.changes)
        self.reads.append((low, after))
        self.after()
        return History(tuple(found), end)


def nothing() -> None:
    pass


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.001)


class Watcher:
    """Takes a member's changes on a thread, those of paths that begin with its letter."""

    def __init__(self, feed: Feed, letter: str, position: int = 0) -> None:
        self.feed = feed
        self.member = feed.member(letter, chr(ord(letter) + 1), position)
        self.seen: list[int] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while (change := self.feed.next(self.member)) is not None:
                self.seen.append(change.revision)
        except (TortieError, RuntimeError) as error:
            self.error = error
        self.feed.leave(self.member)

    def start(self) -> Watcher:
        self.thread.start()
        return self

    def at_rest(self) -> Watcher:
        """Once it waits."""
        eventually(lambda: self.member.waiting)
        return self

    def saw(self, *revisions: int) -> None:
        eventually(lambda: len(self.seen) >= len(revisions))
        self.at_rest()
        assert self.seen == list(revisions)

    def end(self) -> None:
        self.feed.close_member(self.member)
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


@contextmanager
def watching(feed: Feed, letters: str) -> Iterator[list[Watcher]]:
    """Watchers of these letters, all of which have caught up and wait."""
    with ExitStack() as stack:
        made = []
        for letter in letters:
            one = Watcher(feed, letter).start()
            stack.callback(one.end)
            made.append(one.at_rest())
        yield made


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def feed(log: Log) -> Feed:
    return Feed(log.read)


def drained(feed: Feed, member: Member, count: int) -> list[int]:
    """What a member takes without waiting."""
    found = [feed.next(member) for _ in range(count)]
    return [change.revision for change in found if change is not None]


def test_a_commit_of_our_own_is_read_by_nobody_and_wakes_whom_it_concerns(
    log: Log, feed: Feed
) -> None:
    with watching(feed, "abc") as (a, b, c):
        log.reads.clear()
        feed.committed(log.write("a1", "b1", "a2"))
        a.saw(1, 3)
        b.saw(2)
        feed.committed(log.write("x1"))
        feed.committed(log.write("c1"))
        c.saw(5)
        assert log.reads == []


def test_what_others_commit_is_read_once_for_all(log: Log, feed: Feed) -> None:
    with watching(feed, "abcdefgh") as watchers:
        log.reads.clear()
        log.write("h1", "a1", "x1", "h2")
        feed.reached(4)
        watchers[0].saw(2)
        watchers[-1].saw(1, 4)
        assert log.reads == [("", 0)]
        feed.reached(4)
        assert log.reads == [("", 0)], "there is nothing new to be read"


def test_a_commit_after_one_that_is_not_known_is_read_with_it(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as (a, b):
        first = log.write("a1")
        second = log.write("b1", "a2")
        feed.committed(second)
        a.saw(1, 3)
        b.saw(2)
        feed.committed(first)  # its thread was held up
        feed.committed(log.write("b2"))
        b.saw(2, 4)
        a.saw(1, 3)


def test_a_commit_while_the_log_is_read_is_told_once_and_in_order(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as (a, b):
        log.write("a1")

        def meanwhile() -> None:
            log.before = log.after = nothing
            feed.committed(log.write("b1", "a2"))
            feed.committed(log.write("a3"))

        log.after = meanwhile
        feed.reached(1)
        a.saw(1, 3, 4)
        b.saw(2)


def test_a_commit_of_our_own_overtakes_a_reading(log: Log, feed: Feed) -> None:
    """The reading began before and ends after it: nothing is told twice."""
    with watching(feed, "a") as (a,):

        def meanwhile() -> None:
            log.before = nothing
            feed.committed(log.write("a1"))

        log.before = meanwhile
        feed.look()
        a.saw(1)
        feed.committed(log.write("a2"))
        a.saw(1, 2)


def test_a_commit_between_catching_up_and_joining_is_not_lost(log: Log, feed: Feed) -> None:
    def meanwhile() -> None:
        log.after = nothing
        feed.committed(log.write("a1"))

    log.after = meanwhile
    with watching(feed, "a") as (a,):
        a.saw(1)


def test_one_that_joins_while_others_are_ahead_reads_on(log: Log, feed: Feed) -> None:
    with watching(feed, "b") as (b,):

        def meanwhile() -> None:
            log.after = nothing
            feed.committed(log.write("a1", "b1"))
            b.saw(2)

        log.after = meanwhile
        with watching(feed, "a") as (a,):
            a.saw(1)


def test_one_that_joins_ahead_of_others_is_told_nothing_twice(log: Log, feed: Feed) -> None:
    with watching(feed, "b") as (b,):
        log.write("a1")  # of another process, which nobody has said yet
        late = feed.member("a", "b", 0)
        assert drained(feed, late, 1) == [1]
        reader = Watcher(feed, "a", 1).start().at_rest()
        feed.reached(1)
        log.write("a2", "b1")
        feed.reached(3)
        reader.saw(2)
        b.saw(3)
        reader.end()


def test_a_watch_that_is_slow_reads_for_itself_and_misses_nothing(log: Log, feed: Feed) -> None:
    with watching(feed, "b") as (b,):
        slow = feed.member("a", "b", 0)
        first = threading.Thread(target=drained, args=(feed, slow, 1))
        first.start()
        eventually(lambda: slow.waiting)
        feed.committed(log.write("a", "b"))
        first.join(DEADLINE)
        total = 3 * BATCH
        for _ in range(total):
            feed.committed(log.write("a"))
        assert len(slow.pending) <= BATCH, "it is not kept for a watch that may never come"
        assert drained(feed, slow, total) == list(range(3, total + 3))
        b.saw(2)


def test_a_watch_of_a_quiet_scope_outlives_the_forgetting_of_the_log(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as (a, b):
        feed.committed(log.write("b1"))
        feed.committed(log.write("b2"))
        b.saw(1, 2)
        log.compacted = 2
        feed.look()
        feed.committed(log.write("a1"))
        a.saw(3)


def test_a_forgotten_log_is_told_to_all_who_needed_it(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as (a, b):
        log.write("a1", "b1")
        log.compacted = 2
        feed.look()
        for one in (a, b):
            one.thread.join(DEADLINE)
            assert isinstance(one.error, Compacted)


def test_who_meets_an_error_leaves_the_others_to_theirs(log: Log, feed: Feed) -> None:
    """The reading for all failed; each then reads for itself, which may succeed."""
    with watching(feed, "ab") as (a, b):

        def fail() -> None:
            log.before = nothing
            raise Unavailable("a hiccup")

        log.before = fail
        log.write("a1", "b1")
        feed.reached(2)
        a.saw(1)
        b.saw(2)


def test_an_error_costs_a_quiet_watch_nothing_that_was_read_for_it(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as (a, b):
        feed.committed(log.write("b1"))
        b.saw(1)

        def fail() -> None:
            log.before = nothing
            log.compacted = 1
            raise Unavailable("a hiccup")

        log.before = fail
        log.write("a1")
        feed.reached(2)
        a.saw(2)


def test_a_reading_that_died_of_a_bug_holds_up_nobody(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as watchers:

        def bug() -> None:
            log.before = nothing
            raise RuntimeError("unforeseen")

        log.before = bug
        log.write("a1", "b1")
        feed.reached(2)
        eventually(lambda: any(one.error for one in watchers))
        eventually(lambda: sum(len(one.seen) for one in watchers) == 1)


def test_the_one_who_shall_read_may_end_instead(log: Log, feed: Feed) -> None:
    """Closed in the moment in which it was chosen, it passes the task on."""
    with watching(feed, "abc") as watchers:
        log.write("c1")
        with feed._lock:
            feed._hear()
            chosen = next(one for one in watchers if one.member is feed._members[0])
            chosen.member.closed = True
        watchers[2].saw(1)
        assert chosen is not watchers[2]


def test_a_watch_that_nobody_iterates_any_more_leaves(log: Log, feed: Feed) -> None:
    feed.committed(log.write("a1"))
    member = feed.member("a", "b", 0)
    assert drained(feed, member, 1) == [1]
    feed.leave(member)
    log.write("a2")
    assert drained(feed, member, 1) == [2]


def test_closing_and_failing_end_all(log: Log, feed: Feed) -> None:
    with watching(feed, "ab") as watchers:
        feed.close()
        for one in watchers:
            one.thread.join(DEADLINE)
            assert one.error is None
    other = Feed(log.read)
    with watching(other, "ab") as watchers:
        other.fail("broken")
        for one in watchers:
            one.thread.join(DEADLINE)
            assert str(one.error) == "broken"
    assert other.failed


def test_one_that_joins_a_log_that_was_put_back_does_not_look_for_its_end_for_ever(
    log: Log, feed: Feed
) -> None:
    """Who joined before, and is busy with something else, cannot find out for all."""
    feed.committed(log.write("a1", "a2", "a3"))
    busy = feed.member("a", "b", 0)
    assert drained(feed, busy, 3) == [1, 2, 3]

    def commit_once() -> None:
        log.after = nothing
        feed.committed(log.write("a4"))

    log.after = commit_once  # while it finds that it has caught up
    assert drained(feed, busy, 1) == [4]
    assert busy.joined
    log.reads.clear()
    del log.changes[2:]  # a backup is put in place

    def refuse_when_endless() -> None:
        if len(log.reads) > 20:
            raise RuntimeError("it reads and reads")

    log.before = refuse_when_endless
    with watching(feed, "b") as (fresh,):
        fresh.saw()
        feed.committed(log.write("b3"))
        fresh.saw(3)
        assert fresh.error is None
    assert (busy.joined, busy.position) == (False, 4)
