"""What another node says of a VM that it has heard: what of it counts, when, and for how long."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from felix_shim.events import CutOver
from felix_shim.migration import State
from felix_shim.overlay_desk import CLAIM_SECONDS, MOST_EARLY
from tests.fakes.agent_world import NODE, Bench
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


def test_a_notice_alone_does_not_hold_for_ever() -> None:
    bench = source_bench()
    cut_over(bench, "n2")
    for _ in range(int(CLAIM_SECONDS / 31)):
        bench.advance(31)
        assert (bench.state("src"), away(bench)) == (State.DEPARTED, "n2"), "the store is away"
    bench.advance(61)
    assert away(bench) == ""
    assert bench.metrics("src") == [1024], "the store never agreed, nor the API"


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
