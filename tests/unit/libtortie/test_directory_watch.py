"""A directory that is watched, and what its end costs whom."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from libtortie.linux import directory_watch
from libtortie.linux.directory_watch import DirectoryWatch
from tests.fakes.followed import DEADLINE


class SlowOs:
    """`os`, whose `close` waits to be let go."""

    def __init__(self) -> None:
        self.let_go, self.done = threading.Event(), threading.Event()
        self.closed: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def close(self, descriptor: int) -> None:
        self.let_go.wait(DEADLINE)
        os.close(descriptor)
        self.closed.append(descriptor)
        self.done.set()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowOs:
    made = SlowOs()
    monkeypatch.setattr(directory_watch, "os", made)
    return made


def test_nobody_waits_while_the_kernel_gives_a_watch_up(tmp_path: Path, slow: SlowOs) -> None:
    """It takes it 10 to 20 ms, and policy is in force."""
    watch = DirectoryWatch(tmp_path)
    watch.close()
    assert slow.closed == []
    slow.let_go.set()
    assert slow.done.wait(DEADLINE)
    assert slow.closed == [watch._inotify]


def test_without_threads_to_be_had_it_is_given_up_all_the_same(
    tmp_path: Path, slow: SlowOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watch = DirectoryWatch(tmp_path)
    slow.let_go.set()
    monkeypatch.setattr(threading.Thread, "start", none_left)
    watch.close()
    assert slow.closed == [watch._inotify]
