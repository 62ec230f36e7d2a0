"""The reconciler killed and started again, in every state of a live migration."""

from __future__ import annotations

from felix_shim.cluster import ENDPOINTS, FELIX
from felix_shim.events import Stored, Unstored
from felix_shim.migration import State
from libtortie.model.keys import Kind
from tests.fakes.agent_world import (
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
    resource_record,
)
from tests.fakes.migrating_bench import CONVERGENCE, succeed, target_bench


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
    failed = migration("m2", "Failed", source="tgt", target="next")
    bench.seen(failed, instance(NODE))
    assert bench.metrics("tgt") == [1024]
    (wanted,) = bench.owned.values()
    assert "vmim-uid" not in wanted.owner
    fresh = again(bench)
    assert fresh.owned == {}, "the VM may have left since"
    fresh.kube_in_sync(failed, instance(NODE))
    assert list(fresh.owned.values()) == [wanted]


def source_that_never_moved() -> Bench:
    bench = Bench()
    bench.start(objects=(instance(NODE),))
    bench.attach(endpoint_record("src"))
    assert len(bench.owned) == 1
    return bench


def test_what_a_source_remembers_takes_nobodys_seat() -> None:
    """The VM left while its agent was down: a claim that names no migration would be obeyed."""
    bench = source_that_never_moved().restarted()
    bench.listed(endpoint_record("src"))
    assert bench.owned == {}
    bench.kube_in_sync(instance(NODE))
    assert len(bench.owned) == 1


def test_a_source_does_not_hold_its_seat_against_a_migration() -> None:
    """Its target may be heard, and have the seat, before the API says anything of it."""
    bench = source_that_never_moved()
    for names in ({}, {"source": "src", "target": "tgt"}):
        bench.seen(migration("m1", **names))
        assert bench.owned == {}
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"))
    assert bench.owned == {}, "the VMIs' watch may be the slower one"
    bench.seen(migration("m1", "Failed", source="src", target="tgt"))
    assert len(bench.owned) == 1


def test_a_route_that_was_an_ordinary_one_raises_no_pod() -> None:
    """The priorities changed while the agent was away: what was normal is elevated now."""
    bench = Bench()
    bench.start()
    web = endpoint_record("web", vm=False)
    bench.attach(web)
    assert bench.metrics("web") == [1024]
    settings = resource_record(
        Kind.FELIX_CONFIGURATION,
        "default",
        {"ipv4NormalRoutePriority": 2048, "ipv4ElevatedRoutePriority": 1024},
    )
    fresh = bench.restarted()
    fresh.start(web, lists={FELIX: (settings,)})
    assert fresh.state("web") is State.BASE
    assert fresh.metrics("web") == [2048]


def lost_and_given_back(bench: Bench) -> None:
    """The store loses the target's record for a moment."""
    record = endpoint_record("tgt", migration="m1")
    bench.tell(Unstored(ENDPOINTS, record.key))
    assert bench.metrics("tgt") == []
    bench.tell(Stored(ENDPOINTS, record))


def test_a_record_that_comes_back_finds_its_machine_as_it_was() -> None:
    bench = target_bench()
    bench.sign("tgt")
    lost_and_given_back(bench)
    assert (bench.state("tgt"), bench.metrics("tgt")) == (State.LIVE, [512])
    succeed(bench)
    lost_and_given_back(bench)
    assert (bench.state("tgt"), bench.metrics("tgt")) == (State.TIME_WAIT, [512])
    bench.advance(CONVERGENCE + 1)
    assert (bench.state("tgt"), bench.metrics("tgt")) == (State.BASE, [1024])
    lost_and_given_back(bench)
    assert (bench.state("tgt"), bench.metrics("tgt")) == (State.BASE, [1024])


def test_what_was_saved_before_the_start_does_not_come_back_with_a_record() -> None:
    old = target_bench()
    old.sign("tgt")
    bench = again(old)
    done = migration("m1", "Succeeded", source="src", target="tgt")
    bench.kube_in_sync(done, instance(NODE))
    bench.advance(CONVERGENCE + 1)
    bench.vanished(done, instance(NODE))
    lost_and_given_back(bench)
    assert (bench.state("tgt"), bench.metrics("tgt")) == (State.BASE, [1024])
