"""What is away is told, whether it says so, hangs, or comes back."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from libtortie.errors import NotFound, TortieError, Unauthorized, Unavailable
from libtortie.probing import LATE_SECONDS, Looked, Prober, answers, can_write, complaint


@pytest.mark.parametrize(
    ("looked", "now", "said"),
    [
        (Looked(None), 0.0, ""),
        (Looked(None), LATE_SECONDS - 0.1, ""),
        (Looked(None), LATE_SECONDS, f"no answer for {LATE_SECONDS:.0f} s"),
        (Looked(50.0), 50.0 + LATE_SECONDS - 0.1, ""),
        (Looked(50.0), 50.0 + LATE_SECONDS, f"no answer for {LATE_SECONDS:.0f} s"),
        (Looked(50.0, "refused"), 50.0, "refused"),
    ],
)
def test_a_judgement(looked: Looked, now: float, said: str) -> None:
    assert complaint(looked, 0.0, now) == said


def test_it_is_told_and_told_no_more() -> None:
    faults: list[Exception] = []

    def look() -> None:
        if faults:
            raise faults[0]

    prober = Prober("store", look)
    for fault in (Unavailable("etcd: refused\nmore"), OSError(errno.ENOSPC, "full")):
        faults[:] = [fault]
        prober.once()
        assert prober.wrong() in ("etcd: refused", "[Errno 28] full")
        faults.clear()
        prober.once()
        assert prober.wrong() == ""


def test_a_look_that_hangs_is_told_by_the_clock() -> None:
    now = [0.0]
    begun, end = threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        end.wait()

    prober = Prober("store", look, monotonic=lambda: now[0])
    thread = threading.Thread(target=prober.run)
    thread.start()
    begun.wait()
    assert prober.wrong() == ""
    now[0] = LATE_SECONDS + 3
    assert prober.wrong() == f"no answer for {LATE_SECONDS + 3:.0f} s"
    prober.stop()
    end.set()
    thread.join()


@pytest.mark.parametrize("error", [NotFound("none"), Unauthorized("no")])
def test_any_answer_is_one(error: TortieError) -> None:
    def ask() -> None:
        raise error

    answers(ask)


def test_no_answer_is_none() -> None:
    def ask() -> None:
        raise Unavailable("refused")

    with pytest.raises(Unavailable):
        answers(ask)


def test_a_directory_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    can_write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=f"{tmp_path}/gone: No such file"):
        can_write(tmp_path / "gone")


def test_a_probe_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    body = (
        "import os, pathlib, sys; from libtortie.probing import can_write; "
        "os.fsync = os._exit; can_write(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", body, tmp_path], check=False)
    assert done.returncode != 0, "it ended at the step"
    assert list(tmp_path.iterdir()) == []
