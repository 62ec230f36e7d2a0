"""projectcalico.org/v3 resources as frozen pydantic models: the wire form, validated once.

Unknown fields are kept and written back after the known ones (`extra="allow"`), so a resource
that a newer Calico wrote survives our rewrite. Omission follows Calico's Go tags: empty values
are left out unless the field is named in `_always`; a field whose default is None is Go's
pointer, left out only when it is None, so that an explicit `false`, `0` or `[]` is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from libtortie.errors import Malformed
from libtortie.model.fields import (
    AllowedUses,
    ASNumber,
    AssignmentMode,
    Encapsulation,
    NetworkText,
    PersistenceText,
    ReservedText,
    block_size_of,
)
from libtortie.model.keys import Kind, ResourceKey

API_VERSION = "projectcalico.org/v3"


class Wire(BaseModel):
    """A JSON object of the wire: camelCase names, immutable, unknown fields kept."""

    model_config = ConfigDict(
        frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True
    )
    _always: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Go reads `null` as the zero value (`"creationTimestamp":null` of older writers)."""
        if not isinstance(data, Mapping) or None not in data.values():
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    def to_wire(self) -> dict[str, Any]:
        """The JSON object as Calico would write it: declared order, empties omitted."""
        out: dict[str, Any] = {}
        held = self.__dict__
        for name, alias, always, pointer in _layout(type(self)):
            value = held[name]
            if type(value) not in _SCALARS:
                value = _plain(value)
            if value or always or (pointer and value is not None):
                out[alias] = value
        for name, value in (self.model_extra or {}).items():
            out.setdefault(name, value)
        return out


@cache
def _layout(kind: type[Wire]) -> tuple[tuple[str, str, bool, bool], ...]:
    """Of each field: its name, its name on the wire, whether it is always written, and whether it
    is Go's pointer."""
    return tuple(
        (name, field.alias or name, name in kind._always, field.default is None)
        for name, field in kind.model_fields.items()
    )


_SCALARS = frozenset({str, bool, int, type(None)})
"""What nearly all values are, in lists of thousands of resources: written as they are."""


def _plain(value: Any) -> Any:
    """A declared value; its mappings are Go maps, which are written in key order."""
    if isinstance(value, Wire):
        return value.to_wire()
    if isinstance(value, Mapping):
        return {
            key: one if type(one) in _SCALARS else _plain(one) for key, one in sorted(value.items())
        }
    if isinstance(value, list | tuple):
        return [item if type(item) in _SCALARS else _plain(item) for item in value]
    return value


class OwnerReference(Wire):
    """`metadata.ownerReferences[]`."""

    _always: ClassVar[frozenset[str]] = frozenset({"api_version", "kind", "name", "uid"})
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire):
    """`metadata`; `resourceVersion` is the store's business and never in here."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Resource(Wire):
    """Any v3 resource: kind, metadata, spec."""

    _always: ClassVar[frozenset[str]] = frozenset({"kind", "api_version", "metadata", "spec"})
    kind: str
    api_version: str = API_VERSION
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> ResourceKey:
        """The key under which it is stored."""
        kind = Kind(self.kind)
        namespace = self.metadata.namespace if kind.namespaced else ""
        return ResourceKey(kind, self.metadata.name, namespace)


class GenericSpec(Wire):
    """A spec we store and return but do not read."""


class GenericResource(Resource):
    """A resource of a kind that has no model yet: everything is kept as it was."""

    spec: GenericSpec = GenericSpec()


class IPPoolSpec(Wire):
    """`IPPool.spec`; what older writers left out is filled in with Calico's stored defaults."""

    cidr: NetworkText
    vxlan_mode: Encapsulation = "Never"
    ipip_mode: Encapsulation = "Never"
    nat_outgoing: bool = False
    disabled: bool = False
    block_size: int = 0
    node_selector: str = "all()"
    namespace_selector: str = ""
    disable_bgp_export: bool = Field(default=False, alias="disableBGPExport")
    allowed_uses: AllowedUses = ("Workload", "Tunnel")
    assignment_mode: AssignmentMode = "Automatic"

    @model_validator(mode="before")
    @classmethod
    def _checked_size(cls, data: Any) -> Any:
        """An absent size is checked under its own name, too."""
        if not isinstance(data, Mapping) or any(data.get(k) for k in ("blockSize", "block_size")):
            return data
        return {**data, "blockSize": 0}

    @field_validator("block_size")
    @classmethod
    def _fits(cls, stored: int, info: ValidationInfo) -> int:
        """26 or 122 where none is stored; a CIDR that cannot be read is its own error."""
        cidr = info.data.get("cidr")
        return stored if cidr is None else block_size_of(stored, cidr)


