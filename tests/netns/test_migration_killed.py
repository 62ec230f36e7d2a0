"""kill -9 of the agent in every state of a migration, and between its steps.

After each the supervisor starts it again; the end must be what it is without the kill, and a
1 ms prober outside must not miss the guest for longer than a restart takes. What the VM's policy
denies is tried all the time, and never delivered.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from libtortie.datastore.port import Record
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NAMESPACE, NODE, resource_record
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.ears import Intruder
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import PORT, Guest, Prober
from tests.fakes.mortal_agent import arm, disarm
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

POD = "virt-launcher-db-1"
HOLD = 3600
BEARABLE = 3.0
"""Seconds without an answer beside those without an agent: below one, with either (printed)."""


@dataclass
class Scene:
    """A migration to this node: its target attached, its guest not here yet."""

    node: CalledNode
    address: str
    guest: Guest
    prober: Prober
    changes: Path
    intruder: Intruder
    began: float = 0.0
    deaths: int = 0
    died: datetime | None = None
    marks: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    # -- the story ---------------------------------------------------------------------------

    def arrive(self) -> None:
        """The guest runs here."""
        self.began = self.guest.arrive()

    def succeed(self) -> None:
        """The API agrees, late."""
        self.node.say_vm_runs_on(NODE)
        self.node.say_migration("Succeeded")

    def converge(self, seconds: int) -> None:
        """Have raises last as long; one that has lasted longer ends."""
        record = convergence(seconds)
        stored = self.node.store.get(record.key)
        self.node.store.update(record.key, record.value, stored.revision)

    def hold(self) -> None:
        """Have raises last until the story says otherwise."""
        self.converge(HOLD)

        def known() -> bool:
            lines = self.node.lines("settings")
            return bool(lines) and lines[-1]["convergence_seconds"] == HOLD

        until("the agent knows the convergence time", known)

    def reach(self, state: str) -> None:
        """Wait for a transition into a state; it may have gone on since."""
        moves = partial(self.node.lines, "migration_transition")
        until(state, lambda: any(move["to"] == state for move in moves()))

    def serves(self) -> None:
        """Wait until this agent, as all before it, serves and knows the API."""
        starts, lines = self.deaths + 1, self.node.lines

        def told(event: str, times: int) -> bool:
            assert self.node.agent is not None
            over = self.node.agent.poll()
            assert over is None, f"the agent ended with {over}: {lines()[-3:]}"
            return len(lines(event)) == times

        try:
            until("it serves", partial(told, "cni_serving", starts))
            until("it knows the API", partial(told, "in_sync", 2 * starts))
        except AssertionError as error:
            raise AssertionError(f"{error}; its last words: {lines()[-8:]}") from None

    def in_force(self) -> dict[str, object]:
        """What is on the node, if a status file says so and none is just being written."""
        left = self.node.left()
        status = left["status"]
        return left if isinstance(status, list) and len(status) == 1 else {}

    def swapped(self) -> None:
        """Wait until IPAM says so."""
        until("the owner is swapped", lambda: self.node.owners()[self.address][1] == POD)

    # -- dying -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Now; and start it again, as a supervisor does."""
        assert self.node.stop(signal.SIGKILL) == -9
        self.revive()

    def arm(self, thread: str, step: str) -> None:
        """At the next step of this kind."""
        arm(self.node.root, thread, step)

    def dead(self) -> None:
        """Wait for the death that was armed; and start it again."""
        assert self.node.agent is not None
        assert self.node.agent.wait(60) == -9
        disarm(self.node.root)
        self.revive()

    def revive(self) -> None:
        """A new agent; it is not waited for."""
        self.deaths += 1
        self.died = datetime.now(UTC)
        self.node.start(wait=False)

    # -- the end -----------------------------------------------------------------------------

    def end(self) -> dict[str, object]:
        """What there is when everything has come to rest."""
        until("the route is normal", lambda: self.node.metrics(POD) == [1024])
        self.swapped()
        until("a status file", lambda: self.node.status(POD))
        now = time.monotonic()
        until("the guest answers", partial(self.prober.answered_since, now))
        until("Base is remembered", lambda: '"base"' in self.saved())
        return self.node.left()

    def absent(self) -> float:
        """For how many seconds no agent served: what the machine needs to start one."""
        if self.died is None:
            return 0.0
        starts = self.node.lines("cni_serving")
        again = len(starts) > self.deaths
        end = datetime.fromisoformat(starts[-1]["time"]) if again else datetime.now(UTC)
        return (end - self.died).total_seconds()

    def told(self) -> str:
        """Every route change until now; whoever writes them down may be late."""
        mark = f"198.51.100.{next(self.marks)}"
        for verb in ("add", "delete"):
            self.node.ip("route", verb, f"{mark}/32", "dev", "lo")
        until("route changes are written", lambda: f"{mark} " in self.changes.read_text())
        return self.changes.read_text().partition(f"{mark} ")[0]

    def assert_never_without(self) -> None:
        """Once the guest had a route here it has had one ever since, the kernel says."""
        present: set[str] = set()
        for line in self.told().splitlines():
            words = line.split()
            if self.address in words:
                metric = words[words.index("metric") + 1]
                (present.discard if words[0] == "Deleted" else present.add)(metric)
                assert present, line
        assert present == {"1024"}

    def assert_nothing_denied_came(self) -> None:
        """Not one packet, whatever was dead or alive; and whoever listened heard well."""
        self.intruder.close()
        heard = self.intruder.ear.heard
        assert heard["allowed in"] and not heard["denied in"], heard
        assert not self.intruder.ear.lost

    def saved(self) -> str:
        """The agent's state file."""
        path = self.node.root / "state" / "migration-state.json"
        return path.read_text() if path.exists() else ""


