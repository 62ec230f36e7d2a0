"""Rollback by construction: ADD failing, and killed, at every step it takes.

A step is one call out of the plugin: datastore, kernel, API, policy. The suite does not know
which there are; it counts them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from cni_plugin.caller import asked_by
from cni_plugin.endpoint import place_of
from cni_plugin.errors import PolicyLate
from cni_plugin.types import Result
from libtortie.errors import TortieError, Unavailable
from tests.fakes.cni_steps import Faults, Killed
from tests.fakes.cni_world import CniNode, CniWorld, owners
from tests.fakes.ipam_program import NEW, FakeProgram

HANDLE = "k8s-pod-network.vmi.default.db"
MOST_STEPS = 150

Case = Callable[[CniWorld], tuple[CniNode, str, str]]


def ordinary(world: CniWorld) -> tuple[CniNode, str, str]:
    world.put_pod("web-0")
    return world.node(), "web-0", "c1"


def dual_stack(world: CniWorld) -> tuple[CniNode, str, str]:
    world.pool("pool-6", "fd00:10:65::/112")
    world.put_pod("web-0", annotations={"cni.projectcalico.org/ipFamilies": '["IPv4","IPv6"]'})
    return world.node(), "web-0", "c1"


def first_start(world: CniWorld) -> tuple[CniNode, str, str]:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    return world.node(), "virt-launcher-db-a", "c1"


def restart(world: CniWorld) -> tuple[CniNode, str, str]:
    node, pod, container = first_start(world)
    node.add(pod, container)
    node.delete(pod, container)
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-b", generation=2)
    return node, "virt-launcher-db-b", "c2"


def target(world: CniWorld) -> tuple[CniNode, str, str]:
    node, pod, container = first_start(world)
    node.add(pod, container)
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    return world.node("node2"), "virt-launcher-db-b", "c2"


def delegated(world: CniWorld) -> tuple[CniNode, str, str]:
    """Addresses of two families from another program's IPAM."""
    node, pod, container = ordinary(world)

    def step(what: str) -> None:
        world.faults.step(what)

    program = FakeProgram(world.directory / "bin", versions=NEW, step=step)
    ranges = [[{"subnet": "10.99.0.0/24"}], [{"subnet": "fd00:99::/64"}]]
    node.use(program, CNI_PATH=program.path, ipam={"type": "host-local", "ranges": ranges})
    world.programs.append(program)
    return node, pod, container


def brought_along(world: CniWorld) -> tuple[CniNode, str, str]:
    """Addresses of the pod's own, translations and all."""
    prefix = "cni.projectcalico.org/"
    notes = {
        prefix + "ipAddrsNoIpam": '["10.98.0.5", "fd00:98::5"]',
        prefix + "floatingIPs": '["192.0.2.7"]',
        prefix + "allowedSourcePrefixes": '["198.51.100.0/24"]',
    }
    world.put_pod("web-0", annotations=notes)
    gates = {"ip_addrs_no_ipam": True, "floating_ips": True}
    world.node().use(feature_control=gates, container_settings={"allow_ip_forwarding": True})
    return world.node(), "web-0", "c1"


def asked_for(world: CniWorld) -> tuple[CniNode, str, str]:
    """Addresses of both families that the pod names."""
    world.pool("pool-6", "fd00:10:65::/112")
    notes = {"cni.projectcalico.org/ipAddrs": '["10.65.0.9", "fd00:10:65::9"]'}
    world.put_pod("web-0", annotations=notes)
    return world.node(), "web-0", "c1"


def further(world: CniWorld) -> tuple[CniNode, str, str]:
    """A VM's third interface: the second one has the network's handle, so it gets its own."""
    node, pod, container = first_start(world)
    node.use(name="lan", ipam={"type": "tortie-ipam", "ipv4_pools": ["pool-4"]})
    for node.ifname in ("eth0", "net1"):
        node.add(pod, container)
    node.ifname = "net2"
    return node, pod, container


CASES: list[Case] = [
    ordinary,
    dual_stack,
    first_start,
    restart,
    target,
    delegated,
    brought_along,
    asked_for,
    further,
]


def fresh(tmp_path: Path, case: Case) -> tuple[CniWorld, CniNode, str, str, dict[str, object]]:
    """A world ready for the ADD, and what it holds before; steps count from now."""
    world = CniWorld(tmp_path)
    node, pod, container = case(world)
    before = world.left()
    world.faults = Faults()
    return world, node, pod, container, before


def total_steps(tmp_path: Path, case: Case) -> int:
    world, node, pod, container, _ = fresh(tmp_path, case)
    node.add(pod, container)
    return world.faults.steps


