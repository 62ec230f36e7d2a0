"""List-then-watch against lost streams, lost history, absent kinds and tired servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.errors import (
    Compacted,
    InvalidInput,
    NotFound,
    TortieError,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.follow import Backoff, follow
from libtortie.kube.objects import Meta, Pod, PodStatus, VirtualMachine
from libtortie.kube.port import Applied, Bookmark, Gone, KubeClient, Overloaded, Synced
from tests.fakes.kube import FakeKube
from tests.fakes.patience import PATIENCE

PROMPT = 45.0
"""Seconds; what was not told to stop would take a minute at least."""


def pod(name: str, phase: str = "Running") -> Pod:
    return Pod(metadata=Meta(name=name, namespace="shop"), status=PodStatus(phase=phase))


def brief(event: object) -> str:
    match event:
        case Applied(found):
            return f"+{found.metadata.name}"
        case Gone(found):
            return f"-{found.metadata.name}"
        case Synced():
            return "synced"
        case _:
            raise AssertionError(event)


class Follower:
    """`follow` on its own thread; also a record of what it complained about."""

    def __init__(self, client: KubeClient, model: type[Any] = Pod, **options: Any) -> None:
        self.stop = threading.Event()
        self.seen: list[str] = []
        self.troubles: list[TortieError] = []
        self._changed = threading.Condition()
        backoff = options.pop(
            "backoff", Backoff(first=0.01, cap=0.05, overload_cap=0.05, absent=0.05)
        )
        self._events = follow(
            client, model, stop=self.stop, backoff=backoff, trouble=self._complain, **options
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _complain(self, kind: str, error: TortieError, delay: float) -> None:
        assert kind and delay >= 0
        with self._changed:
            self.troubles.append(error)
            self._changed.notify_all()

    def _run(self) -> None:
        for event in self._events:
            with self._changed:
                self.seen.append(brief(event))
                self._changed.notify_all()

    def wait(self, wanted: Callable[[Follower], bool], seconds: float = PATIENCE) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self), seconds), (self.seen, self.troubles)

    def sees(self, *expected: str) -> None:
        """Exactly these events, from the beginning."""
        self.wait(lambda f: len(f.seen) >= len(expected))
        assert self.seen == list(expected)

    def end(self) -> float:
        began = time.monotonic()
        self.stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return time.monotonic() - began


@pytest.fixture
def fake() -> FakeKube:
    return FakeKube(pod("a"), pod("b"))


@pytest.fixture
def follower(fake: FakeKube) -> Iterator[Follower]:
    running = Follower(fake)
    yield running
    running.end()


def test_list_then_changes(fake: FakeKube, follower: Follower) -> None:
    follower.sees("+a", "+b", "synced")
    fake.put(pod("c"))
    fake.put(pod("a", "Failed"))
    fake.remove(Pod, "b", "shop")
    follower.sees("+a", "+b", "synced", "+c", "+a", "-b")


@pytest.mark.parametrize("error", [None, Unavailable("cut")])
def test_a_lost_stream_resumes_without_a_list(
    fake: FakeKube, follower: Follower, error: TortieError | None
) -> None:
    follower.sees("+a", "+b", "synced")
    fake.fail(Unavailable("still away"), verb="watch", times=1)
    fake.cut_watches(error)
    fake.put(pod("c"))
    fake.remove(Pod, "a", "shop")
    follower.sees("+a", "+b", "synced", "+c", "-a")
    assert [verb for verb, _ in fake.calls].count("list") == 1


def test_lost_history_means_a_new_list_and_never_a_gone(fake: FakeKube, follower: Follower) -> None:
    follower.sees("+a", "+b", "synced")

    def lose() -> None:
        fake.remove(Pod, "a", "shop")
        fake.put(pod("c"))
        fake.compact()

    fake.fail(Unavailable("away"), verb="watch", meanwhile=lose)
    fake.cut_watches(Unavailable("cut"))
    follower.sees("+a", "+b", "synced", "+b", "+c", "synced")


class Listened(FakeKube):
    """Knows the newest bookmark that a watcher took and came back from for more."""

    marked = 0

    def watch(self, *args: Any, **options: Any) -> Iterator[Any]:
        for event in super().watch(*args, **options):
            yield event
            if isinstance(event, Bookmark):
                self.marked = int(event.resource_version)

    def until_marked(self, version: int) -> None:
        ends = time.monotonic() + PATIENCE
        while self.marked < version:
            assert time.monotonic() < ends, "no bookmark was taken"
            time.sleep(0.01)


def test_bookmarks_spare_a_new_list() -> None:
    """A quiet kind's version ages while others change; a bookmark keeps it young."""
    fake = Listened(pod("a"), pod("b"))
    follower = Follower(fake)
    follower.sees("+a", "+b", "synced")
    fake.put(VirtualMachine(metadata=Meta(name="vm", namespace="shop")))
    fake.until_marked(fake.api.store.version)
    fake.compact()
    fake.cut_watches(Unavailable("cut"))
    fake.put(pod("c"))
    follower.sees("+a", "+b", "synced", "+c")
    assert [call for call in fake.calls if call == ("list", "pods")] == [("list", "pods")]
    follower.end()


