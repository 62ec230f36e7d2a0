"""Kubernetes' ClusterNetworkPolicies (`v1alpha2`) as policies of the tiers before and behind ours.

`Admin` stands before the default tier, `Baseline` behind it; what none of a tier's policies decides
goes on, and so does what a rule passes. A rule with a peer or protocol of a kind that is not known
here (`domainNames`, or what a later version brings) fails closed as the API's own definition says:
one that accepts matches nothing, any other denies everything. A policy that is wrong otherwise
closes those it is about. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from felix_shim.admin_policy import PodsOf, Range, Subject, of_networks
from felix_shim.kube_policy import Network, PortName, PortNumber
from felix_shim.kube_selectors import PODS, Exact, LabelSelector, OneOf, read_spec, readable_part
from libtortie.errors import InvalidInput
from libtortie.kube.objects import View
from libtortie.kube.policies import ClusterNetworkPolicy
from libtortie.model.policy import (
    ADMIN_TIER,
    BASELINE_TIER,
    PROTOCOLS,
    Action,
    Entity,
    Policy,
    PolicyId,
    PolicyRule,
    PortRange,
)

PREFIX = "kcnp."
_TIERS = {"Admin": ADMIN_TIER, "Baseline": BASELINE_TIER}
_ACTIONS = {"Accept": Action.ALLOW, "Deny": Action.DENY, "Pass": Action.PASS}
_PRIORITY_MAX, _ENTRIES_MAX = 1000, 25
Protocols = list[tuple[int | None, tuple[PortRange | str, ...]]]
"""Numbers of protocols, None: any; with their ports."""


class ClusterPods(PodsOf):
    """`pods`: in some namespaces; of all when none are named."""

    namespace_selector: LabelSelector = LabelSelector()


class ClusterSubject(Subject):
    """`subject`."""

    pods: ClusterPods | None = None


class Choice(View):
    """One of several kinds of thing; which of them, a later version of the API may add to."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _at_most_one(self) -> Choice:
        if len(self.given) + len(self.unknown) > 1:
            raise ValueError(f"needs one of {', '.join((*self.given, *self.unknown))}")
        return self

    @property
    def given(self) -> tuple[str, ...]:
        """The fields that are there and known."""
        fields = type(self).model_fields
        return tuple(name for name in fields if getattr(self, name) is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Those that are not known; of a choice without any field it is not known, either."""
        extra = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return tuple(sorted(extra)) or (() if self.given else ("",))


class ClusterPeer(Choice):
    """`from[]`, and what `to[]` has of it."""

    namespaces: LabelSelector | None = None
    pods: ClusterPods | None = None

    def entities(self) -> Iterator[Entity]:
        """Any of which may be at that end."""
        yield Entity(selector=ClusterSubject(namespaces=self.namespaces, pods=self.pods).selector)


class ClusterToPeer(ClusterPeer):
    """`to[]`."""

    nodes: LabelSelector | None = None
    networks: Annotated[tuple[Network, ...], Field(min_length=1, max_length=25)] | None = None

    def entities(self) -> Iterator[Entity]:
        """Any of which may be at that end; networks of one IP version each."""
        if self.nodes is not None:
            yield Entity(nodes=self.nodes.text())
        elif self.networks is not None:
            yield from of_networks(self.networks)
        else:
            yield from ClusterPeer.entities(self)


class ClusterPort(OneOf):
    """`destinationPort`."""

    number: PortNumber | None = None
    range: Range | None = None

    @property
    def ports(self) -> PortRange:
        """The ports."""
        if self.range is not None:
            return self.range.ports
        assert self.number is not None
        return PortRange(self.number, self.number)


class Transport(Exact):
    """`tcp`, `udp`, `sctp`."""

    destination_port: ClusterPort | None = None


class ClusterProtocol(Choice):
    """`protocols[]`; a name is that of a port of the receiving pod, of whatever protocol."""

    tcp: Transport | None = None
    udp: Transport | None = None
    sctp: Transport | None = None
    destination_named_port: PortName | None = None

    @property
    def match(self) -> tuple[int | None, tuple[PortRange | str, ...]]:
        """The protocol's number, None: any; and the ports, none: all."""
        if self.destination_named_port is not None:
            return None, (self.destination_named_port,)
        ((name, found),) = ((one, getattr(self, one)) for one in self.given)
        port = found.destination_port
        return PROTOCOLS[name.upper()], () if port is None else (port.ports,)


class ClusterRule(Exact, ABC):
    """What all rules have. An end of a rule without peers would be nobody."""

    name: str = ""
    action: Literal["Accept", "Deny", "Pass"]
    protocols: (
        Annotated[tuple[ClusterProtocol, ...], Field(min_length=1, max_length=_ENTRIES_MAX)] | None
    ) = None

    @property
    @abstractmethod
    def peers(self) -> tuple[ClusterPeer, ...]:
        """Whom it is about."""

    def unknown(self) -> str:
        """What of it is not known here, with its path; empty: nothing."""
        side = "from" if isinstance(self, ClusterIngress) else "to"
        for field, entries in ((side, self.peers), ("protocols", self.protocols or ())):
            for number, one in enumerate(entries):
                if one.unknown:
                    return f"{field}.{number}" + "".join(f".{name}" for name in one.unknown if name)
        return ""

    def rules(self) -> Iterator[PolicyRule]:
        """The rules of the model, of one verdict."""
        action = _ACTIONS[self.action]
        if self.unknown():
            if action is not Action.ALLOW:
                yield PolicyRule(Action.DENY)
            return
        ways: Protocols = [one.match for one in self.protocols or ()] or [(None, ())]
        for peer in self.peers:
            for one in peer.entities():
                for protocol, ports in ways:
                    yield self.rule(action, protocol, one, ports)

    def rule(
        self,
        action: Action,
        protocol: int | None,
        peer: Entity,
        ports: tuple[PortRange | str, ...],
    ) -> PolicyRule:
        """One of them; ports are the receiver's."""
        if isinstance(self, ClusterIngress):
            end = Entity(ports=ports)
            return PolicyRule(action, protocol=protocol, source=peer, destination=end)
        end = Entity(peer.nets, (), peer.selector, ports=ports, nodes=peer.nodes)
        return PolicyRule(action, protocol=protocol, destination=end)


class ClusterIngress(ClusterRule):
    """`ingress[]`."""

    from_: Annotated[
        tuple[ClusterPeer, ...], Field(min_length=1, max_length=_ENTRIES_MAX, alias="from")
    ]

    @property
    def peers(self) -> tuple[ClusterPeer, ...]:
        """Whom it is about."""
        return self.from_


class ClusterEgress(ClusterRule):
    """`egress[]`."""

    to: Annotated[tuple[ClusterToPeer, ...], Field(min_length=1, max_length=_ENTRIES_MAX)]

    @property
    def peers(self) -> tuple[ClusterPeer, ...]:
        """Whom it is about."""
        return self.to


class ClusterSpec(Exact):
    """`ClusterNetworkPolicy.spec`."""

    tier: Literal["Admin", "Baseline"]
    priority: Annotated[int, Field(ge=0, le=_PRIORITY_MAX, strict=True)]
    subject: ClusterSubject
    ingress: Annotated[tuple[ClusterIngress, ...], Field(max_length=_ENTRIES_MAX)] = ()
    egress: Annotated[tuple[ClusterEgress, ...], Field(max_length=_ENTRIES_MAX)] = ()

    @property
    def limits(self) -> tuple[str, ...]:
        """The rules that cannot be obeyed."""
        sides: tuple[tuple[str, tuple[ClusterRule, ...]], ...] = (
            ("ingress", self.ingress),
            ("egress", self.egress),
        )
        return tuple(
            f"spec.{side}.{number}.{where}: is not known here, so the rule fails closed"
            for side, rules in sides
            for number, rule in enumerate(rules)
            if (where := rule.unknown())
        )


def cluster_policy_id(name: str) -> PolicyId:
    """What a ClusterNetworkPolicy is called here."""
    return PolicyId(PREFIX + name, "", ClusterNetworkPolicy.api.kind)


def cluster_policy(found: ClusterNetworkPolicy) -> Policy:
    """The policy that a ClusterNetworkPolicy is."""
    policy_id, written = cluster_policy_id(found.metadata.name), found.spec
    try:
        spec = read_spec(ClusterSpec, written)
    except InvalidInput as error:
        return _refused(policy_id, written, str(error))
    return Policy(
        id=policy_id,
        selector=spec.subject.selector,
        tier=_TIERS[spec.tier],
        order=float(spec.priority),
        ingress=tuple(one for rule in spec.ingress for one in rule.rules())
        if spec.ingress
        else None,
        egress=tuple(one for rule in spec.egress for one in rule.rules()) if spec.egress else None,
        limits=spec.limits,
    )


def _refused(policy_id: PolicyId, written: Any, problem: str) -> Policy:
    """A policy that cannot be obeyed, about those it selects, or about all pods."""
    known = written if isinstance(written, dict) else {}
    subject = readable_part(ClusterSubject, known.get("subject"))
    selector = subject.selector if subject is not None else PODS
    tier = BASELINE_TIER if known.get("tier") == "Baseline" else ADMIN_TIER
    return Policy(policy_id, selector, tier, problem=problem)
