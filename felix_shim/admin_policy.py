"""Kubernetes' AdminNetworkPolicies and the baseline as policies of two tiers of their own.

As Calico's converter: `adminnetworkpolicy` stands before the default tier, `baselineadmin…`
behind it; what none of their policies decides goes on, and so does what a rule passes. A policy
that cannot be read, or that speaks of peers that are no addresses here (domain names), closes those
it is about. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field, model_validator

from felix_shim.kube_policy import Network, PortName, PortNumber, Protocol
from felix_shim.kube_selectors import (
    PODS,
    Exact,
    LabelSelector,
    OneOf,
    of_namespaces,
    pods_of,
    read_spec,
    readable_part,
)
from libtortie.errors import InvalidInput
from libtortie.kube.policies import AdminNetworkPolicy, BaselineAdminNetworkPolicy
from libtortie.model.fields import network_of
from libtortie.model.policy import (
    PROTOCOLS,
    V1ALPHA1_ADMIN_TIER,
    V1ALPHA1_BASELINE_TIER,
    Action,
    Entity,
    Policy,
    PolicyId,
    PolicyRule,
    PortRange,
)
from libtortie.model.selector_text import both

ADMIN_PREFIX, BASELINE_PREFIX = "kanp.adminnetworkpolicy.", "kbanp.baselineadminnetworkpolicy."
BASELINE_ORDER = 1000.0
PRIORITY_MAX = 1000


class PodsOf(Exact):
    """`pods`: in some namespaces."""

    namespace_selector: LabelSelector
    pod_selector: LabelSelector


class Subject(OneOf):
    """`subject`: pods of some namespaces, all of them or some."""

    namespaces: LabelSelector | None = None
    pods: PodsOf | None = None

    @property
    def selector(self) -> str:
        """Whom it means."""
        if self.namespaces is not None:
            return both(of_namespaces(self.namespaces), PODS)
        assert self.pods is not None
        return pods_of(self.pods.namespace_selector, self.pods.pod_selector, "")


class FromPeer(Subject):
    """`from[]`."""

    def entities(self) -> Iterator[Entity]:
        """Any of which may be at that end."""
        yield Entity(selector=self.selector)


class ToPeer(OneOf):
    """`to[]`."""

    namespaces: LabelSelector | None = None
    pods: PodsOf | None = None
    nodes: LabelSelector | None = None
    networks: Annotated[tuple[Network, ...], Field(max_length=25)] | None = None

    @model_validator(mode="after")
    def _some_network(self) -> ToPeer:
        if self.networks == ():
            raise ValueError("networks: at least one is needed")
        return self

    def entities(self) -> Iterator[Entity]:
        """Any of which may be at that end; networks of one IP version each."""
        if self.nodes is not None:
            yield Entity(nodes=self.nodes.text())
        elif self.networks is not None:
            yield from of_networks(self.networks)
        else:
            yield Entity(selector=Subject(namespaces=self.namespaces, pods=self.pods).selector)


def of_networks(texts: Iterable[str]) -> Iterator[Entity]:
    """Whoever is in these networks: an entity for each IP version."""
    nets = [network_of(text) for text in texts]
    for version in sorted({net.version for net in nets}):
        yield Entity(nets=tuple(net for net in nets if net.version == version))


class NumberedPort(Exact):
    """`portNumber`."""

    protocol: Protocol = "TCP"
    port: PortNumber


class Range(Exact):
    """Ports from one to another."""

    start: PortNumber
    end: PortNumber

    @model_validator(mode="after")
    def _rises(self) -> Range:
        if self.start > self.end:
            raise ValueError(f"start {self.start} is above end {self.end}")
        return self

    @property
    def ports(self) -> PortRange:
        """The ports."""
        return PortRange(self.start, self.end)


class Ports(Range):
    """`portRange`."""

    protocol: Protocol = "TCP"


class AdminPort(OneOf):
    """`ports[]`; a name is that of a port of the receiving pod, of whatever protocol."""

    port_number: NumberedPort | None = None
    named_port: PortName | None = None
    port_range: Ports | None = None

    @property
    def match(self) -> tuple[int | None, PortRange | str]:
        """The protocol's number, None: any; and the ports."""
        if self.port_number is not None:
            port = self.port_number.port
            return PROTOCOLS[self.port_number.protocol], PortRange(port, port)
        if self.port_range is not None:
            return PROTOCOLS[self.port_range.protocol], self.port_range.ports
        return None, self.named_port or ""


