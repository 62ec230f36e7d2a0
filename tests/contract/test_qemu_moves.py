"""A QEMU guest on its way from one QEMU to another, with a death or a wish at every phase.

Whatever happens, the guest goes on in one place, and only there, unless the QEMU that had it died;
no other QEMU is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.guest_store import Outcome
from lab.qemu_control import Status, Transfer
from lab.qemu_process import running
from lab.qemu_settle import begin, hold, settle
from tests.fakes.migration_proxies import until
from tests.fakes.qemu_moves import Ends, Mover, seed, talk

PHASES = (Status.ACTIVE, Status.PRE_SWITCHOVER, Status.COMPLETED)
"""In which a move can be held: memory moves; all has moved but the devices; all has."""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed(tmp_path_factory.mktemp("seed"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def ends(tmp_path: Path, state: Path, stack: ExitStack) -> Ends:
    return Ends.make(tmp_path, state, stack)


def begun(ends: Ends, stack: ExitStack, phase: str = "") -> Mover:
    """A mover that is at work; held in a phase, it is there."""
    mover = Mover(ends, stack, hold=phase)
    assert mover.heard() == {"ready": True}
    mover.say("go")
    if phase:
        assert mover.heard() == {"held": phase}
    return mover


def kill(directory: Path) -> None:
    """SIGKILL for a QEMU."""
    found = running(directory)
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)
    until(lambda: running(directory) is None)


def test_a_guest_moves_and_comes_back_with_figures(ends: Ends, stack: ExitStack) -> None:
    mover = begun(ends, stack)
    arrived, report = mover.heard(), mover.heard()
    assert 0 < arrived["unplugged_ns"] < arrived["plugged_ns"] == report["plugged_ns"]
    assert report["qemu_total_ms"] > 0
    assert 0 <= report["qemu_downtime_ms"] <= report["qemu_total_ms"]
    assert mover.report.exists()
    ends.goes_on(ends.target)


def test_a_guest_that_was_paused_arrives_paused(ends: Ends, stack: ExitStack) -> None:
    control = talk(ends.source)
    control.pause()
    control.close()
    mover = begun(ends, stack)
    assert mover.heard()["plugged_ns"]
    there = talk(ends.target)
    assert not there.running
    there.qmp.do("cont")
    there.close()
    ends.goes_on(ends.target)


@pytest.mark.parametrize("phase", ["", *PHASES])
def test_a_mover_that_is_killed_is_settled_by_who_started_it(
    ends: Ends, stack: ExitStack, phase: str
) -> None:
    mover = Mover(ends, stack) if not phase else begun(ends, stack, phase)
    if not phase:
        assert mover.heard() == {"ready": True}
    mover.kill()
    outcome = settle(ends.source, ends.target)
    expected = {"": Outcome.WAITS, Status.COMPLETED: Outcome.MOVED}
    assert outcome is expected.get(phase, Outcome.LOST)
    assert settle(ends.source, ends.target) is outcome
    if outcome is Outcome.WAITS:
        again = begun(ends, stack)
        assert again.heard()["plugged_ns"]
    ends.goes_on(ends.source if outcome is Outcome.LOST else ends.target)


def test_a_mover_killed_between_the_pause_and_the_sending(ends: Ends) -> None:
    """The target listens and would go on doing so: it goes, and the guest goes on."""
    there, here = talk(ends.target), talk(ends.source)
    begin(ends.target)
    there.listen(ends.target / "memory", Transfer())
    hold(here)
    there.close()
    here.close()
    assert settle(ends.source, ends.target) is Outcome.LOST
    ends.goes_on(ends.source)


@pytest.mark.parametrize("phase", PHASES)
def test_a_move_called_off(ends: Ends, stack: ExitStack, phase: str) -> None:
    """Once all has been sent it is too late: the guest arrives."""
    mover = begun(ends, stack, phase)
    mover.say("cancel")
    said = mover.heard()
    if phase == Status.COMPLETED:
        assert said["plugged_ns"] > said["unplugged_ns"]
        ends.goes_on(ends.target)
    else:
        assert said == {"failed": "the migration was cancelled"}
        ends.goes_on(ends.source)


def test_a_move_called_off_before_it_began(ends: Ends, stack: ExitStack) -> None:
    mover = Mover(ends, stack)
    assert mover.heard() == {"ready": True}
    mover.say("cancel")
    assert "before it began" in mover.heard()["failed"]
    again = begun(ends, stack)
    assert again.heard()["plugged_ns"]
    ends.goes_on(ends.target)


@pytest.mark.parametrize("phase", PHASES)
def test_a_target_killed_in_the_move(ends: Ends, stack: ExitStack, phase: str) -> None:
    """The guest goes on at the source, also when all had been sent."""
    mover = begun(ends, stack, phase)
    kill(ends.target)
    wake(mover, phase)
    assert mover.heard()["failed"]
    ends.goes_on(ends.source)


@pytest.mark.parametrize("phase", PHASES)
def test_a_source_killed_in_the_move(ends: Ends, stack: ExitStack, phase: str) -> None:
    """The guest dies with it, unless all had been sent."""
    mover = begun(ends, stack, phase)
    kill(ends.source)
    wake(mover, phase)
    said = mover.heard()
    if phase == Status.COMPLETED:
        assert said["plugged_ns"]
        ends.goes_on(ends.target)
    else:
        assert "the guest is dead" in said["failed"]
        assert ends.here() == []


def wake(mover: Mover, phase: str) -> None:
    """Where a move is held it does not look at its QEMUs; while memory moves, it does."""
    if phase != Status.ACTIVE:
        mover.say("cancel")


@pytest.mark.parametrize("end", ["source", "target"])
def test_an_end_that_is_dead_before_the_move(ends: Ends, stack: ExitStack, end: str) -> None:
    kill(getattr(ends, end))
    mover = Mover(ends, stack)
    assert mover.heard() == {"failed": f"QEMU of the {end} has ended"}
    if end == "target":
        ends.goes_on(ends.source)
