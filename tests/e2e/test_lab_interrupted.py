"""Ctrl-C at any moment of a lab's command leaves nothing of it.

A terminal's Ctrl-C goes to the whole process group: to whatever the command runs just then, too.
"""

from __future__ import annotations

import os
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
from tests.fakes.caught_lab import Command, caught, caught_again, ctrl_c
from tests.fakes.running_lab import assert_gone, assert_settled, lab_up, when_free

pytestmark = pytest.mark.root

MOMENTS: dict[str, Callable[[StateDir], bool]] = {
    "first namespace": lambda _: bool(lab_namespaces()),
    "some namespaces": lambda _: len(lab_namespaces()) >= 3,
    "first process": lambda state: bool(state.ledger.alive()),
    "first agent": lambda state: any(one.name.startswith("agent") for one in state.ledger.alive()),
}


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
def test_an_interrupted_lab_up(state: StateDir, tmp_path: Path, moment: str) -> None:
    has_come = MOMENTS[moment]
    child = caught(state, "up", said=tmp_path / "said", moment=lambda: has_come(state), over="up: ")
    ctrl_c(child)
    no_group(child)
    assert_gone(state)


@pytest.mark.parametrize("words", ["== lab up", "== pods and a VM", "return to normal", "drain"])
def test_an_interrupted_demo(state: StateDir, tmp_path: Path, words: str) -> None:
    """As soon as it says that it begins something: also within a migration, and with kubectl."""
    said, report = tmp_path / "said", tmp_path / "report.json"
    child = caught(
        state,
        *("demo", "--report", str(report), "--convergence", "1s"),
        said=said,
        moment=lambda: words in said.read_text(),
        over="== lab down",
    )
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
            child = caught_again(
                lab.state, "migrate", "moved", said=said, word=phase, over="Succeeded"
            )
            ctrl_c(child)
            no_group(child)
            until(lambda: all(one.final for one in control.listing(LabMigration)), "")
            phases = {one.status.phase for one in control.listing(LabMigration)}
            assert phases == {"Succeeded"}
            assert_settled(lab, "moved", address)
