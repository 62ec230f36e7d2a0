"""A lab without a mesh: nodes that have BGP with two route reflectors only, and a VM that moves.

The scene of `lab bench --fleet 100`, small: agents and BIRDs are real.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import control, names
from lab.bench_rows import NEVER_MS
from lab.cluster import STARTING, meshed, parse_established, until
from lab.fleet import move_vm
from lab.measure import await_echo, guest_ip
from lab.nodes import in_node
from lab.objects import LabVMI
from lab.processes import in_namespaces, namespace_inodes
from lab.tools import run
from tests.fakes.lab_vms import running_vm
from tests.fakes.running_lab import Lab, lab_up

pytestmark = pytest.mark.root
NODES, REFLECTORS = 10, 2


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    assert NODES > STARTING, "else no agent waits for another's start"
    options = ("--nodes", str(NODES), "--reflectors", str(REFLECTORS))
    with lab_up(tmp_path_factory.mktemp("lab") / "state", 1.0, *options) as found:
        yield found


@pytest.fixture(scope="module")
def vm(lab: Lab) -> Iterator[str]:
    with running_vm(lab, "wanderer"):
        yield "wanderer"


def sessions(lab: Lab, node: str) -> set[str]:
    birdc = ["birdc", "-s", "/run/tortie/bird.ctl", "show", "protocols"]
    return parse_established(run(in_node(lab.state, node, birdc)))


def test_nodes_have_sessions_with_the_reflectors_only(lab: Lab) -> None:
    assert meshed(lab.state, NODES, REFLECTORS)
    assert sessions(lab, f"node{NODES}") == {
        *("node_172_31_0_11", "node_172_31_0_12"),
        *("node_fd00_172_31__11", "node_fd00_172_31__12"),
    }
    assert len(sessions(lab, "node1")) == 2 * NODES  # in each family each other node, and the ToR
    assert lab.cli("status").count("by a reflector") == NODES - REFLECTORS


@pytest.mark.parametrize("target", ["node4", "node1", "node10", "node2", "node5"])
def test_every_kernel_follows_a_vm_to_any_node_and_to_a_reflector(
    lab: Lab, vm: str, target: str
) -> None:
    move = move_vm(lab.state, lab.topology, vm, target, 60)
    assert set(move.fib_ms) == {
        names.TOR,
        *(node.name for node in lab.topology.nodes if node.name != target),
    }
    assert move.local_ms is not None
    assert move.last_ms(NODES) < NEVER_MS
    await_echo(guest_ip(control.get(LabVMI, vm)), names.netns(names.EXT))


@contextmanager
def stopped_bird(node: str) -> Iterator[None]:
    """A node's BIRD stands still meanwhile."""
    pids = in_namespaces(namespace_inodes((names.netns(node),)))
    (bird,) = (one for one in pids if _name(one) == "bird")
    os.kill(bird, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(bird, signal.SIGCONT)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_a_kernel_that_does_not_follow_is_seen(lab: Lab, vm: str) -> None:
    with stopped_bird("node7"):
        move = move_vm(lab.state, lab.topology, vm, "node6", 3)
    assert "node7" not in move.fib_ms
    assert move.last_ms(NODES) == NEVER_MS
    until(lambda: meshed(lab.state, NODES, REFLECTORS), "BGP does not come back")


def test_one_reflector_is_enough(lab: Lab, vm: str) -> None:
    with stopped_bird("node1"):  # which is waited for in vain
        move = move_vm(lab.state, lab.topology, vm, "node8", 20)
    assert set(move.fib_ms) >= {
        node.name for node in lab.topology.nodes[1:] if node.name != "node8"
    }
    until(lambda: meshed(lab.state, NODES, REFLECTORS), "BGP does not come back")
