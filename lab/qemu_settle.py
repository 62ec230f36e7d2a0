"""Where a QEMU guest goes on, whatever was killed while it moved: in one place, or nowhere.

The decision (`next_step`) is a function of what both QEMUs say. Two rules keep the guest from
running twice: it goes on at the source only after the target's QEMU is dead, and at the target only
once the source has sent all of it and says so, or is dead itself. As libvirt's, a source that has
sent everything to a target that then died goes on.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lab.guest_store import Outcome
from lab.qemu_control import Control, Status
from lab.qemu_process import attach, end
from lab.qmp import DEADLINE_S, QmpGone
from lab.tools import LabError

LOOK_S = 0.002
BEGUN = "begun"
"""The file in a target's directory that says that a mover has touched either QEMU."""
HELD = "held"
"""The file in a source's directory that says that its guest was paused to be moved, and by us."""
_SENDING = (Status.SETUP, Status.ACTIVE, Status.PRE_SWITCHOVER, Status.DEVICE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a QEMU says: of its last migration, whichever way, and of its guest's processors."""

    status: Status
    state: str = "paused"

    @property
    def running(self) -> bool:
        """Whether the guest runs here."""
        return self.state == "running"

    @property
    def sent(self) -> bool:
        """Whether it has sent everything; one that has only received says `completed`, too."""
        return self.status is Status.COMPLETED and self.state in ("finish-migrate", "postmigrate")


class Step(StrEnum):
    """What is to be done next: the first two and another look, or what ends it."""

    LOOK = "look again"
    CANCEL = "cancel at the source"
    NOTHING = "nothing has begun"
    STAY = "go on at the source"
    TAKE = "go on at the target"
    GIVE_UP = "nobody has the guest"


def next_step(source: Seen | None, target: Seen | None, *, begun: bool = True) -> Step:
    """From what both say; None is a QEMU that has ended.

    Whether the move has `begun` neither can tell: a target that listens says `none` still, and a
    source what became of its last migration.
    """
    if not begun and source is not None and target is not None:
        return Step.NOTHING
    arrived = target is not None and (target.running or target.status is Status.COMPLETED)
    if arrived and (source is None or source.sent):
        return Step.TAKE
    if source is None:
        lost = target is None or target.status in (Status.NONE, Status.SETUP, Status.FAILED)
        return Step.GIVE_UP if lost else Step.LOOK
    if source.status in _SENDING:
        return Step.CANCEL
    undecided = source.status is Status.CANCELLING or (source.sent and not _failed(target))
    return Step.LOOK if undecided else Step.STAY


def _failed(target: Seen | None) -> bool:
    return target is None or target.status is Status.FAILED


def settle(source: Path, target: Path, deadline: float = DEADLINE_S) -> Outcome:
    """Look and act until it is settled; may be repeated. Raises `LabError`."""
    until = time.monotonic() + deadline
    while (outcome := _look_and_act(source, target)) is None:
        if time.monotonic() > until:
            raise LabError(f"the move to {target} is not settled after {deadline:g} s")
        time.sleep(LOOK_S)
    if outcome in (Outcome.MOVED, Outcome.DEAD):
        end(source)
    if outcome is Outcome.DEAD:
        end(target)
    return outcome


def begin(target: Path) -> None:
    """Before anything else: from now on somebody has to settle."""
    (target / BEGUN).touch()


def hold(source: Control) -> None:
    """Pause a guest that runs, so that whoever settles knows that it is to go on."""
    if source.running:
        (source.directory / HELD).touch()
        source.pause()


def go_on(control: Control, source: Path) -> None:
    """Let a guest go on, unless it was paused before anybody moved it."""
    if (source / HELD).exists() and not control.running:
        control.qmp.do("cont")


def _look_and_act(source: Path, target: Path) -> Outcome | None:
    """One look; None when there has to be another."""
    with ExitStack() as stack:
        try:
            here, there = _attached(source, stack), _attached(target, stack)
            begun = (target / BEGUN).exists()
            step = next_step(_seen(here), _seen(there), begun=begun)
            return _act(step, here, there, source)
        except QmpGone:
            return None  # one has died, or dies, under our hands


def _attached(directory: Path, stack: ExitStack) -> Control | None:
    found = attach(directory, look_s=LOOK_S)
    if found is not None:
        stack.callback(found.close)
    return found


def _seen(control: Control | None) -> Seen | None:
    return None if control is None else Seen(control.progress().status, control.state)


def _act(step: Step, here: Control | None, there: Control | None, source: Path) -> Outcome | None:
    """Do a step; None when one has to look again."""
    match step:
        case Step.CANCEL if here is not None:
            here.cancel()
        case Step.NOTHING:
            return Outcome.WAITS
        case Step.STAY if here is not None:
            if there is not None:
                end(there.directory)
            go_on(here, source)
            (source / HELD).unlink(missing_ok=True)
            return Outcome.LOST
        case Step.TAKE if there is not None:
            go_on(there, source)
            return Outcome.MOVED
        case Step.GIVE_UP:
            return Outcome.DEAD
    return None
