"""A lab that did not survive makes way for the next; one that lives, or what is no lab's, stays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab import teardown
from lab.cli import main
from lab.cluster import make_way
from lab.state import ENTRIES, LabRecord, StateDir, active_root, refuse_foreign
from lab.teardown import is_alive, tear_down
from lab.tools import LabError


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """A lab that another checkout started; nothing but its files is on this machine.

    Whatever runs here besides, in a lab that is real, is none of the test's.
    """
    for module in ("lab.state", "lab.teardown"):
        monkeypatch.setattr(f"{module}.ACTIVE", tmp_path / "active")
    monkeypatch.setattr("lab.cluster.missing_tools", list)
    monkeypatch.setattr("lab.names.NETNS_DIR", tmp_path / "netns")
    state = StateDir(tmp_path / "theirs")
    state.write(LabRecord(3, "8s", checkout="/elsewhere"))
    return state


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_lab_of_which_only_files_are_left_makes_way(
    tmp_path: Path, theirs: StateDir, place: str
) -> None:
    """It was killed before it made anything, or the machine was started anew."""
    made = tmp_path / "made"
    made.mkdir()
    theirs.write(LabRecord(3, "8s", (str(made),)))
    (theirs.root / "processes").write_text(f"{os.getpid()} 1 an agent before the reboot\n")
    ours = theirs if place == "here" else StateDir(tmp_path / "ours")
    make_way(ours)
    assert not theirs.root.exists()
    assert not made.exists()
    assert active_root() is None


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_lab_that_has_a_process_does_not_make_way(
    tmp_path: Path, theirs: StateDir, place: str
) -> None:
    theirs.ledger.add(os.getpid(), "an agent")
    ours = theirs if place == "here" else StateDir(tmp_path / "ours")
    with pytest.raises(LabError, match="a lab is up already"):
        make_way(ours)
    assert theirs.record_file.exists()


def test_a_process_is_what_a_lab_lives_by(
    theirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded or in a namespace of it; a namespace or mount outlives whoever ended them all."""
    monkeypatch.setattr("lab.teardown.lab_namespaces", lambda: ("tlab-of-theirs",))
    monkeypatch.setattr("lab.teardown.mounts_under", lambda root: (str(root / "ns"),))
    assert not is_alive(theirs)
    with monkeypatch.context() as patch:
        patch.setattr("lab.teardown.in_namespaces", lambda _: (os.getpid(),))
        assert is_alive(theirs)
    theirs.ledger.add(os.getpid(), "an agent")
    assert is_alive(theirs)


@pytest.mark.parametrize(
    "text", ["", '{"nodes": 3, "conv', "[]", "7", '{"nodes": 3}', "[" * 200_000]
)
def test_a_record_that_a_power_failure_damaged_is_in_nobodys_way(
    theirs: StateDir, text: str
) -> None:
    theirs.record_file.write_text(text)
    with pytest.raises(LabError, match=r"damaged .*--state-dir .*/theirs down` removes"):
        theirs.read()
    with pytest.raises(LabError, match=r"another checkout \(unknown\)"):
        refuse_foreign(theirs, given=False)
    refuse_foreign(theirs, given=True)
    make_way(theirs)
    assert not theirs.root.exists()


def test_a_lab_whose_directory_somebody_removed_is_not_taken_down_with_another(
    tmp_path: Path, theirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes live; who has started it can still end it, and nobody else by accident."""
    shutil.rmtree(theirs.root)
    monkeypatch.setattr("lab.teardown.in_namespaces", lambda _: (os.getpid(),))
    with pytest.raises(LabError, match=r"the lab that is up is in .*/theirs; to end it"):
        tear_down(StateDir(tmp_path / "ours"))
    assert active_root() == theirs.root


def test_what_is_no_labs_is_left_alone(theirs: StateDir) -> None:
    """A directory of somebody's, with a file that happens to have the record's name."""
    (theirs.root / "log").mkdir()
    theirs.record_file.write_text('{"cells": []}')
    mine = theirs.root / "thesis"
    mine.write_text("all of it")
    with pytest.raises(LabError, match=r"what no lab makes \(thesis\)"):
        make_way(theirs)
    assert theirs.record_file.exists()
    tear_down(theirs)
    assert list(theirs.root.iterdir()) == [mine]
    assert active_root() is None


@pytest.mark.parametrize("step", range(len(ENTRIES)))
def test_a_removal_that_was_killed_is_resumed(
    tmp_path: Path, theirs: StateDir, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    theirs.write(LabRecord(3, "8s", (str(made),)))
    for name in ENTRIES[:-1]:
        path = theirs.root / name
        path.touch() if name in ("kubeconfig", "processes", "lab.new") else path.mkdir()
    left = [step]

    def remove(path: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path)

    real = teardown._remove
    with monkeypatch.context() as patch:
        patch.setattr("lab.teardown._remove", remove)
        with pytest.raises(KeyboardInterrupt):
            make_way(theirs)
    make_way(StateDir(tmp_path / "ours"))
    assert not theirs.root.exists()
    assert not made.exists()


@pytest.mark.parametrize("text", [b"", b"\n", b"\0\0\0", b"\377\n", b"."])
def test_a_name_of_the_lab_that_is_up_may_be_cut_short(
    tmp_path: Path, theirs: StateDir, text: bytes
) -> None:
    (tmp_path / "active").write_bytes(text)
    assert active_root() is None
    make_way(theirs)
    assert not theirs.root.exists()


@pytest.mark.parametrize("text", [b"\377\376", "² ³ x\n".encode(), b"9" * 5000 + b" 1 x\n"])
def test_a_damaged_ledger_names_nobody(theirs: StateDir, text: bytes) -> None:
    (theirs.root / "processes").write_bytes(text)
    make_way(theirs)
    assert not theirs.root.exists()


@pytest.mark.parametrize("made_dirs", [[1], [None], [["/x"]], "/x", ["/a\0b"], ["\ud800"]])
def test_odd_directories_in_a_record(theirs: StateDir, made_dirs: object) -> None:
    record = {"nodes": 1, "convergence": "8s", "made_dirs": made_dirs}
    theirs.record_file.write_text(json.dumps(record))
    make_way(theirs)
    assert not theirs.root.exists()


def test_a_state_directory_behind_a_link_is_known_by_its_place(
    tmp_path: Path, theirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounts below it are found by their real paths."""
    seen: list[StateDir] = []

    def render(state: StateDir) -> str:
        seen.append(state)
        return ""

    monkeypatch.setattr("lab.cli_rim.os.geteuid", lambda: 0)
    monkeypatch.setattr("lab.cli.render_status", render)
    (tmp_path / "link").symlink_to(theirs.root)
    done = CliRunner().invoke(main, ["--state-dir", str(tmp_path / "link"), "status"])
    assert done.exit_code == 0, done.output
    assert seen == [theirs]
