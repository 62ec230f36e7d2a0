"""Addresses of deleted VMs: what is kept, what is freed and when, and who wins a race."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ipam.client import AddressRequest
from ipam.gc import Collected, Means, Outcome, collect, explain
from ipam.vm_handles import read_vm_handles, references
from libtortie.datastore.port import Datastore
from libtortie.errors import Malformed, Unauthorized, Unavailable
from libtortie.kube.objects import Meta, Pod, PodStatus, VirtualMachine, VirtualMachineInstance
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import BlockKey, HandleKey, IPAMConfigKey, Kind
from tests.fakes.faulty_store import Fault, FaultyStore, StepwiseStore
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool, vm_pod
from tests.fakes.kube import FakeKube

HANDLE = "k8s-pod-network.vmi.shop.db"
BOTH = AddressRequest(ipv6=True)
META = Meta(namespace="shop", name="db")


@dataclass
class Story:
    """A cluster with one VM, and passes over it."""

    world: World = field(default_factory=World)
    kube: FakeKube = field(default_factory=FakeKube)
    seconds: float = 1000.0
    last: Collected = field(default_factory=Collected)

    def __post_init__(self) -> None:
        self.world.pools(pool("v4", "10.65.0.0/24"), pool("v6", "fd65::/116"))

    def vm(self, uid: str = "vm-1") -> None:
        self.kube.put(VirtualMachine(metadata=META.model_copy(update={"uid": uid})))

    def vmi(self, uid: str = "vmi-1") -> None:
        self.kube.put(VirtualMachineInstance(metadata=META.model_copy(update={"uid": uid})))

    def pod(self, name: str, phase: str = "Running", uid: str = "") -> None:
        meta = Meta(namespace="shop", name=name, uid=uid or f"u-{name}")
        self.kube.put(Pod(metadata=meta, status=PodStatus(phase=phase)))

    def start(self, pod: str = "p1", **owner: Any) -> None:
        self.world.client().claim_vm(HANDLE, vm_pod(pod, **owner), BOTH)

    def stop(self, pod: str = "p1", **owner: Any) -> None:
        self.world.client().disown_vm(HANDLE, vm_pod(pod, **owner), vm_deleting=False)

    def collect(self, store: Datastore | None = None, *, later: float = 0.0) -> Outcome:
        """A pass; what became of the VM's handle, FREE when there is none any more."""
        self.seconds += later
        store = store or self.world.store
        means = Means(
            store,
            self.kube,
            self.world.now,
            monotonic=lambda: self.seconds,
            sleep=lambda _: None,
            retry=UNHURRIED,
        )
        handles, _ = read_vm_handles(store)
        self.last = collect(means, handles, self.last.memory)
        found = [one for one in self.last.verdicts if one.subject.handle_id == HANDLE]
        return found[0].outcome if found else Outcome.FREE

    @property
    def reason(self) -> str:
        (verdict,) = self.last.verdicts
        return verdict.reason

    @property
    def held(self) -> int:
        return self.world.allocated()[HANDLE]


@pytest.fixture
def story() -> Story:
    """A VM that ran once and is stopped."""
    made = Story()
    made.vm()
    made.start()
    made.stop()
    assert made.held == 2
    return made


def delete_vm(story: Story) -> None:
    story.kube.remove(VirtualMachine, "db", "shop")


def test_a_stopped_vm_keeps_its_addresses(story: Story) -> None:
    assert story.collect() is Outcome.KEEP
    assert story.collect(later=3600) is Outcome.KEEP
    assert story.reason == "VirtualMachine shop/db with UID vm-1 exists"
    assert story.held == 2


def test_stopped_then_deleted_is_free_after_the_grace(story: Story) -> None:
    delete_vm(story)
    assert story.collect() is Outcome.WAIT
    assert story.collect(later=59) is Outcome.WAIT
    assert story.held == 2
    assert [one.seconds for one in story.last.verdicts] == [1.0]
    assert story.collect(later=1) is Outcome.FREE
    assert story.held == 0
    assert HANDLE not in story.world.handles()
    assert story.last.memory == {}
    story.world.audit()