class IPPool(Resource):
    """A range of addresses."""

    kind: Literal["IPPool"] = "IPPool"
    spec: IPPoolSpec


class IPReservationSpec(Wire):
    """`IPReservation.spec`: networks and single addresses."""

    reserved_cidrs: tuple[ReservedText, ...] = Field(default=(), alias="reservedCIDRs")


class IPReservation(Resource):
    """Addresses that are never assigned automatically."""

    kind: Literal["IPReservation"] = "IPReservation"
    spec: IPReservationSpec = IPReservationSpec()


class IPAMConfigurationSpec(Wire):
    """`IPAMConfiguration.spec`."""

    _always: ClassVar[frozenset[str]] = frozenset({"strict_affinity", "auto_allocate_blocks"})
    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = Field(default=0, ge=0)
    kubevirt_persistence: PersistenceText | None = Field(
        default=None, alias="kubeVirtVMAddressPersistence"
    )
    ip_cooldown_seconds: int = Field(default=0, ge=0)


class IPAMConfiguration(Resource):
    """The resource a user edits; named `default`."""

    kind: Literal["IPAMConfiguration"] = "IPAMConfiguration"
    spec: IPAMConfigurationSpec = IPAMConfigurationSpec()


class EndpointPort(Wire):
    """A named container port."""

    _always: ClassVar[frozenset[str]] = frozenset(
        {"name", "protocol", "port", "host_port", "host_ip"}
    )
    name: str = ""
    protocol: str | int = "TCP"
    port: int = 0
    host_port: int = 0
    host_ip: str = Field(default="", alias="hostIP")


class IPNAT(Wire):
    """An address by which an endpoint is reached besides its own (Calico's floating IP)."""

    _always: ClassVar[frozenset[str]] = frozenset({"internal_ip", "external_ip"})
    internal_ip: str = Field(default="", alias="internalIP")
    external_ip: str = Field(default="", alias="externalIP")


class WorkloadEndpointSpec(Wire):
    """`WorkloadEndpoint.spec`."""

    orchestrator: str = ""
    workload: str = ""
    node: str = ""
    container_id: str = Field(default="", alias="containerID")
    pod: str = ""
    endpoint: str = ""
    service_account_name: str = ""
    ip_networks: tuple[str, ...] = ()
    ip_nats: tuple[IPNAT, ...] = Field(default=(), alias="ipNATs")
    profiles: tuple[str, ...] = ()
    interface_name: str = ""
    mac: str = ""
    ports: tuple[EndpointPort, ...] = ()
    allow_spoofed_source_prefixes: tuple[str, ...] = ()


class WorkloadEndpoint(Resource):
    """One attachment of one workload, as policy and routes see it."""

    kind: Literal["WorkloadEndpoint"] = "WorkloadEndpoint"
    spec: WorkloadEndpointSpec


class NodeBGP(Wire):
    """`Node.spec.bgp`; addresses keep their host bits (`172.31.0.11/24`)."""

    as_number: ASNumber | None = Field(default=None, alias="asNumber")
    ipv4_address: str = Field(default="", alias="ipv4Address")
    ipv6_address: str = Field(default="", alias="ipv6Address")
    ipv4_ipip_tunnel_addr: str = Field(default="", alias="ipv4IPIPTunnelAddr")
    route_reflector_cluster_id: str = Field(default="", alias="routeReflectorClusterID")


