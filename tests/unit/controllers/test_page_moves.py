"""Migrations on the page, where a node's clock is wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controllers.page.moves import Move, move_sheet, moves_of
from controllers.page.past import past_of
from controllers.page.render import document
from controllers.page.sheet import Part
from libtortie.model.history import Fact, Step, What
from tests.unit.libtortie.test_history import NOW, chain
from tests.unit.tortiectl.test_vm_trace import MOVE

BEGAN = NOW.replace(year=2026, month=1, day=1, hour=0, minute=0, second=6, microsecond=0)
STEPS = {Step.PREPARED: 0.0, Step.HEARD: 1.0, Step.RAISED: 1.002, Step.SETTLED: 1.5}


def moves(by: timedelta) -> tuple[Move, ...]:
    """What KubeVirt has of a migration, and an agent whose clock is so wrong."""
    facts = [
        Fact(
            BEGAN + timedelta(seconds=after) + by, What.MIGRATION, "n2", namespace="shop",
            vm="web", pod="new", node="n2",
            details={"step": step.value, "migration_uid": "job"},
        )
        for step, after in STEPS.items()
    ]  # fmt: skip
    return moves_of([MOVE], past_of(facts))


@pytest.mark.parametrize("hours", [0, 1, -1, 24 * 365])
def test_what_agents_saw_is_between_its_beginning_and_end(hours: int) -> None:
    (one,) = moves(timedelta(hours=hours))
    told = document(move_sheet(one, NOW, Part()))
    seen = [each["text"] for each in told["moments"]["items"] if each["source"] == "history"]
    assert [text.rpartition(": ")[2] for text in seen] == [step.value for step in STEPS]
    assert one.moments[0].event == "created"
    span = one.moments[-1].time - one.moments[0].time
    assert span < timedelta(seconds=30)
    notes = [note for note in told["notes"] if note.startswith("The clock of n2 is wrong")]
    assert len(notes) == (hours != 0)
    assert one.seconds() == 8.0


def test_two_nodes_whose_clocks_contradict_each_other_are_told() -> None:
    """Of migrations that KubeVirt has forgotten."""
    listed = moves_of([], past_of(chain(-1)))
    assert [one.uid for one in listed] == ["m2", "m1"], "the newest first"
    found = {one.uid: one for one in listed}
    (told,) = [
        note for note in document(move_sheet(found["m2"], NOW, Part()))["notes"] if "clocks" in note
    ]
    assert told == "the clocks of its two nodes differ by 3540 s or more."
    notes = document(move_sheet(found["m1"], NOW, Part()))["notes"]
    assert all("clocks" not in note for note in notes)
