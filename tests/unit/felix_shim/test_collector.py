"""Which agent frees what, when it looks again, and what wakes it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from felix_shim.collector import (
    PERIOD_SECONDS,
    TROUBLE_SECONDS,
    Collector,
    DeletedVMs,
    patience,
)
from ipam.client import AddressRequest
from ipam.gc import Means
from ipam.ownership import Owners
from ipam.vm_handles import VMHandle, read_vm_handles
from libtortie.errors import Unauthorized, Unavailable
from libtortie.kube.objects import KubeNode, Meta, Pod, VirtualMachine
from libtortie.model.ipam import Owner
from libtortie.model.keys import Kind
from tests.fakes.agent_world import RecordingLog
from tests.fakes.by_hand import Clock
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import UNHURRIED, World, pool, vm_pod
from tests.fakes.kube import FakeKube

HANDLE = "k8s-pod-network.vmi.shop.db"
NODES = ("n1", "n2", "n3")
DEADLINE = 60.0


@dataclass
class Bench:
    """A store with one stopped VM of n1, three nodes, and their collectors."""

    world: World = field(default_factory=lambda: World().pools(pool("v4", "10.65.0.0/24")))
    kube: FakeKube = field(default_factory=FakeKube)
    clock: Clock = field(default_factory=Clock)
    log: RecordingLog = field(default_factory=RecordingLog)

    def __post_init__(self) -> None:
        for name in NODES:
            self.world.resource(Kind.NODE, name, {})
            self.kube.put(KubeNode(metadata=Meta(name=name)))
        self.world.client().claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
        self.world.client().disown_vm(HANDLE, vm_pod("p1"), vm_deleting=False)

    def collector(self, node: str = "n1") -> Collector:
        means = Means(
            self.world.store, self.kube, self.world.now, self.clock, lambda _: None, UNHURRIED
        )
        return Collector(means, node, self.log)

    @property
    def held(self) -> int:
        return self.world.allocated()[HANDLE]


@pytest.fixture
def bench() -> Bench:
    """The VM is deleted already."""
    return Bench()


def handle(active: Owner, alternate: Owner | None = None) -> VMHandle:
    """The stored handle with other owners."""
    (known,) = read_vm_handles(Bench().world.store)[0]
    (piece,) = known.pieces
    owners = Owners(active, alternate or {})
    return VMHandle(HANDLE, (type(piece)(piece.address, piece.cidr, piece.number, owners),))


STOPPED = {"namespace": "shop", "vmi-name": "db", "vm-uid": "vm-1"}


@pytest.mark.parametrize(
    ("found", "node", "seconds"),
    [
        (handle({**STOPPED, "node": "n1"}), "n1", 60.0),
        (handle({**STOPPED, "node": "n1"}), "n2", None),
        (handle(vm_pod("p1", node="n1")), "n1", None),
        (handle({}, vm_pod("p1", node="n2")), "n2", 60.0),
        (handle({}, vm_pod("p1", node="n2")), "n1", None),
        (handle({**STOPPED, "node": "lost"}), "n1", 60.0),
        (handle({**STOPPED, "node": "lost"}), "n3", 180.0),
        (handle({**STOPPED, "node": "lost"}), "unregistered", None),
        (handle(vm_pod("p1", node="lost")), "n2", 120.0),
        (handle({}), "n1", 60.0),
    ],
)
def test_whose_it_is(found: VMHandle, node: str, seconds: float | None) -> None:
    assert patience(found, node, NODES, 60.0) == seconds


def test_freed_once_by_the_node_where_it_was_stopped(bench: Bench) -> None:
    (address,) = (one.address for one in bench.world.client().by_handle(HANDLE))
    own, other = bench.collector(), bench.collector("n2")
    assert own.attempt() == 60.0
    assert other.attempt() == PERIOD_SECONDS
    bench.clock.now += 60
    other.attempt()
    assert bench.held == 1
    own.attempt()
    assert bench.held == 0
    (line,) = bench.log.of("vm_address_freed")
    assert line["handle_id"] == HANDLE
    assert line["addresses"] == (address,)
    assert line["reason"] == "VirtualMachine shop/db with UID vm-1 is gone"
    own.attempt()
    assert len(bench.log.of("vm_address_freed")) == 1


def test_a_living_vms_pod_is_left_to_its_del(bench: Bench) -> None:
    bench.world.client().claim_vm(HANDLE, vm_pod("p2"), AddressRequest())
    collector = bench.collector()
    for _ in range(3):
        assert collector.attempt() == PERIOD_SECONDS
        bench.clock.now += 100
    assert bench.held == 1
    assert bench.kube.calls == []


def test_a_lost_nodes_vms_are_the_lowest_nodes_then_the_nexts(bench: Bench) -> None:
    bench.world.client("gone").claim_vm(HANDLE, vm_pod("p2", node="gone"), AddressRequest())
    bench.kube.put(Pod(metadata=Meta(namespace="shop", name="p2", uid="u-p2")))
    second = bench.collector("n2")
    assert second.attempt() == PERIOD_SECONDS, "its pod is still known"
    bench.kube.remove(Pod, "p2", "shop")
    assert second.attempt() == 120.0
    bench.clock.now += 60
    assert second.attempt() == 60.0
    assert bench.held == 1
    bench.clock.now += 60
    second.attempt()
    assert bench.held == 0


def test_a_silent_api_is_asked_again_soon_and_named_once(bench: Bench) -> None:
    collector = bench.collector()
    bench.kube.fail(Unauthorized("list virtualmachines: 403"), verb="list", times=2)
    assert collector.attempt() == TROUBLE_SECONDS
    assert collector.attempt() == TROUBLE_SECONDS
    (line,) = bench.log.of("vm_collection_waits")
    assert "403" in str(line["reason"])
    assert collector.attempt() == 60.0


def test_another_clusters_api_frees_nothing(bench: Bench) -> None:
    """It has no VM of ours, by list and by name, and no node of ours either."""
    bench.kube.remove(KubeNode, "n1")
    collector = bench.collector()
    for _ in range(3):
        assert collector.attempt() == TROUBLE_SECONDS
        bench.clock.now += 100
    assert bench.held == 1
    (line,) = bench.log.of("vm_collection_waits")
    assert str(line["reason"]).endswith("the API has no node n1: is it another cluster's?")
    bench.kube.put(KubeNode(metadata=Meta(name="n1")))
    assert collector.attempt() == 60.0


def test_a_node_is_looked_for_by_its_name_in_kubernetes(bench: Bench) -> None:
    reference = {"nodeName": "n1.example.com", "orchestrator": "k8s"}
    bench.world.resource(Kind.NODE, "n1", {"orchRefs": [reference]})
    bench.kube.remove(KubeNode, "n1")
    assert bench.collector().attempt() == TROUBLE_SECONDS
    bench.kube.put(KubeNode(metadata=Meta(name="n1.example.com")))
    assert bench.collector().attempt() == 60.0


def test_a_silent_datastore_is_asked_again_soon(bench: Bench) -> None:
    class Away(FaultyStore):
        def list(self, scope: object) -> object:  # type: ignore[override]  # it never answers
            raise Unavailable("away")

    collector = bench.collector()
    means = collector.means
    collector.means = Means(Away(means.store), means.kube, means.now)  # type: ignore[arg-type]  # see above
    assert collector.attempt() == TROUBLE_SECONDS
    assert bench.log.of("vm_collection_waits") == [{"reason": "away"}]


def test_a_deletion_wakes_it_seen_or_not() -> None:
    """One that came before the first list is told by no event."""
    kube = FakeKube()
    kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    woken = threading.Event()
    deleted = DeletedVMs(kube, woken.set, RecordingLog())
    thread = threading.Thread(target=deleted.run, daemon=True)
    thread.start()
    try:
        assert woken.wait(DEADLINE), "by its list"
        woken.clear()
        kube.cut_watches(Unavailable("cut"))
        kube.remove(VirtualMachine, "db", "shop")
        assert woken.wait(DEADLINE), "by the watch"
    finally:
        deleted.stop()
        thread.join(DEADLINE)
    assert not thread.is_alive()


def test_it_passes_when_nudged_and_ends_when_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.collector.SPACING_SECONDS", 0.01)
    bench.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    collector = bench.collector()
    again = threading.Semaphore(0)
    collect = Collector.attempt

    def attempt(self: Collector) -> float:
        seconds = collect(self)
        again.release()
        return seconds

    monkeypatch.setattr(Collector, "attempt", attempt)
    thread = threading.Thread(target=collector.run, daemon=True)
    thread.start()
    assert again.acquire(timeout=DEADLINE)
    collector.nudge()
    assert again.acquire(timeout=DEADLINE)
    collector.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()
