"""The reconciler through live migrations: roles, signs, failures, disorder."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

import pytest

from felix_shim.cluster import FELIX
from felix_shim.drivers.announcements import Watched
from felix_shim.events import RaisesSeen, Sign, Stored
from felix_shim.migration import State
from felix_shim.model import EndpointId, SignKind
from libtortie.errors import KernelError
from libtortie.model.keys import Kind
from tests.fakes.agent_world import (
    ADDRESS,
    NAMESPACE,
    NODE,
    Bench,
    RecordingLog,
    endpoint_record,
    instance,
    migration,
    resource_record,
)
from tests.fakes.migrating_bench import CONVERGENCE, succeed, target_bench


def test_a_whole_migration_on_the_target() -> None:
    bench = target_bench()
    assert bench.state("tgt") is State.TARGET
    assert bench.metrics("tgt") == []
    assert bench.status, "a target is programmed like any other endpoint"
    bench.sign("tgt")
    assert bench.state("tgt") is State.LIVE
    assert bench.metrics("tgt") == [512]
    assert bench.log.of("route_raised")[0]["endpoint"] == EndpointId(NAMESPACE, "tgt")
    succeed(bench)
    assert bench.state("tgt") is State.TIME_WAIT
    bench.advance(CONVERGENCE - 1)
    assert bench.metrics("tgt") == [512]
    bench.advance(2)
    assert bench.state("tgt") is State.BASE
    assert bench.metrics("tgt") == [1024]
    assert bench.log.of("route_reverted")


def test_revert_adds_before_it_deletes() -> None:
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)
    bench.kernel.namespaces.changes.clear()
    bench.advance(CONVERGENCE + 1)
    moves = [what for what in bench.kernel.namespaces.changes if "route" in what[0]]
    assert moves == [
        ("ensure_route", f"{ADDRESS}/32 metric 1024"),
        ("delete_route", f"{ADDRESS}/32 metric 512"),
    ]


def test_a_sign_counts_in_any_phase_that_is_not_final() -> None:
    for phase in ("", "Pending", "Scheduling", "PreparingTarget", "TargetReady", "Running"):
        bench = target_bench(phase)
        bench.sign("tgt", SignKind.IP_FRAME)
        assert bench.metrics("tgt") == [512], phase


def test_the_missed_sign_is_made_up_for_by_the_api() -> None:
    bench = target_bench()
    succeed(bench)
    assert bench.state("tgt") is State.TIME_WAIT
    assert bench.metrics("tgt") == [512]


def test_success_seen_before_the_vmi_moved_raises_nothing_yet() -> None:
    bench = target_bench()
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"))
    assert bench.metrics("tgt") == []
    bench.seen(instance(NODE))
    assert bench.metrics("tgt") == [512]


@pytest.mark.parametrize("end", ["Failed", "gone"])
def test_a_failed_migration_leaves_no_route(end: str) -> None:
    bench = target_bench()
    job = migration("m1", source="src", target="tgt")
    if end == "gone":
        bench.vanished(job)
    else:
        bench.seen(migration("m1", "Failed", source="src", target="tgt"))
    assert bench.state("tgt") is State.SUPPRESSED
    assert bench.metrics("tgt") == []
    assert bench.owned == {}
    bench.advance(100)
    assert bench.metrics("tgt") == []


def test_a_sign_is_newer_than_every_raise_that_was_told_before_it() -> None:
    """The raise was taken in, and the sign came before anything followed from it."""
    bench = target_bench()
    address = ip_address(ADDRESS)
    raised = {address: "172.31.1.3"}
    bench.reconciler.take(RaisesSeen(frozenset(raised), raised, frozenset(raised)))
    bench.sign("tgt")
    assert bench.state("tgt") is State.LIVE
    assert bench.metrics("tgt") == [512]


class Answering(Bench):
    """Whoever is listened for while a route leads to it answers at once, as a VM that has left
    does not, but the kernel of its pod can: `Suppressed` and `Departed` would be undone by it."""

    def _listen(self, wanted: Mapping[EndpointId, Watched]) -> None:
        super()._listen(wanted)
        for endpoint, watched in wanted.items():
            if self.metrics(endpoint.pod):
                now = self.reconciler._clocks.realtime_ns()
                sign = Sign(endpoint, watched.interface, watched.episode, SignKind.IP_FRAME, now)
                self.inbox.post(sign)


@pytest.mark.parametrize("settled", [False, True])
def test_an_answer_to_what_still_came_is_no_sign(settled: bool) -> None:
    """The API has not heard of the next node yet: the VM's frames alone would bring it back."""
    bench = target_bench(bench=Answering())
    bench.sign("tgt")
    succeed(bench)
    if settled:
        bench.advance(CONVERGENCE + 1)
    bench.raised("172.31.1.3")
    assert bench.state("tgt") is (State.DEPARTED if settled else State.SUPPRESSED)
    assert bench.metrics("tgt") == []
    bench.sign("tgt")
    assert bench.metrics("tgt") == [512], "afterwards it is listened for"


