"""kill -9 of the agent while it serves CNI: through the installed executable, at its own steps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.mortal_agent import arm, disarm
from tests.fakes.node_process import until

pytestmark = pytest.mark.root
NAMES = map("tt-{}-ak{}".format, itertools.repeat(os.getpid()), itertools.count())

STEPS = {"ADD": 20, "DEL": 7}
"""How many steps each takes on the thread that serves it; those of others are not counted (sysctls
are set on a thread inside the namespace)."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, next(NAMES))
    made.module = "tests.fakes.mortal_agent"
    try:
        made.start()
        yield made
    finally:
        made.close()


def killed(node: CalledNode, verb: str, pod: str, container: str, nth: int) -> None:
    """The agent dies at this step of a call, and the runtime is told to try again."""
    arm(node.root, "cni-request", "", nth)
    answer = node.call(verb, pod, container)
    assert answer.code == 11, (nth, answer)
    assert "broke the connection" in answer.body["msg"]
    assert node.agent is not None
    assert node.agent.wait(10) == -9
    node.agent = None
    disarm(node.root)


def undisturbed(node: CalledNode) -> dict[str, object]:
    """A round that makes what stays; what is there after it."""
    node.world.put_pod("web")
    node.done("ADD", "web", "first")
    node.done("DEL", "web", "first")
    until("the rules go", lambda: node.host_name("web") not in node.rules())
    until("the status file goes", lambda: node.status("web") is None)
    return node.left()


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_kill_while_it_serves_and_the_runtime_takes_the_sandbox_down(
    node: CalledNode, verb: str
) -> None:
    """DEL comes while no agent runs (the fallback serves it), the agent comes back later."""
    before = undisturbed(node)
    for nth in range(1, STEPS[verb] + 1, 3):
        container = f"c{nth}"
        if verb == "DEL":
            node.done("ADD", "web", container)
        killed(node, verb, "web", container, nth)
        node.done("DEL", "web", container)
        node.start()
        node.rest(before, (verb, nth))
    if verb == "DEL":
        node.done("ADD", "web", "last")
    arm(node.root, "cni-request", "", STEPS[verb] + 1)
    assert node.call(verb, "web", "last").status == 0, "it takes more steps: count them again"


def test_a_kill_while_it_serves_and_the_runtime_repeats(node: CalledNode) -> None:
    """The next agent completes the ADD of the one that died, and its DEL."""
    before = undisturbed(node)
    for nth in range(2, STEPS["ADD"] + 1, 3):
        container = f"c{nth}"
        killed(node, "ADD", "web", container, nth)
        node.start()
        first = node.done("ADD", "web", container)
        assert node.done("ADD", "web", container) == first
        assert node.status("web"), "policy is in force"
        killed(node, "DEL", "web", container, (nth - 2) % STEPS["DEL"] + 1)
        node.start()
        node.done("DEL", "web", container)
        node.rest(before, nth)
