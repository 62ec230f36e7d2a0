"""Work that concerns the whole node: decide a value from what is known, hand it to its outlet.

Each chore is level-triggered: doing it again with nothing changed gives the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Interface, IPv6Interface, ip_network
from typing import TypeVar

from felix_shim import desired
from felix_shim.bgp_model import Bfd
from felix_shim.bird_input import Here, bird_input
from felix_shim.bird_peers import SecretKey, Secrets
from felix_shim.cluster import NODES, scopes
from felix_shim.drivers.sysctls import Wires
from felix_shim.due import FLOWS, LISTEN, NUDGE, OWNERS, RAISES
from felix_shim.events import BgpTold, Done, RaisesSeen, ServiceAddress
from felix_shim.exchange import exchange
from felix_shim.herald import tidings, unrecorded
from felix_shim.kube_entries import PolicyObject
from felix_shim.lanes import Job
from felix_shim.model import Endpoint, EndpointId
from felix_shim.move_limits import MoveLimits
from felix_shim.nat_moves import NatMoves
from felix_shim.outlets import BIRD, MEMORY, NODE, OVERLAY, POLICY, STATUS, SURVEY, Outlets
from felix_shim.overlay import Composer
from felix_shim.overlay_desk import OverlayPlan
from felix_shim.policy_blame import RuleRefused
from felix_shim.roster import Local
from felix_shim.state import Memory, Remembered
from felix_shim.surroundings import Surroundings
from felix_shim.world import World
from libtortie.jsonlog import Log
from libtortie.linux.port import IPInterface
from libtortie.model.keys import Key
from libtortie.model.policy import PortRange

T = TypeVar("T")

BEFORE_ROUTES = (NUDGE, OVERLAY, POLICY, LISTEN)
AFTER_ROUTES = (FLOWS, MEMORY, STATUS, OWNERS, RAISES, NODE, BIRD, SURVEY)
"""Dependency order. A machine is saved after its routes were changed, never before: what the
kernel has beyond the saved state is then always a step forward (`migration.recover`)."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is: its node, the node's addresses (one is there), and whether there is an API
    to follow.

    `uplinks` are the links whose prefixes resolve BGP next hops. `kernel_raises`: there is no
    BIRD to ask, so another daemon's host route in the kernel counts as a raise. `policy_kinds`
    are the API's objects that policy is made of, beside what is stored. `between_nodes` are TCP
    ports that no policy closes between the cluster's nodes. `secret_namespace` is where BGP's
    passwords are, empty where there is no API to ask; `wall` tells the time of day.
    """

    node: str
    address: IPv4Interface | None
    kube: bool
    uplinks: tuple[str, ...] = ()
    kernel_raises: bool = False
    policy_kinds: frozenset[type[PolicyObject]] = frozenset()
    between_nodes: tuple[PortRange, ...] = ()
    address6: IPv6Interface | None = None
    router_id: str = ""
    bfd: Bfd | None = None
    secret_namespace: str = ""
    wall: Callable[[], datetime] = _now

    @property
    def addresses(self) -> tuple[IPInterface, ...]:
        """The node's, IPv4 first."""
        return tuple(one for one in (self.address, self.address6) if one is not None)


