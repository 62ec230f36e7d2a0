"""Random histories of a cluster, with passes that fail, die, meet others and forget: no address of
a living owner is ever freed, and once all is deleted a few passes leave nothing behind."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import AddressRequest
from libtortie.errors import Unavailable
from libtortie.kube.objects import Meta, Pod, VirtualMachine
from libtortie.model.ipam import IPAddress
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.gc_world import BOTH, GRACE, NETWORK, V4, Town
from tests.fakes.ipam_world import World, pool, vm_pod

EXAMPLES = 2000 if os.environ.get("TORTIE_SOAK") else 60
VM_HANDLE = "k8s-pod-network.vmi.shop.db"


@dataclass
class Running:
    """A pod that lives, or a VM's: what it was given under which handle."""

    node: str
    handle: str
    addresses: tuple[IPAddress, ...]


@dataclass
class History:
    """A town that does what it is told; `pods` and `vm` are the truth about who lives."""

    town: Town = field(default_factory=Town)
    nodes: list[str] = field(default_factory=lambda: ["n1", "n2"])
    pods: dict[str, Running] = field(default_factory=dict)
    vm_uid: str = ""
    vm_pod: str = ""
    vm_node: str = ""
    vm_holds: tuple[IPAddress, ...] = ()
    made: int = 0

    def do(self, event: str, pick: int) -> None:
        getattr(self, event)(pick)
        self.check()

    def check(self) -> None:
        """Everything that lives has what it was given."""
        for running in self.pods.values():
            self._holds(running.handle, running.addresses)
        if self.vm_uid and self.vm_holds:
            self._holds(VM_HANDLE, self.vm_holds)

    def _holds(self, handle: str, addresses: tuple[IPAddress, ...]) -> None:
        found = self.town.world.client().by_handle(handle)
        assert {one.address for one in found} >= set(addresses), handle

    def _new(self) -> int:
        self.made += 1
        return self.made

    # -- nodes and pods --------------------------------------------------------------------------

    def add_node(self, pick: int) -> None:
        name = f"n{pick % 4 + 1}"
        if name not in self.nodes:
            self.nodes.append(name)
            self.town.node(name)

    def remove_node(self, pick: int) -> None:
        """Its pods stay in the API for a while; nobody does their DELs."""
        if self.nodes:
            name = self.nodes.pop(pick % len(self.nodes))
            self.town.remove_node(name)

    def start(self, pick: int) -> None:
        if self.nodes:
            self._start(f"p{self._new()}", self.nodes[pick % len(self.nodes)], pick)

    def _start(self, name: str, node: str, pick: int) -> None:
        number = self._new()
        container = f"c-{name}-{number}"
        want = BOTH if pick % 3 == 0 else V4
        uid = f"u-{number}"
        got = self.town.run(name, node, want=want, container=container, uid=uid)
        reported: tuple[Any, ...] = () if pick % 4 == 0 else got[: 1 + pick % 2]
        self.town.pod(name, node=node, uid=uid, ips=reported)
        self.pods[name] = Running(node, f"{NETWORK}.{container}", got)

    def recreate(self, pick: int) -> None:
        """A StatefulSet's pod of the same name, perhaps elsewhere, before or without a DEL."""
        if self.pods and self.nodes:
            name = sorted(self.pods)[pick % len(self.pods)]
            self._start(name, self.nodes[pick % len(self.nodes)], pick)

    def stop(self, pick: int) -> None:
        """An orderly end: DEL, then the object goes."""
        self._end(pick, del_runs=True)

    def lose(self, pick: int) -> None:
        """The object goes, and no DEL runs."""
        self._end(pick, del_runs=False)

    def _end(self, pick: int, *, del_runs: bool) -> None:
        if self.pods:
            name = sorted(self.pods)[pick % len(self.pods)]
            running = self.pods.pop(name)
            if del_runs:
                self.town.world.client(running.node).release(running.handle)
            self.town.remove_pod(name)

    def finish(self, pick: int) -> None:
        if self.pods:
            name = sorted(self.pods)[pick % len(self.pods)]
            running = self.pods.pop(name)
            self.town.pod(name, node=running.node, ips=running.addresses, phase="Succeeded")

    def abort(self, pick: int) -> None:
        """An ADD that is killed after its allocation; its pod never was."""
        if self.nodes:
            self.town.run(f"x{self._new()}", self.nodes[pick % len(self.nodes)])

    # -- the VM ----------------------------------------------------------------------------------

    def create_vm(self, pick: int) -> None:
        if not self.vm_uid:
            self.vm_uid = f"vm-{self._new()}"
            meta = Meta(namespace="shop", name="db", uid=self.vm_uid)
            self.town.kube.put(VirtualMachine(metadata=meta))

    def start_vm(self, pick: int) -> None:
        if self.vm_uid and not self.vm_pod and self.nodes:
            self.vm_pod, self.vm_node = f"l{self._new()}", self.nodes[pick % len(self.nodes)]
            self._show_launcher()
            got = self.town.world.client(self.vm_node).claim_vm(
                VM_HANDLE,
                self._owner(),
                AddressRequest(ipv6=pick % 2 == 0),
                previous_owner_gone=lambda owner: owner.get("vm-uid") != self.vm_uid,
            )
            self.vm_holds = tuple(one.address for one in got)

    def migrate_vm(self, pick: int) -> None:
        if self.vm_pod and self.nodes:
            old = self._owner()
            self.vm_pod, self.vm_node = f"l{self._new()}", self.nodes[pick % len(self.nodes)]
            self._show_launcher()
            client, target = self.town.world.client(self.vm_node), self._owner(vmim_uid="m")
            client.claim_vm_target(VM_HANDLE, target)
            client.promote(VM_HANDLE, target)
            if pick % 2:
                self.town.world.client(old["node"]).disown_vm(VM_HANDLE, old, vm_deleting=False)
            self.town.kube.remove(Pod, old["pod"], "shop")

    def stop_vm(self, pick: int) -> None:
        if self.vm_pod:
            owner = self._owner()
            if pick % 3:
                client = self.town.world.client(self.vm_node)
                client.disown_vm(VM_HANDLE, owner, vm_deleting=False)
            self.town.kube.remove(Pod, self.vm_pod, "shop")
            self.vm_pod = ""

    def delete_vm(self, pick: int) -> None:
        self.stop_vm(pick)
        if self.vm_uid:
            self.town.kube.remove(VirtualMachine, "db", "shop")
            self.vm_uid, self.vm_holds = "", ()

    def _owner(self, vmim_uid: str = "") -> dict[str, str]:
        return vm_pod(
            self.vm_pod,
            node=self.vm_node,
            vm_uid=self.vm_uid,
            vmi_uid=f"vmi-{self.vm_uid}",
            vmim_uid=vmim_uid,
        )

    def _show_launcher(self) -> None:
        self.town.pod(self.vm_pod, node=self.vm_node)

    # -- passes ----------------------------------------------------------------------------------

    def sweep(self, pick: int) -> None:
        self.town.sweep(later=GRACE * (pick % 3) / 2)

    def blind(self, pick: int) -> None:
        """One list of the API fails; what it is of is kept."""
        plurals = ("pods", "nodes", "virtualmachines")
        self.town.kube.fail(Unavailable("away"), verb="list", plural=plurals[pick % 3])
        self.town.sweep()
        self.town.kube.heal()

    def faulty(self, pick: int) -> None:
        faults = [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER]
        kind = StepwiseStore if pick % 2 else FaultyStore
        self.town.sweep(kind(self.town.world.store, random.Random(pick).choices(faults, k=3)))

    def killed(self, pick: int) -> None:
        """A pass dies, and with it its memory."""
        script = [
            *[Fault.NONE] * (pick % 3),
            Fault.KILLED_BEFORE if pick % 2 else Fault.KILLED_AFTER,
        ]
        try:
            self.town.sweep(FaultyStore(self.town.world.store, script))
        except Killed:
            self.town.memory = {}

    def torn(self, pick: int) -> None:
        """On a store without transactions a pass dies between two writes."""
        store = StepwiseStore(self.town.world.store)

        def die(done: int) -> None:
            if done > pick % 2:
                raise Killed

        store.between = die
        try:
            self.town.sweep(store)
        except Killed:
            self.town.memory = {}

    def rival(self, pick: int) -> None:
        """Another collector's pass comes in the middle of ours."""
        other = Town.__new__(Town)
        other.__dict__ = dict(self.town.__dict__)

        def first(_: object) -> None:
            store.before_commit = lambda ops: None
            other.sweep(later=0)

        store = FaultyStore(self.town.world.store, before_commit=first)
        self.town.sweep(store)

    def restart(self, pick: int) -> None:
        self.town.memory = {}

    def end(self) -> None:
        """Everything is deleted; nobody runs a DEL."""
        self.delete_vm(0)
        for name in sorted(self.pods):
            self.town.remove_pod(name)
        self.pods.clear()
        while self.nodes:
            self.remove_node(0)
        self.town.settle(4)


