"""Kubernetes' NetworkPolicies as the agent's policies, and namespaces and accounts as profiles.

The values are those that Calico's converter comes to. Nothing here raises: a policy that cannot
be read says whom it is about as well as it can, and they are closed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from felix_shim.kube_selectors import Exact, LabelSelector, pods, pods_of, read_spec, readable_part
from libtortie.errors import InvalidInput
from libtortie.kube.objects import Namespace, ServiceAccount
from libtortie.kube.policies import KubeNetworkPolicy
from libtortie.model.plain_ip import plain_network
from libtortie.model.policy import (
    ANY,
    NAMESPACE_PREFIX,
    NAMESPACE_PROFILE,
    PROTOCOLS,
    SERVICE_ACCOUNT_PREFIX,
    SERVICE_ACCOUNT_PROFILE,
    Action,
    Entity,
    IPNetwork,
    Policy,
    PolicyId,
    PolicyRule,
    PortRange,
    Profile,
)
from libtortie.model.selector_text import both, in_namespace

KIND = "KubernetesNetworkPolicy"
PREFIX = "knp.default."
"""Of the name that Calico gives to a converted policy, by which it is ordered among the others."""
ORDER = 1000.0
_OWN_NAME = "projectcalico.org/name"

Protocol = Literal["TCP", "UDP", "SCTP"]
PortNumber = Annotated[int, Field(ge=1, lt=1 << 16, strict=True)]
PortName = Annotated[str, Field(pattern=r"^[-a-z0-9]*[a-z][-a-z0-9]*$", max_length=63)]
_NAME = TypeAdapter(PortName)
_NUMBER = TypeAdapter(PortNumber)


def _port(value: Any) -> Any:
    """Checked as what it is, so that a wrong one is told of once."""
    adapter = _NAME if isinstance(value, str) else _NUMBER
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{value!r} is no port: a number from 1 to 65535, or a name") from error


PortText = Annotated[int | str, BeforeValidator(_port)]


def _network(text: str) -> str:
    """A network; bits behind the prefix length do no harm, as in Calico's converter."""
    if "/" not in text:
        raise ValueError(f"{text!r} is not address/prefix")
    plain_network(text)
    return text


Network = Annotated[str, AfterValidator(_network)]


class Port(Exact):
    """`ports[]`: without a port, all of the protocol."""

    protocol: Protocol = "TCP"
    port: PortText | None = None
    end_port: PortNumber | None = None

    @model_validator(mode="after")
    def _range(self) -> Port:
        if self.end_port is None:
            return self
        if not isinstance(self.port, int):
            raise ValueError("endPort needs a port that is a number")
        if self.end_port < self.port:
            raise ValueError(f"endPort {self.end_port} is below port {self.port}")
        return self

    @property
    def range(self) -> PortRange | str | None:
        """The ports; None: all."""
        if self.port is None or isinstance(self.port, str):
            return self.port
        return PortRange(self.port, self.end_port or self.port)


class IPBlock(Exact):
    """`ipBlock`."""

    cidr: Network
    except_: tuple[Network, ...] = Field(default=(), alias="except")

    @model_validator(mode="after")
    def _inside(self) -> IPBlock:
        for one in self.excepted:
            if one.version != self.network.version:
                raise ValueError(f"except {one} is not of the IP version of {self.cidr}")
        return self

    @property
    def network(self) -> IPNetwork:
        """The network."""
        return ip_network(self.cidr, strict=False)

    @property
    def excepted(self) -> tuple[IPNetwork, ...]:
        """Parts of the network that are not meant."""
        return tuple(ip_network(text, strict=False) for text in self.except_)


