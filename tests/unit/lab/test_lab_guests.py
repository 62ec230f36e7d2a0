"""What the hypervisors make of boots, moves and deaths, whatever the guests are made of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from lab.cutover import Report
from lab.guest_kind import Wishes
from lab.guest_store import QEMU, GuestStore, Outcome
from lab.hypervisor import Guests, Move
from lab.plumbing import PodInterface
from lab.state import StateDir
from lab.tools import LabError
from tests.fakes.guest_kind import WordGuests
from tests.fakes.lab_world import launcher, vmi

ETH0 = PodInterface("02:00:00:00:00:01", 1440, ("10.65.0.2/32",))
UID = "vmi-uid"
MOVE = Move("job-1", "pod-2", Wishes(), 0.0)
READY, THERE = "echo '{\"ready\": true}'; read go", "echo '{\"unplugged_ns\": 1}'"
REPORT = f"echo '{Report(1, 2, (), 30, 300).to_json()}'"
PATIENCE = 60.0


class Host:
    """Guests of one kind; `turn` waits until something has changed."""

    def __init__(self, root: Path, kind: WordGuests) -> None:
        self.state, self.kind = StateDir(root), kind
        self._changes: SimpleQueue[None] = SimpleQueue()
        self.said: list[str] = []
        root.mkdir(exist_ok=True)
        self.guests = Guests(
            self.state,
            self.said.append,
            lambda: self._changes.put(None),
            kind=QEMU,
            kinds={QEMU: kind},
            bind=lambda _netns, _uid: ETH0,
        )

    def turn(self) -> None:
        self._changes.get(timeout=PATIENCE)

    def start(self) -> None:
        self.guests.start(vmi(), launcher("pod-1", "node1"))

    def boot(self) -> None:
        """A guest that runs."""
        self.kind.may_boot.set()
        self.start()
        self.turn()

    def move(self) -> None:
        self.guests.cut_over(UID, MOVE)
        self.turn()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "lab", WordGuests())


def test_a_guest_is_booted_once_however_often_it_was_planned(host: Host) -> None:
    host.start()
    host.start()
    assert host.guests.all() == ()
    host.kind.may_boot.set()
    host.turn()
    host.start()  # planned by a look that was before its end
    assert host.kind.booted == 1
    (found,) = GuestStore(host.state.guests).load()
    assert (found.pod_uid, found.interface, found.kind) == ("pod-1", ETH0, QEMU)


def test_a_boot_that_failed_is_told_and_tried_again(host: Host) -> None:
    host.kind.refusals.append("no memory")
    host.boot()
    with pytest.raises(LabError, match="no memory"):
        host.start()
    host.boot()
    assert host.guests.get(UID) is not None


def test_a_wish_for_a_guest_that_there_is_not(host: Host) -> None:
    wish = vmi()
    wish.metadata.annotations["lab.tortie.io/guest"] = "cat"
    host.guests.start(wish, launcher("pod-1", "node1"))
    host.turn()
    with pytest.raises(LabError, match="guest 'cat' is none of packet, qemu"):
        host.start()


def test_a_guest_that_has_died_is_forgotten(host: Host) -> None:
    host.boot()
    host.guests.tend()
    assert host.guests.get(UID) is not None
    host.kind.living.clear()
    host.guests.tend()
    assert host.guests.all() == ()
    assert list(GuestStore(host.state.guests).load()) == []


def test_a_move_that_ends_well(host: Host) -> None:
    host.kind.script = f"{READY}; {THERE}; {REPORT}"
    host.boot()
    host.move()
    found = host.guests.get(UID)
    assert found is not None
    assert (found.pod_uid, found.moving, found.failed) == ("pod-2", {}, {})
    assert found.moved == {"job-1": Report(1, 2, (), 30, 300)}


def test_a_move_that_says_that_it_failed(host: Host) -> None:
    host.kind.script = f"""{READY}; echo '{json.dumps({"failed": "no way"})}'"""
    host.boot()
    host.move()
    found = host.guests.get(UID)
    assert found is not None
    assert (found.pod_uid, found.moving, found.failed) == ("pod-1", {}, {"job-1": "no way"})


@pytest.mark.parametrize("outcome", Outcome)
def test_a_mover_that_was_killed_is_settled(host: Host, outcome: Outcome) -> None:
    host.kind.script, host.kind.outcome = READY, outcome
    host.boot()
    host.move()
    found = host.guests.get(UID)
    assert found is not None
    assert found.moving == {}
    if outcome is Outcome.MOVED:
        assert (found.pod_uid, found.moved, found.failed) == ("pod-2", {"job-1": None}, {})
    else:
        assert found.failed == {"job-1": "the process that moved the guest was killed"}


def test_a_mover_that_was_killed_when_the_guest_had_arrived(host: Host) -> None:
    """There is nothing to settle: the source has gone, and the target is the guest."""
    host.kind.script = f"{READY}; {THERE}"
    host.boot()
    host.move()
    found = host.guests.get(UID)
    assert found is not None
    assert (found.pod_uid, found.moved, found.failed) == ("pod-2", {"job-1": None}, {})


def test_a_move_is_called_off_late_where_that_can_be(host: Host) -> None:
    held = """echo '{"held": "active"}'; read word; echo "{\\"failed\\": \\"$word\\"}\""""
    host.kind.script = f"{READY}; {held}"
    host.boot()
    host.guests.cut_over(UID, MOVE)
    _until(lambda: "guest held on its way: active" in host.said)
    host.guests.abort(UID, "job-1", "aborted")
    host.turn()
    found = host.guests.get(UID)
    assert found is not None
    assert found.failed == {"job-1": "aborted"}


@pytest.mark.parametrize("outcome", Outcome)
def test_a_control_plane_finds_what_became_of_a_move(
    host: Host, tmp_path: Path, outcome: Outcome
) -> None:
    host.boot()
    found = host.guests.get(UID)
    assert found is not None
    found.moving["job-1"] = "pod-2"
    GuestStore(host.state.guests).save(found)
    host.kind.outcome = outcome
    after = Host(tmp_path / "lab", host.kind)
    after.guests.recover()
    again = after.guests.get(UID)
    assert again is not None
    assert again.moving == {}
    assert again.pod_uid == ("pod-2" if outcome is Outcome.MOVED else "pod-1")
    assert bool(again.failed) is (outcome in (Outcome.LOST, Outcome.DEAD))


def _until(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.001)
