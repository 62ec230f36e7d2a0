"""SQLite: watches, however they are told of a commit, and the log behind them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from libtortie.datastore import follower
from libtortie.datastore.inotify import FileWatch
from libtortie.datastore.port import Put
from libtortie.datastore.sqlite import PRUNE_EVERY, SqliteDatastore
from libtortie.errors import Compacted, InvalidInput, Unavailable
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.sqlite_files import (
    DEADLINE,
    first_event,
    handle,
    heard,
    say,
    worker,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tortie.db"


@pytest.mark.parametrize("way", ["inotify alone", "poll alone", "events lost"])
def test_commits_of_another_process_are_seen(
    path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of noticing works without the other: the slow one cannot hide a broken fast one."""
    if way == "inotify alone":
        monkeypatch.setattr(follower, "IDLE", 3600.0)
    elif way == "poll alone":
        monkeypatch.setattr(follower, "_file_watch", lambda _: None)
    else:
        monkeypatch.setattr(
            follower, "_file_watch", lambda wal: FileWatch(wal.with_name("elsewhere"))
        )
    with closing(SqliteDatastore(path)) as store, worker("put-each", path) as process:
        for name in ("one", "two", "three"):
            start = store.list(Handles()).revision
            watch = store.watch(Handles(), start)
            say(process, name)
            assert heard(process) == name
            watch.close()
            event = first_event(store, start)
            assert isinstance(event, Put)
            assert event.record.key == HandleKey(name)
            seen = store.list(Handles()).revision
            threading.Timer(0.05, say, (process, name + "-later")).start()
            later = first_event(store, seen)  # waits before it is written
            assert isinstance(later, Put)
            assert later.record.key == HandleKey(name + "-later")
            assert heard(process) == name + "-later"


class ScriptedWatch:
    """Stands for inotify: one event, then, at the second look, the commit it announced."""

    def __init__(self, publish: Callable[[], object]) -> None:
        self._publish = publish
        self.waits: list[float] = []
        self._ended = threading.Event()

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) == 4:
            self._publish()
        if len(self.waits) > 10:
            self._ended.wait(DEADLINE)
        return len(self.waits) == 1

    def interrupt(self) -> None:
        self._ended.set()

    def close(self) -> None:
        pass


def test_an_event_before_its_commit_is_published_is_looked_at_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteDatastore(path)) as writer, closing(SqliteDatastore(path)) as store:
        start = store.list(Handles()).revision
        script = ScriptedWatch(lambda: writer.create(HandleKey("h"), handle()))
        monkeypatch.setattr(follower, "_file_watch", lambda _: script)
        assert isinstance(first_event(store, start), Put)
        looks = script.waits[:4]
    assert looks == [follower.IDLE, 0.0, follower.BRISK, follower.SLOWER * follower.BRISK]
    assert max(script.waits) <= follower.IDLE


def test_a_process_sees_its_own_commits_without_the_file_telling(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = ScriptedWatch(lambda: None)
    deaf.waits = [0.0] * 10
    monkeypatch.setattr(follower, "_file_watch", lambda _: deaf)
    with closing(SqliteDatastore(path)) as store:
        start = store.list(Handles()).revision
        timer = threading.Timer(0.05, store.create, (HandleKey("h"), handle()))
        timer.start()
        assert isinstance(first_event(store, start), Put)
        timer.join()


class BrokenWatch(ScriptedWatch):
    """Breaks in a way nobody foresaw."""

    def wait(self, seconds: float) -> bool:
        raise RuntimeError(f"unforeseen, within {seconds} s")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_ends_with_the_thread_that_serves_it_and_the_next_gets_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteDatastore(path)) as store:
        start = store.list(Handles()).revision
        with monkeypatch.context() as patch:
            patch.setattr(follower, "_file_watch", lambda _: BrokenWatch(lambda: None))
            with pytest.raises(Unavailable, match="unforeseen"):
                first_event(store, start)
        store.create(HandleKey("h"), handle())
        assert isinstance(first_event(store, start), Put)


def test_the_log_is_pruned_and_a_late_watch_is_told(path: Path) -> None:
    with closing(SqliteDatastore(path, history=100)) as store:
        start = store.list(Handles()).revision
        record = store.create(HandleKey("h"), handle(0))
        for i in range(400):
            record = store.update(HandleKey("h"), handle(i), record.revision)
        with closing(sqlite3.connect(path)) as raw:
            (kept,) = raw.execute("SELECT count(*) FROM log").fetchone()
        assert 100 <= kept < 100 + PRUNE_EVERY
        with pytest.raises(Compacted), store.watch(Handles(), start) as watch:
            next(iter(watch))
        recent = str(int(record.revision) - 100)
        with store.watch(Handles(), recent) as watch:
            revisions = [next(events) for events in [iter(watch)] for _ in range(100)]
        assert revisions[-1] == Put(record)


def test_revisions_go_on_after_everything_was_forgotten(path: Path) -> None:
    with closing(SqliteDatastore(path)) as store:
        record = store.create(HandleKey("h"), handle())
        store.delete(HandleKey("h"))
        store.compact()
        revision = store.list(Handles()).revision
    with closing(SqliteDatastore(path)) as store:
        assert store.list(Handles()).revision == revision
        assert int(store.create(HandleKey("h"), handle()).revision) > int(record.revision)
        assert isinstance(first_event(store, revision), Put)


def test_many_watches_share_one_inotify_and_one_thread(path: Path) -> None:
    def inotifies() -> int:
        return sum("inotify" in str(one) for one in _descriptors())

    before = inotifies()
    with closing(SqliteDatastore(path)) as store:
        watches = [store.watch(Handles(), "0") for _ in range(20)]
        assert inotifies() == before + 1
        assert sum(t.name == "sqlite-follower" for t in threading.enumerate()) == 1
        for watch in watches:
            watch.close()
    assert inotifies() == before
    assert not any(t.name == "sqlite-follower" for t in threading.enumerate())


def _descriptors() -> list[Path]:
    """What this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found.append(fd.readlink())
    return found


def test_closed_stores_leave_no_descriptors(path: Path) -> None:
    def once() -> None:
        with closing(SqliteDatastore(path, node="n1")) as store:
            with store.watch(Handles(), store.list(Handles()).revision):
                pass
            with pytest.raises(InvalidInput):
                SqliteDatastore(path, node="n2")

    for _ in range(5):
        once()
    left = [one for one in _descriptors() if one.is_relative_to(path.parent)]
    assert left == [], "of this file; others may be closed meanwhile by whom earlier tests left"
