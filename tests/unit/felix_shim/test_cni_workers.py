"""Worker processes: how many, whose turn it is, and what the agent makes of their reports."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from cni_plugin.calls import LOCK, Call
from cni_plugin.frame import Response
from felix_shim import cni_workers
from felix_shim.cni_server import Serve
from felix_shim.cni_worker import Reports, Turns, work
from felix_shim.cni_workers import ASK, BEGIN, Worker, Workers, number_of
from tests.fakes.agent_world import RecordingLog

DEADLINE = 60.0


@pytest.mark.parametrize(
    ("wanted", "cores", "number"),
    [(None, 1, 0), (None, 2, 1), (None, 64, 1), (0, 8, 0), (3, 1, 3)],
)
def test_one_worker_where_there_is_a_core_for_it(
    wanted: int | None, cores: int, number: int
) -> None:
    assert number_of(wanted, cores) == number


def test_so_many_have_their_turn_and_the_next_after_a_while() -> None:
    turns = Turns(abreast=1, patience=0.01)
    with turns.turn(), turns.turn():  # the second was let pass
        pass
    patient = Turns(abreast=1, patience=DEADLINE)
    began = threading.Event()

    def next_one() -> None:
        with patient.turn():
            began.set()

    with patient.turn():
        thread = threading.Thread(target=next_one)
        thread.start()
        assert not began.wait(0.05)
    assert began.wait(DEADLINE)
    thread.join()


class Agent:
    """An agent's end, with workers whose other ends the test has."""

    def __init__(self, count: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self.members = [Worker(number, ours) for number, (ours, _) in enumerate(pairs)]
        self.ends = [theirs for _, theirs in pairs]
        self.log = RecordingLog()
        self.calls: list[tuple[str, float, int]] = []
        self.at_work = 0
        self.returned: list[str] = []
        self.ended: list[int] = []
        bury = self.ended.append
        self.workers = Workers(self.members, self.log, self._observe, self._count, bury)
        self.threads = [
            threading.Thread(target=self.workers.follow, args=(one,)) for one in self.members
        ]
        for thread in self.threads:
            thread.start()

    def _observe(self, call: Call, code: int) -> None:
        self.calls.append((call.command, round(call.seconds, 6), code))

    def _count(self, more: int) -> None:
        self.at_work += more

    def take(self, name: str) -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return self.workers.take(ours, lambda: self.returned.append(name))

    def say(self, number: int, **report: object) -> None:
        self.ends[number].send(json.dumps(report).encode())

    def lose(self, number: int) -> None:
        self.ends[number].close()
        self.threads[number].join(DEADLINE)
        assert not self.threads[number].is_alive()

    def serve(self, number: int) -> None:
        self.say(number, serves=True)
        while not self.members[number].serves:
            assert self.threads[number].is_alive()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent(2)
    yield made
    for number in range(2):
        made.lose(number)
        made.members[number].channel.close()


def test_nobody_takes_a_request_before_it_serves_or_after_it_is_gone(agent: Agent) -> None:
    assert not agent.take("early")
    agent.serve(0)
    assert agent.take("one")
    agent.lose(0)
    assert not agent.take("late")
    assert agent.returned == ["one"]
    assert agent.at_work == 0
    assert agent.log.of("cni_worker_lost") == [{"pid": 0, "requests": 1}]


def test_who_has_the_fewest_takes_the_next(agent: Agent) -> None:
    agent.serve(0)
    agent.serve(1)
    assert all(agent.take(name) for name in "abcd")
    assert [len(one.returns) for one in agent.members] == [2, 2]
    assert agent.at_work == 4


def test_one_that_stands_still_has_only_so_many(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cni_workers, "MOST_HELD", 2)
    agent.serve(0)
    assert [agent.take(name) for name in "abc"] == [True, True, False]


def test_a_call_at_rest_does_not_count_and_a_lost_one_is_not_counted_twice(agent: Agent) -> None:
    agent.serve(0)
    assert agent.take("a") and agent.take("b")
    with Reports(agent.ends[0]).at_rest():
        agent.say(0, answered=1)
        while agent.returned != ["a"]:
            assert agent.threads[0].is_alive()
        assert agent.at_work == 0
    agent.say(0, weight=-1)  # `b` rests, and is lost
    agent.lose(0)
    assert agent.returned == ["a", "b"]
    assert agent.at_work == 0


def test_what_a_worker_says_is_the_agents_log_and_metrics(agent: Agent) -> None:
    reports = Reports(agent.ends[0])
    reports.event("undo_failed", step="x", error="y" * 100_000, path=agent)
    times = iter((1.0, 3.5))
    call = Call("ADD", lambda: next(times), {LOCK: 0.5})
    call.ended = call.monotonic()
    reports.observe(call, 11)
    agent.lose(0)
    event, fields = agent.log.lines[0]
    assert (event, fields["step"], fields["path"]) == ("undo_failed", "x", str(agent))
    assert len(str(fields["error"])) == 32_000
    assert agent.calls == [("ADD", 2.0, 11)]


def test_one_that_gives_no_sign_is_ended_and_one_that_does_is_not(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may take long; the worker that has it answers meanwhile."""
    monkeypatch.setattr(cni_workers, "ASK_SECONDS", 10.0)
    for number in (0, 1):
        agent.members[number].channel.settimeout(0.01)
        agent.serve(number)
    assert agent.take("lost") and agent.take("long")
    signs = 0
    agent.ends[1].settimeout(DEADLINE)
    while not agent.ended or signs < 20:
        if agent.ends[1].recv(64) == ASK:
            agent.say(1, here=True)
            signs += 1
    agent.threads[0].join(DEADLINE)
    assert agent.ended == [0]
    assert agent.log.of("cni_worker_hangs") == [{"pid": 0, "seconds": 30.0}]
    assert agent.returned == ["lost"]
    assert agent.take("another")
    assert len(agent.members[1].returns) == 2


def test_a_line_that_is_too_long_for_a_message_is_told_in_part(agent: Agent) -> None:
    """A message that was cut is no JSON; one that was refused would end the worker."""
    reports = Reports(agent.ends[0])
    reports.error("cni_error", error="\u00e9" * 100_000, reason="\U0001f408" * 100_000)
    reports.event("cni_add", addresses=["10.65.0.1"], found=["\u00e9" * 9] * 9_000)
    reports.warning("cni_slow", phases={("setns", 1): 0.5, ip_address("10.65.0.2"): {2}})
    agent.lose(0)
    (_, first), (_, second), (_, third) = agent.log.lines[:3]
    assert third["phases"] == {"('setns', 1)": 0.5, "10.65.0.2": [2]}
    for text in (first["error"], first["reason"], second["found"]):
        assert isinstance(text, str)
        assert len(text) > 1000
    assert second["addresses"] == ["10.65.0.1"]


def test_each_worker_is_buried_once(agent: Agent) -> None:
    """Once it is, its pid may be that of somebody else."""
    agent.serve(1)
    agent.lose(0)
    agent.workers.end()
    agent.workers.end()
    agent.lose(1)
    assert agent.ended == [0, 1]
    assert len(agent.log.of("cni_worker_lost")) == 1


def test_a_process_with_threads_forks_no_worker() -> None:
    """Such as a test's that runs an agent of its own."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        assert cni_workers.fork_workers(1, lambda _: None) == ()
    finally:
        over.set()
        other.join()


def test_what_libraries_say_in_a_worker_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(BEGIN)
        ours.shutdown(socket.SHUT_WR)

        def build(_: Reports) -> Serve:
            logging.getLogger("a library").warning("a word")
            return lambda _: Response(0, b"")

        work(theirs, build)
        told = json.loads(ours.recv(1 << 16))
        assert (told["event"], told["level"]) == ("library", "warning")
        assert "a word" in str(told["fields"])
