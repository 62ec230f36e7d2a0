"""What a simulated cluster is made of, as immutable values that compare and hash as a whole.

Times are relative to now (a deadline in the past is negative), and so are the numbers that agents
give to raises: two clusters that differ only by when, or by how often before, are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from felix_shim.migration import Machine
from libtortie.model.ipam import Owner

CONVERGENCE = 30.0
"""Seconds; the clock of the simulation advances by it, so that every deadline is met exactly."""

NONE, CURRENT, OUTDATED = range(3)
"""What waits in an agent's inbox for an endpoint: no sign, one of its episode, one of an older."""

ASKED, PENDING, RUNNING, SUCCEEDED, FAILED = "", "Pending", "Running", "Succeeded", "Failed"

Vector = tuple[int, ...]
"""What is announced for the VM's address, by family: the metric, 0 for nothing."""


@dataclass(frozen=True)
class Timing:
    """The settings of every agent."""

    convergence_seconds: float = CONVERGENCE


@dataclass(frozen=True)
class Site:
    """What does not change in a run.

    `early` and `late` are the phases of a migration before and after the hand-off. `overlap`: a
    migration may be asked for while another is live; its target waits for the other's end.
    `untold`: a migration may be called failed although the VM has arrived. `rollback`: the VM may
    return to its source after it ran on the target.
    `same_node`: a target may be on its source's node. `remote`: the target is another VMI in
    another cluster's API and IPAM (a decentralised migration), with the same address.
    `prompt_tor`: the ToR hears everything at once. Nobody listens to it, so that leaves nothing
    out but what the ToR itself believes meanwhile.
    """

    nodes: int = 2
    families: int = 1
    early: tuple[str, ...] = (PENDING,)
    late: tuple[str, ...] = (RUNNING,)
    overlap: bool = False
    untold: bool = False
    rollback: bool = False
    same_node: bool = False
    remote: bool = False
    vmi_name: str = "vm"
    network: str = ""
    block_node: int | None = 0
    prompt_tor: bool = True


class Budget(NamedTuple):
    """How often each of these may still happen.

    `losses`: a BGP update that is lost, repeated or overtaken (its session begins anew after it).
    `stale`: a list that is older than what its reader knew. `strays`: a frame of the VM, genuine
    by its bytes, from a pod that the VM does not run in. `amnesia`: a state file is lost.
    """

    jobs: int = 1
    crashes: int = 0
    ticks: int = 2
    losses: int = 0
    stale: int = 0
    strays: int = 0
    amnesia: int = 0


class Saved(NamedTuple):
    """One endpoint in an agent's state file."""

    machine: Machine
    returned: bool


class Pod(NamedTuple):
    """An attachment. `machine` is None while its node's agent is down or has not heard of it.

    `ran`: the guest has run in it. `older`: the raises that its agent knew when it last claimed
    the VM, and has seen without a break since; both are for the verdicts only.
    """

    name: str
    node: int
    vmi: int = 0
    job: str = ""
    machine: Machine | None = None
    returned: bool = False
    saved: Saved | None = None
    sign: int = NONE
    ran: bool = False
    older: frozenset[int] = frozenset()


class Ledger(NamedTuple):
    """`felix_shim.raises.Raises` as a tuple: (family, node) → number."""

    last: int = 0
    numbers: tuple[tuple[int, int, int], ...] = ()

    @property
    def shown(self) -> frozenset[int]:
        """The nodes that are raised."""
        return frozenset(node for _, node, _ in self.numbers)


class Entry(NamedTuple):
    """A route of a node's main table: to the VM's address, by a pod's interface."""

    metric: int
    family: int
    pod: str


class Node(NamedTuple):
    """A node: its kernel, its BIRD and its agent.

    `instances` and `jobs` say how far its watches have come, None before their first list.
    `heard` is BIRD's table by node of origin, `told` what it announced last.
    """

    up: bool
    instances: int | None
    jobs: int | None
    kernel: frozenset[Entry]
    heard: tuple[Vector, ...]
    told: Vector
    ledger: Ledger = Ledger()
    saved_ledger: Ledger = Ledger()
    announced: frozenset[int] = frozenset()


class HandOff(NamedTuple):
    """`migrationState`."""

    job: str = ""
    source: str = ""
    target: str = ""
    source_node: str = ""
    target_node: str = ""
    completed: bool = False
    failed: bool = False


class Instance(NamedTuple):
    """A VMI."""

    node: str
    active: tuple[tuple[str, str], ...]
    state: HandOff = HandOff()
    phase: str = RUNNING


class Job(NamedTuple):
    """A VMIM; `vmi` is the one it moves. `tells`: its own status has the hand-off too."""

    uid: str
    source: str
    target: str
    phase: str
    vmi: int = 0
    state: HandOff = HandOff()

    @property
    def live(self) -> bool:
        """Whether it is not final."""
        return self.phase not in (SUCCEEDED, FAILED)


Instances = tuple[Instance, ...]
Jobs = tuple[Job, ...]
Attributes = tuple[tuple[str, str], ...]


class Seats(NamedTuple):
    """The two owners of the VM's address in IPAM."""

    active: Attributes
    alternate: Attributes = ()


class World(NamedTuple):
    """Everything. `vm` is the pod that the guest runs in; the histories begin with the oldest
    entry that some watch has not passed. `wire[a][b]` are updates on their way from a to b; the
    last row and column of nodes, without an agent, is the ToR."""

    pods: tuple[Pod, ...]
    nodes: tuple[Node, ...]
    tor: tuple[Vector, ...]
    wire: tuple[tuple[tuple[Vector, ...], ...], ...]
    instances: tuple[Instances, ...]
    jobs: tuple[Jobs, ...]
    vm: str
    seats: tuple[Seats, ...]
    left: Budget
    made: int
    asked: tuple[tuple[str, int], ...] = ()
    """Targets to come of migrations that wait for another's end, and their nodes."""
    at_odds: bool = False
    """The API has called a migration failed whose VM arrived, and says no more of it."""
    strayed: bool = False
    """A pod has sent the VM's frames that the VM does not run in."""

    def pod(self, name: str) -> Pod | None:
        """A pod by name."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def on(self, node: int) -> tuple[Pod, ...]:
        """The pods of a node."""
        return tuple(pod for pod in self.pods if pod.node == node)

    def with_pod(self, changed: Pod) -> World:
        """The same with one pod changed."""
        pods = tuple(changed if one.name == changed.name else one for one in self.pods)
        return self._replace(pods=pods)

    def with_node(self, number: int, changed: Node) -> World:
        """The same with one node changed."""
        nodes = (*self.nodes[:number], changed, *self.nodes[number + 1 :])
        return self._replace(nodes=nodes)


def attributes(owner: Owner) -> Attributes:
    """An owner's attributes as a value."""
    return tuple(sorted(owner.items()))


def node_name(number: int) -> str:
    """What the API calls a node."""
    return f"node{number}"
