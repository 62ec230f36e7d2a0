"""The specs of Calico's policy resources, as they are written: field by field, and checked.

Whatever a policy says must be obeyed: a field of a rule that is not known might restrict it, so it
is as wrong as a port that is none. `policy_wire.py` makes values of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.field_errors import InconsistentError
from libtortie.model.fields import NetworkText, network_of
from libtortie.model.plain_ip import plain_address, plain_network
from libtortie.model.policy import (
    DEFAULT_TIER,
    ICMP,
    ICMPV6,
    NAMESPACE_PREFIX,
    PROTOCOLS,
    WITH_PORTS,
    Action,
    PortRange,
)
from libtortie.model.resources import Wire
from libtortie.model.selector_text import is_global, prefixed

RULES_MAX, NETS_MAX, PORTS_MAX, SELECTOR_MAX = 1024, 256, 50, 1024
_PORT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
INTERFACE = re.compile(r"\*|[a-zA-Z0-9_.-]{1,15}")
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


def outer_selector(text: str) -> str:
    """A selector of namespaces or service accounts: also readable with prefixed names."""
    _own_selector(text)
    try:
        selectors.parse(f"(({prefixed(text, NAMESPACE_PREFIX)}))")
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


def _namespace_selector(text: str) -> str:
    return text if is_global(text) else outer_selector(text)


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
    plain_address(text)
    return text


def _any_network(text: str) -> str:
    """A network or address; bits behind the prefix length do no harm here."""
    plain_network(text)
    return text


AccountName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
OwnSelector = Annotated[str, AfterValidator(_own_selector)]
OuterSelector = Annotated[str, AfterValidator(outer_selector)]
NamespaceSelector = Annotated[str, AfterValidator(_namespace_selector)]
ProtocolNumber = Annotated[int, BeforeValidator(protocol_number)]
AddressText = Annotated[str, AfterValidator(_address)]
PortText = Annotated[PortRange | str, BeforeValidator(_port)]
Nets = Annotated[tuple[NetworkText, ...], Field(max_length=NETS_MAX)]
NotNets = Annotated[
    tuple[Annotated[NetworkText, AfterValidator(_excluded)], ...], Field(max_length=NETS_MAX)
]
Ports = Annotated[tuple[PortText, ...], Field(max_length=PORTS_MAX)]
TierName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")]
Types = Annotated[tuple[Literal["Ingress", "Egress"], ...], Field(max_length=2)]


class Spec(Wire):
    """Part of a spec as Calico reads it: a field has the name that is written, and no other."""

    model_config = ConfigDict(populate_by_name=False)


class Exact(Spec):
    """A part of a policy: whatever it says must be obeyed, so it says nothing unknown."""

    model_config = ConfigDict(extra="forbid")


class ServiceAccountsWire(Exact):
    """`serviceAccounts` of a rule's end."""

    names: tuple[AccountName, ...] = ()
    selector: OuterSelector = ""


class IcmpWire(Exact):
    """`icmp`, `notICMP`."""

    type: int | None = Field(default=None, ge=0, le=254)
    code: int | None = Field(default=None, ge=0, le=255)

    @model_validator(mode="after")
    def _whole(self) -> IcmpWire:
        if self.code is not None and self.type is None:
            raise ValueError("a code needs a type")
        return self