def convergence(seconds: int) -> Record:
    """This node's own convergence time."""
    spec = {"liveMigrationRouteConvergenceTime": f"{seconds}s"}
    return resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)


def policy() -> Record:
    """The VM may be asked by the prober, and nothing else."""
    rule = {"action": "Allow", "protocol": "UDP", "destination": {"ports": [PORT]}}
    spec = {"selector": "kubevirt.io == 'virt-launcher'", "ingress": [rule]}
    return resource_record(Kind.NETWORK_POLICY, "db", spec, namespace=NAMESPACE)


def watch_routes(node: CalledNode) -> Path:
    """A file to which the kernel's announcements of route changes are written from now on."""
    changes = node.root / "routes.log"
    node.processes.append(node.spawn(["ip", "-o", "monitor", "route"], changes.name))

    def listens() -> bool:
        node.ip("route", "replace", "203.0.113.1/32", "dev", "lo")
        node.ip("route", "delete", "203.0.113.1/32", "dev", "lo")
        return "203.0.113.1" in changes.read_text()

    until("route changes are watched", listens)
    return changes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        node = CalledNode(tmp_path, fresh_name("mk"))
        stack.callback(node.close)
        node.module = "tests.fakes.mortal_agent"
        for record in (convergence(1), policy()):
            node.store.create(record.key, record.value)
        address = node.vm_elsewhere()
        node.world.put_migration("m1", phase="Running")
        node.world.put_launcher(POD, migration="m1")
        node.start()
        answer = node.done("ADD", POD, "ctr1")
        assert answer.address == address
        until("the agent listens", lambda: node.lines("sniffer_open"))
        guest = Guest(node, "ctr1", address, answer.body["interfaces"][1]["mac"])
        stack.callback(guest.leave)
        prober = Prober(node, address)
        stack.callback(prober.close)
        intruder = Intruder(prober.path, node.sandbox("ctr1"), address)
        stack.callback(intruder.close)
        yield Scene(node, address, guest, prober, watch_routes(node), intruder)


def undisturbed(s: Scene) -> None:
    s.arrive()
    s.swapped()
    s.succeed()


def in_target(s: Scene) -> None:
    """The guest arrives, and announces itself, while no agent runs."""
    assert s.node.stop(signal.SIGKILL) == -9
    s.arrive()
    s.revive()
    s.swapped()
    s.succeed()


def before_the_raise(s: Scene) -> None:
    s.arm("reconciler", "netlink add route")
    s.arrive()
    s.dead()
    s.swapped()
    s.succeed()


def between_raise_and_memory(s: Scene) -> None:
    s.arm("lane-memory", "save")
    s.arrive()
    s.dead()
    s.swapped()
    s.succeed()


def between_memory_and_owner(s: Scene) -> None:
    s.arm("owners", "promote")
    s.arrive()
    s.dead()
    s.swapped()
    s.succeed()


def inside_the_owner_swap(s: Scene) -> None:
    s.arm("owners", "sqlite COMMIT")
    s.arrive()
    s.dead()
    s.swapped()
    s.succeed()


def in_live(s: Scene) -> None:
    s.arrive()
    s.swapped()
    s.kill()
    s.succeed()


def in_time_wait(s: Scene) -> None:
    s.hold()
    undisturbed(s)
    s.reach("time-wait")
    s.kill()
    s.converge(1)