class Peer(Exact):
    """`from[]`, `to[]`."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Peer:
        selects = self.pod_selector is not None or self.namespace_selector is not None
        if selects is (self.ip_block is not None):
            raise ValueError("needs either ipBlock or podSelector and namespaceSelector")
        return self


class IngressRule(Exact):
    """`ingress[]`."""

    from_: tuple[Peer, ...] = Field(default=(), alias="from")
    ports: tuple[Port, ...] = ()


class EgressRule(Exact):
    """`egress[]`."""

    to: tuple[Peer, ...] = ()
    ports: tuple[Port, ...] = ()


class NetworkPolicySpec(Exact):
    """`spec`. Without `policyTypes`: ingress, and egress if there are rules for it."""

    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[Literal["Ingress", "Egress"], ...] = ()
    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()

    @property
    def types(self) -> frozenset[str]:
        """The directions it is about."""
        default = ("Ingress", "Egress") if self.egress else ("Ingress",)
        return frozenset(self.policy_types or default)


def network_policy_id(namespace: str, name: str) -> PolicyId:
    """What a Kubernetes NetworkPolicy is called here."""
    return PolicyId(PREFIX + name, namespace, KIND)


def network_policy(found: KubeNetworkPolicy) -> Policy:
    """The policy that a Kubernetes NetworkPolicy is."""
    namespace = found.metadata.namespace
    policy_id = network_policy_id(namespace, found.metadata.name)
    try:
        spec = read_spec(NetworkPolicySpec, found.spec)
    except InvalidInput as error:
        return _refused(policy_id, found.spec, str(error))
    ingress = ((_entity(peers, namespace), rule.ports) for rule in spec.ingress
               for peers in rule.from_ or (None,))  # fmt: skip
    egress = ((_entity(peers, namespace), rule.ports) for rule in spec.egress
              for peers in rule.to or (None,))  # fmt: skip
    return Policy(
        id=policy_id,
        selector=both(in_namespace(namespace), pods(spec.pod_selector)),
        order=ORDER,
        ingress=tuple(_ingress(ingress)) if "Ingress" in spec.types else None,
        egress=tuple(_egress(egress)) if "Egress" in spec.types else None,
    )


def namespace_profile(namespace: str) -> str:
    """The name of a namespace's profile."""
    return NAMESPACE_PROFILE + namespace


def account_profile(namespace: str, account: str) -> str:
    """The name of a service account's profile."""
    return f"{SERVICE_ACCOUNT_PROFILE}{namespace}.{account}"


def profile_of(found: Namespace | ServiceAccount) -> Profile:
    """The profile of a namespace, which allows all, or of a service account, which allows nothing.

    Both give their labels to what is in them.
    """
    name, labels = found.metadata.name, found.metadata.labels
    if isinstance(found, Namespace):
        return Profile(namespace_profile(name), _given(labels, NAMESPACE_PREFIX, name), ANY, ANY)
    profile = account_profile(found.metadata.namespace, name)
    return Profile(profile, _given(labels, SERVICE_ACCOUNT_PREFIX, name))


def _given(labels: dict[str, str], prefix: str, name: str) -> tuple[tuple[str, str], ...]:
    given = {prefix + key: value for key, value in labels.items()}
    return tuple(sorted({**given, prefix + _OWN_NAME: name}.items()))


def _refused(policy_id: PolicyId, spec: Any, problem: str) -> Policy:
    """A policy that cannot be obeyed, about those it selects, or about all it might select."""
    selector = spec.get("podSelector") if isinstance(spec, dict) else None
    subject = readable_part(LabelSelector, selector)
    where = in_namespace(policy_id.namespace)
    return Policy(policy_id, both(where, pods(subject)), order=ORDER, problem=problem)


def _entity(peer: Peer | None, namespace: str) -> Entity:
    """One end of a rule without its ports; no peer is anybody."""
    if peer is None:
        return Entity()
    if peer.ip_block is not None:
        block = peer.ip_block
        return Entity(nets=(block.network,), not_nets=block.excepted)
    return Entity(selector=pods_of(peer.namespace_selector, peer.pod_selector, namespace))


def _ingress(rules: Iterable[tuple[Entity, tuple[Port, ...]]]) -> Iterator[PolicyRule]:
    """Ports are the receiver's."""
    for source, wanted in rules:
        for protocol, ports in by_protocol(wanted):
            end = Entity(ports=ports)
            yield PolicyRule(Action.ALLOW, protocol=protocol, source=source, destination=end)


def _egress(rules: Iterable[tuple[Entity, tuple[Port, ...]]]) -> Iterator[PolicyRule]:
    for peer, wanted in rules:
        for protocol, ports in by_protocol(wanted):
            end = Entity(peer.nets, peer.not_nets, peer.selector, ports=ports)
            yield PolicyRule(Action.ALLOW, protocol=protocol, destination=end)


def by_protocol(
    wanted: Iterable[Port],
) -> list[tuple[int | None, tuple[PortRange | str, ...]]]:
    """The ports of each protocol, none: all of them; no ports at all is any protocol."""
    found: dict[int, list[PortRange | str | None]] = {}
    for one in wanted:
        found.setdefault(PROTOCOLS[one.protocol], []).append(one.range)
    if not found:
        return [(None, ())]
    return [
        (protocol, () if None in ports else tuple(one for one in ports if one is not None))
        for protocol, ports in found.items()
    ]