class ServicesWire(Exact):
    """`services` of a rule's end; without a namespace, the policy's own."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    namespace: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")] = ""


class EntityWire(Exact):
    """`source`, `destination`."""

    nets: Nets = ()
    not_nets: NotNets = ()
    selector: OwnSelector = ""
    not_selector: OwnSelector = ""
    namespace_selector: NamespaceSelector = ""
    ports: Ports = ()
    not_ports: Ports = ()
    service_accounts: ServiceAccountsWire | None = None
    services: ServicesWire | None = None

    @model_validator(mode="after")
    def _alone(self) -> EntityWire:
        """A Service says addresses and ports itself; Calico refuses to narrow it, too."""
        others = sorted(one for one in self.model_fields_set if one != "services")
        given = [to_camel(one) for one in others if getattr(self, one)]
        if self.services is not None and given:
            raise InconsistentError([("services", f"excludes {', '.join(given)}")])
        return self


class RuleWire(Exact):
    """A rule."""

    action: Action
    ip_version: Literal[4, 6] | None = Field(default=None, alias="ipVersion")
    protocol: ProtocolNumber | None = None
    not_protocol: ProtocolNumber | None = None
    icmp: IcmpWire | None = None
    not_icmp: IcmpWire | None = Field(default=None, alias="notICMP")
    source: EntityWire = EntityWire()
    destination: EntityWire = EntityWire()
    metadata: Any = None

    @model_validator(mode="after")
    def _consistent(self) -> RuleWire:
        if problems := [*self._ports_problems(), *self._family_problems()]:
            raise InconsistentError(problems)
        return self

    def _ports_problems(self) -> Iterator[tuple[str, str]]:
        name = _NAMES_OF.get(self.protocol or 0, self.protocol)
        for side, end in (("source", self.source), ("destination", self.destination)):
            for field, ports in (("ports", end.ports), ("notPorts", end.not_ports)):
                if not ports or self.protocol in WITH_PORTS:
                    continue
                if any(isinstance(port, PortRange) for port in ports):
                    yield f"{side}.{field}", "port numbers need protocol TCP, UDP or SCTP"
                elif self.protocol is not None:
                    yield f"{side}.{field}", f"protocol {name} has no ports"

    def _family_problems(self) -> Iterator[tuple[str, str]]:
        icmp = self.protocol in (ICMP, ICMPV6)
        for field, given in (("icmp", self.icmp), ("notICMP", self.not_icmp)):
            if given and not icmp:
                yield field, "ICMP types need protocol ICMP or ICMPv6"
        ends = (self.source, self.destination)
        families = {network_of(net).version for end in ends for net in (*end.nets, *end.not_nets)}
        families |= {self.ip_version} if self.ip_version else set()
        families |= {4 if self.protocol == ICMP else 6} if icmp else set()
        if len(families) > 1:
            yield "", "networks, ipVersion and ICMP must be of one IP family"


Rules = Annotated[tuple[RuleWire, ...], Field(max_length=RULES_MAX)]


class PolicySpecWire(Exact):
    """`spec` of NetworkPolicy and GlobalNetworkPolicy."""

    tier: TierName = DEFAULT_TIER
    order: float | None = Field(default=None, allow_inf_nan=False)
    selector: OwnSelector = ""
    namespace_selector: OuterSelector = ""
    service_account_selector: OuterSelector = ""
    types: Types = ()
    ingress: Rules = ()
    egress: Rules = ()
    do_not_track: bool = False
    pre_dnat: bool = Field(default=False, alias="preDNAT")
    apply_on_forward: bool = False
    performance_hints: Any = None

    @model_validator(mode="after")
    def _services(self) -> PolicySpecWire:
        _require_services_at_far_ends(self)
        return self


class ProfileSpecWire(Exact):
    """`Profile.spec`."""

    ingress: Rules = ()
    egress: Rules = ()
    labels_to_apply: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _services(self) -> ProfileSpecWire:
        _require_services_at_far_ends(self)
        return self


def _require_services_at_far_ends(spec: PolicySpecWire | ProfileSpecWire) -> None:
    """A Service may be where ingress comes from, and where egress goes to."""
    own = [("ingress", one, "destination") for one in enumerate(spec.ingress)]
    own += [("egress", one, "source") for one in enumerate(spec.egress)]
    problems = [
        (f"{way}.{number}.{side}.services", f"{way} rules have none of their own side")
        for way, (number, rule), side in own
        if getattr(rule, side).services is not None
    ]
    if problems:
        raise InconsistentError(problems)


class NetworkSetSpecWire(Exact):
    """`spec` of NetworkSet and GlobalNetworkSet."""

    nets: tuple[Annotated[str, AfterValidator(_any_network)], ...] = ()


class HostPortWire(Spec):
    """A named port of a host endpoint."""

    name: str
    protocol: ProtocolNumber
    port: int = Field(ge=1, lt=1 << 16)


class HostEndpointSpecWire(Spec):
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
        if self.interface_name and not INTERFACE.fullmatch(self.interface_name):
            raise ValueError(f"interfaceName: {self.interface_name!r} is no interface's name")
        return self
