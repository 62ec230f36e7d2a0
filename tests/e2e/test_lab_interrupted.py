"""Ctrl-C at any moment of a lab's command leaves nothing of it.

A terminal's Ctrl-C goes to the whole process group: to whatever the command runs just then, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab import control
from lab.cluster import until
from lab.objects import LabMigration
from lab.processes import lab_namespaces
from lab.state import StateDir
from tests.fakes.running_lab import (
    assert_gone,
    assert_settled,
    lab_up,
    start,
    start_when_free,
    when_free,
)

pytestmark = pytest.mark.root

Command = subprocess.Popen[str]
MOMENTS: dict[str, Callable[[StateDir], bool]] = {
    "first namespace": lambda _: bool(lab_namespaces()),
    "some namespaces": lambda _: len(lab_namespaces()) >= 3,
    "first process": lambda state: bool(state.ledger.alive()),
    "first agent": lambda state: any(one.name.startswith("agent") for one in state.ledger.alive()),
}


def wait_for(child: Command, moment: Callable[[], bool], seconds: float = 300) -> None:
    """Until a moment of a running command."""
    deadline = time.monotonic() + seconds
    while not moment():
        assert child.poll() is None, "it ended before the moment came"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)


def ctrl_c(child: Command) -> None:
    """Press it, and wait for the command's end."""
    os.killpg(child.pid, signal.SIGINT)
    _, words = child.communicate(timeout=300)
    assert child.returncode == 1, words


def no_group(child: Command) -> None:
    """No process of the command's group is left, once init has buried the dead of it."""
    deadline = time.monotonic() + 60
    while living := group_of(child.pid):
        assert time.monotonic() < deadline, f"of the command's process group are left: {living}"
        time.sleep(0.01)


def group_of(group: int) -> dict[int, str]:
    """Living processes of a process group, by pid; a zombie is not one."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    """A place for a lab; one that a test failed to end is not left to the next."""
    found = StateDir(tmp_path / "state")
    try:
        yield found
    finally:
        if found.root.exists():
            when_free(found, "down")


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_lab_up(state: StateDir, moment: str) -> None:
    child = start_when_free(state, "up")
    wait_for(child, lambda: MOMENTS[moment](state))
    ctrl_c(child)
    no_group(child)
    assert_gone(state)


@pytest.mark.parametrize("words", ["== lab up", "== pods and a VM", "return to normal", "drain"])
def test_an_interrupted_demo(state: StateDir, tmp_path: Path, words: str) -> None:
    """As soon as it says that it begins something: also within a migration, and with kubectl."""
    said, report = tmp_path / "said", tmp_path / "report.json"
    arguments = ["demo", "--report", str(report), "--convergence", "1s"]
    child = start_when_free(state, *arguments, output=said)
    wait_for(child, lambda: words in said.read_text())
    ctrl_c(child)
    no_group(child)
    assert_gone(state)
    assert '"interrupted"' in report.read_text()


def test_an_interrupted_migrate_leaves_the_migration_to_kubevirt(tmp_path: Path) -> None:
    """The command only watches: the lab stays, the VM arrives, and nothing of either is left."""
    said = tmp_path / "said"
    with lab_up(tmp_path / "state", 1.0) as lab:
        address = lab.cli("vm", "create", "moved").split()[-1]
        for phase in ("Scheduling", "Running"):
            child = start(lab.state, "migrate", "moved", output=said)
            wait_for(child, lambda phase=phase: phase in said.read_text())  # type: ignore[misc]  # bound now
            ctrl_c(child)
            no_group(child)
            until(lambda: all(one.final for one in control.listing(LabMigration)), "")
            phases = {one.status.phase for one in control.listing(LabMigration)}
            assert phases == {"Succeeded"}
            assert_settled(lab, "moved", address)