EVENTS = [
    name
    for name in vars(History)
    if not name.startswith("_")
    and name not in ("do", "check", "end")
    and callable(vars(History)[name])
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=40),
)
def test_no_history_frees_what_lives_or_leaves_what_does_not(
    events: list[tuple[str, int]],
) -> None:
    history = History()
    for event, pick in events:
        history.do(event, pick)
    history.end()
    town = history.town
    assert town.held == set()
    assert town.world.handles() == {}
    assert town.world.affinities() == {}
    assert town.world.blocks() == []


def test_250_nodes_and_3000_pods_come_and_go() -> None:
    """In random order: pods end with and without a DEL, nodes go with their agents."""
    rng = random.Random(7839)
    world = World().pools(pool("big", "10.0.0.0/14", blockSize=26))
    town = Town(world)
    nodes = [f"m{number}" for number in range(250)]
    for name in nodes:
        town.node(name)
    clients = {name: world.client(name) for name in nodes}
    living: dict[str, tuple[str, IPAddress]] = {}
    for number in range(3000):
        name, node = f"pod-{number}", rng.choice(nodes)
        owner = {"namespace": "shop", "pod": name, "node": node, "pod-uid": f"u-{name}"}
        (got,) = clients[node].assign(f"{NETWORK}.c-{name}", owner, V4)
        town.pod(name, node=node, ips=[got.address])
        living[name] = (node, got.address)
    doomed = [*living, *nodes]
    rng.shuffle(doomed)
    for position, name in enumerate(doomed):
        if name in living:
            node, _ = living.pop(name)
            if rng.random() < 0.5:
                clients[node].release(f"{NETWORK}.c-{name}")
            town.remove_pod(name)
        else:
            town.remove_node(name)
        if position % 650 == 649:
            town.sweep()
            assert {str(address) for _, address in living.values()} <= town.held
    town.settle(2, trust_empty=True)  # without any node left the API might be another cluster's
    assert town.held == set()
    assert world.affinities() == {}
    assert world.blocks() == []
    assert world.handles() == {}