class AdminRule(Exact):
    """What all rules have. An end of a rule without peers would be nobody."""

    name: str = ""
    action: Action
    ports: Annotated[tuple[AdminPort, ...], Field(max_length=100)] = ()

    @model_validator(mode="after")
    def _known_action(self) -> AdminRule:
        if self.action is Action.LOG:
            raise ValueError("action: needs one of Allow, Deny and Pass")
        return self

    def matches(self) -> list[tuple[int | None, tuple[PortRange | str, ...]]]:
        """The ports of each protocol; no ports at all is any protocol."""
        found: dict[int | None, list[PortRange | str]] = {}
        for one in self.ports:
            protocol, ports = one.match
            found.setdefault(protocol, []).append(ports)
        return [(protocol, tuple(ports)) for protocol, ports in found.items()] or [(None, ())]


class AdminIngress(AdminRule):
    """`ingress[]`."""

    from_: Annotated[tuple[FromPeer, ...], Field(min_length=1, max_length=100, alias="from")]

    def rules(self) -> Iterator[PolicyRule]:
        """The rules of the model, of one verdict."""
        for peer in self.from_:
            for source in peer.entities():
                for protocol, ports in self.matches():
                    end = Entity(ports=ports)
                    yield PolicyRule(self.action, protocol=protocol, source=source, destination=end)


class AdminEgress(AdminRule):
    """`egress[]`."""

    to: Annotated[tuple[ToPeer, ...], Field(min_length=1, max_length=100)]

    def rules(self) -> Iterator[PolicyRule]:
        """The rules of the model, of one verdict."""
        for peer in self.to:
            for one in peer.entities():
                for protocol, ports in self.matches():
                    end = Entity(one.nets, (), one.selector, ports=ports, nodes=one.nodes)
                    yield PolicyRule(self.action, protocol=protocol, destination=end)


class BaselineSpec(Exact):
    """`BaselineAdminNetworkPolicy.spec`."""

    subject: Subject
    ingress: Annotated[tuple[AdminIngress, ...], Field(max_length=100)] = ()
    egress: Annotated[tuple[AdminEgress, ...], Field(max_length=100)] = ()

    @property
    def order(self) -> float:
        """Its place in its tier."""
        return BASELINE_ORDER


class AdminSpec(BaselineSpec):
    """`AdminNetworkPolicy.spec`."""

    priority: Annotated[int, Field(ge=0, le=PRIORITY_MAX, strict=True)]

    @property
    def order(self) -> float:
        """Its place in its tier."""
        return float(self.priority)


def admin_policy_id(name: str) -> PolicyId:
    """What an AdminNetworkPolicy is called here."""
    return PolicyId(ADMIN_PREFIX + name, "", AdminNetworkPolicy.api.kind)


def baseline_policy_id(name: str) -> PolicyId:
    """What the BaselineAdminNetworkPolicy is called here."""
    return PolicyId(BASELINE_PREFIX + name, "", BaselineAdminNetworkPolicy.api.kind)


def admin_policy(found: AdminNetworkPolicy) -> Policy:
    """The policy that an AdminNetworkPolicy is."""
    return _policy(admin_policy_id(found.metadata.name), V1ALPHA1_ADMIN_TIER, AdminSpec, found.spec)


def baseline_policy(found: BaselineAdminNetworkPolicy) -> Policy:
    """The policy that the BaselineAdminNetworkPolicy is; it has nobody to pass anything to."""
    policy = _policy(
        baseline_policy_id(found.metadata.name), V1ALPHA1_BASELINE_TIER, BaselineSpec, found.spec
    )
    rules = (*(policy.ingress or ()), *(policy.egress or ()))
    if any(rule.action is Action.PASS for rule in rules):
        problem = "spec: a baseline has nobody to pass anything on to"
        return _refused(policy.id, V1ALPHA1_BASELINE_TIER, found.spec, problem)
    return policy


def _policy(policy_id: PolicyId, tier: str, model: type[BaselineSpec], written: Any) -> Policy:
    try:
        spec = read_spec(model, written)
    except InvalidInput as error:
        return _refused(policy_id, tier, written, str(error))
    return Policy(
        id=policy_id,
        selector=spec.subject.selector,
        tier=tier,
        order=spec.order,
        ingress=tuple(one for rule in spec.ingress for one in rule.rules()) or None,
        egress=tuple(one for rule in spec.egress for one in rule.rules()) or None,
    )


def _refused(policy_id: PolicyId, tier: str, written: Any, problem: str) -> Policy:
    """A policy that cannot be obeyed, about those it selects, or about all pods."""
    subject = readable_part(Subject, written.get("subject") if isinstance(written, dict) else None)
    selector = subject.selector if subject is not None else PODS
    return Policy(policy_id, selector, tier, problem=problem)
