"""The reconciler through live migrations: failures, disorder, restarts in every state."""

from __future__ import annotations

import pytest

from felix_shim.cluster import FELIX
from felix_shim.events import Instance, Migration, Stored
from felix_shim.migration import State
from felix_shim.model import EndpointId, SignKind
from libtortie.errors import KernelError
from libtortie.model.keys import Kind
from tests.fakes.agent_world import (
    ADDRESS,
    NAMESPACE,
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
    resource_record,
)

CONVERGENCE = 30.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def target_bench(phase: str = "Running") -> Bench:
    """A node that is the target of a migration, before the VM arrives."""
    bench = Bench()
    bench.kernel.add_link("up0")
    bench.start(objects=(migration("m1", phase, source="src", target="tgt"), instance("n0")))
    bench.attach(endpoint_record("tgt", migration="m1"))
    return bench


def succeed(bench: Bench) -> None:
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance(NODE))


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


def test_a_label_without_a_live_migration_is_no_role(bench: Bench) -> None:
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


# -- restarts ------------------------------------------------------------------------------------


def again(bench: Bench) -> Bench:
    """The agent killed and started again; the API does not answer yet."""
    fresh = bench.restarted()
    fresh.listed(endpoint_record("tgt", migration="m1"))
    return fresh


def test_restart_in_target() -> None:
    bench = again(target_bench())
    assert bench.state("tgt") is State.TARGET
    bench.sign("tgt")
    assert bench.metrics("tgt") == [512], "the API need not be there"


def test_restart_in_live_with_the_api_away() -> None:
    old = target_bench()
    old.sign("tgt")
    bench = again(old)
    assert bench.state("tgt") is State.LIVE
    assert bench.metrics("tgt") == [512]
    bench.kube_in_sync(migration("m1", source="src", target="tgt"), instance("n0"))
    assert bench.metrics("tgt") == [512]


def test_restart_in_time_wait_keeps_the_deadline() -> None:
    old = target_bench()
    old.sign("tgt")
    succeed(old)
    old.advance(20)
    bench = again(old)
    assert bench.metrics("tgt") == [512]
    bench.kube_in_sync(migration("m1", "Succeeded", source="src", target="tgt"), instance(NODE))
    bench.advance(9)
    assert bench.metrics("tgt") == [512]
    bench.advance(2)
    assert bench.metrics("tgt") == [1024]


def test_restart_in_departed() -> None:
    old = Bench()
    old.start(objects=(instance(NODE),))
    old.attach(endpoint_record("src"))
    old.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    assert old.metrics("src") == []
    bench = old.restarted()
    bench.listed(endpoint_record("src"))
    assert bench.state("src") is State.DEPARTED
    assert bench.metrics("src") == []


def test_restart_without_a_state_file_believes_the_kernel() -> None:
    old = target_bench()
    old.sign("tgt")
    old.saved = b""
    bench = again(old)
    assert bench.metrics("tgt") == [512]
    bench.kube_in_sync(migration("m1", "Succeeded", source="src", target="tgt"), instance(NODE))
    bench.advance(2 * CONVERGENCE + 1)
    assert bench.metrics("tgt") == [1024]


def test_restart_amid_finished_migrations_of_the_vm_flaps_nothing() -> None:
    old = target_bench()
    old.sign("tgt")
    bench = again(old)
    bench.kernel.namespaces.changes.clear()
    finals = [migration(f"old{n}", p) for n, p in enumerate(("Succeeded", "Failed", "Succeeded"))]
    bench.kube_in_sync(
        finals[2],
        migration("m1", source="src", target="tgt"),
        finals[0],
        instance("n0"),
        finals[1],
    )
    assert [one for one in bench.kernel.namespaces.changes if "route" in one[0]] == []
    assert bench.state("tgt") is State.LIVE


def test_a_saved_state_is_not_given_to_another_sandbox() -> None:
    old = target_bench()
    old.sign("tgt")
    fresh = old.restarted()
    record = endpoint_record("tgt", migration="m1", container="another")
    fresh.listed(record)
    assert fresh.log.of("migration_begun")[0]["remembered"] is False


def test_a_restart_leaves_status_files_alone_until_its_rules_are_in() -> None:
    bench = target_bench().restarted()
    bench.nft_broken = True
    bench.listed(endpoint_record("tgt", migration="m1"))
    assert bench.status_writes == 0
    bench.nft_broken = False
    bench.advance(0.2)
    assert bench.status