def test_an_orphaned_vmi_keeps_them_without_its_vm_or_its_pod() -> None:
    """As `kubectl delete vm --cascade=orphan` leaves it."""
    story = Story()
    story.vmi()
    story.start()
    for _ in range(3):
        assert story.collect(later=100) is Outcome.KEEP
    assert story.reason == "VirtualMachineInstance shop/db with UID vmi-1 exists"
    story.kube.remove(VirtualMachineInstance, "db", "shop")
    assert story.collect() is Outcome.WAIT
    assert story.collect(later=60) is Outcome.FREE


def test_one_observation_never_suffices(story: Story) -> None:
    delete_vm(story)
    story.seconds += 10_000
    assert story.collect() is Outcome.WAIT
    assert story.held == 2


def test_a_vm_seen_again_starts_the_clock_anew(story: Story) -> None:
    delete_vm(story)
    story.collect()
    story.vm()
    assert story.collect(later=30) is Outcome.KEEP
    delete_vm(story)
    assert story.collect(later=40) is Outcome.WAIT
    assert story.collect(later=59) is Outcome.WAIT
    assert story.collect(later=1) is Outcome.FREE


@pytest.mark.parametrize(
    "error",
    [Unauthorized("list virtualmachines: 403"), Unavailable("nobody there"), Malformed("x")],
)
def test_an_api_that_fails_frees_nothing(story: Story, error: Exception) -> None:
    delete_vm(story)
    for _ in range(3):
        story.kube.fail(error, verb="list")
        assert story.collect(later=100) is Outcome.KEEP
        assert story.reason == f"unknown: virtualmachines in shop: {error}"
    assert story.collect() is Outcome.WAIT, "failures confirmed nothing"


def test_a_failure_between_two_observations_does_not_count_and_does_not_reset(
    story: Story,
) -> None:
    delete_vm(story)
    story.collect()
    story.kube.fail(Unavailable("away"), verb="list")
    assert story.collect(later=100) is Outcome.KEEP
    assert story.collect() is Outcome.FREE


def test_a_kind_that_is_not_served_frees_nothing(story: Story) -> None:
    story.kube.hide("kubevirt.io")
    for _ in range(3):
        assert story.collect(later=100) is Outcome.KEEP
    assert "not served" in story.reason
    assert story.held == 2


@pytest.mark.parametrize("version", ["", "0"])
def test_an_empty_list_of_a_server_that_has_read_nothing_frees_nothing(
    story: Story, version: str
) -> None:
    story.kube.list = lambda *_, **__: ((), version)  # type: ignore[method-assign]  # such a server
    for _ in range(3):
        assert story.collect(later=100) is Outcome.KEEP
    assert "no version" in story.reason


def test_a_list_that_came_without_a_living_vm_frees_nothing(story: Story) -> None:
    """Just before it frees, it asks for the VM by its name."""
    real = story.kube.list
    story.kube.list = lambda *_, **__: ((), "7")  # type: ignore[method-assign]  # such a server
    story.collect()
    story.kube.fail(Unavailable("away"), verb="get")
    assert story.collect(later=60) is Outcome.KEEP
    assert story.reason == "unknown: away"
    assert story.collect() is Outcome.KEEP
    assert story.reason == "VirtualMachine shop/db with UID vm-1 exists"
    story.kube.list = real  # type: ignore[method-assign]  # healed
    delete_vm(story)
    assert story.collect(later=60) is Outcome.WAIT, "it was found alive: the clock starts anew"
    assert story.held == 2


def test_recreated_under_the_name_the_old_ones_address_goes_unless_claimed(story: Story) -> None:
    delete_vm(story)
    story.vm("vm-2")
    assert story.collect() is Outcome.WAIT
    assert "is gone, that name's is now vm-2" in story.reason
    story.world.client().claim_vm(
        HANDLE,
        vm_pod("p2", vm_uid="vm-2", vmi_uid="vmi-2"),
        BOTH,
        previous_owner_gone=lambda _: True,
    )
    assert story.collect(later=100) is Outcome.KEEP
    story.stop("p2", vm_uid="vm-2", vmi_uid="vmi-2")
    assert story.collect(later=100) is Outcome.KEEP
    assert story.held == 2


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_a_living_pod_keeps_it(story: Story, phase: str) -> None:
    story.start("p2")
    story.pod("p2", phase)
    delete_vm(story)
    for _ in range(3):
        assert story.collect(later=100) is Outcome.KEEP
    assert story.reason == "pod shop/p2 lives"


