"""A migration between two pods of one node: the address moves from one veth to another.

KubeVirt's scheduler avoids it, and nothing forbids it. There is no other node whose raise or
whose name in the VMI could tell the two apart.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from libtortie.kube.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest, Prober
from tests.fakes.node_process import until

pytestmark = pytest.mark.root
SOURCE, TARGET = "virt-launcher-db-1", "virt-launcher-db-2"
STATE = {"migrationUid": "vmim-m1", "sourcePod": SOURCE, "targetPod": TARGET,
         "sourceNode": NODE, "targetNode": NODE}  # fmt: skip
BEARABLE = 2.0
"""Seconds without an answer at cut-over; a few milliseconds on a quiet machine."""


@dataclass
class Scene:
    """The VM in its first pod, and a client that asks it all the time."""

    node: CalledNode
    prober: Prober
    there: Guest
    stack: ExitStack

    def attach(self, pod: str, container: str) -> Guest:
        """ADD, and the guest that will be in the sandbox."""
        answer = self.node.done("ADD", pod, container)
        assert answer.address == self.node.address
        mac = answer.body["interfaces"][1]["mac"]
        guest = Guest(self.node, container, answer.address, mac)
        self.stack.callback(guest.leave)
        return guest

    def say(self, phase: str, **more: object) -> None:
        """What the API has of the migration, and of the VM."""
        status: dict[str, object] = {"phase": phase, "migrationState": STATE}
        self.node.patch_status(VirtualMachineInstanceMigration, "m1", status)
        vmi: dict[str, object] = {"migrationState": {**STATE, **more}}
        self.node.patch_status(VirtualMachineInstance, "db", vmi)

    def routed(self, source: list[int], target: list[int]) -> bool:
        """Whether the two veths have these routes to the VM."""
        return [self.node.metrics(SOURCE), self.node.metrics(TARGET)] == [source, target]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        node = CalledNode(tmp_path, fresh_name("sn"))
        stack.callback(node.close)
        spec = {"liveMigrationRouteConvergenceTime": "1s"}
        record = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)
        node.store.create(record.key, record.value)
        node.world.put_vm()
        node.world.put_launcher(SOURCE)
        node.say_vm_runs_on(NODE)
        node.start()
        answer = node.done("ADD", SOURCE, "c1")
        node.address = answer.address
        guest = Guest(node, "c1", node.address, answer.body["interfaces"][1]["mac"])
        stack.callback(guest.leave)
        prober = Prober(node, node.address)
        stack.callback(prober.close)
        began = guest.arrive()
        until("the guest answers", lambda: prober.answered_since(began))
        made = Scene(node, prober, guest, stack)
        node.world.put_migration("m1", phase="Running")
        node.world.put_launcher(TARGET, migration="m1")
        made.say("Running")
        yield made


@pytest.mark.parametrize("killed", [False, True])
def test_the_address_moves_from_one_veth_to_the_other(scene: Scene, killed: bool) -> None:
    node = scene.node
    target = scene.attach(TARGET, "c2")
    until("the agent listens", lambda: node.lines("sniffer_open"))
    assert scene.routed([1024], [])
    scene.there.leave()
    began = target.arrive()
    until("it is raised there", lambda: node.metrics(TARGET) == [512])
    until("it answers there", lambda: scene.prober.answered_since(began))
    until("its owner", lambda: node.owners()[node.address][1] == TARGET)
    if killed:
        node.stop(signal.SIGKILL)
        node.start()
        assert node.metrics(TARGET) == [512]
    scene.say("Succeeded", completed=True)
    until("normal again, there alone", lambda: scene.routed([], [1024]))
    node.done("DEL", SOURCE, "c1")
    assert scene.routed([], [1024])
    assert node.owners() == {node.address: (HANDLE, TARGET, "")}
    assert scene.prober.gap(began) < BEARABLE


def test_one_that_fails_leaves_it_where_it_was(scene: Scene) -> None:
    node = scene.node
    scene.attach(TARGET, "c2")
    until("the agent listens", lambda: node.lines("sniffer_open"))
    scene.say("Failed", completed=True, failed=True)
    until("the target has lost", lambda: node.lines("migration_transition"))
    node.done("DEL", TARGET, "c2")
    assert scene.routed([1024], [])
    assert node.owners() == {node.address: (HANDLE, SOURCE, "")}
