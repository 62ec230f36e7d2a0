"""The single owner of the agent's state: events in, desired state out, drivers applied.

One thread runs `run`. It takes events from the inbox, keeps what they say (`world`), and does
what they make due in dependency order: settle machines, remember them, rules, routes, then what
follows from those. Work comes in small units; after each one a waiting sign of a VM goes first,
and a slice ends after 2 ms. Slow work runs on lanes, which get a decided value and answer `Done`.

The cut-over path: a `Sign` steps the machine and changes that endpoint's routes before anything
else happens; what it decided is remembered on disk right after.

Never: act on a scope that was not listed yet, take a route away because something is unknown, or
add a route before the endpoint's rules are in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from felix_shim import desired
from felix_shim.chores import AFTER_ROUTES, BEFORE_ROUTES, Chores, Identity
from felix_shim.cluster import ENDPOINTS, FELIX, NODES
from felix_shim.drivers.routetable import Outcome
from felix_shim.due import FLOWS, LISTEN, OWNERS, RAISES
from felix_shim.events import (
    BgpTold,
    CutOver,
    Done,
    Event,
    InSync,
    Listed,
    Lost,
    NetworkChanged,
    RaisesSeen,
    Seen,
    Sign,
    Stored,
    Surveyed,
    Unstored,
    Vanished,
)
from felix_shim.gate import Gate, Standing
from felix_shim.migration import (
    RAISED,
    Action,
    Input,
    Moved,
    StartTimer,
    State,
    Warn,
    recover,
    settle,
    step,
    wants_owner,
)
from felix_shim.migration import Event as MachineEvent
from felix_shim.model import EndpointId
from felix_shim.outlets import BIRD, MEMORY, NODE, OVERLAY, POLICY, SURVEY
from felix_shim.rim import Rim
from felix_shim.roster import Local
from felix_shim.route_log import tell_dropped, tell_route
from felix_shim.routes import desired_routes, evidence
from felix_shim.state import Memory
from felix_shim.timers import Backoff, Convergence, Gated, Grace, Resync, Retry, Timers
from felix_shim.ways import Ways
from felix_shim.world import World
from libtortie.linux.port import IPNetwork, Route
from libtortie.metrics import Metric

SLICE_SECONDS = 0.002
RESYNC_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""How long a route on a workload interface may be there before its endpoint is."""
ROUTES = "routes"


