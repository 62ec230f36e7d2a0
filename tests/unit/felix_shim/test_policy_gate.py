"""A raise waits for policy, but not without end; and what it waits for is told and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.cluster import BGP, ENDPOINTS, FELIX, NODES, PEERS, POOLS
from felix_shim.events import Listed, Lost
from felix_shim.gate import Gate, GateSettings, Standing, Verdict, judge
from felix_shim.migration import State
from felix_shim.model import EndpointId
from felix_shim.settings import effective
from libtortie.metrics import Counter
from libtortie.model.felix_values import OnTimeout
from libtortie.model.keys import Affinities, Scope
from libtortie.model.resources import FelixConfigurationSpec
from tests.fakes.agent_world import (
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
)

READY = Standing(in_force=True, latest=True, in_sync=True)
POD = EndpointId("default", "launcher")
HOLD: Mapping[str, Any] = {"policyGateOnTimeout": "Hold"}


def target(felix: Mapping[str, Any] | None = None) -> Bench:
    """A node to which a VM is on its way, all of it programmed."""
    bench = Bench()
    bench.add_veth("launcher")
    bench.listed(endpoint_record("launcher", migration="m1"), felix=felix)
    bench.kube_in_sync(migration("m1"), instance("n2"))
    assert bench.state("launcher") is State.TARGET and bench.status
    return bench


def back_in_sync(bench: Bench) -> None:
    bench.tell(Listed(ENDPOINTS, (endpoint_record("launcher", migration="m1"),)))


def count(bench: Bench, result: str) -> float:
    (metric,) = bench.reconciler.gate.metrics()
    assert isinstance(metric, Counter)
    return metric.value(result)


# -- the verdict -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_timeout", OnTimeout)
@pytest.mark.parametrize("waited", [0.0, 0.49, 0.5, 100.0])
def test_ready_is_ready(on_timeout: OnTimeout, waited: float) -> None:
    assert judge(READY, waited, GateSettings(0.5, on_timeout)) is Verdict.OPEN


@given(st.builds(Standing, st.booleans(), st.booleans(), st.booleans()), st.floats(0, 10))
def test_nothing_is_raised_without_any_policy(standing: Standing, waited: float) -> None:
    if standing.lacks and not standing.in_force:
        settings = GateSettings(0.5, OnTimeout.RAISE)
        assert judge(standing, waited, settings) in (Verdict.WAIT, Verdict.HELD)


@pytest.mark.parametrize("standing", [replace(READY, latest=False), replace(READY, in_sync=False)])
def test_an_old_policy_is_better_than_no_network_unless_told_otherwise(standing: Standing) -> None:
    raising, holding = GateSettings(0.5), GateSettings(0.5, OnTimeout.HOLD)
    assert judge(standing, 0.49, raising) is Verdict.WAIT
    assert judge(standing, 0.5, raising) is Verdict.LATE
    assert judge(standing, 0.49, holding) is Verdict.WAIT
    assert judge(standing, 0.5, holding) is Verdict.HELD


# -- at the cut-over -------------------------------------------------------------------------


def test_an_agent_in_sync_raises_at_once() -> None:
    bench = target()
    bench.sign("launcher")
    assert bench.metrics("launcher") == [512]
    assert bench.log.of("policy_gate_waits") == [] and bench.warned == []
    assert bench.pressed == []


def test_an_agent_that_hears_nothing_waits_and_then_raises_with_a_warning() -> None:
    bench = target()
    bench.tell(Lost(ENDPOINTS))
    bench.sign("launcher")
    assert bench.state("launcher") is State.LIVE
    assert bench.pressed == [bench.clock.now], "CNI requests are not let pass meanwhile"
    bench.advance(0.49)
    assert bench.metrics("launcher") == []
    bench.advance(0.02)
    assert len(bench.pressed) == 1
    assert bench.metrics("launcher") == [512]
    assert [line["reason"] for line in bench.log.of("policy_gate_late")] == [
        "the agent is not in sync with the datastore"
    ]
    ((endpoint, text),) = bench.warned
    assert endpoint == POD and "last complete policy" in text
    assert (count(bench, "late"), count(bench, "ready")) == (1, 0)


def test_in_sync_again_in_time_it_raises_without_a_warning() -> None:
    bench = target()
    bench.tell(Lost(ENDPOINTS))
    bench.sign("launcher")
    bench.advance(0.2)
    back_in_sync(bench)
    assert bench.metrics("launcher") == [512]
    (line,) = bench.log.of("policy_gate_opened")
    assert line["waited_ms"] == pytest.approx(200.0)
    assert bench.warned == [] and count(bench, "ready") == 1
    bench.advance(1.0)
    assert bench.log.of("policy_gate_late") == []


def test_held_back_it_stays_down_until_policy_is_there() -> None:
    bench = target(HOLD)
    bench.tell(Lost(ENDPOINTS))
    bench.sign("launcher")
    bench.advance(100.0)
    assert bench.metrics("launcher") == []
    ((_, text),) = bench.warned
    assert "held back" in text and count(bench, "held") == 1
    back_in_sync(bench)
    assert bench.metrics("launcher") == [512] and count(bench, "ready") == 1


def test_the_bound_is_a_setting_that_is_read_live() -> None:
    bench = target({"policyGateTimeout": "2s"})
    bench.tell(Lost(ENDPOINTS))
    bench.sign("launcher")
    bench.advance(1.9)
    assert bench.metrics("launcher") == []
    bench.advance(0.2)
    assert bench.metrics("launcher") == [512]


@pytest.mark.parametrize("scope", [NODES, POOLS, PEERS, BGP, Affinities(NODE)])
def test_what_is_no_part_of_policy_is_not_waited_for(scope: Scope) -> None:
    bench = target()
    bench.tell(Lost(scope))
    bench.sign("launcher")
    assert bench.metrics("launcher") == [512]


def test_the_latest_rules_are_waited_for() -> None:
    """A policy changed, and the kernel does not take the change."""
    bench = target()
    bench.nft_broken = True
    bench.reconciler.world.policy_changed()
    bench.settle()
    bench.sign("launcher")
    assert bench.metrics("launcher") == []
    bench.nft_broken = False
    bench.advance(0.2)
    assert bench.metrics("launcher") == [512]
    assert count(bench, "ready") == 1 and bench.warned == []


def test_rules_that_never_come_leave_the_last_complete_ones_in_force() -> None:
    bench = target()
    bench.nft_broken = True
    bench.reconciler.world.policy_changed()
    bench.settle()
    bench.sign("launcher")
    bench.advance(0.6)
    assert bench.metrics("launcher") == [512]
    assert [line["reason"] for line in bench.log.of("policy_gate_late")] == [
        "the endpoint's latest rules are not in the kernel"
    ]
    assert len(bench.status) == 1


def test_a_change_while_rules_are_on_their_way_is_waited_for_too() -> None:
    """The job that is under way does not have it yet."""
    bench = target()
    world = bench.reconciler.world
    world.policy_changed()
    while bench.reconciler.turn(wait=False):
        pass
    done = bench.lanes["policy"].work()
    world.policy_changed()
    assert done is not None
    bench.inbox.post(done)
    bench.reconciler.turn(wait=False)
    local = world.roster.get(POD)
    assert local is not None
    assert not bench.reconciler._chores.has_latest_rules(local)
    bench.settle()
    assert bench.reconciler._chores.has_latest_rules(local)


def test_without_any_rules_it_is_never_raised() -> None:
    bench = Bench()
    bench.nft_broken = True
    bench.add_veth("launcher")
    bench.start(
        endpoint_record("launcher", migration="m1"), objects=(migration("m1"), instance("n2"))
    )
    bench.sign("launcher")
    bench.advance(60.0)
    assert bench.metrics("launcher") == [] and bench.status == {}
    assert len(bench.warned) == 1 and count(bench, "held") == 1
    bench.nft_broken = False
    bench.advance(10.0)
    assert bench.metrics("launcher") == [512] and bench.status


def test_an_endpoint_that_goes_is_waited_for_no_longer() -> None:
    bench = target()
    bench.tell(Lost(ENDPOINTS))
    bench.sign("launcher")
    bench.detach(endpoint_record("launcher", migration="m1"))
    bench.advance(1.0)
    assert list(bench.reconciler.gate.waiting()) == []
    assert bench.warned == []


def test_what_the_kernel_has_stays_through_a_loss() -> None:
    """A raise that was made is not asked for again."""
    bench = target()
    bench.sign("launcher")
    bench.tell(Lost(ENDPOINTS), Lost(FELIX))
    bench.advance(100.0)
    assert bench.metrics("launcher") == [512] and bench.warned == []


def test_a_new_episode_waits_anew() -> None:
    bench = target()
    gate, settings = Gate(bench.log, lambda *_: None), GateSettings(0.5)
    local = bench.reconciler.world.roster.get(POD)
    assert local is not None
    late = replace(READY, latest=False)
    assert not gate.passes(local.endpoint, 1, late, 10.0, settings)
    assert gate.passes(local.endpoint, 1, late, 10.6, settings)
    assert not gate.passes(local.endpoint, 2, late, 10.7, settings)


def test_both_addresses_wait_once() -> None:
    """What was decided for one address holds for the next of the same raise."""
    bench = target()
    gate, settings = Gate(bench.log, lambda *_: None), GateSettings(0.5)
    local = bench.reconciler.world.roster.get(POD)
    assert local is not None
    late = replace(READY, latest=False)
    gate.passes(local.endpoint, 1, late, 10.0, settings)
    for _ in range(2):
        assert gate.passes(local.endpoint, 1, late, 10.6, settings)
    assert len(bench.log.of("policy_gate_late")) == 1


# -- settings --------------------------------------------------------------------------------


def settings_of(*specs: Mapping[str, Any]) -> tuple[GateSettings, tuple[str, ...]]:
    found = effective(
        (f"s{number}", FelixConfigurationSpec.model_validate(spec))
        for number, spec in enumerate(specs)
    )
    return found.gate, found.problems


def test_the_settings() -> None:
    assert settings_of({}) == (GateSettings(0.5, OnTimeout.RAISE), ())
    node = {"policyGateTimeout": "1m"}
    assert settings_of(HOLD, node) == (GateSettings(60.0, OnTimeout.HOLD), ())


def test_a_setting_that_cannot_be_leaves_the_weaker_one() -> None:
    gate, problems = settings_of(HOLD, {"policyGateOnTimeout": "hold", "policyGateTimeout": "soon"})
    assert gate == GateSettings(0.5, OnTimeout.HOLD)
    assert len(problems) == 2 and all("policyGate" in one for one in problems)
