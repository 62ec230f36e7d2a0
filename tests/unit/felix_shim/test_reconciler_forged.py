"""Pods that claim to be a migration's target and are not: the reconciler gives them nothing."""

from __future__ import annotations

import pytest

from felix_shim.events import Instance, Migration
from felix_shim.migration import State
from felix_shim.model import EndpointId, SignKind
from tests.fakes.agent_world import (
    NAMESPACE,
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
)
from tests.fakes.migrating_bench import CONVERGENCE


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
