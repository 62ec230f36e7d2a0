"""A small cluster in which one VM moves about: the judge of the migration state machine.

Each node has an agent that knows the API only as far as its two watches have come, the other
nodes' raises only as of its last look, and its VM only by frames it happened to hear. The VM has
one true place. Pods linger, agents crash between raising a route and saving their state, or sleep
through everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from felix_shim.migration import (
    RAISED,
    Event,
    Facts,
    Input,
    Machine,
    State,
    recover,
    settle,
    step,
    wants_signs,
)
from felix_shim.migration_record import dump_machine, load_machine
from felix_shim.model import Proof, Role
from felix_shim.raises import Raises
from felix_shim.routes import Priorities, route_priority

VM_ADDRESS = ip_address("10.65.0.2")
CONVERGENCE = 30.0


@dataclass(frozen=True)
class Timing:
    convergence_seconds: float = CONVERGENCE


@dataclass
class Migration:
    """A VMIM: the pods it names and how it ended (`live`, `succeeded`, `failed`)."""

    uid: str
    source: str
    target: str
    phase: str = "live"


@dataclass
class Pod:
    """An attachment and what its agent keeps about it."""

    name: str
    node: int
    migration: str  # the label: the migration it was made for
    machine: Machine
    saved: dict[str, Any] | None = None
    kernel: int | None = None  # metric of its route in the kernel


@dataclass
class Agent:
    """One node's agent: how far its watches have come, and what it saw of BGP."""

    awake: bool = True
    seen_migrations: int = 0
    seen_places: int = 0
    raises: Raises = field(default_factory=Raises)