def test_resume_is_from_the_lists_version_not_an_items(fake: FakeKube) -> None:
    """Items come in any age order; the newest of them may still be older than history."""
    fake.remove(Pod, "b", "shop")
    fake.compact()
    follower = Follower(fake)
    follower.sees("+a", "synced")
    fake.put(pod("c"))
    follower.sees("+a", "synced", "+c")
    assert follower.troubles == []
    follower.end()


def test_an_absent_kind_is_silence_until_it_is_installed(fake: FakeKube) -> None:
    fake.hide("kubevirt.io")
    follower = Follower(fake, VirtualMachine)
    follower.wait(lambda f: len(f.troubles) >= 2)
    assert all(isinstance(error, NotFound) for error in follower.troubles)
    assert follower.seen == []
    fake.offer("kubevirt.io")
    fake.put(VirtualMachine(metadata=Meta(name="vm", namespace="shop")))
    follower.wait(lambda f: "+vm" in f.seen and "synced" in f.seen)
    fake.hide("kubevirt.io")  # the CRD goes: its objects did too, but nobody told us
    fake.cut_watches(Unavailable("cut"))
    before = len(follower.troubles)
    follower.wait(lambda f: len(f.troubles) >= before + 3)
    assert not any(event.startswith("-") for event in follower.seen)
    follower.end()


@pytest.mark.parametrize("error", [Unavailable("away"), Unauthorized("no"), Overloaded("busy")])
def test_a_failing_list_is_tried_again(fake: FakeKube, error: TortieError) -> None:
    fake.fail(error, verb="list", times=3)
    follower = Follower(fake)
    follower.sees("+a", "+b", "synced")
    assert follower.troubles == [error] * 3
    follower.end()


def test_a_wrong_selector_is_the_callers_error(fake: FakeKube) -> None:
    stop = threading.Event()
    with pytest.raises(InvalidInput):
        next(follow(fake, Pod, stop=stop, label_selector="in in in"))


def test_a_resume_that_keeps_failing_ends_in_a_new_list(fake: FakeKube) -> None:
    """A server restored from a backup knows no such version, and may only say 504."""
    follower = Follower(fake)
    follower.sees("+a", "+b", "synced")
    fake.fail(Overloaded("too large resource version"), verb="watch", times=3)
    fake.cut_watches()
    follower.sees("+a", "+b", "synced", "+a", "+b", "synced")
    follower.end()


def test_stop_is_prompt_wherever_it_waits(fake: FakeKube) -> None:
    waiting = Follower(fake)
    waiting.sees("+a", "+b", "synced")
    assert waiting.end() < PROMPT
    fake.fail(Unavailable("away"), verb="list", times=1000)
    pausing = Follower(fake, backoff=Backoff(first=600, cap=600))
    pausing.wait(lambda f: len(f.troubles) == 1)
    assert pausing.end() < PROMPT


# --- back-off, on a simulated clock ------------------------------------------------------------


class Tired:
    """Never answers in time; counts full lists on a clock that only waiting moves."""

    def __init__(self, error: TortieError) -> None:
        self.now = 0.0
        self.lists: list[float] = []
        self._error = error

    def list(self, *_: object, **__: object) -> Any:
        self.lists.append(self.now)
        self.now += 5.0
        raise self._error


class Clock(threading.Event):
    """A stop event whose waits take no time, and which is set at `end`."""

    def __init__(self, tired: Tired, end: float) -> None:
        super().__init__()
        self._tired, self._end = tired, end

    def is_set(self) -> bool:
        return self._tired.now >= self._end

    def wait(self, timeout: float | None = None) -> bool:
        self._tired.now += timeout or 0.0
        return self.is_set()


def run_tired(error: TortieError, seconds: float) -> Tired:
    tired = Tired(error)
    quiet: Callable[[str, TortieError, float], None] = lambda *_: None  # noqa: E731
    backoff = Backoff(rng=lambda: 0.5)
    events = follow(tired, Pod, stop=Clock(tired, seconds), backoff=backoff, trouble=quiet)  # type: ignore[arg-type]  # only its list is called
    assert list(events) == []
    return tired


