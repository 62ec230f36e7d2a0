"""A reconciler with fakes all around it, driven by hand on a clock that stands still.

`Bench` is one node: a fake kernel, lanes that work at once (or fail on request), and what the
reconciler asked of its threads. `settle()` turns the loop until nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Interface, ip_address, ip_network
from typing import Any

from felix_shim.bgp_model import BirdInput
from felix_shim.chores import Identity
from felix_shim.cluster import BGP, ENDPOINTS, FELIX, FILTERS, NODES, PEERS, POLICY_SCOPES, POOLS
from felix_shim.drivers import sysctls
from felix_shim.drivers.announcements import Watched
from felix_shim.drivers.nftables_text import render_check
from felix_shim.drivers.routetable import RouteTable
from felix_shim.drivers.vxlan import OverlayDriver
from felix_shim.events import (
    Event,
    Instance,
    InSync,
    Listed,
    Migration,
    NetworkChanged,
    RaisesSeen,
    Seen,
    Sign,
    Stored,
    Surveyed,
    Unstored,
    Vanished,
)
from felix_shim.herald import Addressee, Tidings
from felix_shim.inbox import Inbox
from felix_shim.kube_entries import PolicyObject
from felix_shim.migration import State
from felix_shim.model import EndpointId, SignKind
from felix_shim.outlets import LANES, Outlets
from felix_shim.owners import Ownership
from felix_shim.policy import PolicySet
from felix_shim.policy_blame import RuleRefused
from felix_shim.policy_sets import Elements
from felix_shim.reconciler import Reconciler
from felix_shim.rim import Clocks, Rim
from felix_shim.rules import Chain, SetKey
from felix_shim.state import Memory, decode, encode
from felix_shim.world import World
from libtortie.datastore.port import Record
from libtortie.errors import KernelError
from libtortie.linux.port import MAIN_TABLE, IPInterface, Route, RouteProto, VethPair
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Affinities, Kind, ResourceKey, Scope
from libtortie.model.names import INTERFACE_PREFIX, host_ifname, vm_handle, wep_name
from libtortie.model.resources import WorkloadEndpoint, parse_resource
from tests.fakes.by_hand import Clock, InlineLane
from tests.fakes.kernel import FakeKernel
from tests.fakes.tunnels import FakeTunnels

NODE = "n1"
NAMESPACE = "default"
VMI, VMI_UID = "vm1", "vmi-uid-1"
ADDRESS = "10.65.0.2"
MAC = "02:aa:bb:cc:dd:01"


@dataclass
class RecordingLog:
    """Lines as (event, fields)."""

    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning = error = debug

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.lines if name == event]


def endpoint_record(
    pod: str,
    *,
    address: str = ADDRESS,
    migration: str = "",
    container: str = "",
    node: str = NODE,
    vm: bool = True,
    labels: Mapping[str, str] | None = None,
    vmi_uid: str = VMI_UID,
    ifname: str = "eth0",
    handle: str = "",
    notes: Mapping[str, str] | None = None,
) -> Record:
    """A WorkloadEndpoint as the CNI plugin writes it; `notes` are further annotations."""
    name = wep_name(node, "k8s", pod, ifname)
    pod_labels = {"projectcalico.org/namespace": NAMESPACE, **(labels or {})}
    annotations = {"tortie.io/pod-uid": f"uid-of-{pod}"}
    if vm:
        pod_labels |= {"kubevirt.io": "virt-launcher", "vmi.kubevirt.io/id": VMI}
        annotations |= {
            "tortie.io/vmi-name": VMI,
            "tortie.io/vmi-uid": vmi_uid,
            "tortie.io/handle": handle or vm_handle("", NAMESPACE, VMI),
        }
    annotations |= notes or {}
    if migration:
        pod_labels["kubevirt.io/migrationJobUID"] = migration
        annotations["tortie.io/migration-uid"] = migration
    resource = parse_resource(
        Kind.WORKLOAD_ENDPOINT,
        {
            "apiVersion": "projectcalico.org/v3",
            "kind": "WorkloadEndpoint",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": pod_labels,
                "annotations": annotations,
            },
            "spec": {
                "orchestrator": "k8s",
                "node": node,
                "containerID": container or f"ctr-{pod}",
                "pod": pod,
                "endpoint": ifname,
                "ipNetworks": [str(ip_network(address))],
                "profiles": [f"kns.{NAMESPACE}"],
                "interfaceName": host_ifname(NAMESPACE, pod, ifname),
                "mac": MAC,
            },
        },
    )
    return Record(ResourceKey(Kind.WORKLOAD_ENDPOINT, name, NAMESPACE), resource, "1")


def resource_record(kind: Kind, name: str, spec: Mapping[str, Any], namespace: str = "") -> Record:
    """Any resource; cluster-scoped without a namespace."""
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": dict(spec),
    }
    return Record(ResourceKey(kind, name, namespace), parse_resource(kind, body), "1")


def migration(
    uid: str,
    phase: str = "Running",
    *,
    vmi: str = VMI,
    source: str = "",
    target: str = "",
    namespace: str = NAMESPACE,
) -> Migration:
    """A VirtualMachineInstanceMigration."""
    state = {"sourcePod": source, "targetPod": target, "migrationUid": uid}
    return Migration.model_validate(
        {
            "metadata": {"name": f"migration-{uid}", "namespace": namespace, "uid": uid},
            "spec": {"vmiName": vmi},
            "status": {"phase": phase, "migrationState": state},
        }
    )


def instance(
    node: str,
    *,
    uid: str = VMI_UID,
    pods: Mapping[str, str] | None = None,
    state: Mapping[str, Any] | None = None,
) -> Instance:
    """A VirtualMachineInstance; `pods` are its active pods by UID."""
    return Instance.model_validate(
        {
            "metadata": {"name": VMI, "namespace": NAMESPACE, "uid": uid},
            "status": {
                "phase": "Running",
                "nodeName": node,
                "activePods": dict(pods or {}),
                "migrationState": dict(state or {}),
            },
        }
    )


class Bench:
    """One node's reconciler and everything around it."""

    def __init__(
        self,
        *,
        kube: bool = True,
        kernel: FakeKernel | None = None,
        tunnels: FakeTunnels | None = None,
        clock: Clock | None = None,
        saved: bytes = b"",
        kernel_raises: bool = False,
        policy_kinds: frozenset[type[PolicyObject]] = frozenset(),
    ) -> None:
        self.kernel = kernel or FakeKernel()
        self.tunnels = tunnels or FakeTunnels(self.kernel)
        self.clock = clock or Clock()
        self.log = RecordingLog()
        self.lanes = {name: InlineLane(name) for name in LANES}
        self.saved = saved
        self.rules: list[PolicySet] = []
        self.status: dict[str, str] = {}
        self.status_writes = 0
        self.bird: list[BirdInput] = []
        self.watched: Mapping[EndpointId, Watched] = {}
        self.owned: Mapping[EndpointId, Ownership] = {}
        self.asked: frozenset[IPAddress] = frozenset()
        self.urgent = False
        self.registered: list[tuple[IPInterface, ...]] = []
        self.warned: list[tuple[EndpointId, str]] = []
        self.tellings: list[Mapping[Addressee, Tidings]] = [{}]
        self.told_closed: list[tuple[EndpointId, str]] = []
        self.services_wanted: list[bool] = []
        self.passwords_wanted: list[frozenset[tuple[str, str]]] = []
        self.pressed: list[float] = []
        self.time_of_day = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.nft_broken = False
        self.refused_chains: frozenset[str] = frozenset()
        self.questions = 0
        self.disk_broken = False
        self.inbox = Inbox()
        self.events = self.kernel.events()
        self._settings = sysctls.NodeSettings(self.kernel)
        identity = Identity(
            NODE,
            IPv4Interface("172.31.1.2/24"),
            kube,
            ("up0",),
            kernel_raises=kernel_raises,
            policy_kinds=policy_kinds,
            secret_namespace="kube-system" if kube else "",
            wall=lambda: self.time_of_day,
        )
        clocks = Clocks(self.clock, lambda: int(self.clock.now * 1e9))
        self.reconciler = Reconciler(
            identity, Rim(self._outlets(), self.inbox, self.log, clocks, self._recall)
        )

    # -- outlets -----------------------------------------------------------------------------

    def _outlets(self) -> Outlets:
        return Outlets(
            routes=RouteTable(self.kernel, self.clock),
            lanes=self.lanes,
            apply_policy=self._apply_policy,
            check_rules=self._check_alone,
            write_status=self._write_status,
            run_bird=self.bird.append,
            save=self._save,
            survey=self._survey,
            register=self.registered.append,
            listen=self._listen,
            nudge=lambda: None,
            own=self._own,
            warn=lambda endpoint, text: self.warned.append((endpoint.id, text)),
            closed=lambda endpoint, text: self.told_closed.append((endpoint.id, text)),
            ask_raises=self._ask,
            exchange=lambda found: None,
            tell=self.tellings.append,
            lay_overlay=OverlayDriver(self.kernel, self.tunnels, self.log).apply,
            want_passwords=self.passwords_wanted.append,
            want_services=lambda: self.services_wanted.append(True),
            press=lambda: self.pressed.append(self.clock.now),
        )

    def _apply_policy(self, rules: PolicySet, wires: sysctls.Wires) -> frozenset[str]:
        failed = self._settings.ensure(wires, rules.ipv6_interfaces)
        if self.nft_broken:
            raise KernelError("nft: broken on purpose")
        if problem := self._check_rules(rules.chains, rules.sets):
            raise RuleRefused(problem)
        self.rules.append(rules)
        sysctls.ensure_gateways(self.kernel, rules.ipv6_interfaces)
        return failed

    def _check_alone(self, chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
        """As `Nftables.check`: of some policies, with all sets that these look into."""
        self.questions += 1
        render_check(chains, sets)
        return self._check_rules(chains, sets)

    def _check_rules(self, chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
        if self.nft_broken:
            return "nft: broken on purpose"
        return "nft: no such rule" if self.refused_chains & chains.keys() else ""

    def _write_status(self, bodies: Mapping[str, str], resyncs: int) -> None:
        self.status = dict(bodies)
        self.status_writes += 1

    def _save(self, memory: Memory) -> None:
        if self.disk_broken:
            raise OSError("disk full on purpose")
        self.saved = encode(memory, "boot", self.clock.now)

    def _recall(self, world: World) -> Memory:
        if not self.saved:
            return Memory()
        return decode(self.saved, "boot", self.clock.now, world.settings)

    def _survey(self) -> frozenset[str]:
        routes = self.kernel.routes(version=4) + self.kernel.routes(version=6)
        links = self.kernel.links()
        addresses = {
            link.name: frozenset(one.ip for one in self.kernel.addresses(link.name))
            for link in links
            if not link.name.startswith(INTERFACE_PREFIX)
        }
        self.inbox.post(Surveyed(self.clock.now, links, routes, addresses))
        return frozenset()

    def _listen(self, wanted: Mapping[EndpointId, Watched]) -> None:
        self.watched = wanted

    def _own(self, wanted: Mapping[EndpointId, Ownership]) -> None:
        self.owned = wanted

    def _ask(self, addresses: frozenset[IPAddress], urgent: bool) -> None:
        self.asked, self.urgent = addresses, urgent

    # -- driving -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(2000):
            busy = self.reconciler.turn(wait=False)
            for lane in self.lanes.values():
                if (done := lane.work()) is not None:
                    self.inbox.post(done)
                    busy = True
            if not self.heard() and not busy:
                return
        raise AssertionError("the reconciler does not come to rest")

    def heard(self) -> bool:
        """Post what the kernel told; whether that was anything."""
        events = self.events.drain()
        for event in events:
            self.inbox.post(NetworkChanged(event))
        return bool(events)

    def tell(self, *events: Event) -> None:
        """Post events and settle."""
        for event in events:
            self.inbox.post(event)
        self.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass, and settle."""
        self.clock.now += seconds
        self.settle()

    # -- the outside -------------------------------------------------------------------------

    def listed(
        self,
        *endpoints: Record,
        felix: Mapping[str, Any] | None = None,
        lists: Mapping[Scope, tuple[Record, ...]] | None = None,
    ) -> None:
        """Every scope's first list; empty, where `lists` has no other."""
        settings = (resource_record(Kind.FELIX_CONFIGURATION, "default", felix),) if felix else ()
        scopes: dict[Scope, tuple[Record, ...]] = {
            ENDPOINTS: endpoints,
            FELIX: settings,
            POOLS: (),
            NODES: (),
            PEERS: (),
            FILTERS: (),
            BGP: (),
            Affinities(NODE): (),
            **dict.fromkeys(POLICY_SCOPES, ()),
            **(lists or {}),
        }
        self.tell(*(Listed(scope, records) for scope, records in scopes.items()))

    def kube_in_sync(self, *objects: Migration | Instance) -> None:
        """Deliver these and say that there are no others."""
        self.tell(
            *(Seen(one) for one in objects),
            *(
                InSync(
                    kind,
                    frozenset(
                        (one.metadata.namespace, one.metadata.name)
                        for one in objects
                        if isinstance(one, kind)
                    ),
                )
                for kind in (Migration, Instance)
            ),
        )

    def start(
        self,
        *endpoints: Record,
        objects: tuple[Migration | Instance, ...] = (),
        lists: Mapping[Scope, tuple[Record, ...]] | None = None,
    ) -> None:
        """The usual start: lists, and the API in sync."""
        self.listed(*endpoints, lists=lists)
        self.kube_in_sync(*objects)

    def attach(self, record: Record) -> None:
        """A CNI ADD as far as the agent sees it: veth, then the stored endpoint."""
        assert isinstance(record.value, WorkloadEndpoint)
        self.add_veth(record.value.spec.pod, record.value.spec.endpoint)
        self.tell(Stored(ENDPOINTS, record))

    def add_veth(self, pod: str, ifname: str = "eth0") -> None:
        """A pod's veth, up."""
        path = self.kernel.namespaces.create(f"/ns/{pod}")
        name = host_ifname(NAMESPACE, pod, ifname)
        self.kernel.ensure_veth(VethPair(name, "ee:ee:ee:ee:ee:ee", ifname, path, 1500))

    def detach(self, record: Record) -> None:
        """A CNI DEL: the endpoint goes, then the veth."""
        self.tell(Unstored(ENDPOINTS, record.key))

    def seen(self, *objects: Migration | Instance) -> None:
        """API objects in this form."""
        self.tell(*(Seen(one) for one in objects))

    def vanished(self, *objects: Migration | Instance) -> None:
        """API objects deleted."""
        self.tell(*(Vanished(one) for one in objects))

    def sign(
        self,
        pod: str,
        kind: SignKind = SignKind.RARP,
        *,
        episode: int | None = None,
        ifname: str = "eth0",
    ) -> None:
        """What the sniffer posts when it hears the VM; nothing if it does not listen."""
        endpoint = EndpointId(NAMESPACE, pod, ifname)
        watched = self.watched.get(endpoint)
        if watched is None and episode is None:
            return
        heard_in = episode if episode is not None else watched.episode if watched else 0
        now = int(self.clock.now * 1e9)
        self.tell(Sign(endpoint, host_ifname(NAMESPACE, pod, ifname), heard_in, kind, now))

    def raised(self, next_hop: str = "", address: str = ADDRESS) -> None:
        """What BIRD says about an address; no next hop: raised nowhere."""
        one = ip_address(address)
        raised = {one: next_hop} if next_hop else {}
        self.tell(RaisesSeen(frozenset({one}), raised, frozenset(raised)))

    def bird_route(self, address: str = ADDRESS, *, present: bool = True) -> None:
        """BIRD installs or withdraws another node's host route in the kernel."""
        route = Route(
            ip_network(f"{address}/32"),
            768,
            ifname="up0",
            gateway=ip_address("172.31.1.3"),
            proto=RouteProto.BIRD,
        )
        if present:
            self.kernel.ensure_route(route)
        else:
            self.kernel.delete_route(route)
        self.settle()

    # -- looking -----------------------------------------------------------------------------

    def metrics(self, pod: str, address: str = ADDRESS, ifname: str = "eth0") -> list[int]:
        """Metrics of the routes to an address on a pod's veth, best first."""
        return sorted(
            route.priority
            for route in self.kernel.routes(dst=ip_network(address))
            if route.ifname == host_ifname(NAMESPACE, pod, ifname) and route.table == MAIN_TABLE
        )

    def state(self, pod: str, ifname: str = "eth0") -> State:
        """The state of a pod's machine."""
        local = self.reconciler.world.roster.get(EndpointId(NAMESPACE, pod, ifname))
        assert local is not None, f"no endpoint {pod}"
        return local.machine.state

    def restarted(self) -> Bench:
        """A new process on the same kernel, with what this one saved."""
        kernel = FakeKernel(self.kernel.namespaces)
        self.tunnels.kernel = kernel
        return Bench(kernel=kernel, tunnels=self.tunnels, clock=self.clock, saved=self.saved)
