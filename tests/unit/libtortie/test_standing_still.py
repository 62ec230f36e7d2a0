"""Deadlines of waits count the time in which this process could have been answered."""

from __future__ import annotations

import _thread
import signal
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cni_plugin import policy_gate
from libtortie.datastore.etcd_cluster import EtcdCluster
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.etcd_rpc import Failure
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.deadline import MOST_FORGIVEN, STEP, Deadline, communicate, given
from libtortie.errors import NotFound, Unavailable
from libtortie.kube.transport import DeadlineError, Limits
from libtortie.linux import netns
from libtortie.model.keys import HandleKey
from tests.fakes.by_hand import Clock


def waited(limits: Limits, clock: Clock, late: float = 0.0) -> float:
    """Seconds of waiting granted until the deadline; each wait ends by so much too late."""
    granted = 0.0
    while True:
        try:
            step = limits.wait()
        except DeadlineError:
            return granted
        granted += step
        clock.now += step + late


@pytest.mark.parametrize("stop", [None, threading.Event()])
def test_waits_that_end_in_time_add_up_to_the_deadline(stop: threading.Event | None) -> None:
    clock = Clock()
    assert waited(Limits(5.0, stop, clock), clock, late=0.0) == pytest.approx(5.0)
    began = clock.now
    waited(Limits(5.0, stop, clock), clock, late=0.01)
    assert clock.now - began < 5.1


def test_a_wait_in_which_the_process_stood_still_is_granted_again() -> None:
    clock = Clock()
    limits = Limits(5.0, clock=clock)
    limits.wait()
    clock.now += 20
    assert waited(limits, clock) == pytest.approx(5.0)


def test_the_last_wait_is_no_exception_and_neither_is_silence() -> None:
    clock = Clock()
    limits = Limits(0.5, clock=clock)
    limits.stream(100.0, 2.0)
    for _ in range(2):
        clock.now += limits.wait()
    with pytest.raises(DeadlineError, match="silent for 2 s"):
        limits.wait()
    limits.heard()
    limits.wait()
    clock.now += 20
    assert waited(limits, clock) == pytest.approx(2.0)


def test_a_machine_that_hardly_runs_does_not_wait_for_ever() -> None:
    clock = Clock()
    began = clock.now
    waited(Limits(5.0, clock=clock), clock, late=3.0)
    assert clock.now - began <= 5.0 + MOST_FORGIVEN + STEP + 3.0


def test_one_blocking_call_of_the_whole_deadline_is_not_forgiven() -> None:
    clock = Clock()
    limits = Limits(5.0, clock=clock)
    clock.now += limits.left() - 0.1
    assert waited(limits, clock) == pytest.approx(0.1)


def steps(deadline: Deadline, clock: Clock, late: float = 0.0) -> float:
    """As `waited`."""
    granted = 0.0
    while step := deadline.step():
        granted += step
        clock.now += step + late
    return granted


def test_steps_add_up_to_a_deadline_but_for_those_that_ended_late() -> None:
    clock = Clock()
    assert steps(Deadline(5.0, clock), clock) == pytest.approx(5.0)
    deadline = Deadline(5.0, clock)
    deadline.step()
    clock.now += 20
    assert steps(deadline, clock) == pytest.approx(5.0)
    began = clock.now
    steps(Deadline(5.0, clock), clock, late=3.0)
    assert clock.now - began <= 5.0 + MOST_FORGIVEN + STEP + 3.0


def stood_still(monkeypatch: pytest.MonkeyPatch, late: float = 20.0) -> list[float]:
    """Make the next deadlines' first steps end late; the steps that they were given so far."""
    given: list[float] = []

    class Late(Deadline):
        def __init__(self, seconds: float) -> None:
            self.clock = Clock()
            super().__init__(seconds, self.clock)

        def step(self, most: float = STEP) -> float:
            wait = super().step(most)
            given.append(wait)
            self.clock.now += wait + (late if len(given) == 1 else 0.0)
            return wait

    for module in (
        "libtortie.datastore.sqlite",
        "libtortie.datastore.etcd_cluster",
        "cni_plugin.policy_gate",
        "felix_shim.drivers.nftables",
    ):
        monkeypatch.setattr(f"{module}.Deadline", Late)
    return given


