"""What a policy says, as values: selectors made whole, defaults filled in, nothing of the wire.

`policy_wire.py` makes them from Calico's resources, `felix_shim/kube_policy.py` and
`felix_shim/admin_policy.py` from Kubernetes'.
A selector here is complete: the restriction to a namespace, prefixes of namespace and service
account labels are part of its text, so that its meaning depends on nothing but labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPNetwork = IPv4Network | IPv6Network

LABEL_NAMESPACE = "projectcalico.org/namespace"
LABEL_ORCHESTRATOR = "projectcalico.org/orchestrator"
LABEL_SERVICE_ACCOUNT = "projectcalico.org/serviceaccount"
NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX = "pcns.", "pcsa."
"""What the labels of a namespace and of a service account are called on their endpoints."""
NAMESPACE_PROFILE, SERVICE_ACCOUNT_PROFILE = "kns.", "ksa."

DEFAULT_TIER, ADMIN_TIER, BASELINE_TIER = "default", "kube-admin", "kube-baseline"
V1ALPHA1_ADMIN_TIER, V1ALPHA1_BASELINE_TIER = "adminnetworkpolicy", "baselineadminnetworkpolicy"
"""Of policy.networking.k8s.io/v1alpha1: Calico converts its policies into tiers of these names."""
PROTOCOLS = {"ICMP": 1, "TCP": 6, "UDP": 17, "ICMPv6": 58, "SCTP": 132, "UDPLite": 136}
ICMP, ICMPV6 = 1, 58
WITH_PORTS = frozenset({6, 17, 132})


class Action(StrEnum):
    """What a rule does with a packet that matches."""

    ALLOW = "Allow"
    DENY = "Deny"
    PASS = "Pass"
    LOG = "Log"


@dataclass(frozen=True, slots=True, order=True)
class PortRange:
    """Ports from `first` to `last`, both of them included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Icmp:
    """An ICMP or ICMPv6 message: its type, and its code unless any will do."""

    type: int
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """One end of a packet; everything that is given must hold.

    `nets` and `ports` are alternatives; a port that is a text is a name that the endpoint with
    the address gives to one of its ports. `selector` None is any address, also of no endpoint.
    `service` (`namespace/name`) is what a Kubernetes Service leads to: addresses with their ports
    where packets go to, addresses where they come from. `nodes` selects Kubernetes' nodes.
    """

    nets: tuple[IPNetwork, ...] = ()
    not_nets: tuple[IPNetwork, ...] = ()
    selector: str | None = None
    not_selector: str | None = None
    ports: tuple[PortRange | str, ...] = ()
    not_ports: tuple[PortRange | str, ...] = ()
    service: str = ""
    nodes: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule; protocols are IANA's numbers."""

    action: Action
    version: int | None = None
    protocol: int | None = None
    not_protocol: int | None = None
    icmp: Icmp | None = None
    not_icmp: Icmp | None = None
    source: Entity = Entity()
    destination: Entity = Entity()


@dataclass(frozen=True, slots=True, order=True)
class PolicyId:
    """A policy's identity, and what it is called in events: `NetworkPolicy shop/allow-web`."""

    name: str
    namespace: str
    kind: str

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where}"


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. `order` None is behind all others of its tier.

    `ingress` or `egress` None: it says nothing about that direction. `problem` is not empty when
    it cannot be obeyed: then whatever it selects is closed in both directions. `limits` says which
    of its rules let nothing pass because they cannot be obeyed; the others are.
    """

    id: PolicyId
    selector: str
    tier: str = DEFAULT_TIER
    order: float | None = None
    ingress: tuple[PolicyRule, ...] | None = None
    egress: tuple[PolicyRule, ...] | None = None
    untracked: bool = False
    pre_dnat: bool = False
    forwarded: bool = False
    problem: str = ""
    limits: tuple[str, ...] = ()

    @property
    def needs_api(self) -> bool:
        """Whether a rule is about what only the Kubernetes API knows of."""
        rules = (*(self.ingress or ()), *(self.egress or ()))
        ends = (end for rule in rules for end in (rule.source, rule.destination))
        return any(end.service or end.nodes is not None for end in ends)


@dataclass(frozen=True, slots=True)
class Profile:
    """Labels that its endpoints inherit, and rules for what no policy is about."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    ingress: tuple[PolicyRule, ...] = ()
    egress: tuple[PolicyRule, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TierRank:
    """A tier: its place among the others, and what becomes of packets that none of its policies
    decides although some of them apply. `problem` is not empty when these cannot be known."""

    name: str
    order: float | None = None
    passes: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port of an endpoint that has a name."""

    name: str
    protocol: int
    port: int


@dataclass(frozen=True, slots=True)
class Item:
    """What selectors select: an endpoint with its addresses and ports, or a set of networks.

    `profiles` are those it inherits labels from; its own labels win.
    """

    labels: tuple[tuple[str, str], ...] = ()
    profiles: tuple[str, ...] = ()
    nets: tuple[IPNetwork, ...] = ()
    ports: tuple[NamedPort, ...] = field(default=())


ALL_LINKS = "*"


@dataclass(frozen=True, slots=True)
class HostEnd:
    """A node's own end of its links: a host endpoint.

    `link` is the link's name, or `*` for all that are nobody else's; empty: the link that has one
    of the `expected` addresses. `problem` is not empty when the rest cannot be read.
    """

    name: str
    node: str
    link: str = ""
    expected: frozenset[IPv4Address | IPv6Address] = frozenset()
    profiles: tuple[str, ...] = ()
    problem: str = ""


UNREADABLE = "what is stored cannot be read"
ANY = (PolicyRule(Action.ALLOW),)
DEFAULT_ALLOW = "projectcalico-default-allow"
"""The profile that is there without being stored."""