def between_the_normal_route_and_the_end_of_the_raised(s: Scene) -> None:
    s.hold()
    undisturbed(s)
    s.reach("time-wait")
    s.arm("reconciler", "netlink delete route")
    s.converge(1)
    s.dead()


def before_base_is_remembered(s: Scene) -> None:
    s.hold()
    undisturbed(s)
    until("remembered", lambda: '"time-wait"' in s.saved())
    s.arm("lane-memory", "save")
    s.converge(1)
    s.dead()


def in_base(s: Scene) -> None:
    undisturbed(s)
    s.reach("base")
    s.kill()


Story = Callable[[Scene], None]
KILLS: list[Story] = [
    in_target,
    before_the_raise,
    between_raise_and_memory,
    between_memory_and_owner,
    inside_the_owner_swap,
    in_live,
    in_time_wait,
    between_the_normal_route_and_the_end_of_the_raised,
    before_base_is_remembered,
    in_base,
]


@pytest.mark.parametrize("story", [undisturbed, *KILLS], ids=lambda story: story.__name__)
def test_killed_on_the_way_of_a_migration(scene: Scene, story: Story) -> None:
    story(scene)
    end = scene.end()
    gap = scene.prober.gap(scene.began)
    absent = scene.absent()
    print(
        f"{story.__name__}: {gap * 1000:.0f} ms without an answer,"
        f" {absent * 1000:.0f} ms without an agent ({scene.deaths} kills)"
    )
    assert scene.deaths == (0 if story is undisturbed else 1)
    assert gap < absent + BEARABLE
    scene.assert_never_without()
    scene.assert_nothing_denied_came()
    assert end == {
        **end,
        "owners": {scene.address: (HANDLE, POD, "virt-launcher-db-0")},
        "endpoints": {POD: "ctr1"},
        "rules": [scene.node.host_name(POD)],
        "locks": [],
    }
    assert [route for route in end["routes"] if scene.address in route] == [  # type: ignore[attr-defined]  # a list
        f"{scene.address} 1024"
    ]


def suppressed_target(s: Scene) -> None:
    """The migration failed: the guest stays where it was."""
    s.node.say_migration("Failed")
    s.reach("suppressed")


def suppressed_by_a_newer_raise(s: Scene) -> None:
    """The guest was here, and moved on, within the convergence time, to a node that raised it."""
    s.hold()
    undisturbed(s)
    s.reach("time-wait")
    s.guest.leave()
    bird_route(s, "add")
    s.reach("suppressed")
    s.converge(1)


def departed(s: Scene) -> None:
    """The guest had settled here, and moved on."""
    undisturbed(s)
    s.reach("base")
    s.guest.leave()
    bird_route(s, "add")
    s.reach("departed")


def departed_and_killed_before_it_was_remembered(s: Scene) -> None:
    """The route is gone from the kernel, and the saved state is still Base."""
    undisturbed(s)
    s.reach("base")
    until("Base is remembered", lambda: '"base"' in s.saved())
    s.guest.leave()
    s.arm("lane-memory", "save")
    bird_route(s, "add")
    s.dead()
    s.reach("departed")


def bird_route(s: Scene, verb: str) -> None:
    """Another node raises the address, as BIRD tells the kernel; or lets go of it."""
    way = ["via", "172.31.1.3", "dev", "up0", "proto", "bird", "metric", "768"]
    s.node.ip("route", verb, f"{s.address}/32", *way)


@pytest.mark.parametrize(
    "story",
    [
        suppressed_target,
        suppressed_by_a_newer_raise,
        departed,
        departed_and_killed_before_it_was_remembered,
    ],
    ids=lambda story: story.__name__,
)
def test_killed_where_the_guest_is_not(scene: Scene, story: Story) -> None:
    """No route of ours comes or goes, the state is the same, and the guest may still come."""
    story(scene)
    node = scene.node
    state = node.lines("migration_transition")[-1]["to"]
    until("remembered", lambda: f'"{state}"' in scene.saved())
    scene.serves()
    before = until("its policy is in force", scene.in_force)
    seen = len(scene.told())
    begun = len(node.lines("migration_begun"))
    scene.kill()
    until("it begins again", lambda: len(node.lines("migration_begun")) > begun)
    assert node.lines("migration_begun")[-1]["state"] == state
    scene.serves()
    node.rest(before)
    assert scene.address not in scene.told()[seen:]
    if story is not suppressed_target:
        bird_route(scene, "delete")
    node.say_vm_runs_on(NODE)
    scene.node.say_migration("Succeeded")
    scene.arrive()
    assert scene.end()["owners"] == {scene.address: (HANDLE, POD, "virt-launcher-db-0")}
    scene.assert_nothing_denied_came()