def test_a_pod_of_the_name_that_is_another_keeps_nothing(story: Story) -> None:
    story.start("p2")
    story.pod("p2", uid="another")
    delete_vm(story)
    story.collect()
    assert story.collect(later=60) is Outcome.FREE


def test_a_pod_that_cannot_be_looked_up_keeps_it(story: Story) -> None:
    story.start("p2")
    delete_vm(story)
    for _ in range(3):
        story.kube.fail(Unauthorized("get pods: 403"), verb="get")
        assert story.collect(later=100) is Outcome.KEEP
    assert story.reason == "unknown: pod shop/p2: get pods: 403"


def test_a_finished_pod_keeps_nothing(story: Story) -> None:
    story.start("p2")
    story.pod("p2", "Failed")
    delete_vm(story)
    story.collect()
    assert story.collect(later=60) is Outcome.FREE


def test_during_a_migration_either_pod_keeps_it(story: Story) -> None:
    story.start("p2")
    story.world.client("n2").claim_vm_target(HANDLE, vm_pod("p3", node="n2", vmim_uid="m1"))
    delete_vm(story)
    for alive in ("p2", "p3"):
        story.pod(alive)
        for _ in range(2):
            assert story.collect(later=100) is Outcome.KEEP
        story.kube.remove(Pod, alive, "shop")
    story.collect()
    assert story.collect(later=60) is Outcome.FREE


def test_a_leftover_alternate_does_not_keep_it_for_ever(story: Story) -> None:
    story.start("p2")
    story.world.client("n2").claim_vm_target(HANDLE, vm_pod("p3", node="n2", vmim_uid="m1"))
    story.stop("p2")
    story.pod("p3")
    delete_vm(story)
    assert story.collect() is Outcome.KEEP
    story.kube.remove(Pod, "p3", "shop")
    story.collect()
    assert story.collect(later=60) is Outcome.FREE


def test_a_vmi_without_a_vm_is_told_by_its_own_uid() -> None:
    story = Story()
    story.vmi()
    story.start(vm_uid="")
    story.stop(vm_uid="")
    assert story.collect() is Outcome.KEEP
    assert story.reason == "VirtualMachineInstance shop/db with UID vmi-1 exists"
    story.vm("vm-9")
    story.kube.remove(VirtualMachineInstance, "db", "shop")
    story.collect()
    assert story.collect(later=60) is Outcome.FREE


def strip_owners(story: Story, keep: tuple[str, ...] = ()) -> None:
    """As Calico leaves a stopped VM: no owner (or one with a few attributes)."""
    for block in story.world.blocks():
        attributes = tuple(
            replace(one, active={key: one.active[key] for key in keep}) for one in block.attributes
        )
        story.world.put(BlockKey(block.cidr), replace(block, attributes=attributes))


@pytest.mark.parametrize("keep", [(), ("namespace", "vmi-name")])
def test_without_any_uid_the_name_decides(story: Story, keep: tuple[str, ...]) -> None:
    strip_owners(story, keep)
    story.vm("whatever")
    assert story.collect() is Outcome.KEEP
    delete_vm(story)
    story.vmi()
    assert story.collect(later=100) is Outcome.KEEP
    story.kube.remove(VirtualMachineInstance, "db", "shop")
    story.collect()
    assert story.collect(later=60) is Outcome.FREE
    assert story.held == 0


def test_what_nobody_names_is_kept() -> None:
    story = Story()
    digest = "k8s-pod-network.vmi." + "ab" * 32
    for handle in (digest, "net.vmi.x.vmi.shop.db"):
        story.world.client().claim_vm(handle, vm_pod("p1"), AddressRequest())
    strip_owners(story)
    for _ in range(3):
        story.collect(later=100)
    assert [one.reason for one in story.last.verdicts] == ["nothing says which VM it is of"] * 2


def test_containers_are_not_judged(story: Story) -> None:
    delete_vm(story)
    story.world.client().assign("net.vmi.0123456789ab", plain_pod("web"), AddressRequest())
    story.collect()
    story.collect(later=60)
    assert [one.subject.handle_id for one in story.last.verdicts] == [HANDLE]
    assert story.world.allocated() == {"net.vmi.0123456789ab": 1}


