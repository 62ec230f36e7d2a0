"""A VM's moves in the overlay: on its source, its target, and on third nodes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from felix_shim.cluster import BLOCKS, NODES, POOLS
from felix_shim.events import Listed, Stored, Unstored
from felix_shim.herald import Tidings
from felix_shim.migration import State
from felix_shim.model import EndpointId
from felix_shim.settings import Settings
from felix_shim.state import Memory, decode, encode
from libtortie.datastore.port import Record
from libtortie.errors import KernelError
from libtortie.linux.port import RouteType
from tests.fakes.agent_world import (
    ADDRESS,
    NAMESPACE,
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
)
from tests.fakes.migrating_bench import CONVERGENCE, succeed, target_bench
from tests.fakes.overlay_bench import (
    CIDR,
    DEVICE,
    away,
    block_record,
    cut_over,
    lists,
    node_record,
    pool_record,
    source_bench,
    store,
    with_overlay,
)


def route_changes(bench: Bench) -> list[tuple[str, str]]:
    changes = [one for one in bench.kernel.namespaces.changes if "route" in one[0]]
    bench.kernel.namespaces.changes.clear()
    return changes


def arriving(owner: str = "n0") -> Bench:
    """A node that is the target of a migration from n0."""
    bench = with_overlay(target_bench(), block_record("n0", NODE, owner=owner))
    assert bench.state("tgt") is State.TARGET
    return bench


# -- third nodes ---------------------------------------------------------------------------------


def test_a_third_node_follows_the_store() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n0"))
    assert away(bench) == "", "the block's route leads there"
    store(bench, block_record("n2", owner="n0"))
    assert away(bench) == "n2"
    store(bench, block_record("n0"))
    assert away(bench) == ""


def test_nothing_is_made_of_half_the_lists() -> None:
    bench = Bench()
    bench.start()
    bench.tell(
        Listed(NODES, (node_record(0), node_record(1))),
        Listed(POOLS, (pool_record(),)),
        Listed(BLOCKS[0], (block_record("n0"),)),
    )
    assert bench.kernel.link(DEVICE) is None
    bench.tell(Listed(BLOCKS[1], ()))
    assert bench.kernel.link(DEVICE) is not None


def test_a_pool_that_leaves_the_overlay_takes_it_along() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n2", owner="n0"))
    assert away(bench) == "n2"
    bench.tell(Stored(POOLS, pool_record("Never")))
    assert bench.kernel.link(DEVICE) is None
    assert bench.kernel.routes() == ()


def test_bird_leaves_the_overlays_routes_to_us() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n0"))
    assert bench.bird[-1].tunnelled == (ip_network("10.65.0.0/16"),)


def test_a_device_that_goes_comes_back() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n2", owner="n0"))
    bench.kernel.delete_link(DEVICE)
    bench.settle()
    assert away(bench) == "n2"
    bench.kernel.set_link(DEVICE, up=False)
    bench.settle()
    assert away(bench) == "n2"


def test_a_list_with_an_unreadable_block_takes_nothing_away() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n2", owner="n0"))
    bench.tell(Listed(BLOCKS[0], (), ("a block that cannot be read",)))
    assert away(bench) == "n2"
    bench.tell(Listed(BLOCKS[0], ()))
    assert away(bench) == ""


def test_a_block_that_goes_takes_its_routes_along() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n2", owner="n0"))
    bench.tell(Unstored(BLOCKS[0], block_record("n2").key))
    assert bench.kernel.routes() == ()


# -- the source ----------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [NODE, "n0", "n2"])
@pytest.mark.parametrize("by", ["store", "notice"])
def test_the_source_sends_on_before_it_lets_go(owner: str, by: str) -> None:
    """Whoever has the block: even where its own route would lead to the target."""
    bench = source_bench(owner)
    if by == "notice":
        cut_over(bench, "n2")
    else:
        store(bench, block_record("n2", owner=owner))
    assert away(bench) == "n2"
    assert bench.state("src") is State.DEPARTED
    assert bench.metrics("src") == []
    assert route_changes(bench) == [
        ("ensure_route", f"{ADDRESS}/32 metric 896"),
        ("delete_route", f"{ADDRESS}/32 metric 1024"),
    ]
    store(bench, block_record("n2", owner=owner))
    assert away(bench) == "n2", "the store and the notice agree"


def test_what_the_source_sends_on_it_sends_until_its_pod_is_gone_and_after() -> None:
    bench = source_bench()
    store(bench, block_record("n2", owner=NODE))
    bench.advance(300)
    assert away(bench) == "n2"
    bench.detach(endpoint_record("src"))
    assert away(bench) == "n2", "its block is here, its address is not"


def test_bgp_does_not_take_the_route_from_under_the_source() -> None:
    """BGP may tell of the raise before there is a way to the target in the overlay."""
    bench = source_bench()
    bench.raised("172.31.2.2")
    assert bench.metrics("src") == [1024]
    assert bench.state("src") is State.BASE


def test_in_a_pool_without_overlay_bgp_says_it_and_the_blocks_say_nothing() -> None:
    bench = Bench()
    bench.start(objects=(migration("m1", source="src", target="tgt"), instance(NODE)))
    bench.attach(endpoint_record("src"))
    with_overlay(bench, block_record(NODE, "n2", owner=NODE), pool_record(cidr="10.66.0.0/16"))
    store(bench, block_record("n2", owner=NODE))
    assert (bench.metrics("src"), away(bench)) == ([1024], "")
    bench.raised("172.31.2.2")
    assert (bench.metrics("src"), bench.state("src")) == ([], State.DEPARTED)


def test_if_the_way_to_the_target_cannot_be_made_the_source_keeps_its_own() -> None:
    def refuse(operation: str, subject: str) -> None:
        if operation == "ensure_route" and subject.endswith("metric 896"):
            raise KernelError("no room")

    bench = source_bench()
    bench.kernel.namespaces.before = refuse
    store(bench, block_record("n2", owner=NODE))
    assert bench.metrics("src") == [1024]
    assert bench.log.of("apply_failed")
    bench.kernel.namespaces.before = lambda operation, subject: None
    bench.advance(10)
    assert (bench.metrics("src"), away(bench)) == ([], "n2")


# -- the target ----------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [NODE, "n0", "n2"])
def test_the_target_leads_to_the_source_until_it_hears_the_vm(owner: str) -> None:
    bench = arriving(owner)
    assert (bench.metrics("tgt"), away(bench)) == ([], "n0")
    bench.kernel.namespaces.changes.clear()
    bench.sign("tgt")
    assert (bench.metrics("tgt"), away(bench)) == ([512], "")
    assert route_changes(bench) == [
        ("ensure_route", f"{ADDRESS}/32 metric 512"),
        ("delete_route", f"{ADDRESS}/32 metric 896"),
    ]


def test_old_news_never_leads_away_what_was_heard_here() -> None:
    """The owner swap takes longer than the convergence time: the store still says n0."""
    bench = arriving()
    bench.sign("tgt")
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    assert bench.state("tgt") is State.BASE
    assert (bench.metrics("tgt"), away(bench)) == ([1024], "")
    store(bench, block_record("n0", NODE, owner="n2"))
    assert (bench.metrics("tgt"), away(bench)) == ([1024], "")


def moved_on(bench: Bench) -> None:
    """The store has had the VM here, and now has it on n2."""
    store(bench, block_record(NODE, owner="n0"))
    assert away(bench) == ""
    store(bench, block_record(NODE, "n2", owner="n0", uid="m2"))
    store(bench, block_record("n2", owner="n0"))


@pytest.mark.parametrize("settled", [False, True])
def test_news_newer_than_the_swap_does(settled: bool) -> None:
    bench = arriving()
    bench.sign("tgt")
    if settled:
        succeed(bench)
        bench.advance(2 * CONVERGENCE + 1)
    moved_on(bench)
    assert (bench.metrics("tgt"), away(bench)) == ([], "n2")
    assert bench.state("tgt") is (State.DEPARTED if settled else State.SUPPRESSED)


def test_two_swaps_heard_of_at_once_are_two() -> None:
    """The store has had the VM here, though nothing was made of that in between."""
    bench = arriving()
    bench.sign("tgt")
    for block in (block_record(NODE, owner="n0"), block_record("n2", owner="n0")):
        bench.inbox.post(Stored(BLOCKS[0], block))
    bench.settle()
    assert (bench.metrics("tgt"), away(bench)) == ([], "n2")


def test_a_way_that_does_not_go_keeps_the_raised_route() -> None:
    """Reverted, the route would be worse than the way to the source that nobody can remove."""

    def refuse(operation: str, subject: str) -> None:
        if operation == "delete_route" and subject.endswith("metric 896"):
            raise KernelError("busy")

    bench = arriving()
    bench.kernel.namespaces.before = refuse
    bench.sign("tgt")
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    assert (bench.metrics("tgt"), away(bench)) == ([512], "n0")
    bench.kernel.namespaces.before = lambda operation, subject: None
    bench.advance(CONVERGENCE)
    assert (bench.metrics("tgt"), away(bench)) == ([1024], "")


def test_a_notice_of_the_next_target_counts_before_any_swap() -> None:
    bench = arriving()
    bench.sign("tgt")
    store(bench, block_record("n0", "n2", owner="n0", uid="m2"))
    cut_over(bench, "n2", "m2")
    assert (bench.metrics("tgt"), away(bench)) == ([], "n2")


@pytest.mark.parametrize(("owner", "whom"), [("n2", {0, 2}), ("n0", {0}), (NODE, {0})])
def test_source_and_owner_of_the_block_are_told_until_the_store_has_it(
    owner: str, whom: set[int]
) -> None:
    bench = arriving(owner)
    one = EndpointId(NAMESPACE, "tgt")
    wanted = {
        (one, f"n{number}"): Tidings(
            "m1", (ip_address(ADDRESS),), f"n{number}", ip_address(f"172.31.{number}.2")
        )
        for number in whom
    }
    assert bench.tellings[-1] == {key: told for key, told in wanted.items() if key[1] == owner}
    bench.sign("tgt")
    here = {key: replace(told, arrived=True) for key, told in wanted.items()}
    assert bench.tellings[-1] == here
    store(bench, block_record(NODE, owner=owner))
    assert bench.tellings[-1] == {}
    bench.tellings.clear()
    store(bench, block_record("n2", NODE, owner=owner))
    assert not any(bench.tellings), "it has moved on, and this is where it was"


def test_what_is_known_of_a_vm_goes_with_its_pod() -> None:
    bench = arriving()
    desk = bench.reconciler.world.overlay
    bench.sign("tgt")
    store(bench, block_record(NODE, owner="n0"))
    assert desk._confirmed == {EndpointId(NAMESPACE, "tgt"): {ip_address(ADDRESS)}}
    bench.detach(endpoint_record("tgt", migration="m1"))
    assert desk._confirmed == {}, "pods come and go for months"


def test_the_owner_is_told_though_the_route_is_an_ordinary_one_by_now() -> None:
    """The store stays away for longer than the convergence time."""
    bench = arriving("n2")
    bench.sign("tgt")
    succeed(bench)
    bench.advance(CONVERGENCE)
    assert bench.metrics("tgt") == [1024]
    assert [node for _, node in bench.tellings[-1]] == ["n2"]
    store(bench, block_record(NODE, owner="n2"))
    assert bench.tellings[-1] == {}


def test_a_failed_migration_leaves_the_way_to_the_source() -> None:
    bench = arriving()
    bench.seen(migration("m1", "Failed", source="src", target="tgt"))
    store(bench, block_record("n0", owner="n0"))
    assert bench.state("tgt") is State.SUPPRESSED
    assert (bench.metrics("tgt"), away(bench)) == ([], "n0")
    bench.detach(endpoint_record("tgt", migration="m1"))
    assert away(bench) == "", "the block's route will do"


def test_the_vm_comes_home() -> None:
    """It left this node, whose pod lingers, and comes back to another pod here."""
    bench = source_bench()
    store(bench, block_record("n2", owner=NODE))
    assert away(bench) == "n2"
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    bench.detach(endpoint_record("src"))
    bench.seen(migration("m2", source="tgt", target="back"))
    store(bench, block_record("n2", NODE, owner=NODE, uid="m2"))
    bench.attach(endpoint_record("back", migration="m2"))
    assert (bench.state("back"), away(bench)) == (State.TARGET, "n2")
    bench.sign("back")
    assert (bench.metrics("back"), away(bench)) == ([512], "")
    store(bench, block_record(NODE, owner=NODE))
    assert (bench.metrics("back"), away(bench)) == ([512], "")


def test_a_pod_that_is_no_vm_is_never_led_away() -> None:
    bench = Bench()
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    with_overlay(bench, block_record("n2", owner="n0"))
    assert (bench.metrics("web"), away(bench)) == ([1024], "")


# -- restarts ------------------------------------------------------------------------------------


def restart(bench: Bench, block: Record, record: Record) -> Bench:
    """Another agent on this kernel, by whose start the store has this."""
    fresh = bench.restarted()
    live = migration("m1", source="src", target="tgt")
    place = NODE if record == SOURCE else "n0"
    fresh.start(record, objects=(live, instance(place)), lists=lists(block))
    return fresh


SOURCE = endpoint_record("src")
TARGET = endpoint_record("tgt", migration="m1")


def test_a_restart_as_target() -> None:
    fresh = restart(arriving(), block_record("n0", NODE), TARGET)
    assert fresh.state("tgt") is State.TARGET
    assert (fresh.metrics("tgt"), away(fresh)) == ([], "n0")


@pytest.mark.parametrize("stored", ["n0", NODE])
def test_a_restart_while_live(stored: str) -> None:
    bench = arriving()
    bench.sign("tgt")
    fresh = restart(bench, block_record(stored, NODE if stored == "n0" else ""), TARGET)
    assert fresh.state("tgt") is State.LIVE
    assert (fresh.metrics("tgt"), away(fresh)) == ([512], "")
    moved_on(fresh)
    assert (fresh.state("tgt"), away(fresh)) == (State.SUPPRESSED, "n2")


def test_a_way_to_the_source_that_was_seen_too_late_is_no_raise_after_a_restart() -> None:
    """The agent died between noticing the way and taking it into account."""
    bench = arriving()
    bench.sign("tgt")
    old = decode(bench.saved, "boot", bench.clock.now, Settings())
    (held,) = old.machines
    machine = replace(held.machine, seen_raise=0, last_raise=0)
    ledger = old.raises.observe([ip_address(ADDRESS)], {ip_address(ADDRESS): "overlay:10.65.1.1"})
    late = Memory((replace(held, machine=machine),), ledger)
    bench.saved = encode(late, "boot", bench.clock.now)
    fresh = restart(bench, block_record("n0", NODE), TARGET)
    assert fresh.state("tgt") is State.LIVE
    assert (fresh.metrics("tgt"), away(fresh)) == ([512], "")


def test_what_is_left_of_the_way_to_the_source_is_no_raise_once_the_swap_is_stored() -> None:
    """The agent died when it had raised its route and not yet removed the way to the source; the
    store names this node before that is removed."""

    def refuse(operation: str, subject: str) -> None:
        if operation == "delete_route" and subject.endswith("metric 896"):
            raise KernelError("busy")

    bench = arriving()
    bench.kernel.namespaces.before = refuse
    bench.sign("tgt")
    old = decode(bench.saved, "boot", bench.clock.now, Settings())
    (held,) = old.machines
    machine = replace(held.machine, seen_raise=0, last_raise=0)
    bench.saved = encode(
        Memory((replace(held, machine=machine),), old.raises), "boot", bench.clock.now
    )
    fresh = restart(bench, block_record("n0", NODE), TARGET)
    store(fresh, block_record(NODE, owner="n0"))
    assert fresh.state("tgt") is State.LIVE
    assert (fresh.metrics("tgt"), away(fresh)) == ([512], "n0")
    fresh.kernel.namespaces.before = lambda operation, subject: None
    fresh.advance(31)
    assert (fresh.metrics("tgt"), away(fresh)) == ([512], "")


def test_a_restart_of_the_source_after_the_move_finds_it_gone() -> None:
    fresh = restart(source_bench(), block_record("n2", owner=NODE), SOURCE)
    assert (fresh.metrics("src"), away(fresh)) == ([], "n2")
    assert fresh.state("src") is State.DEPARTED


@pytest.mark.parametrize("gone", [False, True])
def test_a_restart_changes_no_route(gone: bool) -> None:
    bench = source_bench()
    block = block_record("n2" if gone else NODE, owner=NODE)
    store(bench, block)
    before = set(bench.kernel.routes())
    bench.kernel.namespaces.changes.clear()
    fresh = restart(bench, block, SOURCE)
    assert set(fresh.kernel.routes()) == before
    fresh.advance(31)
    assert route_changes(fresh) == []


def test_own_blocks_swallow_what_is_for_nobody() -> None:
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record(NODE, owner=NODE))
    types = {route.type for route in bench.kernel.routes(dst=CIDR)}
    assert types == {RouteType.BLACKHOLE}
    assert ip_address(ADDRESS) in CIDR
