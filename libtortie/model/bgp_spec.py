"""The specs of Calico's BGP resources, field by field, as whoever speaks BGP reads them.

The store keeps these kinds as they are written; here they are read. A BGPFilter must be obeyed as
a whole: a field of a rule that is not known might restrict it, so it is as wrong as a community
that is none. A BGPPeer and a BGPConfiguration keep what is not known in `model_extra`, for their
reader to name. Nothing here corrects a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.fields import ASNumber, NetworkText, network_of
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import can_be_reached, plain_address
from libtortie.model.resources import Wire
from libtortie.model.times import parse_duration

BGP_PORT = 179
PORT_MAX = 65535
PRIORITY_MAX = 2147483646
OPERATIONS_MAX = 10
PASSWORD_MAX = 80
"""What TCP's MD5 signatures take (TCP_MD5SIG_MAXKEYLEN)."""
INTERFACE = re.compile(r"[a-zA-Z0-9_.*-]{1,15}")
_COMMUNITY = re.compile(r"[0-9]{1,10}:[0-9]{1,10}(:[0-9]{1,10})?")
_SECRET = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_SECRET_KEY = r"^[a-zA-Z0-9._-]{1,253}$"


def community_of(text: str) -> tuple[int, ...]:
    """`aa:nn` (RFC 1997) or `aa:nn:mm` (RFC 8092) as numbers. Raises ValueError."""
    parts = tuple(int(part) for part in text.split(":")) if _COMMUNITY.fullmatch(text) else ()
    if not parts:
        raise ValueError(f"{text!r} is no community aa:nn or aa:nn:mm")
    bits = 16 if len(parts) == 2 else 32
    if max(parts) >= 1 << bits:
        raise ValueError(f"{text!r} is no community: each part of it has {bits} bits")
    return parts