class Held:
    """A lock that is given at the second asking."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.asked.append(timeout)
        return len(self.asked) == 2

    def release(self) -> None:
        pass


def test_a_writer_to_sqlite_outlives_a_machine_that_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteDatastore(tmp_path / "db")) as store:
        lock = Held()
        monkeypatch.setattr(store, "_write_lock", lock)
        stood_still(monkeypatch)
        with pytest.raises(NotFound):
            store.delete(HandleKey("h"))
        assert lock.asked == [STEP, STEP]


def test_a_read_of_etcd_that_ended_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own deadline passes while nobody runs."""
    cluster = EtcdCluster(EtcdConfig("http://127.0.0.1:1"), Timing(), choose=lambda _: 0)
    asked: list[float] = []

    def call(method: str, request: object, seconds: float, metadata: object) -> bytes:
        asked.append(seconds)
        if len(asked) == 1:
            raise Failure(Unavailable("deadline exceeded"), untouched=False, again=True)
        return b""

    monkeypatch.setattr(cluster._current(), "call", call)
    stood_still(monkeypatch)
    assert cluster.read("range", b"") == b""
    assert asked[0] == 5.0 and len(asked) == 2
    cluster.close()


def test_a_process_of_ours_is_waited_for_in_steps_and_killed_at_last() -> None:
    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        with given("in") as file:
            return subprocess.Popen(["/bin/cat"], stdin=file, stdout=pipe, stderr=pipe, text=True)

    assert communicate(start(), Deadline(60.0)) == ("in", "")
    clock = Clock()
    deadline = Deadline(5.0, clock)
    clock.now += 6
    done = communicate(start(), deadline)
    assert done == ("in", ""), "it stood still from the start"
    silent = subprocess.Popen(
        ["/bin/sleep", "inf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        communicate(silent, Deadline(0.01))
    assert silent.returncode == -signal.SIGKILL


def test_an_answer_of_nft_that_came_late_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin's question whether there is a table; a slow nft is asked no second time."""
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\necho asked\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    given = stood_still(monkeypatch, late=40.0)  # longer than the deadline as a whole
    monkeypatch.setattr(policy_gate, "_NFT_DEADLINE", STEP)
    assert policy_gate.nft_table_present()
    assert given == [STEP]


def test_an_nft_that_never_answers_is_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\nexec sleep inf\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(policy_gate, "_NFT_DEADLINE", 0.01)
    assert not policy_gate.nft_table_present()


def test_an_endpoints_policy_is_waited_for_while_the_machine_stands_still(tmp_path: Path) -> None:
    """The agent stood still as well; it writes the file in the time that both have run."""
    clock = Clock()
    steps_taken: list[float] = []

    class Watch:
        def wait(self, seconds: float) -> None:
            steps_taken.append(seconds)
            clock.now += seconds + (30.0 if len(steps_taken) == 1 else 0.0)
            if len(steps_taken) == 3:
                (tmp_path / "file").write_text('{"containerID": "c1"}')

        def close(self) -> None:
            pass

    gate = policy_gate.FilePolicyGate(
        tmp_path, lambda: True, monotonic=clock, watch=lambda _: Watch()
    )
    assert gate.wait("file", "c1", 2.0)
    assert steps_taken == [1.0, 1.0, 1.0]


def test_work_in_a_namespace_outlives_a_machine_that_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    class Overslept:
        """Its first waiter gets up late, and before the work has run."""

        def __init__(self) -> None:
            self._lock = _thread.allocate_lock()

        def acquire(self, timeout: float = -1) -> bool:
            if timeout < 0 or go_on.is_set():
                return self._lock.acquire(timeout=timeout)
            go_on.set()
            return False

        def release(self) -> None:
            self._lock.release()

    monkeypatch.setattr("libtortie.linux.netns.threading.Lock", Overslept)
    assert netns.on_thread(lambda: go_on.wait(60), 30.0, "work")


def test_work_in_a_namespace_ends_by_its_deadline() -> None:
    over = threading.Event()
    try:
        with pytest.raises(Unavailable, match=r"work did not end within 0\.01 s"):
            netns.on_thread(over.wait, 0.01, "work")
    finally:
        over.set()


class Hasty(Deadline):
    """Waits in very small steps."""

    def step(self, most: float = 0.02) -> float:
        return super().step(most)


def test_a_long_input_is_read_in_however_many_steps() -> None:
    text = "x" * 1_000_000
    with given(text) as file:
        process = subprocess.Popen(
            ["sh", "-c", "sleep 0.2; cat; echo end >&2"],
            text=True,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    out, err = communicate(process, Hasty(60.0))
    assert (out == text, err) == (True, "end\n")
