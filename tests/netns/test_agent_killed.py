"""kill -9 of the agent while it serves CNI: through the installed executable, at its own steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.mortal_agent import arm, disarm
from tests.fakes.node_process import DEADLINE

pytestmark = pytest.mark.root

EACH = 3
"""Every how manieth step is died at; those on the thread that serves the call count."""
FEWEST = {"ADD": 6, "DEL": 3}
"""Kills that a verb has steps for, at least."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("ak"))
    made.module = "tests.fakes.mortal_agent"
    try:
        made.start()
        yield made
    finally:
        made.close()


def killed(node: CalledNode, verb: str, pod: str, container: str, nth: int) -> bool:
    """The agent dies at this step of a call, and the runtime is told to try again.

    False when the call has no such step: it was done.
    """
    arm(node.root, "cni-request", "", nth)
    answer = node.call(verb, pod, container)
    if answer.status == 0:
        disarm(node.root)
        return False
    assert answer.code == 11, (nth, answer)
    assert "broke the connection" in answer.body["msg"]
    assert node.agent is not None
    assert node.agent.wait(DEADLINE) == -9
    node.agent = None
    disarm(node.root)
    return True


def undisturbed(node: CalledNode) -> dict[str, object]:
    """A round that makes what stays; what is there after it."""
    node.world.put_pod("web")
    node.done("ADD", "web", "first")
    node.done("DEL", "web", "first")
    return node.emptied("web")


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_kill_while_it_serves_and_the_runtime_takes_the_sandbox_down(
    node: CalledNode, verb: str
) -> None:
    """DEL comes while no agent runs (the fallback serves it), the agent comes back later."""
    before = undisturbed(node)
    for nth in itertools.count(1, EACH):
        container = f"c{nth}"
        if verb == "DEL":
            node.done("ADD", "web", container)
        if not killed(node, verb, "web", container, nth):
            break
        node.done("DEL", "web", container)
        node.start()
        node.rest(before, (verb, nth))
    assert nth > EACH * FEWEST[verb]


def test_a_kill_while_it_serves_and_the_runtime_repeats(node: CalledNode) -> None:
    """The next agent completes the ADD of the one that died, and its DEL."""
    before = undisturbed(node)
    for nth in itertools.count(2, EACH):
        container = f"c{nth}"
        if not killed(node, "ADD", "web", container, nth):
            break
        node.start()
        first = node.done("ADD", "web", container)
        assert node.done("ADD", "web", container) == first
        assert node.status("web"), "policy is in force"
        if killed(node, "DEL", "web", container, nth % (EACH * FEWEST["DEL"])):
            node.start()
            node.done("DEL", "web", container)
        node.rest(before, nth)
    assert nth > EACH * FEWEST["ADD"]
