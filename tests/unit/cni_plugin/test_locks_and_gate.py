"""The attachment lock among threads and processes; the undo stack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_plugin import locks as locks_module
from cni_plugin.locks import FileLocks
from cni_plugin.undo import SECONDS, Undo
from libtortie.errors import Unavailable
from tests.fakes.cni_world import Clock

HOLDER = """
import sys
from pathlib import Path
from cni_plugin.locks import FileLocks
with FileLocks(Path(sys.argv[1])).hold("k", 5):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_at_a_time_among_threads(tmp_path: Path) -> None:
    locks, inside, most = FileLocks(tmp_path / "new" / "dir"), [0], [0]

    def work() -> None:
        for _ in range(20):
            with locks.hold("k", 90):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert list((tmp_path / "new" / "dir").iterdir()) == []


def test_two_keys_do_not_wait_for_each_other(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path)
    with locks.hold("a", 0), locks.hold("b", 0):
        assert locks.busy("a")
        assert not locks.busy("c")
    assert not locks.busy("a")


def test_a_thread_waits_boundedly(tmp_path: Path) -> None:
    locks, errors = FileLocks(tmp_path), []

    def late() -> None:
        try:
            with locks.hold("k", 0.02):
                pass
        except Unavailable as error:
            errors.append(error)

    with locks.hold("k", 0):
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_another_process_and_its_death(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert locks.busy("k")
        with pytest.raises(Unavailable, match="another process"), locks.hold("k", 0.02):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(60)
        assert not locks.busy("k")
        with locks.hold("k", 0):
            pass
    finally:
        holder.kill()
        holder.wait(60)
        for pipe in (holder.stdin, holder.stdout):
            if pipe:
                pipe.close()


def test_an_unusable_directory_is_try_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="lock file"), FileLocks(tmp_path / "file").hold("k", 0):
        pass


def run_undo(*actions: object, disarm: bool = False) -> tuple[list[str], Clock]:
    clock, events = Clock(), []
    with pytest.raises(ValueError, match="first"), ExitStack() as stack:

        def log(event: str, /, **fields: object) -> None:
            events.append(event)

        undo = Undo(stack, clock.monotonic, clock.sleep, log)
        for number, action in enumerate(actions):
            undo.push(str(number), action)  # type: ignore[arg-type]  # parametrised callables
        if disarm:
            undo.disarm()
        raise ValueError("first")
    return events, clock


def test_undo_runs_backwards_and_keeps_the_first_error() -> None:
    ran: list[int] = []

    def broken() -> None:
        raise Unavailable("for ever")

    events, clock = run_undo(lambda: ran.append(1), broken, lambda: ran.append(3))
    assert ran == [3, 1]
    assert set(events) == {"undo_failed"}
    assert clock.elapsed <= SECONDS


def test_a_step_is_tried_again() -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("once more")

    run_undo(flaky)
    assert len(tries) == 3


def test_disarmed() -> None:
    ran: list[int] = []
    run_undo(lambda: ran.append(1), disarm=True)
    assert ran == []


def test_a_lock_on_a_file_that_was_just_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder unlinked it between our open and our flock."""
    real = locks_module._try_lock
    removed: list[Path] = []

    def overtaken(descriptor: int) -> bool:
        if not removed:
            (file,) = tmp_path.iterdir()
            file.unlink()
            removed.append(file)
        return real(descriptor)

    monkeypatch.setattr(locks_module, "_try_lock", overtaken)
    with FileLocks(tmp_path).hold("k", 1):
        assert FileLocks(tmp_path).busy("k"), "another process sees it held"
