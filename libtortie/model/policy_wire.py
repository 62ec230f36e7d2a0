"""Calico's policy resources → the values of `policy.py`, checked as Calico checks them.

The store keeps these kinds as they are written, so that what another program stored is still
there to be named when it is wrong. Here they are read: `read_policy` and its like never raise,
for a policy that cannot be obeyed still says whom it is about, and they must be closed.
`problem_of` tells a writer what is wrong, with the field's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.fields import NetworkText, network_of
from libtortie.model.keys import Kind
from libtortie.model.policy import (
    DEFAULT_TIER,
    ICMP,
    ICMPV6,
    LABEL_NAMESPACE,
    LABEL_SERVICE_ACCOUNT,
    NAMESPACE_PREFIX,
    NAMESPACE_PROFILE,
    PROTOCOLS,
    SERVICE_ACCOUNT_PREFIX,
    WITH_PORTS,
    Action,
    Entity,
    HostEnd,
    Icmp,
    Item,
    NamedPort,
    Policy,
    PolicyId,
    PolicyRule,
    PortRange,
    Profile,
)
from libtortie.model.resources import Resource, Wire
from libtortie.model.selector_text import prefixed, selects_all

RULES_MAX, NETS_MAX, PORTS_MAX, SELECTOR_MAX = 1024, 256, 50, 1024
_GLOBAL = re.compile(r"[ \t]*global\([ \t]*\)[ \t]*")
_PORT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_INTERFACE = re.compile(r"\*|[a-zA-Z0-9_.-]{1,15}")
_NAMES_OF = {number: name for name, number in PROTOCOLS.items()}
_ANY_PORT = range(1 << 16)


def _checked_selector(text: str) -> str:
    if len(text) > SELECTOR_MAX:
        raise ValueError(f"a selector of more than {SELECTOR_MAX} characters")
    try:
        selectors.parse(text)
        if text.strip(" \t"):
            selectors.parse(f"(({text}))")  # as deep as it will be among others
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


def _own_selector(text: str) -> str:
    """`global()` is no selector of endpoints; only a rule's namespaceSelector may be it."""
    if "global()" in re.sub(r"[ \t]", "", re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)):
        raise ValueError("global() may only be the namespaceSelector of a rule")
    return _checked_selector(text)


def _outer_selector(text: str) -> str:
    """A selector of namespaces or service accounts: also readable with prefixed names."""
    _own_selector(text)
    try:
        selectors.parse(f"(({prefixed(text, NAMESPACE_PREFIX)}))")
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


def _namespace_selector(text: str) -> str:
    return text if _GLOBAL.fullmatch(text) else _outer_selector(text)


def protocol_number(value: Any) -> Any:
    """A protocol's number; names are matched in any case, as Calico's own readers do."""
    if isinstance(value, str) and not value.isdecimal():
        found = next((n for name, n in PROTOCOLS.items() if name.lower() == value.lower()), None)
        if found is None:
            raise ValueError(f"{value!r} is not one of {', '.join(PROTOCOLS)} or a number")
        return found
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 255:
        raise ValueError(f"{value!r} is no protocol: a number is from 1 to 255")
    return number


def _port(value: Any) -> PortRange | str:
    """A number, a range `first:last`, or a name."""
    if isinstance(value, PortRange):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        first, last = value, value
    elif isinstance(value, str) and re.fullmatch(r"\d+(:\d+)?", value):
        ends = [int(text) for text in value.split(":")]
        first, last = ends[0], ends[-1]
    elif isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    else:
        raise ValueError(f"{value!r} is no port number, range or name")
    if first > last or first not in _ANY_PORT or last not in _ANY_PORT:
        raise ValueError(f"{value!r} is no range of ports from 0 to 65535")
    return PortRange(first, last)


def _excluded(text: str) -> str:
    if network_of(text).prefixlen == 0:
        raise ValueError(f"{text} excludes everything")
    return text


def _address(text: str) -> str:
    ip_address(text)
    return text


def _any_network(text: str) -> str:
    """A network or address; bits behind the prefix length do no harm here."""
    ip_network(text, strict=False)
    return text


AccountName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
OwnSelector = Annotated[str, AfterValidator(_own_selector)]
OuterSelector = Annotated[str, AfterValidator(_outer_selector)]
NamespaceSelector = Annotated[str, AfterValidator(_namespace_selector)]
ProtocolNumber = Annotated[int, BeforeValidator(protocol_number)]
AddressText = Annotated[str, AfterValidator(_address)]
PortText = Annotated[PortRange | str, BeforeValidator(_port)]
Nets = Annotated[tuple[NetworkText, ...], Field(max_length=NETS_MAX)]
NotNets = Annotated[
    tuple[Annotated[NetworkText, AfterValidator(_excluded)], ...], Field(max_length=NETS_MAX)
]
Ports = Annotated[tuple[PortText, ...], Field(max_length=PORTS_MAX)]
Types = Annotated[tuple[Literal["Ingress", "Egress"], ...], Field(max_length=2)]