def worlds(tmp_path: Path) -> Callable[[], Path]:
    counter = iter(range(100_000))
    return lambda: tmp_path / str(next(counter))


def settled(world: CniWorld, before: dict[str, object]) -> bool:
    """Nothing is left of the ADD. An owner entry of a stopped VM is no attachment."""
    return world.left() == before


def given(world: CniWorld) -> int:
    """How many addresses are given, by our IPAM and by other programs."""
    theirs = [held for program in world.programs for held in program.held.values()]
    return len(world.allocated()) + sum(map(len, theirs))


def forget_kept(case: Case, after: dict[str, object], before: dict[str, object]) -> None:
    """A VM keeps the address that an interface of it was given once."""
    held, had = after["addresses"], before["addresses"]
    assert isinstance(held, dict)
    assert isinstance(had, dict)
    if case in (first_start, further):
        after["addresses"] = {address: held[address] for address in held if address in had}


def blank(world: CniWorld) -> tuple[tuple[str, str], ...]:
    node = next(iter(world.nodes.values()))
    return tuple(owners((item,)) for item in node.ipam.by_handle(HANDLE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_failing_at_every_step_leaves_nothing(tmp_path: Path, case: Case) -> None:
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    assert 10 < steps < MOST_STEPS
    failures = 0
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        holders = blank(world)
        world.faults = Faults(frozenset({k}))
        try:
            node.add(pod, container)
        except TortieError:
            failures += 1
            assert settled(world, before), (k, world.faults.seen)
            world.faults = Faults()
            assert blank(world) == holders, (k, "an owner entry was left")
        else:  # a step that is retried, or whose failure does not matter
            world.faults = Faults()
            node.delete(pod, container)
    assert failures > 10, "IPAM's own retries explain the rest"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("more", [(1,), (3,), (1, 2, 3)], ids=str)
def test_a_second_failure_in_the_undo_leaves_nothing(
    tmp_path: Path, case: Case, more: tuple[int, ...]
) -> None:
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        holders = blank(world)
        world.faults = Faults(frozenset({k, *(k + later for later in more)}))
        try:
            node.add(pod, container)
        except TortieError as error:
            assert "injected" in str(error) or "attempts" in str(error), error
            assert settled(world, before), (k, world.faults.seen)
            world.faults = Faults()
            assert blank(world) == holders, (k, more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_an_undo_that_fails_altogether_leaves_what_del_takes(tmp_path: Path, case: Case) -> None:
    """From some step on nothing works any more, for as long as ADD tries; then it does again."""
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    failures = 0
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        world.faults = Faults(frozenset(range(k, k + 10_000)))
        try:
            node.add(pod, container)
        except TortieError as error:
            failures += 1
            assert "injected" in str(error) or "attempts" in str(error), error
        world.faults = Faults()
        node.delete(pod, container)
        after = world.left()
        forget_kept(case, after, before)
        assert after == before, (k, world.faults.seen)
        assert all(pod not in pair for pair in blank(world)), k
    assert failures > 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_where_late_policy_fails_add_all_is_taken_back(tmp_path: Path, case: Case) -> None:
    """It fails at the last step. The repeat succeeds, and a later repeat's failure ends nothing."""
    world, node, pod, container, before = fresh(tmp_path, case)
    holders, told = blank(world), len(node.log)
    closed = {"policy_setup_timeout_seconds": 2, "policy_setup_on_timeout": "fail"}
    node.gate.satisfied = False
    with pytest.raises(PolicyLate, match="was not in force within 2 s, and policy_setup_on") as e:
        node.add(pod, container, conf=closed)
    assert e.value.code == 11
    assert node.log[told:] == [], "it is no warning, and nothing failed to be undone"
    assert settled(world, before)
    assert blank(world) == holders
    node.gate.satisfied = True
    first = node.add(pod, container, conf=closed)
    attached = world.left()
    node.gate.satisfied = False
    with pytest.raises(PolicyLate):
        node.add(pod, container, conf=closed)
    assert world.left() == attached
    node.gate.satisfied = True
    assert node.add(pod, container, conf=closed) == first


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_killed_at_every_step_the_repeat_completes_it(tmp_path: Path, case: Case) -> None:
    place = worlds(tmp_path)
    world, node, pod, container, _ = fresh(place(), case)
    already = 0 if case in (restart, target) else given(world)
    expected = node.add(pod, container)
    for k in range(1, world.faults.steps + 1):
        world, node, pod, container, _ = fresh(place(), case)
        kill_at(world, k, partial(node.add, pod, container))
        again = node.add(pod, container)
        if case is delegated:  # of what nobody was told, host-local gives another one
            again = replace(again, addresses=expected.addresses)
        assert same(again, expected), k
        news = 0 if case is brought_along else len(expected.addresses)
        assert given(world) == already + news
        assert any(e.spec.container_id == container for e in world.endpoints())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_killed_at_every_step_del_cleans_up(tmp_path: Path, case: Case) -> None:
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        kill_at(world, k, partial(node.add, pod, container))
        node.delete(pod, container)
        after = world.left()
        forget_kept(case, after, before)
        assert after == before, (k, world.faults.seen)
        assert all(pod not in pair for pair in blank(world)), k
        node.delete(pod, container)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_killed_at_every_step_gc_cleans_up(tmp_path: Path, case: Case) -> None:
    """The runtime forgot the sandbox: no DEL will come. Other attachments stay."""
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        kill_at(world, k, partial(node.add, pod, container))
        world.clock.sleep(60)
        if case is further:  # its sandbox lives, and so do its other interfaces
            node.gc((container, "eth0"), (container, "net1"), name="lan")
        else:
            node.machine.delete(f"/run/netns/{container}")
            node.gc()
        after = world.left()
        forget_kept(case, after, before)
        assert after == before, (k, world.faults.seen)
        assert all(pod not in pair for pair in blank(world)), k


def test_del_failing_at_every_step_is_completed_by_its_repeat(tmp_path: Path) -> None:
    place = worlds(tmp_path)
    for case in CASES:
        world, node, pod, container, before = fresh(place(), case)
        node.add(pod, container)
        world.faults = Faults()
        node.delete(pod, container)
        for k in range(1, world.faults.steps + 1):
            again, node, pod, container, before = fresh(place(), case)
            node.add(pod, container)
            again.faults = Faults(frozenset({k}))
            try:
                node.delete(pod, container)
            except TortieError:
                node.delete(pod, container)
            after = again.left()
            forget_kept(case, after, before)
            assert after == before, (case.__name__, k, again.faults.seen)
            assert all(pod not in pair for pair in blank(again)), (case.__name__, k)


def kill_at(world: CniWorld, k: int, act: Callable[[], Result]) -> None:
    """Run `act` with a kill at step `k`; afterwards the process is a new one, leftovers stay."""
    world.faults = Faults(frozenset({k}), kill=True)
    with pytest.raises(Killed):
        act()
    world.faults = Faults()


def same(one: Result, other: Result) -> bool:
    """Equal but for MAC addresses, which the kernel chooses for ordinary pods."""
    names = [(i.name, i.mtu, i.sandbox) for i in one.interfaces]
    return one.addresses == other.addresses and names == [
        (i.name, i.mtu, i.sandbox) for i in other.interfaces
    ]


@dataclass
class GivenUp(Faults):
    """At step `number` the runtime kills the caller and sends the DEL; the ADD goes on, if it can.

    A DEL that need not wait for the ADD is over before the ADD goes on.
    """

    number: int = 0
    delete: Callable[[], None] = lambda: None
    busy: Callable[[], bool] = lambda: False
    deletion: threading.Thread | None = None

    def is_awaited(self) -> bool:
        """Whether the caller lives."""
        return self.deletion is None

    def step(self, name: str, error: Callable[[str], TortieError] = Unavailable) -> None:
        super().step(name, error)
        if self.steps == self.number and self.deletion is None:
            waits = self.busy()
            self.deletion = threading.Thread(target=self.delete)
            self.deletion.start()
            if not waits:
                self.deletion.join()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_given_up_at_every_step_its_del_may_be_over_before_it(tmp_path: Path, case: Case) -> None:
    place = worlds(tmp_path)
    steps = total_steps(place(), case)
    refused = completed = 0
    for k in range(1, steps + 1):
        world, node, pod, container, before = fresh(place(), case)
        key = place_of(node.args(pod, container), node.name).lock_key
        faults = world.faults = GivenUp(
            number=k,
            delete=partial(node.delete, pod, container),
            busy=partial(node.locks.busy, key),
        )
        with asked_by(faults.is_awaited):
            try:
                node.add(pod, container)
                completed += 1
            except Unavailable as error:
                assert "the caller has gone" in str(error)
                refused += 1
        assert faults.deletion is not None
        faults.deletion.join()
        after = world.left()
        forget_kept(case, after, before)
        assert after == before, (k, faults.seen)
        assert all(pod not in pair for pair in blank(world)), k
    assert refused, "the first steps are taken before the lock"
    assert completed, "what has begun is completed, and its DEL waits for that"