def test_an_overloaded_server_gets_about_ten_lists_in_half_an_hour() -> None:
    tired = run_tired(Overloaded("busy"), 1800)
    assert 6 <= len(tired.lists) <= 14


def test_a_server_that_is_away_is_asked_every_few_seconds() -> None:
    tired = run_tired(Unavailable("away"), 1800)
    gaps = [b - a for a, b in zip(tired.lists, tired.lists[1:], strict=False)]
    assert max(gaps) <= 8 + 5
    assert min(gaps[4:]) >= 4 + 5


def test_an_absent_kind_is_asked_for_within_ten_seconds() -> None:
    tired = run_tired(NotFound("no such kind"), 600)
    gaps = [b - a - 5 for a, b in zip(tired.lists, tired.lists[1:], strict=False)]
    assert min(gaps) > 3
    assert max(gaps) <= 10


def test_retry_after_is_a_floor() -> None:
    backoff = Backoff(rng=lambda: 0.0)
    assert backoff.delay(Overloaded("busy", retry_after=17.0)) == 17.0


def test_delays_are_jittered_and_reset() -> None:
    draws = iter([0.0, 1.0, 0.0])
    backoff = Backoff(first=1.0, cap=100.0, rng=lambda: next(draws))
    assert [backoff.delay(None), backoff.delay(None)] == [0.5, 3.0]
    backoff.reset()
    assert backoff.delay(None) == 0.5


def test_a_stream_that_always_ends_at_once_does_not_spin() -> None:
    class Hollow(Tired):
        watches = 0

        def list(self, *_: object, **__: object) -> Any:
            self.lists.append(self.now)
            return (), "1"

        def watch(self, *_: object, **__: object) -> Iterator[Any]:
            self.watches += 1
            return iter(())

    hollow = Hollow(Unavailable(""))
    stop = Clock(hollow, 600)
    list(follow(hollow, Pod, stop=stop, backoff=Backoff(rng=lambda: 0.5)))  # type: ignore[arg-type]  # what it calls is there
    assert hollow.watches < 60


def test_a_server_that_lists_but_never_answers_a_watch_gets_fewer_and_fewer_calls() -> None:
    class Half(Tired):
        watches = 0

        def list(self, *_: object, **__: object) -> Any:
            self.lists.append(self.now)
            return (), "1"

        def watch(self, *_: object, **__: object) -> Iterator[Any]:
            self.watches += 1
            self.now += 5.0  # the client's deadline
            raise Overloaded("not done after 5 s")

    half = Half(Unavailable(""))
    quiet: Callable[[str, TortieError, float], None] = lambda *_: None  # noqa: E731
    backoff = Backoff(rng=lambda: 0.5)
    list(follow(half, Pod, stop=Clock(half, 1800), backoff=backoff, trouble=quiet))  # type: ignore[arg-type]  # what it calls is there
    assert half.watches <= 15
    assert len(half.lists) <= 6


# --- the whole way, over HTTP ------------------------------------------------------------------


def test_over_http_through_every_kind_of_loss() -> None:
    with ApiServer(bookmark_interval=0.05) as server:
        kind = server.api.kind("", "v1", "pods")

        def make(name: str) -> None:
            server.api.create(kind, "default", {"metadata": {"name": name}})

        client = HttpKubeClient(direct(server.url))
        make("a")
        follower = Follower(client)
        follower.sees("+a", "synced")
        server.cut_watches(mid_line=True)
        make("b")
        follower.sees("+a", "synced", "+b")
        server.faults.add(Fault(Reject(429, "TooManyRequests", retry_after=0), verb="watch"), 1)
        server.cut_watches()
        follower.wait(lambda f: any(isinstance(e, Overloaded) for e in f.troubles))
        make("c")
        follower.sees("+a", "synced", "+b", "+c")
        server.stop()
        before = len(follower.troubles)
        follower.wait(lambda f: len(f.troubles) >= before + 3)
        make("d")
        server.start()
        follower.wait(lambda f: "+d" in f.seen)
        server.faults.add(Fault(Reject(410, "Expired"), verb="watch"), 1)
        server.cut_watches()
        follower.wait(lambda f: any(isinstance(e, Compacted) for e in f.troubles))
        make("e")
        follower.wait(lambda f: "+e" in f.seen)
        again = follower.seen[follower.seen.index("+d") + 1 :]
        assert {"+a", "+b", "+c", "+d", "synced"} <= set(again)
        assert not any(event.startswith("-") for event in follower.seen)
        assert follower.end() < PROMPT
        client.close()
