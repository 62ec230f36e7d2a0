"""What the rim tells the reconciler. Values only; every event may come late, twice or in any
order, except that one source's events keep their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from felix_shim.model import EndpointId, SignKind
from libtortie.datastore.port import Record
from libtortie.kube.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from libtortie.linux.port import Link, NetworkEvent, Route
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Key, Scope


@dataclass(frozen=True, slots=True)
class Sign:
    """A VM made itself heard on its veth.

    `kernel_ns` is the kernel's receive time stamp, nanoseconds of CLOCK_REALTIME. `muted` is
    how many further signs of this endpoint the sniffer counted without passing them on.
    """

    endpoint: EndpointId
    interface: str
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
    """The complete content of a followed scope: what is not in it does not exist."""

    scope: Scope
    records: tuple[Record, ...]


Migration = VirtualMachineInstanceMigration
Instance = VirtualMachineInstance


@dataclass(frozen=True, slots=True)
class Seen:
    """A KubeVirt object exists in this form."""

    object: Migration | Instance


@dataclass(frozen=True, slots=True)
class Vanished:
    """A KubeVirt object was deleted."""

    object: Migration | Instance


@dataclass(frozen=True, slots=True)
class InSync:
    """Every object of this kind has been delivered since the stream began.

    `delivered` are (namespace, name) of them all; anything else known of the kind is gone.
    """

    kind: type[Migration] | type[Instance]
    delivered: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """Something changed in the node's network namespace."""

    event: NetworkEvent


@dataclass(frozen=True, slots=True)
class Surveyed:
    """All links and main-table routes as read between `began` and now (monotonic seconds)."""

    began: float
    links: tuple[Link, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class RaisesSeen:
    """Which of the asked addresses another node announces with a raised priority.

    `asked` are the addresses BIRD was asked about, `raised` maps those raised to a next hop.
    """

    asked: frozenset[IPAddress]
    raised: Mapping[IPAddress, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """A lane finished a job; `error` is empty when it worked."""

    lane: str
    generation: int
    error: str = ""


Event = (
    Sign
    | Stored
    | Unstored
    | Listed
    | Seen
    | Vanished
    | InSync
    | NetworkChanged
    | Surveyed
    | RaisesSeen
    | Done
)
