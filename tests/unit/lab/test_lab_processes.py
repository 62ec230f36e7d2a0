"""Whose process is it: pids with start times, the queue of keys, the lock."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from lab.cluster import until
from lab.processes import Ledger, Recorded, is_same, start_time
from lab.state import LabRecord, StateDir, active_root, lab_lock
from lab.teardown import tear_down
from lab.tools import LabError, run
from lab.workqueue import WorkQueue


def test_a_pid_alone_is_not_a_process() -> None:
    began = start_time(os.getpid())
    assert began is not None
    assert is_same(Recorded(os.getpid(), began, "me"))
    assert not is_same(Recorded(os.getpid(), began + 1, "somebody before me"))


def test_a_pid_without_process_has_no_start() -> None:
    assert start_time(2**22 + 1) is None


def test_ledger_names_the_living(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "processes")
    assert ledger.alive() == ()
    ledger.add(os.getpid(), "agent of node1")
    with (tmp_path / "processes").open("a") as file:
        file.write(f"{os.getpid()} 1 an earlier process\n77")
    assert [one.name for one in ledger.alive()] == ["agent of node1"]


def test_record_is_read_back_and_absence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.state.ACTIVE", tmp_path / "active")
    state = StateDir(tmp_path / "lab")
    assert active_root() is None
    with pytest.raises(LabError, match="start one with `lab up`"):
        state.read()
    state.write(LabRecord(3, "8s", ("/x",)))
    assert state.read() == LabRecord(3, "8s", ("/x",))
    assert active_root() == state.root


def test_a_lab_in_another_place_is_not_torn_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lab.state", "lab.teardown"):
        monkeypatch.setattr(f"{module}.ACTIVE", tmp_path / "active")
    StateDir(tmp_path / "theirs").write(LabRecord(3, "8s"))
    with pytest.raises(LabError, match=r"the lab that is up is in .*/theirs: use --state-dir"):
        tear_down(StateDir(tmp_path / "ours"))
    assert (tmp_path / "theirs" / "lab.json").exists()


def test_one_lab_command_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lab_lock(path), pytest.raises(LabError, match="another lab command"), lab_lock(path):
        pass
    assert not path.exists()
    with lab_lock(path):
        assert path.exists()


def test_a_tools_last_words_are_in_the_error() -> None:
    with pytest.raises(LabError, match="exit 3: oh no"):
        run(["sh", "-c", "echo oh no >&2; exit 3"])
    with pytest.raises(LabError, match="no end after"):
        run(["sleep", "5"], timeout=0.05)
    with pytest.raises(LabError, match="no-such-tool"):
        run(["no-such-tool"])


def test_queue_never_works_on_one_key_twice_at_once_and_once_more_after_a_change() -> None:
    started, release, calls = threading.Semaphore(0), threading.Semaphore(0), []
    busy = threading.Lock()

    def work(key: str) -> None:
        assert busy.acquire(blocking=False), "two at once"
        calls.append(key)
        started.release()
        assert release.acquire(timeout=5)
        busy.release()

    queue = WorkQueue(work, print)
    queue.start()
    queue.add("a")
    assert started.acquire(timeout=5)
    for _ in range(3):
        queue.add("a")
    release.release()
    assert started.acquire(timeout=5)
    release.release()
    queue.stop()
    assert calls == ["a", "a"]


def test_queue_tries_again_after_a_failure() -> None:
    done = threading.Event()
    told: list[str] = []
    tries: list[str] = []

    def work(key: str) -> None:
        tries.append(key)
        if len(tries) < 2:
            raise LabError("not yet")
        done.set()

    queue = WorkQueue(work, told.append)
    queue.start()
    queue.add("a")
    assert done.wait(5)
    queue.stop()
    assert tries == ["a", "a"]
    assert "not yet" in told[0]


def test_queue_works_on_other_keys_meanwhile() -> None:
    first, second = threading.Event(), threading.Event()

    def work(key: str) -> None:
        if key == "a":
            assert second.wait(5)
            first.set()
        else:
            second.set()

    queue = WorkQueue(work, print)
    queue.start()
    queue.add("a")
    queue.add("b")
    assert first.wait(5)
    queue.stop()


def test_waiting_ends_when_the_process_waited_for_has_ended() -> None:
    with subprocess.Popen(["sh", "-c", "exit 7"]) as child:
        child.wait()
        with pytest.raises(LabError, match="no socket: its process ended with 7"):
            until(lambda: False, "no socket", deadline=30, child=child)
    with pytest.raises(LabError, match=r"after 0\.01 s: never true"):
        until(lambda: False, "never true", deadline=0.01)
