"""What another node says of a VM that it has heard: what of it counts, when, and for how long."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from felix_shim.cluster import FELIX
from felix_shim.events import CutOver, Stored
from felix_shim.migration import State
from felix_shim.overlay_desk import LEAST_CLAIM_SECONDS, MOST_EARLY
from felix_shim.settings import Settings
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, Bench, resource_record
from tests.fakes.overlay_bench import (
    away,
    block_record,
    cut_over,
    source_bench,
    store,
    with_overlay,
)


def test_a_notice_of_somebody_else_moves_nothing() -> None:
    bench = source_bench()
    for node, uid in (("n0", "m1"), ("n2", "m9"), (NODE, "m1")):
        cut_over(bench, node, uid)
        assert away(bench) == "", (node, uid)
    cut_over(bench, "n2", address="10.65.0.9")
    assert bench.metrics("src") == [1024]


def leaving_unknown() -> Bench:
    """A source that does not know yet that its VM's record awaits n2."""
    bench = source_bench()
    store(bench, block_record(NODE))
    return bench


def test_a_notice_that_outran_the_record_counts_when_that_comes() -> None:
    bench = leaving_unknown()
    cut_over(bench, "n2")
    assert bench.metrics("src") == [1024]
    store(bench, block_record(NODE, "n2"))
    assert (bench.metrics("src"), away(bench)) == ([], "n2")
    store(bench, block_record("n0", owner=NODE))
    store(bench, block_record(NODE, "n2"))
    assert away(bench) == "", "it counted once"


@pytest.mark.parametrize(
    ("said", "uid", "late", "node"),
    [
        ("m1", "m2", 0, "n2"),
        ("m1", "", 0, "n2"),
        ("", "", 0, "n2"),
        ("m1", "m1", 31, "n2"),
        ("m1", "m1", 0, "n0"),
    ],
)
def test_a_notice_of_another_time_or_move_was_not_early(
    said: str, uid: str, late: float, node: str
) -> None:
    """The VM was on n2, and goes there again: what that one said of the first time is over."""
    bench = leaving_unknown()
    cut_over(bench, "n2", said)
    bench.advance(late)
    store(bench, block_record(NODE, node, uid=uid))
    assert (bench.metrics("src"), away(bench)) == ([1024], "")


def test_a_peer_that_tells_of_everything_fills_no_memory() -> None:
    bench = leaving_unknown()
    first = int(ip_address("10.65.128.0"))
    others = tuple(ip_address(first + one) for one in range(3 * MOST_EARLY))
    bench.tell(CutOver("n2", "m1", others))
    assert len(bench.reconciler.world.overlay._early) == MOST_EARLY
    bench.advance(61)
    cut_over(bench, "n2")
    store(bench, block_record(NODE, "n2"))
    assert away(bench) == "n2", "and there is room again"


CONVERGENCE = Settings().convergence_seconds


def test_a_node_that_falls_silent_holds_no_way_for_longer_than_the_convergence_time() -> None:
    bench = source_bench()
    cut_over(bench, "n2")
    bench.advance(CONVERGENCE - 1)
    assert (bench.state("src"), away(bench)) == (State.DEPARTED, "n2")
    bench.advance(1)
    assert away(bench) == ""
    assert bench.metrics("src") == [1024], "the store never agreed, nor the API"


def test_a_node_that_says_it_again_is_believed_while_the_store_is_away() -> None:
    bench = source_bench()
    cut_over(bench, "n2")
    for _ in range(100):
        bench.advance(CONVERGENCE / 3)
        cut_over(bench, "n2")
        assert (bench.state("src"), away(bench)) == (State.DEPARTED, "n2")
    store(bench, block_record("n2", owner=NODE))
    bench.advance(2 * CONVERGENCE)
    assert away(bench) == "n2", "and then by the record"


def test_a_short_convergence_time_leaves_room_for_repeats() -> None:
    bench = source_bench()
    bench.tell(felix(liveMigrationRouteConvergenceTime="1s"))
    cut_over(bench, "n2")
    bench.advance(LEAST_CLAIM_SECONDS - 1)
    assert away(bench) == "n2"
    bench.advance(1)
    assert away(bench) == ""


def felix(**spec: str) -> Stored:
    return Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, "default", spec))


def test_a_late_notice_of_the_move_before_moves_nothing() -> None:
    """The VM went to n2 and on to n0; the store knows, and then n2's old notice comes."""
    bench = Bench()
    bench.start()
    with_overlay(bench, block_record("n0", owner=NODE))
    cut_over(bench, "n2")
    assert away(bench) == "n0"


def test_the_store_overrules_a_notice() -> None:
    bench = source_bench()
    cut_over(bench, "n2")
    store(bench, block_record("n0", owner=NODE))
    assert away(bench) == "n0"
