"""The product's pure functions as the simulation calls them. Nothing is decided here.

Each is remembered by its arguments, which is sound because they are pure. The memory belongs to
one `Product`: a run with a changed product (`tests/fakes/mutants.py`) has another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from felix_shim import desired, facts, frames, migration, routes
from felix_shim.migration import Event, Facts, Input, Machine, State
from felix_shim.migration_record import dump_machine, load_machine
from felix_shim.model import Endpoint, EndpointId, VMRef
from felix_shim.raises import Raises
from felix_shim.roster import Local
from ipam import ownership
from lab.simulate import guest
from lab.simulate.values import (
    Attributes,
    Entry,
    HandOff,
    Instance,
    Instances,
    Job,
    Jobs,
    Ledger,
    Pod,
    Saved,
    Seats,
    Site,
    Timing,
    attributes,
    node_name,
)
from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.kube import targets
from libtortie.kube.objects import (
    LABEL_LAUNCHER,
    LABEL_MIGRATION_JOB,
    LAUNCHER,
    Meta,
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VMIMSpec,
    VMIMStatus,
    VMIStatus,
)
from libtortie.linux.port import Route
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.names import vm_handle

NAMESPACE = "default"
ADDRESSES = (ip_address(guest.IPV4), ip_address(guest.IPV6))
TIMING = Timing()
PRIORITIES = routes.Priorities()
Who = tuple[str, int, int, str]
"""A pod's name, node, VMI and migration: what never changes of it."""
Function = TypeVar("Function", bound=Callable[..., Any])


def who(pod: Pod) -> Who:
    """What never changes of a pod."""
    return pod.name, pod.node, pod.vmi, pod.job