class ServiceAccountsWire(Wire):
    """`serviceAccounts` of a rule's end."""

    names: tuple[AccountName, ...] = ()
    selector: OuterSelector = ""


class IcmpWire(Wire):
    """`icmp`, `notICMP`."""

    type: int | None = Field(default=None, ge=0, le=254)
    code: int | None = Field(default=None, ge=0, le=255)

    @model_validator(mode="after")
    def _whole(self) -> IcmpWire:
        if self.code is not None and self.type is None:
            raise ValueError("a code needs a type")
        return self


class EntityWire(Wire):
    """`source`, `destination`."""

    nets: Nets = ()
    not_nets: NotNets = ()
    selector: OwnSelector = ""
    not_selector: OwnSelector = ""
    namespace_selector: NamespaceSelector = ""
    ports: Ports = ()
    not_ports: Ports = ()
    service_accounts: ServiceAccountsWire | None = None
    services: Any = None

    @model_validator(mode="after")
    def _obeyed(self) -> EntityWire:
        if self.services is not None:
            raise ValueError("services: this agent knows no matches by service; use a selector")
        return self


class RuleWire(Wire):
    """A rule."""

    action: Action
    ip_version: Literal[4, 6] | None = Field(default=None, alias="ipVersion")
    protocol: ProtocolNumber | None = None
    not_protocol: ProtocolNumber | None = None
    icmp: IcmpWire | None = None
    not_icmp: IcmpWire | None = Field(default=None, alias="notICMP")
    source: EntityWire = EntityWire()
    destination: EntityWire = EntityWire()

    @model_validator(mode="after")
    def _consistent(self) -> RuleWire:
        ends = (self.source, self.destination)
        ports = [port for end in ends for port in (*end.ports, *end.not_ports)]
        if any(isinstance(port, PortRange) for port in ports) and self.protocol not in WITH_PORTS:
            raise ValueError("port numbers need protocol TCP, UDP or SCTP")
        if ports and self.protocol is not None and self.protocol not in WITH_PORTS:
            raise ValueError(f"protocol {_NAMES_OF.get(self.protocol, self.protocol)} has no ports")
        if (self.icmp or self.not_icmp) and self.protocol not in (ICMP, ICMPV6):
            raise ValueError("ICMP types need protocol ICMP or ICMPv6")
        families = {network_of(net).version for end in ends for net in (*end.nets, *end.not_nets)}
        families |= {self.ip_version} if self.ip_version else set()
        families |= {4} if self.protocol == ICMP else {6} if self.protocol == ICMPV6 else set()
        if len(families) > 1:
            raise ValueError("networks, ipVersion and ICMP must be of one IP family")
        return self


Rules = Annotated[tuple[RuleWire, ...], Field(max_length=RULES_MAX)]


class PolicySpecWire(Wire):
    """`spec` of NetworkPolicy and GlobalNetworkPolicy."""

    tier: str = DEFAULT_TIER
    order: float | None = None
    selector: OwnSelector = ""
    namespace_selector: OuterSelector = ""
    service_account_selector: OuterSelector = ""
    types: Types = ()
    ingress: Rules = ()
    egress: Rules = ()
    do_not_track: bool = False
    pre_dnat: bool = Field(default=False, alias="preDNAT")
    apply_on_forward: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> PolicySpecWire:
        if self.do_not_track and self.pre_dnat:
            raise ValueError("doNotTrack and preDNAT exclude each other")
        if (self.do_not_track or self.pre_dnat) and not self.apply_on_forward:
            raise ValueError("doNotTrack and preDNAT need applyOnForward")
        if self.pre_dnat and (self.egress or "Egress" in self.types):
            raise ValueError("preDNAT has no egress")
        return self


class ProfileSpecWire(Wire):
    """`Profile.spec`."""

    ingress: Rules = ()
    egress: Rules = ()
    labels_to_apply: dict[str, str] = Field(default_factory=dict)


class NetworkSetSpecWire(Wire):
    """`spec` of NetworkSet and GlobalNetworkSet."""

    nets: tuple[Annotated[str, AfterValidator(_any_network)], ...] = ()


class HostPortWire(Wire):
    """A named port of a host endpoint."""

    name: str
    protocol: ProtocolNumber
    port: int = Field(ge=1, lt=1 << 16)


