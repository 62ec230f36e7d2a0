"""`tortie-node` as it is started everywhere: an agent with a keeper behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from felix_shim.keeper import CRASHED
from tests.fakes import frames
from tests.fakes.agent_world import MAC
from tests.fakes.fresh_names import fresh_name
from tests.fakes.kept_program import alive, kill
from tests.fakes.node_process import DEADLINE, NodeProcess, until
from tests.netns.test_agent_process import attach_target, create_vmi

pytestmark = pytest.mark.root
METRICS = 19195


class KeptNode(NodeProcess):
    """`agent` is the keeper here; the agent itself is a child of its."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, fresh_name("kp"), api=True, metrics_port=METRICS)
        self.kept = True

    @property
    def itself(self) -> int:
        """The agent's pid, once there is one."""
        assert self.agent is not None
        keeper = self.agent.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children")
        return int(until("there is an agent", lambda: children.read_text().split())[0])

    def serves(self) -> int:
        """How often an agent has begun to serve."""
        return len(self.lines("cni_serving"))

    def kill_itself(self) -> int:
        """kill -9 of the agent alone; the next one's pid, once it serves."""
        before, victim = self.serves(), self.itself
        kill(victim)
        until("the next one serves", lambda: self.serves() > before)
        assert self.itself != victim
        return self.itself


@pytest.fixture
def node(tmp_path: Path) -> Iterator[KeptNode]:
    made = KeptNode(tmp_path)
    try:
        create_vmi(made)
        made.start()
        yield made
    finally:
        made.close()


def test_a_killed_agent_is_followed_by_one_that_reads_its_configuration_anew(
    node: KeptNode,
) -> None:
    assert "tortie_agent_restarts_total 0" in node.page("/metrics")
    path = node.root / "node.yaml"
    path.write_text(path.read_text().replace("log_level: debug", "log_level: info"))
    keeper = node.agent
    following = node.kill_itself()
    assert node.agent is keeper and keeper is not None and keeper.poll() is None
    assert "tortie_agent_restarts_total 1" in node.page("/metrics")
    until("it is ready", lambda: node.probe("/readyz") == {})
    last = node.lines("agent_started")[-1]
    assert (last["after"], last["restarts"]) == ("SIGKILL", 1)
    before = len(node.lines())
    node.attach("web", vm=False)
    assert len(node.lines()) > before
    assert {line["level"] for line in node.lines()[before:]} == {"info"}
    assert int((node.root / "run/agent.lock").read_text()) == following
    assert node.stop() == 0
    assert not alive(following)


def test_a_vm_whose_agent_was_killed_is_heard_by_the_next(node: KeptNode) -> None:
    attach_target(node)
    heard = len(node.lines("sniffer_open"))
    kill(node.itself)
    until("the next one listens", lambda: len(node.lines("sniffer_open")) > heard)
    node.send("tgt", frames.rarp(MAC))
    until("raised", lambda: node.metrics("tgt") == [512])
    kill(node.itself)
    until("it is taken up", lambda: len(node.lines("agent_started")) == 3)
    assert node.metrics("tgt") == [512]


def test_a_killed_keeper_takes_its_agent_along_and_the_next_may_come_at_once(
    node: KeptNode,
) -> None:
    agent = node.itself
    assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    node.start()
    assert not alive(agent)
    assert node.lines("agent_failed") == []


def test_the_first_signal_waits_for_a_vm_and_the_second_does_not(node: KeptNode) -> None:
    attach_target(node)
    agent = node.itself
    assert node.agent is not None
    node.agent.terminate()
    until("it waits", lambda: node.lines("stop_waits_for_migrations"))
    assert alive(agent)
    assert node.stop() == 0
    assert node.lines("stop_leaves_migrations")
    assert not alive(agent)


def test_an_agent_that_is_killed_while_it_stops_is_not_followed(node: KeptNode) -> None:
    attach_target(node)
    agent = node.itself
    assert node.agent is not None
    node.agent.terminate()
    until("it waits", lambda: node.lines("stop_waits_for_migrations"))
    kill(agent)
    assert node.agent.wait(DEADLINE) == 128 + signal.SIGKILL
    assert len(node.lines("agent_started")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_next_agent_starts(node: KeptNode, number: signal.Signals) -> None:
    """Whether it hears that as it begins or as it serves: an orderly end."""
    kill(node.itself)
    until("its end is known", lambda: "agent_died" in (node.root / "stderr.log").read_text())
    assert node.stop(number) == 0
    assert node.lines("agent_failed") == []


def test_an_agent_that_was_stopped_by_its_shell_ends_when_it_is_told(node: KeptNode) -> None:
    agent = node.itself
    os.kill(agent, signal.SIGSTOP)
    assert node.stop() == 0
    assert not alive(agent)


def test_an_agent_that_may_not_run_here_is_tried_once(node: KeptNode) -> None:
    node.stop()
    node.config["ip"] = "can-reach=nobody"
    node.start(wait=False)
    assert node.agent is not None
    assert node.agent.wait(DEADLINE) == 1
    errors = (node.root / "stderr.log").read_text()
    assert "agent_died" not in errors and "nobody" in errors


def test_a_lost_datastore_ends_the_keeper_after_one_more_agent(node: KeptNode) -> None:
    """What a restart cannot cure is its supervisor's to repeat, and is told."""
    node.store.close()
    for one in node.root.glob("tortie.db*"):
        one.unlink()
    kill(node.itself)
    assert node.agent is not None
    assert node.agent.wait(DEADLINE) == 1
    (failed,) = node.lines("agent_failed")
    assert "--init-datastore" in failed["reason"]
    errors = (node.root / "stderr.log").read_text()
    assert errors.count("agent_died") == 1


def test_an_agent_that_ends_for_a_fault_of_its_own_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRICKEN", str(tmp_path))
    node = KeptNode(tmp_path)
    node.module = "tests.fakes.stricken_agent"
    try:
        node.start()
        first = node.itself
        (tmp_path / "fault").touch()
        until("the next one serves", lambda: node.serves() == 2)
        assert node.itself != first
        (failed,) = node.lines("thread_failed")
        assert (failed["thread"], "a fault of its own" in failed["reason"]) == ("reconciler", True)
        assert node.lines("agent_started")[-1]["after"] == f"status {CRASHED}"
        assert node.stop() == 0
    finally:
        node.close()