class Product:
    """See the module. `calls` and `moves` count what was asked and which cells were used."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cells: set[tuple[Input, State, State]] = set()
        remember = lru_cache(maxsize=None)
        self.endpoint = remember(self._endpoint)
        self.derive = remember(self._derive)
        self.settle = remember(self._settle)
        self.hear = remember(self._hear)
        self.begin = remember(self._begin)
        self.plan = remember(self._plan)
        self.observe = remember(self._observe)
        self.wants_owner = remember(self._wants_owner)
        self.promote = remember(self._promote)
        self.is_sign = remember(self._is_sign)
        self.asks = remember(self._asks)

    # -- what the API says ---------------------------------------------------------------------

    def vmi_name(self, vmi: int) -> str:
        """The name of a VMI; another cluster's has another."""
        return f"{self.site.vmi_name}{'-elsewhere' * vmi}"

    def _endpoint(self, one: Who) -> Endpoint:
        name, _, vmi, job = one
        handle = vm_handle(self.site.network, NAMESPACE, self.vmi_name(vmi))
        return Endpoint(
            id=EndpointId(NAMESPACE, name),
            orchestrator="k8s",
            workload=f"{NAMESPACE}/{name}",
            interface=f"cali{name}",
            mac=guest.MAC,
            addresses=ADDRESSES[: self.site.families],
            container_id=f"container-{name}",
            pod_uid=f"uid-{name}",
            labels={LABEL_LAUNCHER: LAUNCHER, **({LABEL_MIGRATION_JOB: job} if job else {})},
            vm=VMRef(NAMESPACE, self.vmi_name(vmi), f"uid-vmi{vmi}", handle),
            migration_uid=job,
        )

    def _machines(self, jobs: Jobs | None, instances: Instances | None) -> facts.VirtualMachines:
        found = facts.VirtualMachines()
        found.migrations_in_sync = jobs is not None
        found.instances_in_sync = instances is not None
        for job in jobs or ():
            found.put(self._job(job))
        for number, instance in enumerate(instances or ()):
            found.put(self._instance(number, instance))
        return found

    def _job(self, job: Job) -> VirtualMachineInstanceMigration:
        return VirtualMachineInstanceMigration(
            metadata=Meta(name=job.uid, namespace=NAMESPACE, uid=job.uid),
            spec=VMIMSpec(vmi_name=self.vmi_name(job.vmi)),
            status=VMIMStatus(phase=job.phase, migration_state=_state(job.state)),
        )

    def _instance(self, number: int, instance: Instance) -> VirtualMachineInstance:
        return VirtualMachineInstance(
            metadata=Meta(name=self.vmi_name(number), namespace=NAMESPACE, uid=f"uid-vmi{number}"),
            status=VMIStatus(
                phase=instance.phase,
                node_name=instance.node,
                active_pods={f"uid-{pod}": node for pod, node in instance.active},
                migration_state=_state(instance.state),
            ),
        )

    def _derive(
        self,
        one: Who,
        read: tuple[Jobs | None, Instances | None],
        before: Facts,
        raised: int,
        stale: bool,
    ) -> Facts:
        return facts.update(
            before,
            self.endpoint(one),
            self._machines(*read),
            node_name(one[1]),
            raised_elsewhere=raised,
            stale_elsewhere=stale,
        )

    # -- the machine ---------------------------------------------------------------------------

    def _settle(self, machine: Machine, known: Facts) -> Machine:
        after, actions = migration.settle(machine, known, 0.0, TIMING)
        self._note(actions)
        return after

    def _hear(self, machine: Machine, current: bool) -> Machine:
        episode = machine.episode - (0 if current else 1)
        after, actions = migration.step(machine, Event(Input.SIGN, episode), 0.0, TIMING)
        self._note(actions)
        return after

    def _note(self, actions: tuple[migration.Action, ...]) -> None:
        for action in actions:
            if isinstance(action, migration.Moved):
                self.cells.add((action.input, action.before, action.after))

    def _begin(self, one: Who, saved: Saved | None, kernel: frozenset[Entry]) -> Machine:
        """The machine of an endpoint that is new to its agent, from file and kernel."""
        endpoint = self.endpoint(one)
        present = [self._route(entry, endpoint) for entry in kernel if entry.pod == one[0]]
        normal, raised = routes.evidence(endpoint.interface, present, PRIORITIES, PRIORITIES)
        loaded = None
        if saved is not None:
            record = dump_machine(saved.machine, now=0.0, wall=0.0)
            loaded = load_machine(record, now=0.0, wall=0.0, settings=TIMING)
        return migration.recover(
            loaded, kernel_raised=raised, kernel_normal=normal, target=endpoint.migration_uid
        )

    def listens(self, pod: Pod) -> bool:
        """Whether its agent has ears on a pod's veth."""
        return pod.machine is not None and migration.wants_signs(pod.machine)

    def _is_sign(self, frame: bytes) -> bool:
        addresses = ADDRESSES[: self.site.families]
        return frames.classify(frame, frames.mac_bytes(guest.MAC), addresses) is not None

    # -- routes --------------------------------------------------------------------------------

    def _plan(
        self, locals_: tuple[tuple[Who, State], ...], kernel: frozenset[Entry]
    ) -> tuple[tuple[Entry, bool], ...]:
        """What to change in a node's kernel, in order; True adds."""
        endpoints = [(self.endpoint(one), state) for one, state in locals_]
        known = {endpoint.id.pod: endpoint for endpoint, _ in endpoints}
        actual = [self._route(entry, known[entry.pod]) for entry in kernel if entry.pod in known]
        adds, deletes = routes.plan_routes(routes.desired_routes(endpoints, PRIORITIES), actual)
        return tuple((_entry(route), route in adds) for route in (*adds, *deletes))

    def _route(self, entry: Entry, endpoint: Endpoint) -> Route:
        return Route(
            dst=ip_network(ADDRESSES[entry.family]),
            priority=entry.metric,
            ifname=endpoint.interface,
            link_scope=entry.family == 0,
        )

    # -- BGP -----------------------------------------------------------------------------------

    def _asks(self, pod: Pod, learned: bool, known: bool) -> bool:
        assert pod.machine is not None
        local = self._local(who(pod), pod.machine, pod.returned)
        return desired.worth_asking(local, learned, known)

    def _observe(
        self, ledger: Ledger, asked: frozenset[int], raised: tuple[tuple[int, frozenset[int]], ...]
    ) -> Ledger:
        """The ledger after a look at BIRD's table."""
        numbers: dict[Any, dict[str, int]] = {}
        for family, node, number in ledger.numbers:
            numbers.setdefault(ADDRESSES[family], {})[node_name(node)] = number
        seen = {
            ADDRESSES[family]: ",".join(sorted(node_name(node) for node in nodes))
            for family, nodes in raised
        }
        after = Raises(ledger.last, numbers).observe([ADDRESSES[one] for one in asked], seen)
        entries = [
            (ADDRESSES.index(address), int(hop.removeprefix("node")), number)
            for address, hops in after.numbers.items()
            for hop, number in hops.items()
        ]
        return Ledger(after.last, tuple(sorted(entries)))

    def raised(self, ledger: Ledger) -> int:
        """The newest raise of the VM's addresses."""
        numbers: dict[Any, dict[str, int]] = {}
        for family, node, number in ledger.numbers:
            numbers.setdefault(ADDRESSES[family], {})[node_name(node)] = number
        return Raises(ledger.last, numbers).number(ADDRESSES[: self.site.families])

    # -- owners --------------------------------------------------------------------------------

    def _local(self, one: Who, machine: Machine, returned: bool) -> Local:
        key = ResourceKey(Kind.WORKLOAD_ENDPOINT, one[0], NAMESPACE)
        return Local(key, self.endpoint(one), machine, returned=returned)

    def came_back(self, pod: Pod, after: Machine) -> bool:
        """Whether the VM has left this pod and returned, after a step of its machine."""
        if pod.machine is None or after.state is pod.machine.state:
            return pod.returned
        returned = desired.came_back(pod.machine.state, after.state)
        return pod.returned if returned is None else returned

    def _wants_owner(
        self, one: Who, machine: Machine, returned: bool, in_sync: bool
    ) -> Attributes | None:
        """The owner that an endpoint must be, None when it need not be."""
        local = self._local(one, machine, returned)
        wanted = desired.owners((local,), node_name(one[1]), in_sync=in_sync)
        return next((attributes(item.owner) for item in wanted.values()), None)

    def _promote(self, seats: Seats, wanted: Attributes) -> Seats:
        """The owners after an attempt to promote one; a refusal changes nothing."""
        owners = ownership.Owners(dict(seats.active), dict(seats.alternate))
        try:
            return _seats(ownership.promote(owners, dict(wanted)))
        except (OwnerMismatch, MigrationRefused):
            return seats

    def owner(self, pod: Pod) -> Attributes:
        """A pod as ADD writes it into IPAM."""
        found = ownership.pod_owner(
            namespace=NAMESPACE,
            pod=pod.name,
            node=node_name(pod.node),
            timestamp=datetime.fromtimestamp(0, UTC),
            container_id=f"container-{pod.name}",
            pod_uid=f"uid-{pod.name}",
            vmi_name=self.vmi_name(pod.vmi),
            vmi_uid=f"uid-vmi{pod.vmi}",
            vmim_uid=pod.job,
        )
        return attributes(found)

    def claim(
        self, seats: Seats | None, pod: Pod, lives: frozenset[str], instance: Instance | None = None
    ) -> Seats | None:
        """The owners after a pod's ADD, as a target or not; None when it is refused."""
        owners = ownership.Owners(*(dict(seat) for seat in seats or Seats(())))
        owner = dict(self.owner(pod))

        def living(other: Any) -> bool:
            return other.get("pod") in lives

        try:
            if seats is not None and instance is not None:
                runs_in = targets.runs_in(self._instance(pod.vmi, instance))
                claimed = ownership.claim_target(owners, owner, living, runs_in=runs_in)
                return _seats(claimed)
            return _seats(ownership.claim(owners, owner, ownership.nobody_is_gone, living))
        except (OwnerMismatch, MigrationRefused):
            return None

    def disown(self, seats: Seats, pod: Pod) -> Seats:
        """The owners after a pod's DEL."""
        owners = ownership.Owners(dict(seats.active), dict(seats.alternate))
        return _seats(ownership.disown(owners, dict(self.owner(pod))))

    @staticmethod
    def is_free(seats: Seats) -> bool:
        """Whether nobody has the address."""
        return not seats.active and not seats.alternate


def canonical(machine: Machine) -> Machine:
    """A machine without its history: episodes are compared with each other only."""
    since = None if machine.since is None else max(machine.since, -2 * CONVERGENCE_)
    return replace(machine, episode=0, since=since)


CONVERGENCE_ = TIMING.convergence_seconds


def _state(state: HandOff) -> MigrationState:
    return MigrationState(
        migration_uid=state.job,
        source_pod=state.source,
        target_pod=state.target,
        source_node=state.source_node,
        target_node=state.target_node,
        completed=state.completed,
        failed=state.failed,
    )


def _entry(route: Route) -> Entry:
    family = 0 if route.dst.version == 4 else 1
    return Entry(route.priority, family, route.ifname.removeprefix("cali"))


def _seats(owners: ownership.Owners) -> Seats:
    return Seats(attributes(owners.active), attributes(owners.alternate))
