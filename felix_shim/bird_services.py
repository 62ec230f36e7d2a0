"""Which services' addresses this node announces one by one, and who finds out.

Ranges of services are announced whole by every node. On its own an address is announced when that
says more: with `externalTrafficPolicy: Local` by the nodes that have a ready endpoint, which then
get all of its traffic; with `serviceLoadBalancerAggregation: Disabled` by all nodes, for the range
is not. Pure but for `ServiceSource`, which follows Services and EndpointSlices once it is wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_network
from typing import ClassVar, TypeVar

from pydantic import Field

from felix_shim.bird_passwords import REFUSED_SECONDS
from felix_shim.events import BgpTold, Event, ServiceAddress
from felix_shim.sources import Listener
from libtortie.complaint import Complaint
from libtortie.errors import TortieError, Unavailable
from libtortie.jsonlog import Log
from libtortie.kube.follow import follow
from libtortie.kube.objects import Api, KubeObject, View
from libtortie.kube.port import Applied, Gone, KubeClient
from libtortie.linux.port import IPNetwork
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import can_be_reached, plain_address

SERVICE_NAME = "kubernetes.io/service-name"
T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")
Name = tuple[str, str]
"""Namespace and name."""


class Use(StrEnum):
    """What an address is to its service."""

    CLUSTER = "clusterIP"
    EXTERNAL = "externalIP"
    BALANCER = "loadBalancerIP"


class ServiceSpec(View):
    """`Service.spec`."""

    cluster_ips: tuple[str, ...] = Field(default=(), alias="clusterIPs")
    external_ips: tuple[str, ...] = Field(default=(), alias="externalIPs")
    external_traffic_policy: str = ""


class Ingress(View):
    """`status.loadBalancer.ingress[]`."""

    ip: str = ""


class LoadBalancer(View):
    """`status.loadBalancer`."""

    ingress: tuple[Ingress, ...] = ()


class ServiceStatus(View):
    """`Service.status`."""

    load_balancer: LoadBalancer = LoadBalancer()


class Service(KubeObject):
    """A Service."""

    api: ClassVar[Api] = Api("", "v1", "services", "Service", True)
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class Conditions(View):
    """`endpoints[].conditions`; what is not known counts as ready."""

    ready: bool = True


class SliceEndpoint(View):
    """`endpoints[]`."""

    node_name: str = ""
    conditions: Conditions = Conditions()


class EndpointSlice(KubeObject):
    """Some endpoints of a Service."""

    api: ClassVar[Api] = Api("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True)
    endpoints: tuple[SliceEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Networks whose services are announced, by use; `whole`: load balancers' ranges are, too."""

    of: Mapping[Use, tuple[IPNetwork, ...]] = field(default_factory=dict)
    whole: bool = True

    def aggregates(self) -> tuple[IPNetwork, ...]:
        """What every node announces whole."""
        uses = [use for use in Use if use is not Use.BALANCER or self.whole]
        return tuple(net for use in uses for net in self.of.get(use, ()))

    def single(self, known: Iterable[ServiceAddress]) -> tuple[IPNetwork, ...]:
        """The addresses that this node announces by themselves, as networks."""
        found = {one.address for one in known if self._counts(one)}
        return tuple(ip_network(address) for address in found)

    def _counts(self, one: ServiceAddress) -> bool:
        if not any(one.address in net for net in self.of.get(Use(one.use), ())):
            return False
        return one.here if one.local else one.use == Use.BALANCER and not self.whole

    @property
    def needs_services(self) -> bool:
        """Whether single services matter at all."""
        return any(self.of.values())


