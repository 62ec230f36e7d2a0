"""An agent that is told to stop waits for VMs that are on their way, and for nobody else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from felix_shim import agent, cni_server, proxy_keeper
from felix_shim.config import NodeConfig
from felix_shim.departure import COPY_SECONDS, Departure, on_their_way
from felix_shim.endpoints import parse_endpoint
from felix_shim.hand_over import Pace
from felix_shim.migration import Facts, Machine, State
from felix_shim.model import Role
from felix_shim.roster import Local
from libtortie.model.resources import WorkloadEndpoint
from migration_proxy.config import ProxyConfig
from tests.fakes.agent_world import (
    Bench,
    RecordingLog,
    endpoint_record,
    instance,
    migration,
)
from tests.fakes.migrating_bench import target_bench

SECONDS = 60.0


def local(pod: str, machine: Machine) -> Local:
    record = endpoint_record(pod)
    assert isinstance(record.value, WorkloadEndpoint)
    return Local(record.key, parse_endpoint(record.value), machine)


class Node:
    """Endpoints of a node, and a clock that only waiting moves; `then` happens at a time."""

    def __init__(self, *locals_: Local) -> None:
        self.locals = list(locals_)
        self.now = 1000.0
        self.began = self.now
        self.log = RecordingLog()
        self.hurried = False
        self.then: list[tuple[float, Callable[[], None]]] = []
        self.stopped: list[tuple[str, float]] = []

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for at, work in [one for one in self.then if one[0] <= self.now - self.began]:
            self.then.remove((at, work))
            work()

    def departure(self) -> Departure:
        return Departure(
            self.locals,
            SECONDS,
            lambda: self.hurried,
            self.log,
            lambda: self.now,
            self.pause,
        )

    @property
    def waited(self) -> float:
        return round(self.now - self.began, 1)

    def stop(self, what: str) -> bool:
        self.stopped.append((what, self.waited))
        return True


MOVES = {
    "a VM that is expected": Machine(State.TARGET, facts=Facts(Role.TARGET, final=False)),
    "one whose role is not known yet": Machine(State.TARGET),
    "one that has just come": Machine(State.LIVE, facts=Facts(Role.TARGET, final=False)),
    "one that settles": Machine(State.TIME_WAIT),
    "a VM that is about to leave": Machine(State.BASE, facts=Facts(Role.SOURCE, final=False)),
}
RESTS = {
    "a pod": Machine(),
    "one that has left": Machine(State.DEPARTED, facts=Facts(Role.SOURCE, final=False)),
    "one that stayed": Machine(State.BASE, facts=Facts(Role.SOURCE, final=True)),
    "one that will not come": Machine(State.SUPPRESSED),
    "a forged target": Machine(State.REFUSED),
}


@pytest.mark.parametrize("what", MOVES)
def test_it_waits_for(what: str) -> None:
    found = local("db", MOVES[what])
    assert on_their_way([found]) == (str(found.id),)


@pytest.mark.parametrize("what", RESTS)
def test_it_does_not_wait_for(what: str) -> None:
    assert on_their_way([local("db", RESTS[what])]) == ()


def test_every_state_is_one_or_the_other() -> None:
    known = {machine.state for machine in (*MOVES.values(), *RESTS.values())}
    assert known == set(State) - {State.ENDED}


def test_nothing_on_its_way_is_no_wait() -> None:
    node = Node(local("web", Machine()))
    assert node.departure().wait()
    assert (node.waited, node.log.lines) == (0.0, [])


def test_it_goes_as_soon_as_the_vm_has_settled() -> None:
    node = Node(local("db", MOVES["a VM that is expected"]))
    arrives = node.locals[0]

    def arrive() -> None:
        arrives.machine = replace(arrives.machine, state=State.LIVE)

    def settle() -> None:
        arrives.machine = replace(arrives.machine, state=State.BASE)

    node.then += [(2.0, arrive), (3.0, settle)]
    assert node.departure().wait()
    assert node.waited == 3.0 + COPY_SECONDS
    (said,) = node.log.of("stop_waits_for_migrations")
    assert (said["endpoints"], said["seconds"]) == ((str(arrives.id),), SECONDS)


def test_it_waits_so_long_altogether_and_says_what_it_leaves() -> None:
    node = Node(local("db", MOVES["a VM that is expected"]))
    departure = node.departure()
    assert not departure.wait()
    assert node.waited == SECONDS
    assert not departure.wait(), "nor does it begin anew"
    assert node.waited == SECONDS
    said = node.log.of("stop_leaves_migrations")
    assert said[0]["endpoints"] == (str(node.locals[0].id),)
    assert len(node.log.of("stop_waits_for_migrations")) == 1, "told once"


def test_what_a_proxy_takes_to_drain_is_not_of_that_time() -> None:
    node = Node()

    def drain() -> None:
        node.now += 5 * SECONDS
        node.locals.append(local("db", MOVES["one that has just come"]))
        node.then.append((5 * SECONDS + 2.0, node.locals.clear))

    node.departure().leave(lambda: True, drain, lambda: None)
    assert node.waited == 5 * SECONDS + 2.0 + COPY_SECONDS
    assert not node.log.of("stop_leaves_migrations")


def test_a_vm_that_has_just_left_gets_the_last_copy_of_its_connections() -> None:
    node = Node(local("db", MOVES["a VM that is about to leave"]))
    leaves = node.locals[0]

    def leave() -> None:
        leaves.machine = replace(leaves.machine, state=State.DEPARTED)

    node.then.append((2.0, leave))
    assert node.departure().wait()
    assert node.waited == 2.0 + COPY_SECONDS
    assert 2 * Pace().settle < COPY_SECONDS, "it is taken by then"


def test_a_second_signal_or_a_failure_ends_the_wait() -> None:
    node = Node(local("db", MOVES["a VM that is expected"]))
    node.then.append((2.0, lambda: setattr(node, "hurried", True)))
    assert not node.departure().wait()
    assert node.waited == 2.0


@pytest.mark.parametrize("reported", [True, False])
def test_cni_is_served_while_it_waits_and_who_may_start_already_is_waited_for(
    reported: bool,
) -> None:
    node = Node(local("db", MOVES["a VM that is expected"]))
    late = local("late", MOVES["a VM that is expected"])
    node.then.append((3.0, node.locals.clear))
    node.then.append((5.0, node.locals.clear))
    cni_stops = 3.0 + COPY_SECONDS

    def let_none_start() -> None:
        late.reported = reported
        node.locals.append(late)  # the last request was the ADD of a target
        node.stop("targets")

    def stop_proxy() -> None:
        node.stop("proxy")

    node.departure().leave(lambda: node.stop("cni"), stop_proxy, let_none_start)
    assert node.stopped == [(what, cni_stops) for what in ("proxy", "cni", "targets")]
    assert node.waited == (5.0 + COPY_SECONDS if reported else cni_stops)


def test_requests_that_do_not_end_are_told() -> None:
    node = Node()
    node.departure().leave(lambda: False, None, lambda: None)
    assert node.log.of("cni_requests_left")


def test_the_unit_kills_no_agent_that_leaves_in_order() -> None:
    unit = (Path(agent.__file__).parents[1] / "conf/systemd/tortie-node.service").read_text()
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    vms = NodeConfig.model_fields["drain_seconds"].default
    proxy = ProxyConfig.model_fields["drain_seconds"].default + proxy_keeper.CLOSING_SECONDS
    rest = cni_server.STOP_SECONDS + agent.STOP_SECONDS + 2 * COPY_SECONDS
    assert vms + proxy + rest < float(patience)


def reported(bench: Bench) -> dict[str, bool]:
    """By endpoint whether it is told that it may start."""
    return {name: bool(local.reported) for name, local in by_pod(bench).items()}


def by_pod(bench: Bench) -> dict[str, Local]:
    return {local.id.pod.rpartition("/")[2]: local for local in bench.reconciler.world.roster}


def test_a_target_that_may_start_already_still_may() -> None:
    bench = target_bench()
    (name,) = bench.status
    bench.reconciler.leave()
    bench.advance(60)
    assert set(bench.status) == {name}
    assert reported(bench) == {"tgt": True}
    assert on_their_way(bench.reconciler.world.roster, reported=True)


def test_nor_does_a_change_of_its_record_take_that_back() -> None:
    bench = target_bench()
    bench.reconciler.leave()
    bench.attach(endpoint_record("tgt", migration="m1", labels={"app": "db"}))
    bench.advance(60)
    assert len(bench.status) == 1
    assert on_their_way(bench.reconciler.world.roster, reported=True)


def test_nor_may_one_of_whose_migration_nothing_is_heard_any_more() -> None:
    bench = Bench()
    bench.start(objects=(instance("n2"),))
    bench.reconciler.leave()
    bench.attach(endpoint_record("tgt", migration="m1"))
    assert bench.state("tgt") is State.SUPPRESSED
    assert (bench.status, reported(bench)) == ({}, {"tgt": False})
    bench.seen(migration("m1", source="src", target="tgt"))
    assert bench.state("tgt") is State.TARGET
    assert (bench.status, reported(bench)) == ({}, {"tgt": False})


def test_no_further_target_may_and_the_next_agent_lets_it() -> None:
    bench = Bench()
    bench.reconciler.leave()
    target_bench(bench=bench)
    bench.attach(endpoint_record("web", vm=False, address="10.65.0.9"))
    assert bench.state("tgt") is State.TARGET
    assert ["web" in name for name in bench.status] == [True], "pods start"
    assert not on_their_way(bench.reconciler.world.roster, reported=True)
    assert len(target_bench().status) == 1
