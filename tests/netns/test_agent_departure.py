"""A real agent that is told to stop while a VM is on its way to it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.agent_world import NODE
from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest, Prober
from tests.fakes.node_process import DEADLINE, until

pytestmark = pytest.mark.root
POD = "virt-launcher-db-1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    """A migration's target is attached, and its VM has yet to come."""
    made = CalledNode(tmp_path, fresh_name("dp"), drain_seconds=3600.0)
    try:
        made.expect_vm(POD)
        made.world.put_pod("web")
        made.start()
        yield made
    finally:
        made.close()


def test_it_hears_the_vm_first_and_serves_meanwhile(node: CalledNode) -> None:
    answer = node.done("ADD", POD, "c1")
    until("the agent listens", lambda: node.lines("sniffer_open"))
    assert node.agent is not None
    node.agent.terminate()
    until("it says for whom it waits", lambda: node.lines("stop_waits_for_migrations"))
    assert POD in str(node.lines("stop_waits_for_migrations")[0]["endpoints"])
    node.done("ADD", "web", "c2", policy_setup_on_timeout="fail")
    assert node.status("web"), "its policy is in force"
    guest = Guest(node, "c1", node.address, answer.body["interfaces"][1]["mac"])
    prober = Prober(node, node.address)
    try:
        began = guest.arrive()
        until("the raised route", lambda: node.metrics(POD) == [512])
        assert node.agent.poll() is None, "a raised route would hold against the VM's next move"
        node.say_vm_runs_on(NODE)
        node.say_migration("Succeeded")
        assert node.agent.wait(DEADLINE) == 0
        assert node.metrics(POD) == [1024], "it stays in the kernel"
        until("the guest answers", lambda: prober.answered_since(began))
        node.start()
        assert node.metrics(POD) == [1024]
    finally:
        prober.close()
        guest.leave()


def test_a_second_signal_ends_the_wait(node: CalledNode) -> None:
    node.done("ADD", POD, "c1")
    assert node.agent is not None
    node.agent.send_signal(signal.SIGTERM)
    until("it waits", lambda: node.lines("stop_waits_for_migrations"))
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(DEADLINE) == 0
    assert POD in str(node.lines("stop_leaves_migrations")[0]["endpoints"])
