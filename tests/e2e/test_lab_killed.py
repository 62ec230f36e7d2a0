"""A lab that was killed in the middle: `lab down` and Ctrl-C leave nothing.

Each case waits until no other lab is up, starts its own and ends only that one.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import names
from lab.cluster import bury_dead
from lab.processes import is_same, kill_all, lab_namespaces
from lab.state import NODE_MOUNTS, StateDir, active_state, lab_lock
from lab.teardown import mounts_under
from tests.fakes.running_lab import (
    BUSY_DEADLINE_S,
    Patience,
    assert_gone,
    run_cli,
    start_when_free,
    when_free,
)

pytestmark = pytest.mark.root

MOMENTS: dict[str, Callable[[StateDir], bool]] = {
    "some namespaces": lambda _: len(lab_namespaces()) >= 3,
    "first process": lambda state: bool(state.ledger.alive()),
    "first agent": lambda state: any(one.name.startswith("agent") for one in state.ledger.alive()),
}


def wait_for(
    child: subprocess.Popen[str], state: StateDir, moment: Callable[[StateDir], bool]
) -> None:
    """Until a moment of a running command, whose state then lasts."""
    deadline = time.monotonic() + 300
    while not moment(state):
        assert child.poll() is None, "it ended before the moment came"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)


def mount_points() -> set[str] | None:
    """Directories nodes mount over that the machine has without a lab; None while one is up."""
    with lab_lock(patience_s=BUSY_DEADLINE_S):
        bury_dead(StateDir(names.DEFAULT_STATE_DIR))
        up = active_state() is not None or lab_namespaces()
        return None if up else {place for place in NODE_MOUNTS if Path(place).exists()}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    """A place for a lab; afterwards it is gone, and no mount point was added."""
    patience = Patience()
    while (before := mount_points()) is None:
        patience.wait("it is up, or namespaces of it are left")
    found = StateDir(tmp_path / "state")
    try:
        yield found
        assert_gone(found)
        after = mount_points()
        assert after is None or after == before
    finally:
        if found.root.exists():
            when_free(found, "down")


def end(child: subprocess.Popen[str]) -> None:
    """Kill a command that may have ended, and reap it."""
    child.kill()
    child.communicate()


@pytest.mark.parametrize("moment", MOMENTS)
def test_lab_down_removes_what_a_killed_lab_up_left(state: StateDir, moment: str) -> None:
    child = start_when_free(state, "up")
    try:
        wait_for(child, state, MOMENTS[moment])
    finally:
        end(child)
    assert lab_namespaces()
    when_free(state, "down")


def test_lab_down_removes_a_lab_whose_processes_were_killed(state: StateDir) -> None:
    kill_a_lab(state)
    when_free(state, "down")


def kill_a_lab(state: StateDir) -> None:
    """Start one, and end all its processes at once, its guest's too."""
    when_free(state, "up")
    run_cli(state, "vm", "create", "doomed")
    victims = state.ledger.alive()
    assert len(victims) >= 6
    assert kill_all(state.ledger)
    assert lab_namespaces()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_lab_whose_processes_were_killed_is_in_nobodys_way(
    state: StateDir, tmp_path: Path, forgotten: bool
) -> None:
    """The kernel kept what it has of it; somebody may even have emptied its directory."""
    kill_a_lab(state)
    made = state.read().made_dirs
    if forgotten:
        for mount in reversed(mounts_under(state.root)):
            subprocess.run(["umount", "-l", mount], check=True)
        shutil.rmtree(state.root)
    other = StateDir(tmp_path / "next")
    when_free(other, "up", "--nodes", "1")
    try:
        assert "node1" in run_cli(other, "status")
        assert not state.root.exists()
    finally:
        when_free(other, "down")
        if forgotten:  # nobody knows any more that a lab made these
            for path in reversed(made):
                Path(path).rmdir()


def test_lab_down_removes_a_killed_demo_and_its_measuring_processes(
    state: StateDir, tmp_path: Path
) -> None:
    child = start_when_free(state, *measured_demo(tmp_path / "report.json"))
    try:
        wait_for(child, state, probing)
        measuring = [one for one in state.ledger.alive() if one.name.startswith("lab.")]
    finally:
        end(child)
    when_free(state, "down")
    assert measuring
    assert not any(is_same(one) for one in measuring)


def measured_demo(report: Path) -> list[str]:
    """A demo that measures its first migration until somebody ends it."""
    return ["demo", "--report", str(report), "--convergence", "1h"]


def probing(state: StateDir) -> bool:
    return any(one.name == "lab.observers" for one in state.ledger.alive())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up_and_says_so(
    state: StateDir, tmp_path: Path, number: signal.Signals
) -> None:
    report = tmp_path / "report.json"
    child = start_when_free(state, *measured_demo(report))
    try:
        wait_for(child, state, probing)
        child.send_signal(number)
        _, words = child.communicate(timeout=600)
    finally:
        end(child)
    assert child.returncode == 1, words
    assert not state.root.exists()
    assert '"interrupted"' in report.read_text()


def test_lab_down_without_a_lab_is_fine(state: StateDir) -> None:
    when_free(state, "down")