def test_a_route_that_the_kernel_took_away_is_listened_behind_at_once() -> None:
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)

    def refuse(operation: str, subject: str) -> None:
        if operation == "delete_route":
            raise KernelError(f"{operation} {subject}")

    bench.kernel.namespaces.before = refuse
    bench.raised("172.31.1.3")
    assert bench.state("tgt") is State.SUPPRESSED and bench.watched == {}
    bench.kernel.namespaces.before = lambda *_: None
    (route,) = bench.kernel.routes(dst=ip_network(ADDRESS))
    bench.kernel.delete_route(route)
    bench.settle()
    assert EndpointId(NAMESPACE, "tgt") in bench.watched


def test_failure_after_the_vm_spoke_here_moves_nothing() -> None:
    bench = target_bench()
    bench.sign("tgt")
    bench.seen(migration("m1", "Failed", source="src", target="tgt"))
    bench.advance(100)
    assert bench.metrics("tgt") == [512]
    assert EndpointId(NAMESPACE, "tgt") in bench.owned


def test_owner_is_wanted_from_the_first_sign_on() -> None:
    bench = target_bench()
    assert bench.owned == {}
    bench.sign("tgt")
    (wanted,) = bench.owned.values()
    assert wanted.handle_id == "k8s-pod-network.vmi.default.vm1"
    assert wanted.owner["pod"] == "tgt"
    assert wanted.owner["vmim-uid"] == "m1"
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    assert EndpointId(NAMESPACE, "tgt") in bench.owned


def test_the_source_lets_go_when_the_vm_is_proved_elsewhere() -> None:
    bench = Bench()
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    assert bench.metrics("src") == [1024]
    bench.seen(migration("m1", source="src", target="tgt"))
    assert bench.metrics("src") == [1024]
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    assert bench.state("src") is State.DEPARTED
    assert bench.metrics("src") == []


def test_the_source_lets_go_when_another_node_raises_the_address() -> None:
    bench = Bench()
    bench.kernel.add_link("up0")
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    bench.seen(migration("m1", source="src", target="tgt"))
    bench.bird_route()
    assert bench.urgent
    assert bench.metrics("src") == [1024], "a route in the kernel alone is not yet a raise"
    bench.raised("172.31.1.3")
    assert bench.state("src") is State.DEPARTED
    assert bench.metrics("src") == []


def test_without_bird_the_kernel_route_is_taken_at_its_word() -> None:
    bench = Bench(kernel_raises=True)
    bench.kernel.add_link("up0")
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    bench.bird_route()
    assert bench.metrics("src") == []
    bench.bird_route(present=False)
    assert bench.metrics("src") == [1024]


def test_a_node_that_was_cut_off_raises_nothing_and_withdraws_when_it_is_back() -> None:
    """Its VM had just come, its pod was force-deleted, and the VM began again elsewhere."""
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)
    assert bench.metrics("tgt") == [512]
    bench.advance(2 * CONVERGENCE + 1)  # of which the API tells nothing
    assert bench.metrics("tgt") == [1024], "a raise ends by itself"
    bench.seen(instance("n2", uid="vmi-uid-2"))
    assert bench.metrics("tgt") == []
    assert bench.owned == {}, "nor does it claim the address back"


def test_a_lingering_source_never_comes_back() -> None:
    """The source's pod hangs on for ten convergence times; its route stays away."""
    bench = Bench()
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    bench.seen(migration("m1", source="src", target="tgt"))
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    bench.raised("172.31.1.3")
    for _ in range(10):
        bench.advance(CONVERGENCE)
        assert bench.metrics("src") == []
    bench.raised("")
    assert bench.metrics("src") == []


def test_a_target_is_listened_for_though_its_source_on_the_same_node_has_the_route() -> None:
    bench = Bench()
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    bench.seen(migration("m1", source="src", target="tgt"))
    bench.attach(endpoint_record("tgt", migration="m1"))
    assert bench.watched.keys() == {EndpointId(NAMESPACE, "tgt")}
    assert bench.metrics("src") == [1024]
    bench.sign("tgt")
    assert bench.metrics("tgt") == [512]


def test_a_guest_that_goes_on_beside_the_vm_is_told_of_once_and_gets_no_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, warned = Bench(), RecordingLog()
    monkeypatch.setattr(bench.log, "warning", warned.warning)
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    bench.seen(migration("m1", source="src", target="tgt"))
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    for _ in range(5):
        bench.sign("src")
        assert bench.metrics("src") == []
    assert [one["reason"] for one in warned.of("sign_dropped")] == ["elsewhere"]
    assert bench.owned == {}


