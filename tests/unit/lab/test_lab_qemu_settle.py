"""Where a QEMU guest goes on, by what both QEMUs say."""

from __future__ import annotations

from itertools import product

import pytest

from lab.qemu_control import Status
from lab.qemu_settle import Seen, Step, next_step

STATES = ("running", "paused", "inmigrate", "finish-migrate", "postmigrate")
EVERY = [None, *(Seen(status, state) for status in Status for state in STATES)]
RUNS = Seen(Status.NONE, "running")
"""A guest that nobody has moved."""
CAME = Seen(Status.COMPLETED, "running")
"""One that has come from elsewhere before."""
SENT = Seen(Status.COMPLETED, "postmigrate")
WAITING = Seen(Status.NONE, "inmigrate")
ARRIVED = Seen(Status.COMPLETED, "paused")


@pytest.mark.parametrize(
    ("source", "target", "step"),
    [
        (RUNS, WAITING, Step.STAY),  # it listens, for all that it says
        (CAME, WAITING, Step.STAY),
        (RUNS, None, Step.STAY),
        (CAME, None, Step.STAY),
        (Seen(Status.COMPLETED, "paused"), Seen(Status.SETUP, "inmigrate"), Step.STAY),
        (Seen(Status.ACTIVE, "paused"), Seen(Status.ACTIVE, "inmigrate"), Step.CANCEL),
        (Seen(Status.ACTIVE, "running"), None, Step.CANCEL),
        (Seen(Status.PRE_SWITCHOVER, "paused"), Seen(Status.ACTIVE, "inmigrate"), Step.CANCEL),
        (Seen(Status.DEVICE, "finish-migrate"), Seen(Status.ACTIVE, "inmigrate"), Step.CANCEL),
        (Seen(Status.CANCELLING, "paused"), None, Step.LOOK),
        (Seen(Status.CANCELLED, "paused"), Seen(Status.FAILED, "inmigrate"), Step.STAY),
        (Seen(Status.FAILED, "running"), None, Step.STAY),
        (SENT, Seen(Status.ACTIVE, "inmigrate"), Step.LOOK),
        (Seen(Status.COMPLETED, "finish-migrate"), ARRIVED, Step.TAKE),
        (SENT, ARRIVED, Step.TAKE),
        (SENT, CAME, Step.TAKE),
        (SENT, Seen(Status.FAILED, "inmigrate"), Step.STAY),
        (SENT, None, Step.STAY),
        (None, ARRIVED, Step.TAKE),
        (None, CAME, Step.TAKE),
        (None, Seen(Status.ACTIVE, "inmigrate"), Step.LOOK),
        (None, Seen(Status.SETUP, "inmigrate"), Step.GIVE_UP),
        (None, WAITING, Step.GIVE_UP),
        (None, None, Step.GIVE_UP),
    ],
)
def test_what_is_next(source: Seen | None, target: Seen | None, step: Step) -> None:
    assert next_step(source, target) is step


@pytest.mark.parametrize("source", [RUNS, CAME, Seen(Status.FAILED, "running")])
def test_what_has_not_begun_can_still_be_done(source: Seen) -> None:
    assert next_step(source, WAITING, begun=False) is Step.NOTHING
    assert next_step(None, WAITING, begun=False) is Step.GIVE_UP
    assert next_step(source, None, begun=False) is Step.STAY


def test_never_in_two_places() -> None:
    """The target takes only what was sent to its end, by one that can no longer run."""
    for source, target in product(EVERY, EVERY):
        step = next_step(source, target)
        if step is Step.TAKE:
            assert target is not None and (target.running or target.status is Status.COMPLETED)
            assert source is None or source.sent
        assert step is not Step.NOTHING
        if step is Step.STAY:
            assert source is not None and not (
                target is not None and source.sent and target.running
            )
        if step is Step.GIVE_UP:
            assert source is None