def addresses_of(services: Iterable[Service], here: frozenset[Name]) -> frozenset[ServiceAddress]:
    """All addresses of services; `here` are those with a ready endpoint on this node."""
    found = set()
    for service in services:
        name = (service.metadata.namespace, service.metadata.name)
        local = service.spec.external_traffic_policy == "Local"
        balancers = (one.ip for one in service.status.load_balancer.ingress)
        for use, texts in (
            (Use.CLUSTER, service.spec.cluster_ips),
            (Use.EXTERNAL, service.spec.external_ips),
            (Use.BALANCER, tuple(balancers)),
        ):
            for text in texts:
                if (address := _address(text)) is not None:
                    found.add(ServiceAddress(use, address, local, name in here))
    return frozenset(found)


def _address(text: str) -> IPAddress | None:
    """None for a headless service's `None`, a name, or nobody's address."""
    try:
        found = plain_address(text)
    except ValueError:
        return None
    return found if can_be_reached(found) else None


@dataclass(slots=True)
class ServiceSource:
    """Follows Services and EndpointSlices from when it is first wanted, and posts what changes.

    Two threads, one body each: `run_services`, `run_slices`.
    """

    kube: KubeClient
    node: str
    post: Callable[[Event], None]
    log: Log
    monotonic: Callable[[], float] = time.monotonic
    _services: dict[Name, Service] = field(default_factory=dict)
    _slices: dict[Name, Name | None] = field(default_factory=dict)
    """Of each slice the service that has a ready endpoint here by it, if there is one."""
    _synced: set[type[KubeObject]] = field(default_factory=set)
    _refused_since: float | None = None
    _told: frozenset[ServiceAddress] | None = None
    _wanted: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def want(self) -> None:
        """Services matter from now on."""
        self._wanted.set()

    def stop(self) -> None:
        """End both threads soon."""
        self._stop.set()
        self._wanted.set()

    def run_services(self) -> None:
        """The first thread's body."""
        self._follow(Service, self._services, lambda found: found)

    def run_slices(self) -> None:
        """The second's."""
        self._follow(EndpointSlice, self._slices, self._service_here)

    def _follow(self, kind: type[T], known: dict[Name, V], value: Callable[[T], V]) -> None:
        self._wanted.wait()
        complaint = Complaint(self.log, "api_watch_lost")
        client = Listener(self.kube)

        def trouble(plural: str, error: TortieError, delay: float) -> None:
            complaint.watch_lost(plural, error, delay)
            self._refused(error)

        for event in follow(client, kind, stop=self._stop, trouble=trouble):
            complaint.about("")
            with self._lock:
                if isinstance(event, Applied):
                    name, now = _name(event.object), value(event.object)
                    news = known.get(name) != now
                    known[name] = now
                elif isinstance(event, Gone):
                    news = known.pop(_name(event.object), None) is not None
                else:
                    gone = known.keys() - client.names
                    news = bool(gone) or kind not in self._synced
                    for name in gone:
                        del known[name]
                    self._synced.add(kind)
                if news:  # a list brings all of them again, and telling costs what there is
                    self._tell()

    def _refused(self, error: TortieError) -> None:
        """An API that does not let us see services is not waited for: there are none, then.

        While they are awaited BIRD stays as it is, with its sessions to nodes that are no more.
        """
        if isinstance(error, Unavailable):
            return
        with self._lock:
            now = self.monotonic()
            self._refused_since = now if self._refused_since is None else self._refused_since
            if self._told is None and now - self._refused_since >= REFUSED_SECONDS:
                self._told = frozenset()
                self.post(BgpTold(services=self._told))

    def _service_here(self, found: EndpointSlice) -> Name | None:
        service = found.metadata.labels.get(SERVICE_NAME)
        ready = any(one.node_name == self.node and one.conditions.ready for one in found.endpoints)
        return (found.metadata.namespace, service) if service and ready else None

    def _tell(self) -> None:
        """Post what services come to, if all of them are known and it is something new."""
        if len(self._synced) < 2:
            return
        here = frozenset(one for one in self._slices.values() if one is not None)
        found = addresses_of(self._services.values(), here)
        if found != self._told:
            self._told = found
            self.post(BgpTold(services=found))


def _name(found: KubeObject) -> Name:
    return found.metadata.namespace, found.metadata.name
