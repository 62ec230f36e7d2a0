"""What the rim tells the reconciler. Values only; every event may come late, twice or in any
order, except that one source's events keep their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from felix_shim.kube_entries import PolicyObject
from felix_shim.model import EndpointId, SignKind
from libtortie.datastore.port import Record
from libtortie.kube.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from libtortie.linux.port import Link, NetworkEvent, Route
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Key, Scope


@dataclass(frozen=True, slots=True)
class Sign:
    """A VM made itself heard on its veth.

    `episode` is that of the request to listen. `kernel_ns` is the kernel's receive time stamp,
    nanoseconds of CLOCK_REALTIME. `muted` is how many further signs of this endpoint the sniffer
    counted without passing them on.
    """

    endpoint: EndpointId
    interface: str
    episode: int
    kind: SignKind
    kernel_ns: int
    muted: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A datastore record of a followed scope was created or replaced."""

    scope: Scope
    record: Record


@dataclass(frozen=True, slots=True)
class Unstored:
    """A datastore record of a followed scope was deleted."""

    scope: Scope
    key: Key


@dataclass(frozen=True, slots=True)
class Listed:
    """The complete content of a followed scope: what is not in it does not exist.

    Unless `unreadable` names stored values that could not be read: then absence says nothing.
    `broken` are their keys, as far as they can be told and policy is made of them.
    """

    scope: Scope
    records: tuple[Record, ...]
    unreadable: tuple[str, ...] = ()
    broken: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """What changes in a followed scope of a SQLite or etcd store is not heard of, until it is
    `Listed` again. A Kubernetes API that is away delays nothing: nobody is told."""

    scope: Scope


Migration = VirtualMachineInstanceMigration
Instance = VirtualMachineInstance


@dataclass(frozen=True, slots=True)
class Seen:
    """An object of the Kubernetes API exists in this form."""

    object: Migration | Instance | PolicyObject


@dataclass(frozen=True, slots=True)
class Vanished:
    """An object of the Kubernetes API was deleted."""

    object: Migration | Instance | PolicyObject


@dataclass(frozen=True, slots=True)
class InSync:
    """Every object of this kind has been delivered since the stream began.

    `delivered` are (namespace, name) of them all; anything else known of the kind is gone.
    """

    kind: type[Migration | Instance | PolicyObject]
    delivered: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """Something changed in the node's network namespace."""

    event: NetworkEvent


@dataclass(frozen=True, slots=True)
class Surveyed:
    """All links and all host routes that matter, read between `began` (monotonic) and now.

    `addresses` are those of links that are no workload's.
    """

    began: float
    links: tuple[Link, ...]
    routes: tuple[Route, ...]
    addresses: Mapping[str, frozenset[IPAddress]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RaisesSeen:
    """What other nodes announce for the addresses that were asked about.

    `raised` maps those announced with a raised priority to their next hops (joined by commas);
    `announced` are those for which there is any host route of another node.
    """

    asked: frozenset[IPAddress]
    raised: Mapping[IPAddress, str] = field(default_factory=dict)
    announced: frozenset[IPAddress] = frozenset()


@dataclass(frozen=True, slots=True)
class CutOver:
    """A node, proved to be that one, has heard the VM of a migration: these addresses are there."""

    node: str
    migration_uid: str
    addresses: tuple[IPAddress, ...]


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """An address of a service. `use` is what it is to it; `local`: its traffic stays on the nodes
    that have an endpoint, of which this is one if `here`."""

    use: str
    address: IPAddress
    local: bool
    here: bool


@dataclass(frozen=True, slots=True)
class BgpTold:
    """What the API says of things that only BGP needs; None: nothing new.

    `passwords` by (Secret, key), None for no such Secret or key. `services` are all addresses.
    """

    passwords: Mapping[tuple[str, str], str | None] | None = field(default=None, repr=False)
    services: frozenset[ServiceAddress] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A lane finished a job; `error` is empty when it worked.

    `excepted` names what the job could not do although the rest worked.
    """

    lane: str
    generation: int
    error: str = ""
    excepted: frozenset[str] = frozenset()


Event = (
    Sign
    | Stored
    | Unstored
    | Listed
    | Lost
    | Seen
    | Vanished
    | InSync
    | NetworkChanged
    | Surveyed
    | RaisesSeen
    | CutOver
    | BgpTold
    | Done
)
