"""An address that a VM took with it to another node comes back with a pod of later."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest

from felix_shim.migration import State
from felix_shim.model import EndpointId
from tests.fakes.agent_world import ADDRESS, NAMESPACE, NODE, Bench, endpoint_record, instance

ELSEWHERE = "172.31.1.9"


def left_bench() -> Bench:
    """A node that a VM left, whose pod went while the VM's route was raised elsewhere."""
    bench = Bench()
    source = endpoint_record("src")
    bench.start(objects=(instance(NODE),))
    bench.attach(source)
    bench.raised(ELSEWHERE)
    assert bench.state("src") is State.DEPARTED
    bench.detach(source)
    return bench


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
def test_a_pod_of_later_has_its_route_though_bird_is_silent(killed: bool) -> None:
    bench = left_bench()
    if killed:
        bench = bench.restarted()
        bench.start()
    bench.seen(instance(NODE, uid="vmi-uid-2"))
    bench.attach(endpoint_record("next", vmi_uid="vmi-uid-2"))
    assert bench.metrics("next") == [1024]
    moves = [
        one
        for one in bench.log.of("migration_transition")
        if one["endpoint"] == EndpointId(NAMESPACE, "next")
    ]
    assert not moves, "nor did it lose it for a moment"


def test_a_raise_that_is_newer_than_the_pod_counts() -> None:
    bench = left_bench()
    bench.attach(endpoint_record("next"))
    bench.raised("172.31.1.7")
    assert bench.state("next") is State.DEPARTED


def test_what_is_raised_elsewhere_is_asked_for_until_it_is_not() -> None:
    bench = left_bench()
    assert ip_address(ADDRESS) in bench.asked
    bench.raised(ELSEWHERE)
    bench.advance(31)
    assert ip_address(ADDRESS) in bench.asked, "the same raise is not to be taken for another"
    bench.raised()
    bench.advance(31)
    assert ip_address(ADDRESS) not in bench.asked
    assert not json.loads(bench.saved)["raises"]["numbers"]
    elsewhere = bench.reconciler.world.elsewhere
    assert not elsewhere._by_bgp
    assert not elsewhere.announced