class NodeWireguard(Wire):
    """`Node.spec.wireguard`: the addresses of the WireGuard interfaces."""

    interface_ipv4_address: str = Field(default="", alias="interfaceIPv4Address")
    interface_ipv6_address: str = Field(default="", alias="interfaceIPv6Address")


class NodeSpec(Wire):
    """`Node.spec`."""

    bgp: NodeBGP | None = None
    ipv4_vxlan_tunnel_addr: str = Field(default="", alias="ipv4VXLANTunnelAddr")
    vxlan_tunnel_mac_addr: str = Field(default="", alias="vxlanTunnelMACAddr")
    ipv6_vxlan_tunnel_addr: str = Field(default="", alias="ipv6VXLANTunnelAddr")
    vxlan_tunnel_mac_addr_v6: str = Field(default="", alias="vxlanTunnelMACAddrV6")
    wireguard: NodeWireguard | None = None


class NodeStatus(Wire):
    """`Node.status`."""


class Node(Resource):
    """A node as Calico sees it; `status` is always written."""

    _always: ClassVar[frozenset[str]] = Resource._always | {"status"}
    kind: Literal["Node"] = "Node"
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class BGPConfigurationSpec(Wire):
    """`BGPConfiguration.spec`, as it is written: `bgp_spec.BGPConfigurationWire` reads it.

    A field that is wrong must not cost the others: without them a mesh would be open, or of
    another AS.
    """

    log_severity_screen: Any = ""
    node_to_node_mesh_enabled: Any = None
    as_number: Any = Field(default=None, alias="asNumber")
    service_load_balancer_ips: Any = Field(default=(), alias="serviceLoadBalancerIPs")
    service_external_ips: Any = Field(default=(), alias="serviceExternalIPs")
    service_cluster_ips: Any = Field(default=(), alias="serviceClusterIPs")
    service_load_balancer_aggregation: Any = ""
    listen_port: Any = 0


class BGPConfiguration(Resource):
    """Cluster-wide BGP; named `default`."""

    kind: Literal["BGPConfiguration"] = "BGPConfiguration"
    spec: BGPConfigurationSpec = BGPConfigurationSpec()


class BGPPeerSpec(Wire):
    """`BGPPeer.spec`; `peerIP` may carry a port."""

    node: str = ""
    node_selector: str = ""
    peer_ip: str = Field(default="", alias="peerIP")
    as_number: ASNumber = Field(default=0, alias="asNumber")


class BGPPeer(Resource):
    """A BGP session beside the mesh."""

    kind: Literal["BGPPeer"] = "BGPPeer"
    spec: BGPPeerSpec


