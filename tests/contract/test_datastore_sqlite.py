"""What only the SQLite file can get wrong: processes, kill -9, locks, disks, other files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from libtortie.datastore import follower, sqlite_file
from libtortie.datastore.inotify import FileWatch
from libtortie.datastore.port import Event, Put, Removed
from libtortie.datastore.sqlite import PRUNE_EVERY, SqliteDatastore
from libtortie.datastore.sqlite_file import file_system_of
from libtortie.errors import Compacted, InvalidInput, Malformed, Unavailable
from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import BlockKey, HandleKey, Handles

ROOT = Path(__file__).parents[2]
CIDR = ip_network("10.250.0.0/26")
DEADLINE = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tortie.db"


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "tests.contract.sqlite_worker", *map(str, args)]


def herd(mode: str, path: Path, processes: int, rounds: int) -> None:
    ran = subprocess.run(
        command(mode, path, processes, rounds),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@contextmanager
def worker(mode: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(mode, path),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def first_event(store: SqliteDatastore, start: str) -> Event:
    """The first event after `start`; fails, and does not hang, when none comes."""
    watch = store.watch(Handles(), start)
    timer = threading.Timer(DEADLINE, watch.close)
    timer.start()
    try:
        for event in watch:
            return event
        raise AssertionError("no event within the deadline")
    finally:
        timer.cancel()
        watch.close()


# -- processes


def test_many_processes_add_and_delete_on_one_file(path: Path) -> None:
    block = Block(CIDR, "host:n1", (None,) * 64, tuple(range(64)))
    with closing(SqliteDatastore(path, node="n1")) as store:
        store.create(BlockKey(CIDR), block)
        herd("add-delete", path, 50, 20)
        after = store.get(BlockKey(CIDR)).value
        assert isinstance(after, Block)
        assert after.sequence_number == 50 * 20 * 2
        assert after.allocations == (None,) * 64
        assert after.attributes == ()
        assert sorted(after.unallocated) == list(range(64))
        assert store.list(Handles()).records == ()
    check_integrity(path)


def test_processes_that_create_the_file_at_once_share_one(path: Path) -> None:
    herd("create", path, 16, 3)
    with closing(SqliteDatastore(path, node="n1")) as store:
        assert len(store.list(Handles()).records) == 48
    assert [entry.name for entry in path.parent.iterdir()] == ["tortie.db"]


def test_killed_writers_lose_nothing_that_was_committed(path: Path) -> None:
    store = SqliteDatastore(path)
    committed = 0
    with closing(store):
        for _ in range(6):
            with worker("churn", path) as process:
                for _ in range(20):
                    committed = int(heard(process))
                process.kill()
                assert process.stdout is not None
                rest = process.stdout.read().split("\n")
                committed = max([committed, *(int(line) for line in rest[:-1])])
            check_integrity(path)
            left, right = store.list(Handles()).records
            assert left.value == right.value
            assert int(left.revision) >= committed
            assert int(right.revision) == int(left.revision) + 1
            store.create(HandleKey("mine"), handle())
            store.delete(HandleKey("mine"))
    with closing(SqliteDatastore(path)) as again:
        assert len(again.list(Handles()).records) == 2


def test_killing_the_holder_of_the_lock_frees_it_and_undoes_its_work(path: Path) -> None:
    with closing(SqliteDatastore(path, timeout=0.05)) as store:
        kept = store.create(HandleKey("kept"), handle())
        with worker("hold", path) as process:
            assert heard(process) == "held"
            with pytest.raises(Unavailable, match="locked by another process"):
                store.create(HandleKey("blocked"), handle())
            assert store.get(HandleKey("kept")) == kept
            process.kill()
            process.wait()
            store.create(HandleKey("next"), handle())
        assert [r.key for r in store.list(Handles()).records] == [
            HandleKey("kept"),
            HandleKey("next"),
        ]
    check_integrity(path)


def test_a_write_waits_for_a_short_lock(path: Path) -> None:
    with closing(SqliteDatastore(path, timeout=DEADLINE)) as store:
        with worker("hold", path) as process:
            assert heard(process) == "held"
            timer = threading.Timer(0.2, process.kill)
            timer.start()
            store.create(HandleKey("patient"), handle())
            timer.join()
        assert store.get(HandleKey("patient")).value == handle()


# -- watches


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
        if len(self.waits) == 3:
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
        looks = script.waits[:3]
    assert looks == [follower.IDLE, follower.BRISK, 2 * follower.BRISK]
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
        return sum("inotify" in str(fd.readlink()) for fd in _descriptors())

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
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            fd.readlink()
        except OSError:
            continue  # the listing's own
        found.append(fd)
    return found


def test_closed_stores_leave_no_descriptors(path: Path) -> None:
    def once() -> None:
        with closing(SqliteDatastore(path, node="n1")) as store:
            with store.watch(Handles(), store.list(Handles()).revision):
                pass
            with pytest.raises(InvalidInput):
                SqliteDatastore(path, node="n2")

    once()
    before = len(_descriptors())
    for _ in range(5):
        once()
    assert len(_descriptors()) == before


# -- which file this is


def test_the_file_remembers_its_node(path: Path) -> None:
    SqliteDatastore(path, node="node-1").close()
    SqliteDatastore(path, node="node-1").close()
    SqliteDatastore(path).close()  # a tool that is no node
    with pytest.raises(InvalidInput, match=r"tortie\.db belongs to node 'node-1'.*'node-2'"):
        SqliteDatastore(path, node="node-2")
    SqliteDatastore(path, node="node-2", shared=True).close()
    with pytest.raises(InvalidInput, match="sqlite_shared"):
        SqliteDatastore(path, node="node-2")


def test_a_tool_does_not_take_the_file_for_a_node(path: Path) -> None:
    SqliteDatastore(path).close()
    SqliteDatastore(path, node="node-1").close()
    with pytest.raises(InvalidInput):
        SqliteDatastore(path, node="node-2")


def test_an_empty_file_is_not_taken_for_a_new_store(path: Path) -> None:
    path.touch()
    with pytest.raises(Malformed, match=r"tortie\.db is empty.*restore"):
        SqliteDatastore(path)
    assert path.stat().st_size == 0


def test_a_lone_wal_is_not_replayed_into_a_new_store(path: Path) -> None:
    wal = path.with_name("tortie.db-wal")
    wal.write_bytes(b"x" * 4096)
    with pytest.raises(Malformed, match=r"is missing but tortie\.db-wal is there"):
        SqliteDatastore(path)
    assert not path.exists()
    wal.unlink()
    SqliteDatastore(path).close()


@pytest.mark.parametrize("size", [64, 100, 20_000])
def test_a_file_that_is_no_database(path: Path, size: int) -> None:
    path.write_bytes(b"not sqlite! " * (size // 12 + 1))
    with pytest.raises(Malformed, match=r"tortie\.db: file is not a database.*restore"):
        SqliteDatastore(path)


def test_a_database_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE t (x)")
    with pytest.raises(Malformed, match=r"tortie\.db belongs to another program"):
        SqliteDatastore(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    SqliteDatastore(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 2")
    with pytest.raises(Malformed, match="schema version 2, this program knows 1: upgrade"):
        SqliteDatastore(path)


def test_damage_inside_the_file(path: Path) -> None:
    with closing(SqliteDatastore(path)) as store:
        for i in range(500):
            store.create(HandleKey(f"h{i}"), handle())
    size = path.stat().st_size
    with path.open("r+b") as file:  # nobody has it open
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with (
        pytest.raises(Malformed, match=r"tortie\.db: .*restore"),
        closing(SqliteDatastore(path)) as store,
    ):
        for i in range(500):
            store.get(HandleKey(f"h{i}"))


def test_another_journal_mode_is_put_right(path: Path) -> None:
    SqliteDatastore(path).close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        assert path.with_name("tortie.db-wal").exists()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_taken_away_while_in_use_is_noticed(path: Path, how: str) -> None:
    other = path.with_name("other.db")
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        watch = store.watch(Handles(), store.list(Handles()).revision)
        if how == "removed":
            path.rename(path.with_name("gone.db"))
        else:
            SqliteDatastore(other).close()
            other.rename(path)
        with pytest.raises(Unavailable, match="removed or replaced"):
            store.get(HandleKey("h"))
        with pytest.raises(Unavailable, match="removed or replaced"):
            store.create(HandleKey("i"), handle())
        timer = threading.Timer(DEADLINE, watch.close)
        timer.start()
        with pytest.raises(Unavailable, match="removed or replaced"):
            next(iter(watch))
        timer.cancel()


def test_a_watch_works_again_after_the_file_came_back(path: Path) -> None:
    away = path.with_name("away.db")
    with closing(SqliteDatastore(path)) as store:
        start = store.list(Handles()).revision
        path.rename(away)
        with pytest.raises(Unavailable):
            store.watch(Handles(), start)
        away.rename(path)
        store.create(HandleKey("h"), handle())
        assert isinstance(first_event(store, start), Put)
        store.delete(HandleKey("h"))
        assert isinstance(first_event(store, store_revision_before_last(store)), Removed)


def store_revision_before_last(store: SqliteDatastore) -> str:
    return str(int(store.list(Handles()).revision) - 1)


# -- where it is


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#%41" / "tortie.db"
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
    assert path.stat().st_size > 0
    with closing(SqliteDatastore(path)) as store:
        assert store.get(HandleKey("h")).value == handle()


def test_the_file_is_its_owners_alone(path: Path) -> None:
    with closing(SqliteDatastore(path)) as store:
        store.create(HandleKey("h"), handle())
        for suffix in ("", "-wal", "-shm"):
            assert path.with_name(path.name + suffix).stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file/tortie\.db: .*check that the directory"):
        SqliteDatastore(tmp_path / "file" / "tortie.db")


MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:51 / /mnt/share rw shared:1 master:2 - nfs4 server:/x rw,vers=4.2
41 22 0:7 / /mnt/odd\\040name rw - fuse.sshfs a@b: rw
"""


