"""What the hypervisors remember, and what became of a move that nobody watched."""

from __future__ import annotations

from pathlib import Path

from lab.cutover import Report
from lab.guest_store import Guest, GuestStore, settle
from lab.plumbing import PodInterface


def guest() -> Guest:
    return Guest(
        vmi_uid="vmi-uid",
        name="vm",
        hypervisor="tlab-hv-vm",
        netns="tlab-vm-vm",
        pod_uid="pod-1",
        interface=PodInterface("02:00:00:00:00:01", 1500, ("10.65.0.2/32", "fd00::2/128")),
        targets={"pod-2"},
        moving={"job-2": "pod-2"},
        moved={"job-0": Report(1, 2, (3, 4)), "job-1": None},
        failed={"job-x": "no"},
    )


def test_a_guest_is_remembered_whole(tmp_path: Path) -> None:
    store = GuestStore(tmp_path / "guests")
    store.save(guest())
    assert list(GuestStore(tmp_path / "guests").load()) == [guest()]
    assert guest().addresses == ("10.65.0.2", "fd00::2")
    assert (guest().address(4), guest().address(6)) == guest().addresses


def test_a_guest_that_was_stopped_is_forgotten(tmp_path: Path) -> None:
    store = GuestStore(tmp_path)
    store.save(guest())
    store.report_file("job-0").write_text(Report(1, 2).to_json())
    store.forget(guest())
    store.forget(guest())
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_writing_leaves_the_last_record(tmp_path: Path) -> None:
    store = GuestStore(tmp_path)
    store.save(guest())
    (tmp_path / "vmi-uid.new").write_text('{"vmi_uid": "vmi-')
    assert list(store.load()) == [guest()]


def test_a_report_is_there_or_not(tmp_path: Path) -> None:
    store = GuestStore(tmp_path / "guests")
    assert store.report("job-1") is None
    store.report_file("job-1").write_text(Report(1, 2, (3,)).to_json())
    assert store.report("job-1") == Report(1, 2, (3,))


def test_the_cable_that_forwards_says_what_became_of_a_move() -> None:
    assert settle(frozenset({"c-target"}), "c-target") == "moved"
    assert settle(frozenset({"c-source"}), "c-target") == "waits"
    assert settle(frozenset(), "c-target") == "lost"