class HostEndpointSpecWire(Wire):
    """`HostEndpoint.spec`."""

    node: str = Field(min_length=1)
    interface_name: str = ""
    expected_ips: tuple[AddressText, ...] = Field(default=(), alias="expectedIPs")
    profiles: tuple[str, ...] = ()
    ports: tuple[HostPortWire, ...] = ()

    @model_validator(mode="after")
    def _findable(self) -> HostEndpointSpecWire:
        if not self.interface_name and not self.expected_ips:
            raise ValueError("interfaceName or expectedIPs must say which interface it is")
        if self.interface_name and not _INTERFACE.fullmatch(self.interface_name):
            raise ValueError(f"interfaceName: {self.interface_name!r} is no interface's name")
        return self


_SPECS: dict[Kind, type[Wire]] = {
    Kind.NETWORK_POLICY: PolicySpecWire,
    Kind.GLOBAL_NETWORK_POLICY: PolicySpecWire,
    Kind.PROFILE: ProfileSpecWire,
    Kind.NETWORK_SET: NetworkSetSpecWire,
    Kind.GLOBAL_NETWORK_SET: NetworkSetSpecWire,
    Kind.HOST_ENDPOINT: HostEndpointSpecWire,
}


def problem_of(resource: Resource) -> str:
    """What is wrong with a resource, as `spec.ingress.0.protocol: why`; empty: nothing."""
    model = _SPECS.get(Kind(resource.kind))
    if model is None:
        return ""
    spec = _spec(resource)
    try:
        model.model_validate(spec)
    except ValidationError as error:
        return _first(error)
    namespaced = Kind(resource.kind) is Kind.NETWORK_POLICY
    for field in ("namespaceSelector", "doNotTrack", "preDNAT", "applyOnForward"):
        if namespaced and spec.get(field):
            return f"spec.{field}: only a GlobalNetworkPolicy has it"
    return ""


def read_policy(resource: Resource) -> Policy:
    """The policy that a NetworkPolicy or GlobalNetworkPolicy is."""
    namespace = resource.metadata.namespace if Kind(resource.kind).namespaced else ""
    policy_id = PolicyId(resource.metadata.name, namespace, resource.kind)
    if problem := problem_of(resource):
        return _refused(policy_id, _spec(resource), problem)
    spec = PolicySpecWire.model_validate(_spec(resource))
    types = spec.types or _default_types(spec)
    return Policy(
        id=policy_id,
        selector=_subject(spec, namespace),
        tier=spec.tier or DEFAULT_TIER,
        order=spec.order,
        ingress=_rules(spec.ingress, namespace) if "Ingress" in types else None,
        egress=_rules(spec.egress, namespace) if "Egress" in types else None,
        untracked=spec.do_not_track,
        pre_dnat=spec.pre_dnat,
        forwarded=spec.apply_on_forward,
    )


def read_profile(resource: Resource) -> Profile:
    """The profile that a resource is; one that is wrong gives no labels and allows nothing."""
    if problem := problem_of(resource):
        return Profile(resource.metadata.name, problem=problem)
    spec = ProfileSpecWire.model_validate(_spec(resource))
    return Profile(
        resource.metadata.name,
        tuple(sorted(spec.labels_to_apply.items())),
        _rules(spec.ingress, ""),
        _rules(spec.egress, ""),
    )


def read_network_set(resource: Resource) -> Item:
    """The networks and labels of a NetworkSet or GlobalNetworkSet. Raises `InvalidInput`."""
    if problem := problem_of(resource):
        raise InvalidInput(f"{resource.kind} {resource.metadata.name}: {problem}")
    spec = NetworkSetSpecWire.model_validate(_spec(resource))
    labels = dict(resource.metadata.labels)
    profiles: tuple[str, ...] = ()
    if Kind(resource.kind).namespaced:
        labels[LABEL_NAMESPACE] = resource.metadata.namespace
        profiles = (f"{NAMESPACE_PROFILE}{resource.metadata.namespace}",)
    nets = tuple(ip_network(text, strict=False) for text in spec.nets)
    return Item(tuple(sorted(labels.items())), profiles, nets)


def read_host_endpoint(resource: Resource) -> Item:
    """What selectors see of a HostEndpoint. Raises `InvalidInput`."""
    if problem := problem_of(resource):
        raise InvalidInput(f"{resource.kind} {resource.metadata.name}: {problem}")
    spec = HostEndpointSpecWire.model_validate(_spec(resource))
    return Item(
        tuple(sorted(resource.metadata.labels.items())),
        spec.profiles,
        tuple(ip_network(text) for text in spec.expected_ips),
        tuple(NamedPort(port.name, port.protocol, port.port) for port in spec.ports),
    )


def read_host_end(resource: Resource) -> HostEnd:
    """Which node's which link a HostEndpoint is. Never raises: what is wrong is its `problem`."""
    name, spec = resource.metadata.name, _spec(resource)
    if problem := problem_of(resource):
        link, node = spec.get("interfaceName"), spec.get("node")
        known = isinstance(link, str) and _INTERFACE.fullmatch(link)
        return HostEnd(
            name,
            node if isinstance(node, str) else "",
            str(link) if known else "",
            frozenset(_readable_addresses(spec.get("expectedIPs"))),
            problem=problem,
        )
    wire = HostEndpointSpecWire.model_validate(spec)
    addresses = frozenset(ip_address(text) for text in wire.expected_ips)
    return HostEnd(name, wire.node, wire.interface_name, addresses, wire.profiles)


