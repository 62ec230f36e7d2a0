"""What measures commands: no figure for one that failed, and none that outlives its measurement."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tests.bench import gc_run
from tests.bench.gc import MOST_MIB, jobs, rows_of
from tests.bench.gc_run import Failed, Used, run

UNHURRIED = 300.0
USED = Used(seconds=59.9, processor_s=40.0, peak_mib=MOST_MIB, last="")


def shell(script: str, *, says: str = "", most_seconds: float = UNHURRIED) -> Used:
    return run(["sh", "-c", script], dict(os.environ), says=says, most_seconds=most_seconds)


def test_a_command_that_says_what_it_must_has_its_figures() -> None:
    used = shell("echo first; echo; echo last", says="first\n\nlast")
    assert used.last == "last"
    assert used.seconds > 0
    assert used.peak_mib > 0


def test_of_a_large_output_the_end_is_kept() -> None:
    used = shell(f"head -c {3 * gc_run.TAIL} /dev/zero; echo; echo done", says="\ndone")
    assert used.last == "done"


def test_one_that_fails_has_none_and_neither_has_one_that_says_something_else() -> None:
    with pytest.raises(Failed, match="ended with 3: what went wrong"):
        shell("echo what went wrong; exit 3")
    with pytest.raises(Failed, match="did not say 'found 0 problems': found 1 problems"):
        shell("echo found 1 problems", says="found 0 problems")


def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(Failed, match=r"was ended after 0\.1 s"):
        shell("exec sleep 1000", most_seconds=0.1)


def test_one_whose_measurement_is_stopped_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    def stopped(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(gc_run, "_tail", stopped)
    with pytest.raises(KeyboardInterrupt):
        shell("exec sleep 1000")
    assert [one.returncode for one in begun] == [-9]


def test_one_that_was_being_started_when_the_measurement_was_stopped_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Stopped(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)
            signal.raise_signal(signal.SIGTERM)

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(number)

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            shell("exec sleep 1000")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [one.returncode for one in begun] == [-9]


def test_a_row_is_met_up_to_its_target(tmp_path: Any) -> None:
    *_, check, one_pass, told = jobs(tmp_path, 100)
    for job in (check, one_pass, told):
        assert job.most_seconds == 60
        assert [row.met for row in rows_of("5 nodes", job, USED, None)] == [True, True]
        slow = replace(USED, seconds=60.1)
        assert [row.met for row in rows_of("5 nodes", job, slow, None)] == [False, True]
        large = replace(USED, peak_mib=MOST_MIB + 1)
        assert [row.met for row in rows_of("5 nodes", job, large, None)] == [True, False]
    show = jobs(tmp_path, 100)[0]
    rows = rows_of("5 nodes", show, replace(USED, seconds=10.1), None)
    assert [row.met for row in rows] == [False, True]