class Reconciler:
    """See the module."""

    def __init__(self, identity: Identity, rim: Rim) -> None:
        self._identity = identity
        self._inbox = rim.inbox
        self._log = rim.log
        self._clocks = rim.clocks
        self._recall = rim.recall
        self._routes = rim.outlets.routes
        now, kinds = rim.clocks.monotonic, identity.policy_kinds
        self._world = World(identity.node, identity.kube, self._routes, rim.log, now, kinds)
        self._chores = Chores(identity, self._world, rim.outlets, rim.log)
        self.gate = Gate(rim.log, rim.outlets.warn)
        self._timers = Timers()
        self._backoff = Backoff()
        self._memory: Memory | None = None
        self._failed_routes: set[IPNetwork] = set()
        self._retries: set[str] = set()
        self._ways = Ways(self._routes, self._world.overlay)
        self._strangers: set[IPNetwork] = set()
        self._signs_dropped = 0
        self._timers.add(rim.clocks.monotonic() + RESYNC_SECONDS, Resync())
        self._world.due.chores.add(SURVEY)

    # -- what others may ask, from any thread ----------------------------------------------------

    @property
    def rules_ready(self) -> bool:
        """Whether the kernel has had the rules of a complete list of endpoints."""
        return self._chores.rules_ready

    @property
    def signs_dropped(self) -> int:
        """Signs that counted for nothing: too early, too late, or repeated."""
        return self._signs_dropped

    def leave(self) -> None:
        """From now on no migration's target may start here."""
        self._chores.leaving = True

    def metrics(self) -> tuple[Metric, ...]:
        """For the scraper."""
        return *self.gate.metrics(), *self._chores.nat_moves.metrics()

    @property
    def world(self) -> World:
        """What is known; for the reconciler's own thread and for tests."""
        return self._world

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """The thread's body: turns until the inbox is closed."""
        while not self._inbox.closed:
            self.turn(wait=True)

    def turn(self, *, wait: bool) -> bool:
        """Timers, one slice of events, one slice of work; False when there was nothing to do."""
        busy = self._run_timers()
        timeout = 0.0
        if wait and not busy and not self._has_work():
            timeout = self._timers.patience(self._clocks.monotonic()) or 0.0
        end: float | None = None
        while (event := self._inbox.take(timeout)) is not None:
            self.take(event)
            busy, timeout = True, 0.0
            end = end or self._clocks.monotonic() + SLICE_SECONDS
            if self._clocks.monotonic() >= end:
                break
        end = self._clocks.monotonic() + SLICE_SECONDS
        while self._work_once():
            busy = True
            if (sign := self._inbox.take_urgent()) is not None:
                self._hear_all(sign)
            if self._clocks.monotonic() >= end:
                break
        return busy

    def take(self, event: Event) -> None:  # noqa: PLR0912  # a case for each kind of event
        """Take one event in."""
        world = self._world
        match event:
            case Sign():
                self._hear_all(event)
            case Stored():
                world.stored(event)
            case Unstored():
                world.unstored(event)
            case Listed():
                world.listed(event)
                self._look_at_gate()
            case Lost():
                world.lost.add(event.scope)
            case Seen():
                world.seen(event)
            case Vanished():
                world.vanished(event)
            case InSync():
                world.in_sync(event)
                self._look_at_gate()
            case NetworkChanged():
                world.network(event.event)
            case Surveyed():
                world.survey(event)
            case RaisesSeen() | CutOver():
                world.heard_elsewhere(event)
            case BgpTold():
                self._chores.told_of_bgp(event)
            case Done():
                self._done(event)

    # -- gates -----------------------------------------------------------------------------------

    def _begun(self) -> bool:
        """Whether endpoints, settings and the kernel are known, so that machines can begin."""
        return self._world.surveyed and self._world.cluster.listed(ENDPOINTS, FELIX)

    def _early_chore(self) -> str:
        """The only work before everything begins: reading the kernel, saying who we are."""
        chores = self._world.due.chores
        if SURVEY in chores:
            return SURVEY
        return NODE if NODE in chores and self._world.cluster.listed(NODES) else ""

    def _has_work(self) -> bool:
        if not self._begun():
            return bool(self._early_chore())
        due = self._world.due
        return any((due.newcomers, due.strangers, due.endpoints, due.destinations, due.chores))

    # -- the cut-over path -------------------------------------------------------------------------

    def _hear_all(self, first: Sign) -> None:
        """This sign and all that wait behind it, then what must survive a crash."""
        sign: Sign | None = first
        moved = False
        while sign is not None:
            moved |= self._hear(sign)
            sign = self._inbox.take_urgent()
        if moved:
            self._chores.do(FLOWS)  # the last connections are wanted now
            self._chores.do(MEMORY)
            self._chores.do(LISTEN)

    def _hear(self, sign: Sign) -> bool:
        """A VM made itself heard: its route first. True when that moved its machine."""
        local = self._world.roster.get(sign.endpoint)
        if local is None or local.endpoint.interface != sign.interface:
            self._signs_dropped += 1 + sign.muted
            self._log.debug("sign_dropped", endpoint=sign.endpoint, kind=sign.kind, reason="gone")
            return False
        now = self._clocks.monotonic()
        heard = MachineEvent(Input.SIGN, sign.episode)
        known, _ = self._world.elsewhere.of(local)  # though it be not settled yet
        before = replace(local.machine, last_raise=max(local.machine.last_raise, known))
        machine, actions = step(before, heard, now, self._world.settings)
        self._signs_dropped += sign.muted
        if not any(isinstance(action, Moved) for action in actions):
            self._signs_dropped += 1
            tell_dropped(self._log, local, sign)
            return False
        local.machine = machine
        outcomes = self._change(*local.destinations)
        latency = (self._clocks.realtime_ns() - sign.kernel_ns) / 1e6
        self._follow(local, actions)
        self._log.info(
            "sign",
            endpoint=local.id,
            kind=sign.kind,
            kernel_ns=sign.kernel_ns,
            episode=machine.episode,
            signs_dropped=self._signs_dropped,
        )
        behind = {"latency_ms": round(latency, 3), "kernel_ns": sign.kernel_ns}
        for outcome in outcomes:
            tell_route(self._log, local, outcome, self._world.settings, behind)
        return True

    # -- units of work, in dependency order ------------------------------------------------------

    def _work_once(self) -> bool:
        """Do one unit of due work; False when there is none."""
        if not self._has_work():
            return False
        due = self._world.due
        if not self._begun():
            self._chores.do(self._early_chore())
        elif due.newcomers:
            self._begin(due.newcomers.pop())
        elif due.strangers:
            self._tolerate(due.strangers.pop())
        elif due.endpoints:
            self._settle(due.endpoints.pop())
        elif chore := next((one for one in BEFORE_ROUTES if one in due.chores), ""):
            before = self._chores.claims_end
            self._chores.do(chore)
            if (end := self._chores.claims_end) not in (None, before):
                self._timers.add(end or 0.0, Retry(OVERLAY))
        elif due.destinations:
            self._compare(due.destinations.pop())
        else:
            self._chores.do(next(one for one in AFTER_ROUTES if one in due.chores))
        return True

    def _begin(self, endpoint: EndpointId) -> None:
        """Give a new endpoint the machine that memory or the kernel's routes call for."""
        local = self._world.roster.get(endpoint)
        if local is None:
            return
        known = self._world.roster.parted(local) or self._recalled().of(
            local.id, local.endpoint.container_id
        )  # what was saved before the start is older than what went since
        if self._identity.kube and local.endpoint.vm is not None:
            present = [route for dst in local.destinations for route in self._routes.actual(dst)]
            settings, interface = self._world.settings, local.endpoint.interface
            normal, raised = evidence(interface, present, settings.ipv4, settings.ipv6)
            saved = known.machine if known is not None else None
            local.machine = recover(
                saved,
                kernel_raised=raised,
                kernel_normal=normal,
                target=local.endpoint.migration_uid,
            )
            local.returned = known is not None and known.returned
        if known is None:
            before, _ = self._world.elsewhere.of(local)  # what is newer than the endpoint counts
            local.machine = replace(local.machine, seen_raise=before, last_raise=before)
        if local.machine.state is not State.BASE:
            self._log.info(
                "migration_begun",
                endpoint=local.id,
                state=local.machine.state,
                episode=local.machine.episode,
                migration_uid=local.machine.migration_uid,
                remembered=known is not None,
            )
        self._settle(endpoint)
        self._world.due.chores |= {LISTEN, OWNERS, RAISES, FLOWS}

    def _recalled(self) -> Memory:
        if self._memory is None:
            self._memory = self._recall(self._world)
            self._world.elsewhere.raises = self._memory.raises
        return self._memory

    def _settle(self, endpoint: EndpointId) -> None:
        """Bring an endpoint's machine into agreement with the facts."""
        local = self._world.roster.get(endpoint)
        if local is None:
            return
        world = self._world
        facts = world.facts_of(local)
        machine, actions = settle(local.machine, facts, self._clocks.monotonic(), world.settings)
        if machine != local.machine and local.endpoint.vm is not None:
            world.due.chores.add(MEMORY)
        if wants_owner(machine) != wants_owner(local.machine):
            world.due.chores.add(OWNERS)
        local.machine = machine
        self._follow(local, actions)

    def _follow(self, local: Local, actions: tuple[Action, ...]) -> None:
        """What a machine's actions make due."""
        due = self._world.due
        for action in actions:
            match action:
                case Moved(before, after, why, episode):
                    self._log.info(
                        "migration_transition",
                        **{"from": before},
                        endpoint=local.id,
                        to=after,
                        input=why,
                        episode=episode,
                        migration_uid=local.machine.migration_uid,
                    )
                    returned = desired.came_back(before, after)
                    local.returned = local.returned if returned is None else returned
                    due.destinations.update(local.destinations)
                    due.chores |= {MEMORY, LISTEN, OWNERS, RAISES, FLOWS, OVERLAY}
                case StartTimer(deadline, episode, held):
                    self._timers.add(deadline, Convergence(local.id, episode))
                    if held:
                        self._log.info("convergence_held", endpoint=local.id, episode=episode)
                    due.chores.add(MEMORY)
                case Warn(text):
                    self._log.warning("migration_warning", endpoint=local.id, reason=text)
                    self._chores.out.warn(local.endpoint, text)
                case _:
                    due.chores |= {LISTEN, OWNERS}

    def _tolerate(self, dst: IPNetwork) -> None:
        """Look at a route that no endpoint wants again when its time of grace is over."""
        if dst not in self._strangers and self._routes.actual(dst):
            self._strangers.add(dst)
            self._timers.add(self._clocks.monotonic() + GRACE_SECONDS, Grace(dst))

    def _compare(self, dst: IPNetwork) -> None:
        """Make the routes to one address what they shall be."""
        first = next(iter(self._world.roster.with_address(dst.network_address)), None)
        for outcome in self._change(dst):
            tell_route(self._log, first, outcome, self._world.settings)

    def _change(self, *dsts: IPNetwork) -> list[Outcome]:
        """Change the routes to addresses in the kernel, unless they have to wait."""
        wanted = {dst: routes for dst in dsts if (routes := self._wanted(dst)) is not None}
        outcomes = self._routes.apply(wanted)
        for outcome in outcomes:
            if outcome.deleted:
                self._world.due.chores.add(LISTEN)
            if outcome.error:
                self._failed_routes.add(outcome.dst)
                self._retry(ROUTES)
            else:
                self._failed_routes.discard(outcome.dst)
        if not self._failed_routes:
            self._backoff.worked(ROUTES)
        return outcomes

    def _wanted(self, dst: IPNetwork) -> frozenset[Route] | None:
        """The routes that there shall be to an address; None: not yet.

        They wait for the rules of the endpoint, and for its link; what the kernel has meanwhile
        stays. Both bring the address up again.
        """
        world = self._world
        locals_ = world.roster.with_address(dst.network_address)
        wanted = desired_routes(
            ((local.endpoint, local.machine.state) for local in locals_),
            world.settings.ipv4,
            ipv6=world.settings.ipv6,
        )
        mine = frozenset(route for route in wanted if route.dst == dst)
        actual = frozenset(self._routes.actual(dst))
        new = {route.ifname for route in mine - actual}
        if not all(self._may_add(one) for one in locals_ if one.endpoint.interface in new):
            return None
        return None if actual and not mine and self._must_stay(dst, locals_) else mine

    def _must_stay(self, dst: IPNetwork, locals_: Iterable[Local]) -> bool:
        """Whether an address that left keeps its route until there is another way to it."""
        now, seconds = self._clocks.monotonic(), self._world.settings.convergence_seconds
        end = self._ways.awaited(dst, locals_, now, seconds)
        if end is not None:
            self._timers.add(end, Grace(dst))
        return end is not None

    def _may_add(self, local: Local) -> bool:
        """Whether an endpoint's policy lets its route into the kernel."""
        if local.machine.state not in RAISED:
            return bool(local.in_force)
        now, episode = self._clocks.monotonic(), local.machine.episode
        settings = self._world.settings
        latest = self._chores.has_latest_rules(local)
        standing = Standing(bool(local.in_force), latest, self._world.policy_in_sync)
        began = self.gate.began(local.id, episode)
        passes = self.gate.passes(local.endpoint, episode, standing, now, settings.gate)
        if not passes and not began:
            self._timers.add(now + settings.gate.seconds, Gated(local.id))
            if self._chores.out.press is not None:
                self._chores.out.press()
        return passes

    def _look_at_gate(self, *endpoints: EndpointId) -> None:
        """Something that these raises, or all of them, wait for has happened."""
        for endpoint in endpoints or self.gate.waiting():
            local = self._world.roster.get(endpoint)
            if local is None or local.machine.state not in RAISED:
                self.gate.drop(endpoint)
            else:
                self._world.due.destinations.update(local.destinations)

    # -- lanes, retries and timers ---------------------------------------------------------------

    def _done(self, done: Done) -> None:
        if done.error:
            self._log.warning("apply_failed", work=done.lane, reason=done.error)
            if done.lane == POLICY:
                self._chores.forget_jobs(done.generation)
            self._retry(done.lane)
            return
        if done.lane == POLICY and not self._chores.policy_applied(done):
            self._retry(POLICY)
        elif self._backoff.worked(done.lane):
            self._log.info("apply_recovered", work=done.lane)
        if done.lane == POLICY:
            self._look_at_gate()

    def _retry(self, work: str) -> None:
        """Once more, later: one attempt that is to come does for all that fails meanwhile."""
        if work in self._retries:
            return
        self._retries.add(work)
        delay = self._backoff.failed(work)
        self._timers.add(self._clocks.monotonic() + delay, Retry(work))

    def _run_timers(self) -> bool:
        now = self._clocks.monotonic()
        ran = False
        while (entry := self._timers.due(now)) is not None:
            ran = True
            match entry:
                case Convergence(endpoint, episode):
                    local = self._world.roster.get(endpoint)
                    if local is not None and local.machine.episode == episode:
                        self._world.due.endpoints.add(endpoint)
                case Grace(dst):
                    self._strangers.discard(dst)
                    self._world.due.destinations.add(dst)
                case Gated(endpoint):
                    self._look_at_gate(endpoint)
                case Retry(work):
                    self._retries.discard(work)
                    if work == ROUTES:
                        self._world.due.destinations |= self._failed_routes
                    else:
                        self._world.due.chores.add(work)
                case Resync():
                    self._world.resyncs += 1
                    self._world.everything()
                    self._world.due.chores |= {SURVEY, LISTEN, OWNERS, RAISES, BIRD, NODE, OVERLAY}
                    self._timers.add(now + RESYNC_SECONDS, Resync())
        return ran