def test_the_add_of_the_recreated_vm_wins_the_race(story: Story) -> None:
    delete_vm(story)
    story.collect()
    story.vm("vm-2")

    def add(_: object) -> None:
        owner = vm_pod("p2", vm_uid="vm-2", vmi_uid="vmi-2")
        story.world.client().claim_vm(HANDLE, owner, BOTH, previous_owner_gone=lambda _: True)
        store.before_commit = lambda ops: None

    store = FaultyStore(story.world.store, before_commit=add)
    assert story.collect(store, later=60) is Outcome.KEEP
    assert story.reason == "it changed after it was judged"
    assert story.held == 2
    story.world.audit()
    assert story.collect(later=100) is Outcome.KEEP


def test_another_address_of_the_block_does_not_hinder(story: Story) -> None:
    delete_vm(story)
    story.collect()

    def add(_: object) -> None:
        store.before_commit = lambda ops: None
        story.world.client().assign("k8s-pod-network.c1", plain_pod("web"), BOTH)

    store = FaultyStore(story.world.store, before_commit=add)
    assert story.collect(store, later=60) is Outcome.FREE
    assert story.world.allocated() == {"k8s-pod-network.c1": 2}
    story.world.audit()


def test_released_and_given_again_is_another_allocation(story: Story) -> None:
    delete_vm(story)
    story.collect()
    story.world.client().release(HANDLE)
    story.start()
    story.stop()
    assert story.collect(later=100) is Outcome.WAIT, "the clock starts anew"


@pytest.mark.parametrize(
    "fault", [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER]
)
def test_a_commit_that_fails_or_whose_answer_is_lost(story: Story, fault: Fault) -> None:
    delete_vm(story)
    story.collect()
    store = FaultyStore(story.world.store, [fault])
    assert story.collect(store, later=60) is Outcome.FREE
    assert story.last.verdicts[0].outcome is Outcome.FREE
    assert story.held == 0
    story.world.audit()


def test_a_store_without_transactions_that_stops_in_the_middle(story: Story) -> None:
    delete_vm(story)
    story.collect()
    interrupted: list[int] = []

    def stop(done: int) -> None:
        if not interrupted:
            interrupted.append(done)
            raise Unavailable("the connection broke")

    store = StepwiseStore(story.world.store)
    store.between = stop
    assert story.collect(store, later=60) is Outcome.FREE
    assert interrupted
    assert story.held == 0
    story.world.audit()


def test_a_locked_datastore_is_waited_for(story: Story) -> None:
    delete_vm(story)
    story.collect()
    story.world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    assert story.collect(later=60) is Outcome.KEEP
    assert "could not be freed" in story.reason
    story.world.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": True})
    assert story.collect() is Outcome.FREE


def test_a_lost_handle_record_is_no_obstacle(story: Story) -> None:
    story.world.store.delete(HandleKey(HANDLE))
    delete_vm(story)
    story.collect()
    assert story.collect(later=60) is Outcome.FREE
    assert story.held == 0


def test_freed_addresses_cool_down(story: Story) -> None:
    story.world.put(IPAMConfigKey(), IPAMConfig(cooldown_seconds=60))
    delete_vm(story)
    story.collect()
    story.collect(later=60)
    assert story.held == 0
    assert any(block.attributes[0].released_at for block in story.world.blocks())


def test_nothing_to_judge_asks_the_api_nothing() -> None:
    story = Story()
    assert story.collect() is Outcome.FREE
    assert story.kube.calls == []


def test_each_verdict_is_explained(story: Story) -> None:
    delete_vm(story)
    story.collect()
    addresses = ", ".join(str(one) for one in story.last.verdicts[0].subject.addresses)
    gone = "VirtualMachine shop/db with UID vm-1 is gone"
    assert explain(story.last.verdicts) == (f"wait (in 60 s): {HANDLE} [{addresses}]: {gone}",)
    story.collect(later=60)
    assert explain(story.last.verdicts) == (f"free: {HANDLE} [{addresses}]: {gone}",)


def test_references_are_those_of_all_owners(story: Story) -> None:
    story.start("p2", vmi_uid="vmi-2")
    (handle,) = read_vm_handles(story.world.store)[0]
    assert {str(one) for one in references(handle)} == {
        "VirtualMachine shop/db with UID vm-1",
        "VirtualMachineInstance shop/db with UID vmi-2",
    }