class World:
    """The cluster. `log_*` are histories; a watch is a position in one."""

    def __init__(self, nodes: int) -> None:
        self.now = 0.0
        self.agents = [Agent() for _ in range(nodes)]
        self.pods: dict[str, Pod] = {}
        self.vm_pod = "pod0"
        self.log_places = ["pod0"]  # which pod the API says the VM runs in
        self.log_migrations: list[dict[str, Migration]] = [{}]
        self.made = 0
        self._new_pod(0, "")
        for agent in self.agents:
            agent.seen_places = 0
        self._run(self.pods["pod0"])

    # --- what happens in the cluster -------------------------------------------------------

    def start_migration(self, node: int) -> None:
        """Begin to move the VM to a node, unless it is there or being moved."""
        if node == self.pods[self.vm_pod].node or self._live() is not None:
            return
        uid = f"m{len(self.log_migrations)}"
        pod = self._new_pod(node, uid)
        self._publish(Migration(uid, self.vm_pod, pod.name))
        if self.agents[node].awake:
            # the CNI plugin attaches a target only after it has read the migration
            self.agents[node].seen_migrations = len(self.log_migrations) - 1
            self._run(pod)
            self.look(node)  # an agent looks at once for an address that is new to it

    def switch(self) -> None:
        """The VM resumes on the target. Whether anybody hears it is another action."""
        live = self._live()
        if live is not None:
            self.vm_pod = live.target

    def finish(self) -> None:
        """The API learns how it went: the VM's place first or the migration's end first."""
        live = self._live()
        if live is None:
            return
        moved = self.vm_pod == live.target
        if moved:
            self.log_places.append(live.target)
        self._publish(
            Migration(live.uid, live.source, live.target, "succeeded" if moved else "failed")
        )

    def delete_pod(self, number: int) -> None:
        """The kubelet removes a pod that is neither the VM's nor in a live migration."""
        live = self._live()
        kept = {self.vm_pod} | ({live.source, live.target} if live else set())
        names = sorted(self.pods.keys() - kept)
        if names:
            del self.pods[names[number % len(names)]]

    def speak(self, name: str = "") -> None:
        """The VM sends a frame, or a guest in another pod that goes on beside it; the agent hears
        it if it is awake and listening."""
        pod = self.pods[name or self.vm_pod]
        if self.agents[pod.node].awake and wants_signs(pod.machine):
            event = Event(Input.SIGN, pod.machine.episode)
            pod.machine, _ = step(pod.machine, event, self.now, Timing())
            self._apply(pod, save=True)

    # --- what happens to an agent ----------------------------------------------------------

    def watch_migrations(self, node: int, steps: int) -> None:
        """One watch of an agent comes some way."""
        agent = self.agents[node]
        agent.seen_migrations = min(agent.seen_migrations + steps, len(self.log_migrations) - 1)
        self._run_node(node)

    def watch_places(self, node: int, steps: int) -> None:
        """The other watch does."""
        agent = self.agents[node]
        agent.seen_places = min(agent.seen_places + steps, len(self.log_places) - 1)
        self._run_node(node)

    def look(self, node: int) -> None:
        """An agent asks its BIRD who is raised."""
        agent = self.agents[node]
        if agent.awake:
            hops = sorted(
                {
                    f"node{pod.node}"
                    for pod in self.pods.values()
                    if pod.node != node and pod.kernel == Priorities().elevated
                }
            )
            seen = {VM_ADDRESS: ",".join(hops)} if hops else {}
            agent.raises = agent.raises.observe([VM_ADDRESS], seen)
            self._run_node(node)

    def sleep(self, node: int) -> None:
        """An agent dies; the kernel keeps its routes."""
        self.agents[node].awake = False

    def wake(self, node: int, *, lost_state: bool = False) -> None:
        """It starts again from what was saved and what the kernel has."""
        if self.agents[node].awake:
            return
        self.agents[node].awake = True
        for pod in self._on(node):
            saved = None
            if pod.saved is not None and not lost_state:
                saved = load_machine(pod.saved, now=self.now, wall=self.now, settings=Timing())
            pod.machine = recover(
                saved,
                kernel_raised=pod.kernel == Priorities().elevated,
                kernel_normal=pod.kernel == Priorities().normal,
                target=pod.migration,
            )
        if lost_state:
            self.agents[node].raises = Raises()
        self._run_node(node)

    def crash_after_raise(self, node: int) -> None:
        """The VM speaks, the agent raises the route and dies before it saves."""
        pod = self.pods[self.vm_pod]
        if pod.node == node and self.agents[node].awake and wants_signs(pod.machine):
            event = Event(Input.SIGN, pod.machine.episode)
            pod.machine, _ = step(pod.machine, event, self.now, Timing())
            self._apply(pod, save=False)
            self.sleep(node)

    def advance(self, seconds: float) -> None:
        """Time passes, and timers fire on whoever is awake."""
        self.now += seconds
        for node in range(len(self.agents)):
            self._run_node(node)

    def calm_down(self) -> None:
        """No more news: everybody is awake, informed, and has waited for all timers."""
        self.finish()
        for node in range(len(self.agents)):
            self.wake(node)
        for _ in range(8):
            for node in range(len(self.agents)):
                self.watch_migrations(node, 1000)
                self.watch_places(node, 1000)
                self.look(node)
            self.advance(CONVERGENCE + 1)

    # --- verdicts ---------------------------------------------------------------------------

    def routes(self) -> dict[str, int]:
        """Pod → metric, of every route in any kernel."""
        return {pod.name: pod.kernel for pod in self.pods.values() if pod.kernel is not None}

    # --- inside -----------------------------------------------------------------------------

    def _live(self) -> Migration | None:
        return next((one for one in self.log_migrations[-1].values() if one.phase == "live"), None)

    def _publish(self, migration: Migration) -> None:
        self.log_migrations.append(self.log_migrations[-1] | {migration.uid: migration})

    def _new_pod(self, node: int, migration: str) -> Pod:
        name = f"pod{self.made}"
        self.made += 1
        machine = recover(None, kernel_raised=False, target=migration)
        pod = self.pods[name] = Pod(name, node, migration, machine)
        return pod

    def _on(self, node: int) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    def _run_node(self, node: int) -> None:
        if self.agents[node].awake:
            for pod in self._on(node):
                self._run(pod)

    def _run(self, pod: Pod) -> None:
        pod.machine, _ = settle(pod.machine, self._facts(pod), self.now, Timing())
        again, actions = settle(pod.machine, self._facts(pod), self.now, Timing())
        assert (again, actions) == (pod.machine, ()), "settling twice changes nothing"
        self._apply(pod, save=True)

    def _apply(self, pod: Pod, *, save: bool) -> None:
        pod.kernel = route_priority(pod.machine.state, Priorities())
        if save:
            pod.saved = dump_machine(pod.machine, now=self.now, wall=self.now)
        assert (pod.kernel == Priorities().elevated) == (pod.machine.state in RAISED)
        assert pod.machine.state is not State.ENDED

    def _facts(self, pod: Pod) -> Facts:
        agent = self.agents[pod.node]
        migrations = self.log_migrations[agent.seen_migrations].values()
        live = [one for one in migrations if one.phase == "live"]
        left = {one.source for one in migrations if one.phase == "succeeded"}
        role, uid = Role.NONE, ""
        if any(one.target == pod.name for one in live):
            role, uid = Role.TARGET, pod.migration
        elif pod.name in left or any(one.source == pod.name for one in live):
            role = Role.SOURCE
        here = self.log_places[agent.seen_places] == pod.name
        return Facts(
            role=role,
            final=not live,
            proof=Proof.HERE if here else Proof.ELSEWHERE,
            raised_elsewhere=agent.raises.number([VM_ADDRESS]),
            migration_uid=uid,
        )