def test_back_to_back_the_old_elevation_ends_when_the_next_migration_begins() -> None:
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)
    bench.advance(1)
    assert bench.metrics("tgt") == [512]
    bench.seen(migration("m2", source="tgt", target="next"))
    assert bench.state("tgt") is State.BASE
    assert bench.metrics("tgt") == [1024]
    bench.raised("172.31.1.4")
    assert bench.metrics("tgt") == []


def test_duplicates_and_disorder_reach_the_same_end() -> None:
    bench = target_bench()
    live = migration("m1", source="src", target="tgt")
    done = migration("m1", "Succeeded", source="src", target="tgt")
    bench.sign("tgt")
    for thing in (instance(NODE), live, live, done, instance(NODE), done):
        bench.seen(thing)
        assert bench.metrics("tgt") == [512]
    bench.seen(instance("n0"))
    bench.seen(instance(NODE))
    bench.advance(2 * CONVERGENCE + 1)
    assert bench.metrics("tgt") == [1024]


def test_a_cancelled_target_that_speaks_gets_no_route() -> None:
    """T1 was cancelled but runs; T2 succeeded elsewhere; then T1 announces itself."""
    bench = target_bench()
    bench.seen(migration("m1", "Failed", source="src", target="tgt"))
    bench.seen(migration("m2", "Succeeded", source="src", target="t2"), instance("n2"))
    bench.raised("172.31.1.3")
    bench.sign("tgt")
    assert bench.metrics("tgt") == []


def test_a_late_sign_of_an_old_episode_is_dropped() -> None:
    bench = target_bench()
    dropped = bench.reconciler.signs_dropped
    bench.sign("tgt", episode=99)
    assert bench.metrics("tgt") == []
    assert bench.reconciler.signs_dropped == dropped + 1


def test_a_sign_before_the_rules_are_in_waits_for_them() -> None:
    bench = Bench()
    bench.start(objects=(migration("m1", source="src", target="tgt"), instance("n0")))
    bench.nft_broken = True
    bench.attach(endpoint_record("tgt", migration="m1"))
    bench.sign("tgt")
    assert bench.state("tgt") is State.LIVE
    assert bench.metrics("tgt") == []
    bench.nft_broken = False
    bench.advance(1)
    assert bench.metrics("tgt") == [512]


def test_a_label_without_a_live_migration_is_no_role() -> None:
    bench = Bench()
    bench.start(objects=(migration("m1", "Succeeded"), instance(NODE)))
    bench.attach(endpoint_record("tgt", migration="m1"))
    assert bench.metrics("tgt")[0] in (512, 1024), "the VM is proved here"
    bench.advance(2 * CONVERGENCE + 1)
    assert bench.metrics("tgt") == [1024]


def test_the_convergence_time_is_read_live() -> None:
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)
    spec = {"liveMigrationRouteConvergenceTime": "5s"}
    bench.tell(Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)))
    bench.advance(6)
    assert bench.metrics("tgt") == [1024]


def test_a_stale_route_elsewhere_holds_the_raise_up_to_twice_the_time() -> None:
    bench = target_bench()
    bench.raised("172.31.1.2")
    bench.sign("tgt")
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    assert bench.metrics("tgt") == [512]
    bench.advance(CONVERGENCE)
    assert bench.metrics("tgt") == [1024]
    (line,) = bench.log.of("migration_warning")
    assert bench.warned == [(line["endpoint"], line["reason"])], "its pod gets an Event"


def test_the_raise_ends_as_soon_as_the_stale_route_is_gone() -> None:
    bench = target_bench()
    bench.raised("172.31.1.2")
    bench.sign("tgt")
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    bench.raised("")
    assert bench.metrics("tgt") == [1024]


def test_a_newer_raise_elsewhere_ends_ours() -> None:
    bench = target_bench()
    bench.sign("tgt")
    assert bench.asked, "while ours is raised only BIRD can tell of another"
    bench.raised("172.31.1.9")
    assert bench.state("tgt") is State.SUPPRESSED
    assert bench.metrics("tgt") == []
    assert bench.owned == {}


def test_a_route_that_fails_is_tried_again() -> None:
    bench = target_bench()

    def refuse(operation: str, subject: str) -> None:
        if operation == "ensure_route":
            raise KernelError(f"{operation} {subject}")

    bench.kernel.namespaces.before = refuse
    bench.sign("tgt")
    assert bench.metrics("tgt") == []
    assert bench.log.of("route_failed")
    bench.kernel.namespaces.before = lambda *_: None
    bench.advance(0.3)
    assert bench.metrics("tgt") == [512]


def test_a_full_disk_delays_no_route() -> None:
    bench = target_bench()
    bench.disk_broken = True
    bench.sign("tgt")
    assert bench.metrics("tgt") == [512]
    bench.disk_broken = False
    bench.advance(0.5)
    assert b'"state": "live"' in bench.saved