class FelixConfigurationSpec(Wire):
    """`FelixConfiguration.spec`: what Calico's first boot stores, and what this agent obeys.

    Lists and ranges are checked by who obeys them: a wrong one is named there, and costs no other.
    """

    _always: ClassVar[frozenset[str]] = frozenset({"bpf_log_level"})
    interface_prefix: str = ""
    log_severity_screen: str = ""
    reporting_interval: str = ""
    nftables_mode: str = ""
    nftables_flow_table_offload: str = ""
    bpf_log_level: str = ""
    bpf_connect_time_load_balancing: str = ""
    bpf_host_networked_nat_without_ctlb: str = Field(
        default="", alias="bpfHostNetworkedNATWithoutCTLB"
    )
    floating_ips: str = Field(default="", alias="floatingIPs")
    workload_source_spoofing: str = ""
    ipv4_normal_route_priority: int = Field(default=0, alias="ipv4NormalRoutePriority")
    ipv4_elevated_route_priority: int = Field(default=0, alias="ipv4ElevatedRoutePriority")
    ipv6_normal_route_priority: int = Field(default=0, alias="ipv6NormalRoutePriority")
    ipv6_elevated_route_priority: int = Field(default=0, alias="ipv6ElevatedRoutePriority")
    live_migration_route_convergence_time: str = ""
    policy_gate_timeout: str = ""
    policy_gate_on_timeout: str = ""
    wireguard_enabled: bool | None = None
    wireguard_enabled_v6: bool | None = Field(default=None, alias="wireguardEnabledV6")
    vxlan_enabled: bool | None = None
    vxlan_mtu: Any = Field(default=None, alias="vxlanMTU")
    vxlan_mtu_v6: Any = Field(default=None, alias="vxlanMTUV6")
    vxlan_port: Any = None
    vxlan_vni: Any = Field(default=None, alias="vxlanVNI")
    allow_vxlan_packets_from_workloads: bool | None = Field(
        default=None, alias="allowVXLANPacketsFromWorkloads"
    )
    allow_ipip_packets_from_workloads: bool | None = Field(
        default=None, alias="allowIPIPPacketsFromWorkloads"
    )
    default_endpoint_to_host_action: str = ""
    log_prefix: str = ""
    failsafe_inbound_host_ports: Any = None
    failsafe_outbound_host_ports: Any = None
    nat_port_range: Any = Field(default=None, alias="natPortRange")
    nat_outgoing_address: str = Field(default="", alias="natOutgoingAddress")
    nat_outgoing_exclusions: str = Field(default="", alias="natOutgoingExclusions")


class FelixConfiguration(Resource):
    """Agent settings; `default`, or `node.<name>` for one node."""

    kind: Literal["FelixConfiguration"] = "FelixConfiguration"
    spec: FelixConfigurationSpec = FelixConfigurationSpec()


class ClusterInformationSpec(Wire):
    """`ClusterInformation.spec`."""

    cluster_guid: str = Field(default="", alias="clusterGUID")
    cluster_type: str = ""
    calico_version: str = ""
    datastore_ready: bool | None = None


class ClusterInformation(Resource):
    """The cluster's identity and whether its datastore may be used; named `default`."""

    kind: Literal["ClusterInformation"] = "ClusterInformation"
    spec: ClusterInformationSpec = ClusterInformationSpec()


class TierSpec(Wire):
    """`Tier.spec`; an absent `order` sorts last."""

    order: float | None = Field(default=None, allow_inf_nan=False)
    default_action: Literal["Deny", "Pass"] = "Deny"


class TierStatus(Wire):
    """`Tier.status`."""


class Tier(Resource):
    """A rank of policies; `status` is always written."""

    _always: ClassVar[frozenset[str]] = Resource._always | {"status"}
    kind: Literal["Tier"] = "Tier"
    spec: TierSpec = TierSpec()
    status: TierStatus = TierStatus()


_MODELS: dict[Kind, type[Resource]] = {
    Kind.IP_POOL: IPPool,
    Kind.IP_RESERVATION: IPReservation,
    Kind.IPAM_CONFIGURATION: IPAMConfiguration,
    Kind.WORKLOAD_ENDPOINT: WorkloadEndpoint,
    Kind.NODE: Node,
    Kind.BGP_CONFIGURATION: BGPConfiguration,
    Kind.BGP_PEER: BGPPeer,
    Kind.FELIX_CONFIGURATION: FelixConfiguration,
    Kind.CLUSTER_INFORMATION: ClusterInformation,
    Kind.TIER: Tier,
}


def parse_resource(kind: Kind, data: Mapping[str, Any]) -> Resource:
    """The resource a JSON object describes. Raises `Malformed` naming kind, name and field."""
    metadata = data.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    if data.get("kind") != kind:
        raise Malformed(f"{kind} {name!r}: kind is {data.get('kind')!r}")
    try:
        return _MODELS.get(kind, GenericResource).model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise Malformed(f"{kind} {name!r}: {where}: {reason}") from error
