"""A pod with a launcher's label that KubeVirt did not choose, and DEL while the API fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.apiserver.faults import Action, CloseConnection, Delay, Fault, Reject
from libtortie.kube.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

SOURCE, FORGED, REAL = (f"virt-launcher-db-{end}" for end in ("0", "forged", "real"))
FAULTS: dict[str, tuple[Action, int]] = {
    "403": (Reject(403, "Forbidden"), 0),
    "500": (Reject(500, "InternalError"), 11),
    "cut": (CloseConnection(), 11),
    "hang": (Delay(600), 11),
}
"""What the API does (in seconds more than any caller waits), and what the first DEL of a VM's pod
answers."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("ft"))
    try:
        made.address = made.vm_elsewhere()
        made.world.put_migration("m1", phase="Running")
        for pod in (FORGED, REAL):
            made.world.put_launcher(pod, migration="m1")
        made.start()
        yield made
    finally:
        made.close()


def name_the_real_one(node: CalledNode, how: str) -> None:
    """KubeVirt's hand-off, as one of the two witnesses tells it."""
    state = {"migrationUid": "vmim-m1", "sourcePod": SOURCE, "targetPod": REAL}
    if how == "vmi":
        node.patch_status(VirtualMachineInstance, "db", {"migrationState": state})
    else:
        node.patch_status(VirtualMachineInstanceMigration, "m1", {"migrationState": state})


def refused(node: CalledNode) -> bool:
    moves = node.lines("migration_transition")
    return any(move["to"] == "refused" and FORGED in str(move["endpoint"]) for move in moves)


def attach(node: CalledNode, stack: ExitStack, pod: str, container: str) -> Guest:
    """ADD, and a guest in the sandbox that has not spoken yet."""
    opened = len(node.lines("sniffer_open"))
    answer = node.done("ADD", pod, container)
    assert answer.address == node.address
    until("the agent listens", lambda: len(node.lines("sniffer_open")) > opened)
    guest = Guest(node, container, node.address, answer.body["interfaces"][1]["mac"])
    stack.callback(guest.leave)
    return guest


@pytest.mark.parametrize("how", ["vmi", "migration"])
def test_a_rarp_of_a_pod_that_is_not_the_target_raises_nothing(node: CalledNode, how: str) -> None:
    with ExitStack() as stack:
        forged = attach(node, stack, FORGED, "c1")
        name_the_real_one(node, how)
        until("refused", lambda: refused(node))
        forged.arrive()
        answer = node.call("ADD", FORGED, "c1")
        assert (answer.code, REAL in answer.body["msg"]) == (101, True)
        assert node.metrics(FORGED) == []
        assert not node.lines("route_raised")
        assert node.owners()[node.address] == (HANDLE, SOURCE, FORGED), "until the real one comes"


@pytest.mark.parametrize("how", ["vmi", "migration"])
def test_the_named_pod_gets_back_what_a_forged_one_took(node: CalledNode, how: str) -> None:
    with ExitStack() as stack:
        forged = attach(node, stack, FORGED, "c1")
        assert node.call("ADD", REAL, "c2").code == 103, "nobody is named: first come"
        forged.arrive()
        until("it could not be told apart", lambda: node.metrics(FORGED) == [512])
        until("owner", lambda: node.owners()[node.address] == (HANDLE, FORGED, SOURCE))
        assert node.call("ADD", REAL, "c2").code == 103
        name_the_real_one(node, how)
        until("withdrawn", lambda: node.metrics(FORGED) == [])
        real = attach(node, stack, REAL, "c2")
        assert node.owners()[node.address] == (HANDLE, SOURCE, REAL)
        real.arrive()  # the forged one speaks all the while
        until("the real one's route", lambda: node.metrics(REAL) == [512])
        until("its seat", lambda: node.owners()[node.address] == (HANDLE, REAL, SOURCE))
        assert node.metrics(FORGED) == []
        node.done("DEL", FORGED, "c1")
        assert node.metrics(REAL) == [512]
        assert node.owners()[node.address] == (HANDLE, REAL, SOURCE)


@pytest.mark.parametrize("program", ["tortie", "tortie-cni"])
@pytest.mark.parametrize("kind", FAULTS)
def test_del_needs_no_api(node: CalledNode, kind: str, program: str) -> None:
    """A sandbox that owns nothing goes at once, one that owns a VM's seat at the second call."""
    action, first = FAULTS[kind]
    node.done("ADD", FORGED, "c1")
    heal = node.server.faults.add(Fault(action))
    for pod, container in ((REAL, "c8"), ("virt-launcher-gone", "c9"), ("web", "c7")):
        node.done("DEL", pod, container, netns="/run/netns/tt-never-was", program=program)
    assert node.owners()[node.address] == (HANDLE, SOURCE, FORGED)
    answer = node.call("DEL", FORGED, "c1", program=program)
    assert answer.code == first
    assert "the agent did not answer" not in str(answer.body), "it is the API that does not"
    assert node.owners()[node.address] == (HANDLE, SOURCE, "")
    node.done("DEL", FORGED, "c1", program=program)
    assert node.endpoints() == {}
    assert list(node.owners()) == [node.address], "in doubt the VM keeps its address"
    heal()
