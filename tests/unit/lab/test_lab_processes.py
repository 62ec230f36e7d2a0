"""Whose process is it: pids with start times, the queue of keys, the lock."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.cli import main
from lab.cluster import meshed, sessions_of, until
from lab.names import lab_nodes
from lab.processes import Ledger, Recorded, is_same, start_time
from lab.state import CHECKOUT, LabRecord, StateDir, active_root, lab_lock, refuse_foreign
from lab.teardown import tear_down
from lab.tools import LabError, run
from lab.workqueue import WorkQueue


def test_a_pid_alone_is_not_a_process() -> None:
    began = start_time(os.getpid())
    assert began is not None
    assert is_same(Recorded(os.getpid(), began, "me"))
    assert not is_same(Recorded(os.getpid(), began + 1, "somebody before me"))


def test_a_pid_without_process_has_no_start() -> None:
    assert start_time(2**22 + 1) is None


def test_ledger_names_the_living(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "processes")
    assert ledger.alive() == ()
    ledger.add(os.getpid(), "agent of node1")
    with (tmp_path / "processes").open("a") as file:
        file.write(f"{os.getpid()} 1 an earlier process\n77")
    assert [one.name for one in ledger.alive()] == ["agent of node1"]


def test_record_is_read_back_and_absence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.state.ACTIVE", tmp_path / "active")
    state = StateDir(tmp_path / "lab")
    assert active_root() is None
    with pytest.raises(LabError, match="start one with `lab up`"):
        state.read()
    state.write(LabRecord(3, "8s", ("/x",)))
    assert state.read() == LabRecord(3, "8s", ("/x",))
    assert active_root() == state.root


def test_a_lab_in_another_place_is_not_torn_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lab.state", "lab.teardown"):
        monkeypatch.setattr(f"{module}.ACTIVE", tmp_path / "active")
    StateDir(tmp_path / "theirs").write(LabRecord(3, "8s"))
    with pytest.raises(LabError, match=r"up is in .*/theirs; .*--state-dir .*/theirs"):
        tear_down(StateDir(tmp_path / "ours"))
    assert (tmp_path / "theirs" / "lab.json").exists()


def test_one_lab_command_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    refused = pytest.raises(LabError, match="another lab command")
    with lab_lock(path), refused, lab_lock(path, patience_s=0.2):
        pass
    assert not path.exists()
    with lab_lock(path):
        assert path.exists()


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    path, held = tmp_path / "lock", threading.Event()
    got: list[str] = []

    def second() -> None:
        held.wait()
        with lab_lock(path, patience_s=60):
            got.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with lab_lock(path):
        held.set()
        got.append("first")
    thread.join()
    assert got == ["first", "second"]


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """A lab that is up, started from another checkout."""
    for module in ("lab.state", "lab.teardown"):
        monkeypatch.setattr(f"{module}.ACTIVE", tmp_path / "active")
    state = StateDir(tmp_path / "theirs")
    state.write(LabRecord(3, "8s", checkout="/elsewhere"))
    return state


def test_only_a_lab_of_this_checkout_is_changed_without_being_named(
    tmp_path: Path, theirs: StateDir
) -> None:
    with pytest.raises(LabError, match=r"checkout \(/elsewhere\); .*--state-dir .*/theirs$"):
        refuse_foreign(theirs, given=False)
    refuse_foreign(theirs, given=True)
    with pytest.raises(LabError, match=r"is in .*/theirs; .*--state-dir .*/theirs$"):
        refuse_foreign(StateDir(tmp_path / "ours"), given=True)
    theirs.write(LabRecord(3, "8s"))
    assert theirs.read().checkout == str(CHECKOUT)
    refuse_foreign(theirs, given=False)


def test_a_lab_whose_origin_is_unknown_is_another_ones(theirs: StateDir) -> None:
    theirs.record_file.write_text('{"nodes": 3, "convergence": "8s", "made_dirs": []}')
    with pytest.raises(LabError, match=r"another checkout \(unknown\)"):
        refuse_foreign(theirs, given=False)


@pytest.mark.parametrize(
    "command",
    [
        "down",
        "vm create a",
        "vm delete a",
        "vm stop a",
        "vm start a",
        "vm restart a",
        "vmi create a",
        "vmi delete a",
        "pod create a --node node1",
        "pod delete a",
        "pod kill-sandbox a",
        "migrate a",
        "kubectl -- get pods",
        "exec node1 -- true",
        "exec tor -- true",
    ],
)
def test_each_changing_command_refuses_a_lab_of_another_checkout(
    theirs: StateDir, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("lab.cli_rim.os.geteuid", lambda: 0)
    monkeypatch.setattr("lab.cli_rim.os.execvp", lambda *_: pytest.fail("it ran"))
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 1
    assert f"--state-dir {theirs.root}" in done.output
    assert theirs.record_file.exists()
    words = command.split(" --", maxsplit=1)[0].split()
    assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", ["up", "demo", "bench"])
def test_no_second_lab_beside_one_of_another_checkout(
    theirs: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("lab.cli_rim.os.geteuid", lambda: 0)
    monkeypatch.setattr("lab.cluster.missing_tools", lambda: ())
    monkeypatch.setattr("lab.names.NETNS_DIR", tmp_path / "netns")
    theirs.ledger.add(os.getpid(), "an agent")
    for module in ("cli", "demo", "bench"):
        monkeypatch.setattr(f"lab.{module}.lab_lock", contextlib.nullcontext)
    own = ["--state-dir", str(tmp_path / "ours")]
    done = CliRunner().invoke(main, [*own, command])
    assert done.exit_code == 1
    assert f"a lab is up already in {theirs.root}" in done.output


def test_exec_runs_in_places_that_are_no_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.state.ACTIVE", tmp_path / "active")
    monkeypatch.setattr("lab.cli_rim.os.geteuid", lambda: 0)
    ran: list[list[str]] = []
    monkeypatch.setattr("lab.cli_rim.os.execvp", lambda _, argv: ran.append(argv))
    state = StateDir(tmp_path / "lab")
    state.write(LabRecord(3, "8s"))
    for place in ("tor", "ext", "api"):
        assert CliRunner().invoke(main, ["exec", place, "--", "ip", "route"]).exit_code == 0
    assert ran == [
        ["nsenter", f"--net=/run/netns/tlab-{place}", "--", "ip", "route"]
        for place in ("tor", "ext", "api")
    ]
    done = CliRunner().invoke(main, ["exec", "node4", "--", "true"])
    assert done.exit_code == 1
    assert "there are node1, node2, node3, tor, ext, api" in done.output


def test_every_session_of_the_mesh_is_waited_for() -> None:
    nodes = lab_nodes(3)
    assert sessions_of(nodes[1], nodes) == {
        "mesh_172_31_0_11",
        "mesh_172_31_0_13",
        "peer_172_31_0_1",
        "mesh_fd00_172_31__11",
        "mesh_fd00_172_31__13",
        "peer_fd00_172_31__1",
    }


def test_with_reflectors_the_others_have_sessions_with_them_only() -> None:
    nodes = lab_nodes(4)
    reflecting = nodes[:2]
    assert sessions_of(nodes[3], nodes, reflecting) == {
        *("node_172_31_0_11", "node_172_31_0_12"),
        *("node_fd00_172_31__11", "node_fd00_172_31__12"),
    }
    assert sessions_of(nodes[0], nodes, reflecting) == {
        *("node_172_31_0_12", "node_172_31_0_13", "node_172_31_0_14"),
        *("node_fd00_172_31__12", "node_fd00_172_31__13", "node_fd00_172_31__14"),
        *("peer_172_31_0_1", "peer_fd00_172_31__1"),
    }


def test_a_lab_without_its_whole_mesh_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = "{0} BGP --- up 10:00:00.000 Established\n"
    tor = "".join(up.format(name) for name in ("node1", "node2", "node1_v6", "node2_v6"))
    six = {
        n: up.format(f"mesh_fd00_172_31__{m}") + up.format("peer_fd00_172_31__1")
        for n, m in (("node1", 12), ("node2", 11))
    }
    lacking = {
        "node1": up.format("mesh_172_31_0_12") + up.format("peer_172_31_0_1") + six["node1"],
        "node2": up.format("peer_172_31_0_1")
        + "mesh_172_31_0_11 BGP --- start 10:00 Connect\n"
        + six["node2"],
    }
    answers = dict(lacking)

    def fake_run(argv: list[str]) -> str:
        asked = (text for node, text in answers.items() if argv[1].endswith(f"tlab-{node}"))
        return next(asked, tor)

    monkeypatch.setattr("lab.cluster.run", fake_run)
    with pytest.raises(LabError, match=r"missing: node2: mesh_172_31_0_11; see"):
        meshed(StateDir(tmp_path), 2)
    answers["node2"] += up.format("mesh_172_31_0_11")
    assert meshed(StateDir(tmp_path), 2)
    tor = up.format("node1") + up.format("node1_v6") + up.format("node2")
    with pytest.raises(LabError, match="missing: tor: node2_v6; see"):
        meshed(StateDir(tmp_path), 2)


def test_a_tools_last_words_are_in_the_error() -> None:
    with pytest.raises(LabError, match="exit 3: oh no"):
        run(["sh", "-c", "echo oh no >&2; exit 3"])
    with pytest.raises(LabError, match="no end after"):
        run(["sleep", "60"], timeout=0.05)
    with pytest.raises(LabError, match="no-such-tool"):
        run(["no-such-tool"])


def test_queue_never_works_on_one_key_twice_at_once_and_once_more_after_a_change() -> None:
    started, release, calls = threading.Semaphore(0), threading.Semaphore(0), []
    busy = threading.Lock()

    def work(key: str) -> None:
        assert busy.acquire(blocking=False), "two at once"
        calls.append(key)
        started.release()
        assert release.acquire(timeout=60)
        busy.release()

    queue = WorkQueue(work, print)
    queue.start()
    queue.add("a")
    assert started.acquire(timeout=60)
    for _ in range(3):
        queue.add("a")
    release.release()
    assert started.acquire(timeout=60)
    release.release()
    queue.stop()
    assert calls == ["a", "a"]


def test_queue_tries_again_after_a_failure() -> None:
    done = threading.Event()
    told: list[str] = []
    tries: list[str] = []

    def work(key: str) -> None:
        tries.append(key)
        if len(tries) < 2:
            raise LabError("not yet")
        done.set()

    queue = WorkQueue(work, told.append)
    queue.start()
    queue.add("a")
    assert done.wait(60)
    queue.stop()
    assert tries == ["a", "a"]
    assert "not yet" in told[0]


def test_queue_works_on_other_keys_meanwhile() -> None:
    first, second = threading.Event(), threading.Event()

    def work(key: str) -> None:
        if key == "a":
            assert second.wait(60)
            first.set()
        else:
            second.set()

    queue = WorkQueue(work, print)
    queue.start()
    queue.add("a")
    queue.add("b")
    assert first.wait(60)
    queue.stop()


def test_waiting_ends_when_the_process_waited_for_has_ended() -> None:
    with subprocess.Popen(["sh", "-c", "exit 7"]) as child:
        child.wait()
        with pytest.raises(LabError, match="no socket: its process ended with 7"):
            until(lambda: False, "no socket", deadline=30, child=child)
    with pytest.raises(LabError, match=r"after 0\.01 s: never true"):
        until(lambda: False, "never true", deadline=0.01)