def seconds_of(text: str, least: int, most: int) -> int:
    """Whole seconds of a Go duration, rounded up. Raises ValueError outside least..most."""
    seconds = -int(-parse_duration(text) // 1)
    if not least <= seconds <= most:
        raise ValueError(f"{text!r} is outside {least}s..{most}s")
    return seconds


def address_and_port(text: str) -> tuple[IPAddress, int]:
    """`192.0.2.1`, `192.0.2.1:179`, `2001:db8::1` or `[2001:db8::1]:179`. Raises ValueError."""
    host, port = text, str(BGP_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [address]:port")
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= PORT_MAX):
        raise ValueError(f"{text!r}: {port!r} is not a port")
    return plain_address(host), int(port)


def peering_address(text: str, version: int) -> IPAddress:
    """A `localWorkloadPeeringIPV4` or `-IPV6`. Raises ValueError."""
    found = plain_address(text)
    near = found.version == 4 and found.is_link_local
    if found.version != version or not (near or can_be_reached(found)):
        raise ValueError(f"{text!r} is no IPv{version} address that a workload can send to")
    return found


def _checked(check: Any, *, empty: bool = True) -> AfterValidator:
    """A text stays as it is when `check` takes it; an `empty` one is as good as an absent one."""

    def checked(text: str) -> str:
        if text or not empty:
            check(text)
        return text

    return AfterValidator(checked)


def _of_family(version: int) -> AfterValidator:
    """An address of ours, of a family, that a workload can send to."""
    return _checked(lambda text: peering_address(text, version))


def _selects(text: str) -> None:
    try:
        selectors.parse(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


def _names_interface(text: str) -> None:
    if not INTERFACE.fullmatch(text):
        raise ValueError(f"{text!r} is no interface name")


def _plain_interface(text: str) -> None:
    _names_interface(text)
    if text == "*":
        raise ValueError("'*' would leave no interface")


def _word(*known: str) -> BeforeValidator:
    """One of these words in any case, as Calico takes them; an empty one is as good as none."""
    by_case = {one.lower(): one for one in known}

    def read(value: Any) -> Any:
        return by_case.get(value.lower(), value) if isinstance(value, str) else value

    return BeforeValidator(read)


SelectorText = Annotated[str, _checked(_selects)]
AddressText = Annotated[str, _checked(plain_address)]
CommunityText = Annotated[str, _checked(community_of, empty=False)]
InterfaceText = Annotated[str, _checked(_names_interface)]
IgnoredText = Annotated[str, _checked(_plain_interface, empty=False)]
RestartText = Annotated[str, _checked(lambda text: seconds_of(text, 0, 4095))]
KeepaliveText = Annotated[str, _checked(lambda text: seconds_of(text, 1, 21845))]
PriorityNumber = Annotated[int, Field(ge=1, le=PRIORITY_MAX)]
RealAS = Annotated[ASNumber, Field(ge=1)]
Action = Annotated[Literal["Accept", "Reject"], _word("Accept", "Reject")]
Severity = Annotated[
    Literal["", "Trace", "Debug", "Info", "Warning", "Error", "Fatal"],
    _word("Trace", "Debug", "Info", "Warning", "Error", "Fatal"),
]


class _Strict(Wire):
    model_config = ConfigDict(extra="forbid")


class SecretKeyRefWire(_Strict):
    """Which key of which Secret; `optional` is Kubernetes' own."""

    name: str = Field(pattern=_SECRET)
    key: str = Field(pattern=_SECRET_KEY)
    optional: bool = False


class PasswordWire(_Strict):
    """Where a session's password is."""

    secret_key_ref: SecretKeyRefWire


class BGPPeerWire(Wire):
    """`BGPPeer.spec`. What excludes what is checked here; `peerIP` is parsed by its reader."""

    node: str = ""
    node_selector: SelectorText = ""
    peer_ip: str = Field(default="", alias="peerIP")
    as_number: ASNumber = Field(default=0, alias="asNumber")
    local_as_number: ASNumber = Field(default=0, alias="localASNumber")
    peer_selector: SelectorText = ""
    local_workload_selector: SelectorText = ""
    keep_original_next_hop: bool = False
    next_hop_mode: Literal["", "Auto", "Self", "Keep"] = ""
    password: PasswordWire | None = None
    source_address: Literal["", "UseNodeIP", "None"] = ""
    max_restart_time: RestartText = ""
    keepalive_time: KeepaliveText = ""
    num_allowed_local_as_numbers: int = Field(
        default=0, ge=0, le=255, alias="numAllowedLocalASNumbers"
    )
    ttl_security: int = Field(default=0, ge=0, le=255)
    reachable_by: AddressText = ""
    filters: tuple[str, ...] = ()
    reverse_peering: Literal["", "Auto", "Manual"] = ""

    @model_validator(mode="after")
    def _consistent(self) -> BGPPeerWire:
        if self.node and self.node_selector:
            raise ValueError("node and nodeSelector exclude each other")
        ways = (self.peer_ip, self.peer_selector, self.local_workload_selector)
        if sum(map(bool, ways)) != 1:
            raise ValueError("want one of peerIP, peerSelector and localWorkloadSelector")
        if self.peer_selector and self.as_number:
            raise ValueError("peerSelector takes its nodes' AS numbers, not asNumber")
        if self.local_workload_selector and not self.as_number:
            raise ValueError("localWorkloadSelector needs asNumber")
        if self.keep_original_next_hop and self.next_hop_mode:
            raise ValueError("keepOriginalNextHop and nextHopMode exclude each other")
        if self.reachable_by and not self.peer_ip:
            raise ValueError("reachableBy needs peerIP")
        return self


class CIDRWire(Wire):
    """A range of services' addresses."""

    cidr: NetworkText


class CommunityWire(Wire):
    """A community with a name."""

    name: str = Field(min_length=1)
    value: CommunityText


class PrefixAdvertisementWire(Wire):
    """Communities, by name or value, of all routes within a network."""

    cidr: NetworkText
    communities: tuple[str, ...] = ()


class BGPConfigurationWire(Wire):
    """`BGPConfiguration.spec`, of `default` or of `node.<name>`."""

    log_severity_screen: Severity = ""
    node_to_node_mesh_enabled: bool | None = None
    as_number: ASNumber | None = Field(default=None, alias="asNumber")
    service_load_balancer_ips: tuple[CIDRWire, ...] = Field(
        default=(), alias="serviceLoadBalancerIPs"
    )
    service_external_ips: tuple[CIDRWire, ...] = Field(default=(), alias="serviceExternalIPs")
    service_cluster_ips: tuple[CIDRWire, ...] = Field(default=(), alias="serviceClusterIPs")
    service_load_balancer_aggregation: Literal["", "Enabled", "Disabled"] = ""
    communities: tuple[CommunityWire, ...] = ()
    prefix_advertisements: tuple[PrefixAdvertisementWire, ...] = ()
    listen_port: int = Field(default=0, ge=0, le=65535)
    node_mesh_password: PasswordWire | None = None
    node_mesh_max_restart_time: RestartText = ""
    bind_mode: Literal["", "None", "NodeIP"] = ""
    ignored_interfaces: tuple[IgnoredText, ...] = ()
    local_workload_peering_ipv4: Annotated[AddressText, _of_family(4)] = Field(
        default="", alias="localWorkloadPeeringIPV4"
    )
    local_workload_peering_ipv6: Annotated[AddressText, _of_family(6)] = Field(
        default="", alias="localWorkloadPeeringIPV6"
    )
    program_cluster_routes: Literal[
        "", "Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"
    ] = ""
    ipv4_normal_route_priority: int = Field(
        default=0, ge=0, le=PRIORITY_MAX, alias="ipv4NormalRoutePriority"
    )
    ipv6_normal_route_priority: int = Field(
        default=0, ge=0, le=PRIORITY_MAX, alias="ipv6NormalRoutePriority"
    )


ONLY_DEFAULT = frozenset(
    {
        "node_to_node_mesh_enabled",
        "as_number",
        "service_load_balancer_ips",
        "service_external_ips",
        "service_cluster_ips",
        "service_load_balancer_aggregation",
        "node_mesh_password",
        "node_mesh_max_restart_time",
        "local_workload_peering_ipv4",
        "local_workload_peering_ipv6",
    }
)
"""Fields of a BGPConfiguration that mean something in `default` alone."""


class PrefixLengthWire(_Strict):
    """Prefix lengths from `min` to `max`, both inclusive; an absent one does not restrict."""

    min: int | None = Field(default=None, ge=0, le=128)
    max: int | None = Field(default=None, ge=0, le=128)


class CommunitiesWire(_Strict):
    """Exactly one community."""

    values: tuple[CommunityText, ...] = Field(min_length=1, max_length=1)


class AddCommunityWire(_Strict):
    """A community to add."""

    value: CommunityText


class PrependASPathWire(_Strict):
    """AS numbers to put before a path, the first of them outermost."""

    prefix: tuple[RealAS, ...] = Field(min_length=1, max_length=OPERATIONS_MAX)


class SetPriorityWire(_Strict):
    """The priority (metric) to give."""

    value: PriorityNumber


class OperationWire(_Strict):
    """One change of an accepted route."""

    add_community: AddCommunityWire | None = None
    prepend_as_path: PrependASPathWire | None = Field(default=None, alias="prependASPath")
    set_priority: SetPriorityWire | None = None

    @model_validator(mode="after")
    def _one(self) -> OperationWire:
        ways = (self.add_community, self.prepend_as_path, self.set_priority)
        if sum(one is not None for one in ways) != 1:
            raise ValueError("want one of addCommunity, prependASPath and setPriority")
        return self


class FilterRuleWire(_Strict):
    """A rule: what a route must be (all of it), and what then happens to it."""

    cidr: NetworkText | Literal[""] = ""
    match_operator: Annotated[
        Literal["", "Equal", "NotEqual", "In", "NotIn"], _word("Equal", "NotEqual", "In", "NotIn")
    ] = ""
    prefix_length: PrefixLengthWire | None = None
    source: Literal["", "RemotePeers"] = ""
    interface: InterfaceText = ""
    peer_type: Literal["", "eBGP", "iBGP"] = ""
    communities: CommunitiesWire | None = None
    as_path_prefix: tuple[RealAS, ...] = Field(default=(), alias="asPathPrefix")
    priority: PriorityNumber | None = None
    action: Action
    operations: tuple[OperationWire, ...] = Field(default=(), max_length=OPERATIONS_MAX)

    @model_validator(mode="after")
    def _consistent(self) -> FilterRuleWire:
        if bool(self.cidr) != bool(self.match_operator):
            raise ValueError("cidr and matchOperator go together")
        if self.prefix_length is not None:
            self._check_lengths(self.prefix_length)
        if self.operations and self.action != "Accept":
            raise ValueError("operations need action Accept")
        return self

    def _check_lengths(self, lengths: PrefixLengthWire) -> None:
        if not self.cidr:
            raise ValueError("prefixLength needs cidr")
        longest = network_of(self.cidr).max_prefixlen
        least = 0 if lengths.min is None else lengths.min
        most = longest if lengths.max is None else lengths.max
        if not least <= most <= longest:
            raise ValueError(f"prefixLength {least}..{most} is not within 0..{longest}")


class BGPFilterWire(_Strict):
    """`BGPFilter.spec`."""

    export_v4: tuple[FilterRuleWire, ...] = Field(default=(), alias="exportV4")
    import_v4: tuple[FilterRuleWire, ...] = Field(default=(), alias="importV4")
    export_v6: tuple[FilterRuleWire, ...] = Field(default=(), alias="exportV6")
    import_v6: tuple[FilterRuleWire, ...] = Field(default=(), alias="importV6")

    @model_validator(mode="before")
    @classmethod
    def _families(cls, data: Any) -> Any:
        """A network of the other family matches nothing: it was meant otherwise."""
        if not isinstance(data, Mapping):
            return data
        for name, version in (("V4", 4), ("V6", 6)):
            for way in ("export", "import"):
                rules = data.get(way + name)
                for rule in rules if isinstance(rules, list | tuple) else ():
                    _same_family(rule, version, way + name)
        return data


def _same_family(rule: Any, version: int, where: str) -> None:
    cidr = rule.get("cidr") if isinstance(rule, Mapping) else None
    if isinstance(cidr, str) and "/" in cidr and (":" in cidr) != (version == 6):
        raise ValueError(f"{where}: {cidr} is not IPv{version}")
