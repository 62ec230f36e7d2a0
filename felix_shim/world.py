"""What the agent knows, kept from events, and what each event makes due. No I/O, no decisions.

Only the reconciler's thread touches it. Every event may come late or twice: what it changes is
compared with what is known, and only a difference makes anything due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from felix_shim import facts
from felix_shim.cluster import (
    BGP,
    BLOCKS,
    ENDPOINTS,
    FELIX,
    FILTERS,
    NODES,
    PEERS,
    POLICY_SCOPES,
    POOLS,
    Cluster,
)
from felix_shim.drivers.routetable import RouteTable
from felix_shim.due import FLOWS, LISTEN, NUDGE, OWNERS, RAISES, Due
from felix_shim.elsewhere import Elsewhere
from felix_shim.endpoints import parse_endpoint
from felix_shim.events import (
    CutOver,
    Instance,
    InSync,
    Listed,
    Migration,
    RaisesSeen,
    Seen,
    Stored,
    Surveyed,
    Unstored,
    Vanished,
)
from felix_shim.extras import Wishes
from felix_shim.kube_entries import Heard, PolicyObject
from felix_shim.migration import Facts
from felix_shim.model import Endpoint, same_sandbox, same_wire
from felix_shim.outlets import BIRD, NODE, OVERLAY, POLICY, STATUS, SURVEY
from felix_shim.overlay import DEVICES
from felix_shim.overlay_desk import OverlayDesk
from felix_shim.policy import compile_endpoint
from felix_shim.policy_desk import PolicyDesk
from felix_shim.roster import Local, Roster
from felix_shim.settings import Settings
from felix_shim.surroundings import Surroundings
from libtortie.datastore.port import Record
from libtortie.errors import InvalidInput, Malformed
from libtortie.jsonlog import Log
from libtortie.linux.port import (
    IPNetwork,
    Link,
    LinkChanged,
    LinkGone,
    NetworkEvent,
    Overrun,
    Route,
    RouteAdded,
    RouteGone,
    RouteProto,
)
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Affinities, Key, Scope
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.policy import PortRange
from libtortie.model.resources import WorkloadEndpoint


@dataclass(slots=True)
class World:
    """Everything known. `kube`: whether there is an API to learn migrations from; `policy_kinds`:
    what policy is made of there.

    `monotonic` is in seconds; it dates what is heard of links, so that a survey that began before
    does not undo it.
    """

    node: str
    kube: bool
    routes: RouteTable
    log: Log
    monotonic: Callable[[], float]
    policy_kinds: frozenset[type[PolicyObject]] = frozenset()
    cluster: Cluster = field(init=False)
    desk: PolicyDesk = field(init=False)
    overlay: OverlayDesk = field(init=False)
    elsewhere: Elsewhere = field(init=False)
    roster: Roster = field(default_factory=Roster)
    wishes: Wishes = field(default_factory=Wishes)
    machines: facts.VirtualMachines = field(default_factory=facts.VirtualMachines)
    links_up: dict[str, int] = field(default_factory=dict)
    """Workload links that are up, with their index: made anew, a link has another."""
    link_addresses: Mapping[str, frozenset[IPAddress]] = field(default_factory=dict)
    """Of links that are no workload's, as last surveyed."""
    links_heard: dict[str, float] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    surveyed: bool = False
    resyncs: int = 0
    """Counts the times at which everything is looked at again, whatever is known of it."""
    overlay_lost: int = 0
    """Counts the times at which a tunnel device turned out to have gone or gone down."""
    lost: set[Scope] = field(default_factory=set)
    """Scopes whose changes are not heard of; see `Lost`."""
    kinds_listed: set[type] = field(default_factory=set)
    kube_heard: Heard = field(default_factory=Heard)
    policy_serial: int = 0
    """Counts the changes of what endpoints' rules are made of, beside the endpoints themselves."""
    due: Due = field(default_factory=Due)

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.node)
        self.desk = PolicyDesk(self.node, self.log, kube=bool(self.policy_kinds))
        self.overlay = OverlayDesk(self.node, self.roster)
        self.elsewhere = Elsewhere(self.roster, self.routes, self.overlay)

    # -- facts -------------------------------------------------------------------------------

    def facts_of(self, local: Local) -> Facts:
        """What is known about an endpoint now; what a watch has not told yet stays as it was."""
        raised, stale = self.elsewhere.of(local)
        if not self.kube:
            return Facts(raised_elsewhere=raised, stale_elsewhere=stale)
        return facts.update(
            local.machine.facts,
            local.endpoint,
            self.machines,
            self.node,
            raised_elsewhere=raised,
            stale_elsewhere=stale,
        )

    @property
    def policy_in_sync(self) -> bool:
        """Whether all that policy is made of was listed, and what changes of it in a store is heard
        of. Of a Kubernetes API the last that was heard counts, whether or not it is there now."""
        return self.knows_policy and not any(self._makes_policy(scope) for scope in self.lost)

    def policy_changed(self) -> None:
        """The rules of any endpoint may be other ones now."""
        self.policy_serial += 1
        self.due.chores.add(POLICY)

    def _makes_policy(self, scope: Scope) -> bool:
        return scope not in (NODES, POOLS, PEERS, FILTERS, BGP, Affinities(self.node), *BLOCKS)

    def _to_desk(self, event: Stored | Unstored | Listed) -> None:
        """Endpoints of other nodes concern the rules too, of which they are members only."""
        if event.scope == ENDPOINTS or event.scope in POLICY_SCOPES:
            self.desk.feed(event)
            self.due.chores.add(POLICY)

    @property
    def knows_policy(self) -> bool:
        """Whether all that policy is made of was listed once: before that, nothing is concluded."""
        listed = self.cluster.listed(ENDPOINTS, FELIX, NODES, POOLS, *POLICY_SCOPES)
        return listed and self.policy_kinds <= self.kinds_listed

    def surroundings(self, between_nodes: tuple[PortRange, ...]) -> Surroundings:
        """What the node's own rules are made of beside policies."""
        return Surroundings(
            settings=self.settings.host,
            between_nodes=between_nodes,
            nodes=self.cluster.node_addresses(),
            pools=tuple(pool.spec for pool in self.cluster.pools()),
            links=self.link_addresses,
            tunnel=self.overlay.open_tunnel(self.cluster, self.settings.tunnel),
            encapsulation=self.settings.tunnel,
        )

    # -- stored resources --------------------------------------------------------------------

    def stored(self, event: Stored) -> None:
        """A record was written."""
        self._to_desk(event)
        if event.scope == ENDPOINTS:
            self._endpoint(event.record)
        elif event.scope in BLOCKS:
            self._blocks(event)
        elif self.cluster.put(event.scope, event.record):
            self._resource_changed(event.scope)

    def unstored(self, event: Unstored) -> None:
        """A record was deleted."""
        self._to_desk(event)
        if event.scope == ENDPOINTS:
            self._endpoint_gone(event.key)
        elif event.scope in BLOCKS:
            self._blocks(event)
        elif self.cluster.remove(event.scope, event.key):
            self._resource_changed(event.scope)

    def listed(self, event: Listed) -> None:
        """A scope was read completely."""
        self.lost.discard(event.scope)
        self._to_desk(event)
        for name in event.unreadable:
            self.log.error("stored_value_unreadable", reason=name)
        if event.scope == ENDPOINTS:
            present = {record.key for record in event.records}
            for key in self.roster.keys() - present if not event.unreadable else ():
                self._endpoint_gone(key)
            for record in event.records:
                self._endpoint(record)
            self.cluster.replace(ENDPOINTS, ())
            self.due.chores |= {POLICY, STATUS}
        elif event.scope in BLOCKS:
            self._blocks(event)
        elif self.cluster.replace(event.scope, event.records, event.unreadable):
            self._resource_changed(event.scope)

    def _blocks(self, event: Stored | Unstored | Listed) -> None:
        """Where addresses are; of it the overlay's own record is kept, and no other."""
        first = isinstance(event, Listed) and self.cluster.replace(event.scope, ())
        if self.overlay.feed(event) or first:
            self.due.chores |= {OVERLAY, FLOWS}

    def _resource_changed(self, scope: Scope) -> None:
        if scope == FELIX:
            self._settings_changed()
            self.due.chores.add(FLOWS)
        elif scope == NODES:
            for key, endpoint in self.wishes.all():
                self._take(key, endpoint)
            self.due.chores |= {NODE, BIRD, FLOWS, POLICY, OVERLAY}
        elif scope == POOLS:
            self.due.chores |= {BIRD, POLICY, OVERLAY, FLOWS}
        elif scope in (PEERS, FILTERS, BGP, Affinities(self.node)):
            self.due.chores.add(BIRD)
        elif scope != ENDPOINTS:
            self.policy_changed()

    def _settings_changed(self) -> None:
        fresh = self.cluster.settings(self.settings)
        for problem in fresh.problems:
            if problem not in self.settings.problems:
                self.log.error("setting_ignored", reason=problem)
        if fresh == self.settings:
            return
        self.settings = fresh
        self.log.info(
            "settings",
            convergence_seconds=fresh.convergence_seconds,
            normal=fresh.ipv4.normal,
            elevated=fresh.ipv4.elevated,
            floating_ips=fresh.floating_ips,
            source_spoofing=fresh.source_spoofing,
        )
        for key, endpoint in self.wishes.all():
            self._take(key, endpoint)
        self.everything()
        self.due.chores |= {BIRD, POLICY, OVERLAY}

    # -- endpoints ---------------------------------------------------------------------------

    def _endpoint(self, record: Record) -> None:
        resource = record.value
        if not isinstance(resource, WorkloadEndpoint) or resource.spec.node != self.node:
            self._endpoint_gone(record.key)
            return
        try:
            endpoint = parse_endpoint(resource)
            compile_endpoint(endpoint)
        except (Malformed, InvalidInput) as error:
            self.log.error("endpoint_malformed", reason=error)
            self._endpoint_gone(record.key)
            return
        self._take(record.key, endpoint)

    def _take(self, key: Key, asked: Endpoint) -> None:
        """An endpoint is stored, or the settings may let it have something else than before."""
        nodes = self.cluster.node_addresses() if asked.floating else ()
        endpoint = self.wishes.noted(key, asked, self.settings, nodes)
        known = self.roster.of_key(key)
        if known is None or known.endpoint != endpoint:
            self._adopt(known, Local(key, endpoint))

    def _adopt(self, known: Local | None, fresh: Local) -> None:
        """A new sandbox starts anew; one whose record merely changed keeps its machine."""
        if known is not None and same_sandbox(known.endpoint, fresh.endpoint):
            fresh.machine, fresh.returned = known.machine, known.returned
            fresh.reported = known.reported
            self.policy_serial += 1  # other labels, other policies
            if same_wire(known.endpoint, fresh.endpoint):
                fresh.in_force, fresh.wire = known.in_force, known.wire
            begun = fresh.id not in self.due.newcomers
        else:
            begun = False
            if known is not None:
                self._tell("endpoint_removed", known.endpoint)
            self._tell("endpoint_added", fresh.endpoint)
        if known is not None:
            self._destinations(known)
        self.roster.add(fresh)
        (self.due.endpoints if begun else self.due.newcomers).add(fresh.id)
        self._destinations(fresh)
        self.due.chores |= {POLICY, STATUS, LISTEN, OWNERS, FLOWS, OVERLAY}

    def _endpoint_gone(self, key: Key) -> None:
        self.wishes.forget(key)
        local = self.roster.of_key(key)
        if local is None:
            return
        self.roster.remove(local, begun=local.id not in self.due.newcomers)
        self._tell("endpoint_removed", local.endpoint)
        self.due.newcomers.discard(local.id)
        self.due.endpoints.discard(local.id)
        self._destinations(local)
        self.due.chores |= {POLICY, STATUS, LISTEN, OWNERS, RAISES, FLOWS, OVERLAY}
        if local.endpoint.vm is not None:
            self.due.chores.add("memory")

    def _tell(self, event: str, endpoint: Endpoint) -> None:
        self.log.info(
            event,
            endpoint=endpoint.id,
            container_id=endpoint.container_id,
            interface=endpoint.interface,
            addresses=endpoint.addresses,
            **endpoint.whose,
        )

    def _destinations(self, local: Local) -> None:
        self.due.destinations.update(local.destinations)

    def everything(self) -> None:
        """Compare all endpoints, addresses and routes again."""
        self.due.endpoints |= {local.id for local in self.roster} - self.due.newcomers
        for dst in self.routes.destinations():
            self._route_changed(dst)
        for local in self.roster:
            self._destinations(local)

    # -- the Kubernetes API ------------------------------------------------------------------

    def seen(self, event: Seen) -> None:
        """An object was added or changed."""
        if isinstance(event.object, Migration | Instance):
            self._vmi_changed(self.machines.put(event.object))
        elif self.kube_heard.is_news(event.object):
            self._kube_policy(event)

    def vanished(self, event: Vanished) -> None:
        """An object was deleted."""
        if isinstance(event.object, Migration | Instance):
            self._vmi_changed(self.machines.remove(event.object))
        else:
            self.kube_heard.is_gone(event.object)
            self._kube_policy(event)

    def in_sync(self, event: InSync) -> None:
        """All objects of a kind have been delivered."""
        if event.kind not in (Migration, Instance):
            if self.kube_heard.keep(event.kind, event.delivered) or (
                event.kind not in self.kinds_listed
            ):
                self.kinds_listed.add(event.kind)
                self._kube_policy(event)
            return
        migrations = event.kind is Migration
        keep = self.machines.keep_migrations if migrations else self.machines.keep_instances
        first = not (
            self.machines.migrations_in_sync if migrations else self.machines.instances_in_sync
        )
        for vmi in keep(event.delivered):
            self._vmi_changed(vmi)
        if first:
            self.log.info("in_sync", kind=event.kind.api.kind, objects=len(event.delivered))
            self.everything()
            self.due.chores.add(OWNERS)

    def _kube_policy(self, event: Seen | Vanished | InSync) -> None:
        self.desk.feed(event)
        self.policy_changed()

    def _vmi_changed(self, vmi: tuple[str, str]) -> None:
        found = self.roster.of_vmi(vmi)
        self.due.endpoints |= {local.id for local in found} - self.due.newcomers
        if found:
            self.due.chores.add(FLOWS)

    # -- network -----------------------------------------------------------------------------

    def network(self, event: NetworkEvent) -> None:
        """A link or a route changed."""
        match event:
            case LinkChanged(Link(i, name)) | LinkGone(name, i) if i < self.links_up.get(name, 0):
                pass  # a survey found the next link of that name before this was heard
            case LinkChanged(link):
                self._link(link)
            case LinkGone(name=name):
                self.links_heard[name] = self.monotonic()
                self._link_down(name)
                self._tunnel_down(name)
            case RouteAdded(route):
                self._route(route, present=True)
            case RouteGone(route):
                self._route(route, present=False)
            case Overrun():
                self.log.warning("netlink_overrun")
                self.due.chores.add(SURVEY)

    def survey(self, found: Surveyed) -> None:
        """Links and routes were read completely."""
        self.surveyed = True
        links, routes, began = found.links, found.routes, found.began
        self.link_addresses = found.addresses
        up = {link.name: link for link in links if link.up and _workload(link.name)}
        newer = {name: when for name, when in self.links_heard.items() if when > began}
        for name in self.links_up.keys() - up.keys() - newer.keys():
            self._link_down(name)
        for name in up.keys() - newer.keys():
            self._link_up(up[name])
        self.links_heard = newer
        for dst in self.routes.survey(routes, began):
            self._route_changed(dst)
        self.due.chores |= {NODE, RAISES, POLICY, STATUS, OVERLAY}

    def _tunnel_down(self, name: str) -> None:
        if name in DEVICES.values():
            self.overlay_lost += 1
            self.due.chores.add(OVERLAY)

    def _link(self, link: Link) -> None:
        if not _workload(link.name):
            if not link.up:
                self._tunnel_down(link.name)
            if link.name not in self.link_addresses:
                self.due.chores.add(SURVEY)  # a host endpoint may be about its addresses
            return
        self.links_heard[link.name] = self.monotonic()
        if link.up:
            self._link_up(link)
        else:
            self._link_down(link.name)

    def _link_up(self, link: Link) -> None:
        known = self.links_up.get(link.name, 0)
        if known >= link.ifindex:  # the kernel counts upwards: a lower one is older news
            return
        if known:  # made anew, and nobody said that the old one went
            self._link_down(link.name)
        self.links_up[link.name] = link.ifindex
        locals_ = tuple(self.roster.on_interface(link.name))
        for local in locals_:
            self._destinations(local)
        if locals_:  # else its endpoint, when it comes, makes more than this due
            self.due.chores |= {NUDGE, POLICY, STATUS}

    def _link_down(self, name: str) -> None:
        """The kernel drops the routes of a link that goes down, and tells nobody of IPv4's."""
        self.links_up.pop(name, None)
        self.due.destinations |= self.routes.link_gone(name)
        for local in self.roster.on_interface(name):
            local.in_force, local.wire = 0, object()
        self.due.chores |= {STATUS, LISTEN}

    def _route(self, route: Route, *, present: bool) -> None:
        if route.proto == RouteProto.KERNEL and not _workload(route.ifname):
            self.due.chores.add(SURVEY)  # it comes and goes with an address of that link
        gateway = route.dst.version == 6 and route.dst.is_link_local
        if gateway and not present and _workload(route.ifname):
            self.due.chores.add(POLICY)  # the IPv6 gateway's address went with it
        if self.routes.observe(route, present=present):
            self._route_changed(route.dst)

    def _route_changed(self, dst: IPNetwork) -> None:
        if self.roster.with_address(dst.network_address):
            self.due.destinations.add(dst)
            self.due.chores |= {RAISES, LISTEN}
        else:
            self.due.strangers.add(dst)

    # -- other nodes -------------------------------------------------------------------------

    def heard_elsewhere(self, event: RaisesSeen | CutOver) -> None:
        """BGP was asked about some addresses, or a node says that a VM is there now."""
        if isinstance(event, RaisesSeen):
            self.look_elsewhere(event.asked, event)
        elif self.overlay.claim(event, self.monotonic(), self.settings.convergence_seconds):
            self.due.chores.add(OVERLAY)

    def look_elsewhere(self, asked: Collection[IPAddress], said: RaisesSeen | None = None) -> None:
        """BGP or the overlay's routes may say something new of some addresses."""
        before = self.elsewhere.raises
        for address in asked if self.elsewhere.look(asked, said) else ():
            found = {local.id for local in self.roster.with_address(address)}
            self.due.endpoints |= found - self.due.newcomers
        if self.elsewhere.raises != before:
            self.due.chores.add("memory")


def _workload(name: str) -> bool:
    return name.startswith(INTERFACE_PREFIX)