def _readable_addresses(texts: object) -> Iterator[IPv4Address | IPv6Address]:
    for text in texts if isinstance(texts, list | tuple) else ():
        with suppress(ValueError):
            yield ip_address(str(text))


def both(*parts: str) -> str:
    """The selector of what all of these select; `""` among them is any."""
    given = [part for part in parts if part]
    return given[0] if len(given) == 1 else " && ".join(f"({part})" for part in given)


def in_namespace(namespace: str) -> str:
    """The selector of what is in a namespace."""
    return f"{LABEL_NAMESPACE} == '{namespace}'"


def of_namespaces(text: str) -> str:
    """The selector of what is in the namespaces that a selector of namespaces selects."""
    if _GLOBAL.fullmatch(text):
        return f"!has({LABEL_NAMESPACE})"
    if selects_all(text):
        return f"has({LABEL_NAMESPACE})"
    return prefixed(text, NAMESPACE_PREFIX)


def _spec(resource: Resource) -> dict[str, Any]:
    spec = resource.to_wire()["spec"]
    return spec if isinstance(spec, dict) else {}


def _first(error: ValidationError) -> str:
    """One line: the field's path and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    path = ".".join(("spec", *(str(part) for part in first["loc"])))
    return f"{path}: {first['msg'].removeprefix('Value error, ')}"


def _refused(policy_id: PolicyId, spec: Mapping[str, Any], problem: str) -> Policy:
    """A policy that cannot be obeyed, about those it selects, or about all it might select."""
    own: dict[str, str] = {}
    for field in ("selector", "namespaceSelector", "serviceAccountSelector"):
        try:
            own[field] = _outer_selector(spec.get(field) or "")
        except (ValueError, TypeError):
            own[field] = ""
    subject = PolicySpecWire.model_validate(own)
    tier = spec.get("tier")
    return Policy(
        id=policy_id,
        selector=_subject(subject, policy_id.namespace),
        tier=tier if isinstance(tier, str) and tier else DEFAULT_TIER,
        forwarded=spec.get("applyOnForward") not in (None, False),
        problem=problem,
    )


def _default_types(spec: PolicySpecWire) -> tuple[str, ...]:
    """Calico's: ingress, unless there are only egress rules."""
    if spec.egress:
        return ("Ingress", "Egress") if spec.ingress else ("Egress",)
    return ("Ingress",)


def _subject(spec: PolicySpecWire, namespace: str) -> str:
    accounts = spec.service_account_selector
    return (
        both(
            in_namespace(namespace) if namespace else "",
            of_namespaces(spec.namespace_selector) if spec.namespace_selector else "",
            prefixed(accounts, SERVICE_ACCOUNT_PREFIX) if accounts else "",
            spec.selector,
        )
        or "all()"
    )


def _rules(rules: Iterable[RuleWire], namespace: str) -> tuple[PolicyRule, ...]:
    return tuple(
        PolicyRule(
            action=rule.action,
            version=rule.ip_version,
            protocol=rule.protocol,
            not_protocol=rule.not_protocol,
            icmp=_icmp(rule.icmp),
            not_icmp=_icmp(rule.not_icmp),
            source=_entity(rule.source, namespace),
            destination=_entity(rule.destination, namespace),
        )
        for rule in rules
    )


def _icmp(wire: IcmpWire | None) -> Icmp | None:
    return None if wire is None or wire.type is None else Icmp(wire.type, wire.code)


def _entity(wire: EntityWire, namespace: str) -> Entity:
    """A rule of a namespaced policy is about its own namespace, unless it says which others."""
    own = both(_accounts(wire.service_accounts), wire.selector)
    where = ""
    if wire.namespace_selector:
        where = of_namespaces(wire.namespace_selector)
    elif namespace and (own or wire.not_selector):
        where = in_namespace(namespace)
    return Entity(
        nets=tuple(network_of(text) for text in wire.nets),
        not_nets=tuple(network_of(text) for text in wire.not_nets),
        selector=both(where, own) or None,
        not_selector=wire.not_selector or None,
        ports=wire.ports,
        not_ports=wire.not_ports,
    )


def _accounts(wire: ServiceAccountsWire | None) -> str:
    if wire is None:
        return ""
    names = ", ".join(f"'{name}'" for name in wire.names)
    return both(
        f"{LABEL_SERVICE_ACCOUNT} in {{ {names} }}" if names else "",
        prefixed(wire.selector, SERVICE_ACCOUNT_PREFIX) if wire.selector else "",
    )