def test_file_system_of_a_device() -> None:
    assert file_system_of(os.makedev(254, 0), MOUNTINFO) == "ext4"
    assert file_system_of(os.makedev(0, 51), MOUNTINFO) == "nfs4"
    assert file_system_of(os.makedev(0, 7), MOUNTINFO) == "fuse.sshfs"
    assert file_system_of(os.makedev(9, 9), MOUNTINFO) == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "file_system_of", lambda *_: kind)
    with pytest.raises(InvalidInput, match=f"is on {kind}.*local disk"):
        SqliteDatastore(path)
    assert not path.exists()


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


@pytest.mark.root
def test_a_full_disk_is_told_and_survived(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "512k") as disk:
        path = disk / "tortie.db"
        with closing(SqliteDatastore(path)) as store:
            start = store.list(Handles()).revision
            stored = [store.create(HandleKey("first"), handle())]
            with pytest.raises(Unavailable, match=r"tortie\.db: .*(no space left|disk)"):
                for i in range(10_000):
                    stored.append(store.create(HandleKey(f"h{i:05}"), handle()))
            assert len(stored) > 10
            assert [r.revision for r in store.list(Handles()).records] == [
                r.revision for r in stored
            ]
            subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
            stored.append(store.create(HandleKey("zz-after"), handle()))
            assert list(store.list(Handles()).records) == stored
            assert first_event(store, start) == Put(stored[0])
        check_integrity(path)
        with closing(SqliteDatastore(path)) as store:
            assert list(store.list(Handles()).records) == stored


@pytest.mark.root
def test_a_disk_too_full_to_begin(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "64k") as disk:
        (disk / "ballast").write_bytes(b"x" * 48 * 1024)
        path = disk / "tortie.db"
        with pytest.raises(Unavailable, match=r"tortie\.db"):
            SqliteDatastore(path)
        assert [entry.name for entry in disk.iterdir()] == ["ballast"]
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        SqliteDatastore(path).close()


@pytest.mark.root
def test_a_read_only_disk_is_told(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "8m") as disk:
        path = disk / "tortie.db"
        with closing(SqliteDatastore(path)) as store:
            store.create(HandleKey("h"), handle())
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with (
            pytest.raises(Unavailable, match=r"tortie\.db: .*may write"),
            closing(SqliteDatastore(path)) as store,
        ):
            store.create(HandleKey("i"), handle())
        with pytest.raises(Unavailable, match=r"new\.db: .*may write"):
            SqliteDatastore(disk / "new.db")
