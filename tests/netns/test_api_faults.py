"""The API server hangs, refuses or breaks in the middle of an ADD and of a migration."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from felix_shim.kube_entries import followed_kinds
from lab.apiserver.faults import Action, CloseConnection, Delay, Fault, Reject
from tests.fakes.agent_world import NODE
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest, Prober
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

POD = "virt-launcher-db-1"
FAULTS: dict[str, Action] = {
    "hang": Delay(600),
    "403": Reject(403, "Forbidden"),
    "500": Reject(500, "InternalError"),
    "cut": CloseConnection(),
}
CODES = {"hang": 11, "403": 106, "500": 11, "cut": 11}
PATIENCE = 200.0
"""Seconds that an ADD may take at most; an API that hangs would be waited for 600."""
BEARABLE = 2.0
"""Seconds without an answer at cut-over; a few milliseconds on a quiet machine (printed)."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("af"))
    try:
        made.expect_vm(POD)
        made.start()
        yield made
    finally:
        made.close()


ASKED = [
    "pods",
    "virtualmachineinstances.kubevirt.io",
    "virtualmachines.kubevirt.io",
    "virtualmachineinstancemigrations.kubevirt.io",
    "namespaces",
]
"""What the ADD of a migration's target reads, in this order."""


@pytest.mark.parametrize("kind", FAULTS)
def test_in_the_middle_of_an_add(node: CalledNode, kind: str) -> None:
    """Whichever of the ADD's requests it is: bounded, told, and nothing is left."""
    node.done("ADD", POD, "c1")  # makes what stays: the gateway's route
    node.done("DEL", POD, "c1")
    before = node.emptied(POD)
    asked = [ASKED[1]] if kind == "hang" else ASKED  # each costs its time
    for resource in asked:
        heal = node.server.faults.add(Fault(FAULTS[kind], verb="get", resource=resource))
        lists = node.server.faults.add(Fault(FAULTS[kind], verb="list", resource=resource))
        began = time.monotonic()
        answer = node.call("ADD", POD, "c1")
        took = time.monotonic() - began
        heal()
        lists()
        print(f"{kind} {resource}: {took:.2f} s, {answer.body}")
        assert answer.code == CODES[kind], (resource, answer)
        assert resource.partition(".")[0] in answer.body["msg"]
        assert took < PATIENCE
        node.rest(before, (kind, resource))
    assert node.done("ADD", POD, "c1").address == node.address
    node.done("DEL", POD, "c1")
    node.rest(before)


@pytest.mark.parametrize("kind", FAULTS)
def test_in_the_middle_of_a_migration(node: CalledNode, kind: str) -> None:
    """The cut-over needs no API; neither does an agent that is killed right after it."""
    answer = node.done("ADD", POD, "c1")
    until("the agent listens", lambda: node.lines("sniffer_open"))
    until("what the API says of policy is saved", lambda: knows_policy(node))
    with ExitStack() as stack:
        guest = Guest(node, "c1", node.address, answer.body["interfaces"][1]["mac"])
        stack.callback(guest.leave)
        prober = Prober(node, node.address)
        stack.callback(prober.close)
        heal = node.server.faults.add(Fault(FAULTS[kind]))
        node.server.cut_watches(mid_line=True)
        began = guest.arrive()
        until("the raised route", lambda: node.metrics(POD) == [512])
        until("the guest answers", lambda: prober.answered_since(began))
        print(f"{kind}: {prober.gap(began) * 1000:.0f} ms without an answer at cut-over")
        assert prober.gap(began) < BEARABLE
        until("the owner", lambda: node.owners()[node.address][1] == POD)
        until("remembered", lambda: '"live"' in state(node))
        node.stop(signal.SIGKILL)
        told = len(node.lines())
        node.start()
        events = [line["event"] for line in node.lines()[told:]]
        if kind == "hang":  # what fails at once may be told while it begins
            before = events[: events.index("cni_serving")]
            assert "start_up_waits" not in before, "it waited for the API first"
        assert node.metrics(POD) == [512]
        heal()
        node.say_vm_runs_on(NODE)
        node.say_migration("Succeeded")
        until("back to normal", lambda: node.metrics(POD) == [1024])
        assert prober.gap(began) < BEARABLE, "all the while"
        assert node.owners() == {node.address: (HANDLE, POD, "virt-launcher-db-0")}


def knows_policy(node: CalledNode) -> bool:
    """Whether an agent that is started now could do without the API."""
    saved = {path.stem for path in (node.root / "state" / "kube-policy").glob("*.json")}
    return saved == {kind.api.plural for kind in followed_kinds("sqlite")}


def state(node: CalledNode) -> str:
    """What the agent has saved so far."""
    path = node.root / "state" / "migration-state.json"
    return path.read_text() if path.exists() else ""