@dataclass(slots=True)
class Chores:
    """One method per chore; `rules_ready` once the rules of a complete list are in the kernel.

    `leaving`, by any thread: no further VM's pod may start, for nobody would hear its VM arrive.
    Its ADD waits for the next agent.
    """

    identity: Identity
    world: World
    out: Outlets
    log: Log
    rules_ready: bool = False
    claims_end: float | None = None
    """When the first way that another node's word alone holds open has to be looked at again."""
    leaving: bool = False
    _generation: int = 0
    _latest_rules: int = 0
    _reconsidered: int = 0
    _job_serials: dict[int, int] = field(default_factory=dict)
    _policy_jobs: dict[int, tuple[tuple[EndpointId, object], ...]] = field(default_factory=dict)
    _bgp_problems: tuple[str, ...] = ()
    _peers_with_workloads: bool = False
    _passwords: Mapping[SecretKey, str | None] = field(default_factory=dict, repr=False)
    _services: frozenset[ServiceAddress] | None = None
    _composer: Composer = field(default_factory=Composer)
    nat_moves: NatMoves = field(init=False)
    move_limits: MoveLimits = field(init=False)

    def __post_init__(self) -> None:
        self.nat_moves = NatMoves(self.log, self.out.warn)
        self.move_limits = MoveLimits(self.log)

    def do(self, chore: str) -> None:
        """One chore, whose being due is over."""
        self.world.due.chores.discard(chore)
        _CHORES[chore](self)

    def nudge(self) -> None:
        """A link came up: sniffers that wait for it need not wait any longer."""
        self.out.nudge()

    def listen(self) -> None:
        """Say which endpoints' VMs are listened for: of none into which a route leads still, for
        an answer to what comes by that is no sign of a VM that arrives."""
        self.out.listen(desired.watched(one for one in self.world.roster if not self._led(one)))
        self._look_at_peers()

    def _led(self, local: Local) -> bool:
        """Whether what is sent to an endpoint's addresses gets to it; its VM may be in another pod
        of this node."""
        routes = (route for dst in local.destinations for route in self.out.routes.actual(dst))
        return any(route.ifname == local.endpoint.interface for route in routes)

    def own(self) -> None:
        """Say which endpoints must own their VMs' addresses."""
        world = self.world
        in_sync = world.machines.in_sync or not world.kube
        self.out.own(desired.owners(world.roster, self.identity.node, in_sync=in_sync))

    def write_status(self) -> None:
        """Files for exactly the endpoints whose policy is in force.

        Until the first rules of this run are in, nobody knows which those are.
        """
        self._look_at_peers()
        if not self.rules_ready:
            return
        roster = [local for local in self.world.roster if self._may_start(local)]
        endpoints = desired.in_force(roster, self.world.links_up)
        self._submit(STATUS, partial(self._write_status, endpoints, self.world.resyncs))

    def _may_start(self, local: Local) -> bool:
        """Whether its status file may be there. Who leaves looks at `reported` after it has said
        so: here it is set before we look.

        Who leaves hears of migrations no more, so that which pod is a target is not asked: one of
        a migration that it does not know would pass for one that will not come.
        """
        before, local.reported = local.reported, True
        if self.leaving and not before and local.endpoint.vm is not None:
            local.reported = False
        return local.reported

    def survey(self) -> None:
        """Read links and routes whole."""
        self._submit(SURVEY, self.out.survey)

    def remember(self) -> None:
        """Save the machines of VMs and the raise counters."""
        newcomers = self.world.due.newcomers
        machines = tuple(
            Remembered(local.id, local.endpoint.container_id, local.machine, local.returned)
            for local in self.world.roster
            if local.endpoint.vm is not None and local.id not in newcomers
        )
        memory = Memory(machines, self.world.elsewhere.raises)
        self._submit(MEMORY, partial(_whole, self.out.save, memory))

    def apply_policy(self) -> None:
        """All rules, and the wires whose sysctls shall be set: the lane knows which are new."""
        if not self.world.knows_policy:
            return  # each list makes it due again
        locals_ = tuple(self.world.roster)
        up = [local for local in locals_ if local.endpoint.interface in self.world.links_up]
        waiting = [local for local in up if not local.in_force]
        endpoints = tuple((local.key, local.endpoint) for local in locals_)
        around = self.world.surroundings(self.identity.between_nodes)
        wires = Wires({local.endpoint.interface: local.wire for local in up}, self.world.resyncs)
        job = partial(self._program, endpoints, wires, around)
        generation = self._submit(POLICY, job)
        self._policy_jobs[generation] = tuple((local.id, local.wire) for local in waiting)
        self._job_serials[generation] = self.world.policy_serial

    def has_latest_rules(self, local: Local) -> bool:
        """Whether the kernel's rules of an endpoint are made of the latest that is known."""
        return bool(local.in_force) and self._latest_rules >= self.world.policy_serial

    def policy_applied(self, done: Done) -> bool:
        """The rules of a generation are in the kernel: what waited for them may go on.

        An endpoint whose wire is another one since then waits for the next generation. False when
        an endpoint's sysctls could not be set although its link is up.
        """
        self.rules_ready = True
        world = self.world
        self._latest_rules = self._job_serials.get(done.generation, self._latest_rules)
        whole = True
        for endpoint, wire in self._policy_jobs.get(done.generation, ()):
            local = world.roster.get(endpoint)
            if local is None or local.wire is not wire:
                continue
            if local.endpoint.interface in done.excepted:
                whole &= local.endpoint.interface not in world.links_up
                continue
            local.in_force = local.in_force or done.generation
            world.due.destinations.update(local.destinations)
        self.forget_jobs(done.generation)
        world.due.chores.add(STATUS)
        return whole

    def forget_jobs(self, generation: int) -> None:
        """Jobs up to this one are done, failed, or gave way to it: nothing is heard of them."""
        self._job_serials = {
            one: serial for one, serial in self._job_serials.items() if one > generation
        }
        self._policy_jobs = {
            one: members for one, members in self._policy_jobs.items() if one > generation
        }

    def lay_overlay(self) -> None:
        """The overlay, once all that it is made of was listed. Others wait for a VM's new way."""
        if self.out.lay_overlay is None:
            return
        world = self.world
        world.overlay.expire(world.monotonic())
        plan = world.overlay.plan(world.cluster, world.settings, world.link_addresses)
        if plan is not None:
            look = (world.resyncs, world.overlay_lost)
            self._submit(OVERLAY, partial(self._lay_overlay, plan, look))
        self.claims_end = world.overlay.first_end()

    def exchange_flows(self) -> None:
        """Say which VMs' connections may go to which nodes, and which shall come here."""
        cluster, machines = self.world.cluster, self.world.machines
        pools = cluster.pools()
        self.nat_moves.look(self.world.roster, pools)
        self.move_limits.look(self.world.roster, pools, cluster.felixes())
        if self.out.exchange is None:
            return
        found = exchange(self.world.roster, machines, self.identity.node, cluster.node_address)
        self.out.exchange(found)
        if self.out.tell is not None:
            news = unrecorded(self.world.roster, found.wishes, self.world.overlay)
            self.out.tell(tidings(news, self.world.overlay, cluster.node_address))

    def ask_raises(self) -> None:
        """Say which addresses other nodes may have raised; without BIRD, look at the kernel."""
        world, routes = self.world, self.out.routes
        addresses = set(world.elsewhere.lingering())
        urgent = False
        for local in world.roster:
            if local.endpoint.vm is None:
                continue
            for address, dst in zip(local.endpoint.addresses, local.destinations, strict=False):
                learned = (routes.learned(dst) or routes.tunnelled(dst)) is not None
                known = world.elsewhere.raises.number((address,)) > 0
                if desired.worth_asking(local, learned, known):
                    addresses.add(address)
                    urgent |= learned != known
        if not self.identity.kernel_raises:
            world.look_elsewhere(addresses)
            self.out.ask_raises(frozenset(addresses), urgent)
            return
        raised = {}
        for address in addresses:
            if route := routes.learned(ip_network(address)):
                raised[address] = str(route.gateway or route.ifname)
        world.heard_elsewhere(RaisesSeen(frozenset(addresses), raised, frozenset(raised)))

    def register(self) -> None:
        """See that the Node resource has this node's address."""
        if not self.world.cluster.listed(NODES):
            return
        node = self.world.cluster.nodes().get(self.identity.node)
        bgp = node.spec.bgp if node else None
        wanted, wanted6 = str(self.identity.address or ""), str(self.identity.address6 or "")
        same = bgp is not None and bgp.ipv4_address == wanted
        if not (same and bgp is not None and wanted6 in ("", bgp.ipv6_address)):
            self._submit(NODE, partial(_whole, self.out.register, self.identity.addresses))

    def configure_bird(self) -> None:
        """BIRD's input, once everything it depends on was listed."""
        if self.out.run_bird is None:
            return
        if not self.world.cluster.listed(*scopes(self.identity.node)):
            return
        plan = bird_input(self.world.cluster, self._here(), self.world.settings)
        if self.out.want_passwords is not None:
            self.out.want_passwords(plan.secrets)
        if self.out.want_services is not None and plan.wants_services:
            self.out.want_services()
        for problem in plan.problems:
            if problem not in self._bgp_problems:
                self.log.error("bgp_setting_ignored", reason=problem)
        self._bgp_problems = plan.problems
        self._peers_with_workloads = plan.wants_workloads
        self._submit(BIRD, partial(_whole, self.out.run_bird, plan.input))

    def _here(self) -> Here:
        identity = self.identity
        return Here(
            identity.address,
            identity.address6,
            identity.router_id,
            identity.uplinks,
            identity.bfd,
            Secrets(self._passwords, identity.secret_namespace),
            identity.wall(),
            self._services,
            desired.bgp_workloads(self.world.roster, self.world.links_up)
            if self.rules_ready
            else None,
        )

    def _look_at_peers(self) -> None:
        """Workloads are other ones, or elsewhere: neighbours may be."""
        if self._peers_with_workloads:
            self.world.due.chores.add(BIRD)

    def told_of_bgp(self, event: BgpTold) -> None:
        """BGP's passwords, or services' addresses, are others than before."""
        if event.passwords is not None:
            self._passwords = event.passwords
        if event.services is not None:
            self._services = event.services
        self.world.due.chores.add(BIRD)

    # -- on lanes: what takes long for many endpoints is not the reconciler's to do --------------

    def _program(
        self,
        endpoints: tuple[tuple[Key, Endpoint], ...],
        wires: Wires,
        around: Surroundings,
    ) -> frozenset[str]:
        if self.out.welcome is not None:
            self.out.welcome(tuple(endpoint for _, endpoint in endpoints))
        try:
            return self._apply(endpoints, wires, around)
        finally:
            self._tell_closed()

    def _apply(
        self,
        endpoints: tuple[tuple[Key, Endpoint], ...],
        wires: Wires,
        around: Surroundings,
    ) -> frozenset[str]:
        desk, check = self.world.desk, self.out.check_rules
        if check is not None and wires.round != self._reconsidered:
            self._reconsidered = wires.round
            desk.reconsider(check)
        try:
            return self.out.apply_policy(desk.rules(endpoints, around), wires)
        except RuleRefused as error:
            if check is None or not desk.blame(check, error):
                raise
        return self.out.apply_policy(desk.rules(endpoints, around), wires)

    def _tell_closed(self) -> None:
        for endpoint, text in self.world.desk.closings():
            if self.out.closed is not None:
                self.out.closed(endpoint, text)

    def _lay_overlay(self, plan: OverlayPlan, look: object) -> frozenset[str]:
        if self.out.lay_overlay is not None:
            self.out.lay_overlay(plan.overlays(self._composer), look)
        return frozenset()

    def _write_status(
        self, endpoints: tuple[tuple[Endpoint, int], ...], resyncs: int
    ) -> frozenset[str]:
        self.out.write_status(desired.status_files(endpoints), resyncs)
        return frozenset()

    def _submit(self, lane: str, job: Job) -> int:
        self._generation += 1
        self.out.lanes[lane].submit(self._generation, job)
        return self._generation


_CHORES: dict[str, Callable[[Chores], None]] = {
    NUDGE: Chores.nudge,
    MEMORY: Chores.remember,
    OVERLAY: Chores.lay_overlay,
    POLICY: Chores.apply_policy,
    LISTEN: Chores.listen,
    STATUS: Chores.write_status,
    OWNERS: Chores.own,
    RAISES: Chores.ask_raises,
    FLOWS: Chores.exchange_flows,
    NODE: Chores.register,
    BIRD: Chores.configure_bird,
    SURVEY: Chores.survey,
}


def _whole(work: Callable[[T], None], argument: T) -> frozenset[str]:
    """A lane's job that does all or fails."""
    work(argument)
    return frozenset()
