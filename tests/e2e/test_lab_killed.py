"""A lab that was killed in the middle: `lab down` and Ctrl-C leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.processes import is_same, lab_namespaces
from lab.state import NODE_MOUNTS, StateDir
from lab.teardown import leftovers

pytestmark = pytest.mark.root

MOMENTS: dict[str, Callable[[StateDir], bool]] = {
    "some namespaces": lambda _: len(lab_namespaces()) >= 3,
    "first process": lambda state: bool(state.ledger.alive()),
    "first agent": lambda state: any(one.name.startswith("agent") for one in state.ledger.alive()),
}


def start(state: StateDir, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lab.cli", "--state-dir", str(state.root), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(state: StateDir, moment: Callable[[StateDir], bool]) -> None:
    deadline = time.monotonic() + 30
    while not moment(state):
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)


def assert_gone(state: StateDir, made: set[str]) -> None:
    assert leftovers(state) == ()
    assert lab_namespaces() == ()
    assert {place for place in NODE_MOUNTS if Path(place).exists()} == made


@pytest.fixture
def present() -> set[str]:
    """Mount points the machine has without a lab."""
    assert lab_namespaces() == (), "a lab is up"
    return {place for place in NODE_MOUNTS if Path(place).exists()}


@pytest.mark.parametrize("moment", MOMENTS)
def test_lab_down_removes_what_a_killed_lab_up_left(
    tmp_path: Path, present: set[str], moment: str
) -> None:
    state = StateDir(tmp_path / "state")
    with start(state, "up") as child:
        wait_for(state, MOMENTS[moment])
        child.kill()
    assert lab_namespaces()
    assert start(state, "down").wait(30) == 0
    assert_gone(state, present)


def test_lab_down_removes_a_lab_whose_processes_were_killed(
    tmp_path: Path, present: set[str]
) -> None:
    state = StateDir(tmp_path / "state")
    assert start(state, "up").wait(60) == 0
    assert start(state, "vm", "create", "doomed").wait(60) == 0
    victims = state.ledger.alive()
    assert len(victims) >= 6
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    assert start(state, "down").wait(30) == 0
    assert_gone(state, present)


def test_lab_down_removes_a_killed_demo_and_its_measuring_processes(
    tmp_path: Path, present: set[str]
) -> None:
    state = StateDir(tmp_path / "state")
    with start(state, "demo", "--report", str(tmp_path / "report.json")) as child:
        wait_for(state, probing)
        measuring = [one for one in state.ledger.alive() if one.name.startswith("lab.")]
        child.kill()
    assert start(state, "down").wait(30) == 0
    assert_gone(state, present)
    assert not any(is_same(one) for one in measuring)


def probing(state: StateDir) -> bool:
    return any(one.name == "lab.observers" for one in state.ledger.alive())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up_and_says_so(
    tmp_path: Path, present: set[str], number: signal.Signals
) -> None:
    state, report = StateDir(tmp_path / "state"), tmp_path / "report.json"
    with start(state, "demo", "--report", str(report)) as child:
        wait_for(state, probing)
        child.send_signal(number)
        assert child.wait(60) == 1
    assert_gone(state, present)
    assert '"interrupted"' in report.read_text()


def test_lab_down_without_a_lab_is_fine(tmp_path: Path, present: set[str]) -> None:
    state = StateDir(tmp_path / "state")
    assert start(state, "down").wait(30) == 0
    assert_gone(state, present)
