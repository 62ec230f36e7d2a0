"""Whatever happens in whatever order: no address is freed whose VM or pod the API still has, none
without two complete observations a grace apart, and what nothing holds on to is free in the end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import AddressRequest
from ipam.gc import GRACE_SECONDS, Collected, Means, Outcome, collect
from ipam.vm_handles import read_vm_handles
from libtortie.errors import TortieError, Unavailable
from libtortie.kube.objects import Meta, Pod, VirtualMachine
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.ipam_world import UNHURRIED, World, pool, vm_pod
from tests.fakes.kube import FakeKube

EXAMPLES = 3000 if os.environ.get("TORTIE_SOAK") else 100
HANDLE = "k8s-pod-network.vmi.shop.db"
EVENTS = ["create", "delete", "start", "stop", "kill pod", "pass", "blind pass", "faulty pass"]


@dataclass
class Machine:
    """One VM name, in a cluster that does what it is told. What the API has is the truth."""

    world: World = field(default_factory=lambda: World().pools(pool("v4", "10.65.0.0/24")))
    kube: FakeKube = field(default_factory=FakeKube)
    seconds: float = 0.0
    last: Collected = field(default_factory=Collected)
    uid: str = ""
    pod: str = ""
    made: int = 0
    gone_for: int = 0
    """Complete passes since something last held on to the address."""
    gone_since: float = 0.0

    def do(self, event: str) -> None:
        getattr(self, f"_{event.replace(' ', '_')}")()

    def _create(self) -> None:
        if not self.uid:
            self.made += 1
            self.uid = f"vm-{self.made}"
            meta = Meta(namespace="shop", name="db", uid=self.uid)
            self.kube.put(VirtualMachine(metadata=meta))

    def _delete(self) -> None:
        if self.uid:
            self.uid = ""
            self.kube.remove(VirtualMachine, "db", "shop")

    def _start(self) -> None:
        if self.uid and not self.pod:
            self.made += 1
            self.pod = f"p{self.made}"
            self.kube.put(Pod(metadata=Meta(namespace="shop", name=self.pod, uid=f"u-{self.pod}")))
            owner = vm_pod(self.pod, vm_uid=self.uid, vmi_uid=f"vmi-{self.pod}")
            self.world.client().claim_vm(
                HANDLE, owner, AddressRequest(), previous_owner_gone=self._is_gone
            )

    def _is_gone(self, owner: object) -> bool:
        assert isinstance(owner, dict)
        return owner.get("vm-uid") != self.uid

    def _stop(self) -> None:
        """The pod's DEL, which does not see that the VM is deleted, if it is."""
        if self.pod:
            owner = vm_pod(self.pod, vm_uid=self.uid or "?", vmi_uid=f"vmi-{self.pod}")
            self.world.client().disown_vm(HANDLE, owner, vm_deleting=False)
            self._kill_pod()

    def _kill_pod(self) -> None:
        """The pod goes without a DEL."""
        if self.pod:
            self.kube.remove(Pod, self.pod, "shop")
            self.pod = ""

    def _pass(self) -> None:
        self._collect([])

    def _blind_pass(self) -> None:
        self.kube.fail(Unavailable("away"), verb="list", times=9)
        before = self.world.allocated()
        self._collect([], blind=True)
        self.kube.heal()
        assert self.world.allocated() == before

    def _faulty_pass(self) -> None:
        self._collect([Fault.CONFLICT, Fault.UNAVAILABLE_AFTER])

    def _collect(self, script: list[Fault], *, blind: bool = False) -> None:
        store = FaultyStore(self.world.store, script)
        clock = lambda: self.seconds  # noqa: E731  # two words
        means = Means(store, self.kube, self.world.now, clock, lambda _: None, UNHURRIED)
        handles, _ = read_vm_handles(store)
        try:
            self.last = collect(means, handles, self.last.memory)
        except TortieError:
            return
        freed = [one for one in self.last.verdicts if one.outcome is Outcome.FREE]
        owners = [owner for one in freed for owner in one.subject.owners]
        assert not any(owner.get("vm-uid") == self.uid for owner in owners if self.uid)
        assert not any(owner.get("pod") == self.pod for owner in owners if self.pod)
        if freed:
            assert self.gone_for >= 1
            assert self.seconds - self.gone_since >= GRACE_SECONDS
        self._count(blind, holder=bool(self.uid or self.pod))

    def _count(self, blind: bool, holder: bool) -> None:
        """The second account of what was observed: coarser, it counts any holder at all."""
        owners = [o for one in self.last.verdicts for o in one.subject.owners]
        stranger = owners and all(o.get("vm-uid") != self.uid for o in owners)
        if holder and not stranger:
            self.gone_for = 0
        elif not blind and self.last.verdicts:
            if self.gone_for == 0:
                self.gone_since = self.seconds
            self.gone_for += 1


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(EVENTS), st.sampled_from([0.0, 1.0, 30.0, 61.0])), max_size=25
    )
)
def test_no_order_of_events_frees_what_is_held_or_keeps_what_is_not(
    events: list[tuple[str, float]],
) -> None:
    machine = Machine()
    for event, seconds in events:
        machine.seconds += seconds
        machine.do(event)
        machine.world.audit()
    for event in ("stop", "delete"):
        machine.do(event)
    for _ in range(3):
        machine.seconds += GRACE_SECONDS
        machine.do("pass")
    assert machine.world.allocated()[HANDLE] == 0
    machine.world.audit()