def test_a_vm_that_came_back_is_claimed_without_its_old_migration() -> None:
    """Its first promotion named m1; that word no longer holds once the VM was elsewhere."""
    bench = target_bench()
    bench.sign("tgt")
    succeed(bench)
    bench.seen(migration("m2", source="tgt", target="next"))
    bench.raised("172.31.1.4")
    assert bench.state("tgt") is State.DEPARTED
    assert bench.owned == {}
    bench.raised("")
    bench.seen(migration("m2", "Failed", source="tgt", target="next"), instance(NODE))
    assert bench.metrics("tgt") == [1024]
    for node in (bench, again(bench)):
        (wanted,) = node.owned.values()
        assert "vmim-uid" not in wanted.owner


# --- forged targets --------------------------------------------------------------------------


def named(how: str, phase: str = "Running") -> list[Migration | Instance]:
    """The API names `real` as the target, by one witness."""
    by_job = how == "migration"
    state = {} if by_job else {"migrationUid": "m1", "sourcePod": "src", "targetPod": "real"}
    return [
        migration("m1", phase, source="src", target="real" if by_job else ""),
        instance("n0", state=state),
    ]


def episode_of(bench: Bench) -> int:
    local = bench.reconciler.world.roster.get(EndpointId(NAMESPACE, "forged"))
    assert local is not None
    return local.machine.episode


def forged_bench() -> Bench:
    """The first pod of the migration to be attached is not the one KubeVirt will choose."""
    bench = Bench()
    bench.kernel.add_link("up0")
    bench.start(objects=(migration("m1"), instance("n0")))
    bench.attach(endpoint_record("forged", migration="m1"))
    assert bench.state("forged") is State.TARGET
    return bench


@pytest.mark.parametrize("how", ["migration", "vmi"])
def test_a_forged_target_raises_nothing_once_another_is_named(how: str) -> None:
    bench = forged_bench()
    bench.seen(*named(how))
    assert bench.state("forged") is State.REFUSED
    assert EndpointId(NAMESPACE, "forged") not in bench.watched
    for kind in SignKind:
        bench.sign("forged", kind, episode=episode_of(bench))
    assert bench.metrics("forged") == []
    assert bench.owned == {}


@pytest.mark.parametrize("how", ["migration", "vmi"])
@pytest.mark.parametrize("settled", [False, True])
def test_what_a_forged_target_raised_is_withdrawn(how: str, settled: bool) -> None:
    bench = forged_bench()
    bench.sign("forged")
    assert bench.metrics("forged") == [512], "nobody is named: it cannot be told apart"
    if settled:
        bench.seen(instance(NODE))
        bench.seen(migration("m1", "Succeeded"))
        bench.advance(CONVERGENCE + 1)
        assert bench.metrics("forged") == [1024]
    bench.seen(*named(how))
    assert bench.state("forged") is State.REFUSED
    assert bench.metrics("forged") == []
    assert bench.owned == {}


@pytest.mark.parametrize("how", ["migration", "vmi"])
def test_a_refused_pod_stays_so_when_all_is_over_and_forgotten(how: str) -> None:
    """On the very node where the VM then runs, across a restart of the agent."""
    bench = forged_bench()
    bench.seen(*named(how))
    bench.seen(*named(how, "Succeeded"))
    bench.vanished(migration("m1"))
    bench.seen(instance(NODE, pods={"uid-of-forged": NODE, "uid-of-real": NODE}))
    bench.sign("forged", episode=episode_of(bench))
    assert bench.metrics("forged") == []
    again = Bench(kernel=bench.kernel, clock=bench.clock, saved=bench.saved)
    again.start(
        endpoint_record("forged", migration="m1"),
        objects=(instance(NODE, pods={"uid-of-forged": NODE, "uid-of-real": NODE}),),
    )
    assert again.state("forged") is State.REFUSED
    assert again.metrics("forged") == []


def test_a_forged_target_beside_the_source_leaves_the_sources_route_alone() -> None:
    bench = Bench()
    bench.kernel.add_link("up0")
    pods = {"uid-of-src": NODE, "uid-of-forged": NODE}
    bench.add_veth("src")
    bench.start(endpoint_record("src"), objects=(migration("m1"), instance(NODE, pods=pods)))
    bench.attach(endpoint_record("forged", migration="m1"))
    bench.sign("forged")
    assert bench.metrics("src") == [1024]
    state = {"migrationUid": "m1", "sourcePod": "src", "targetPod": "real"}
    bench.seen(instance(NODE, pods=pods, state=state))
    assert (bench.metrics("src"), bench.metrics("forged")) == ([1024], [])
