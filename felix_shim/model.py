"""The agent's own vocabulary: endpoints, roles, facts. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from libtortie.linux.port import IPNetwork
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class EndpointId:
    """Identity of a local endpoint: `<namespace>/<pod>/<endpoint>`."""

    namespace: str
    pod: str
    endpoint: str = "eth0"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.endpoint}"


@dataclass(frozen=True, slots=True)
class VMRef:
    """The VM an endpoint belongs to, as the CNI plugin verified it.

    `handle_id` is empty where our IPAM did not give the addresses.
    """

    namespace: str
    vmi_name: str
    vmi_uid: str
    handle_id: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One attachment on this node, as policy and routes see it.

    `orchestrator` and `workload` give its status file's name. `pod_uid` and `container_id` fence
    it against other sandboxes of the same pod name. `migration_uid` is the
    migration whose target its pod was proved to be at ADD; it outlives the migration. `floating`
    are (own, floating) addresses; from `source_prefixes` it may send besides.
    """

    id: EndpointId
    orchestrator: str
    workload: str
    interface: str
    mac: str
    addresses: tuple[IPAddress, ...]
    container_id: str
    pod_uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    vm: VMRef | None = None
    migration_uid: str = ""
    floating: tuple[tuple[IPAddress, IPAddress], ...] = ()
    source_prefixes: tuple[IPNetwork, ...] = ()

    @property
    def destinations(self) -> tuple[IPAddress, ...]:
        """What is routed to it: its addresses, then the floating ones."""
        return self.addresses + tuple(outer for _, outer in self.floating)

    @property
    def whose(self) -> Mapping[str, str]:
        """The pod's and the VM's UIDs and the VM's name, as fields of a log line."""
        vm = self.vm
        named = {"vmi": vm.vmi_name, "vmi_uid": vm.vmi_uid} if vm is not None else {}
        return {"pod_uid": self.pod_uid, **named}


def same_sandbox(one: Endpoint, other: Endpoint) -> bool:
    """Whether both are of the same pod's same sandbox."""
    return (one.id, one.container_id, one.pod_uid) == (other.id, other.container_id, other.pod_uid)


def same_wire(one: Endpoint, other: Endpoint) -> bool:
    """Whether the rules and sysctls of one do for the other."""
    return (one.interface, one.mac, one.addresses, one.vm is None) == (
        other.interface,
        other.mac,
        other.addresses,
        other.vm is None,
    )


class Role(StrEnum):
    """What a live migration makes of a local endpoint."""

    NONE = "none"
    SOURCE = "source"
    TARGET = "target"


class Proof(Enum):
    """Where the API says the VMI that owns the endpoint's pod runs (matched by VMI UID)."""

    UNKNOWN = auto()
    HERE = auto()
    ELSEWHERE = auto()


class SignKind(StrEnum):
    """How a VM made itself heard on its veth."""

    RARP = "rarp"
    GRATUITOUS_ARP = "garp"
    NEIGHBOUR_ADVERTISEMENT = "na"
    IP_FRAME = "ip"
