"""projectcalico.org/v3 resources as frozen pydantic models: the wire form, validated once.

Unknown fields are kept and written back (`extra="allow"`), so a resource that a newer Calico
wrote survives our rewrite. Omission follows Calico's Go tags: empty values are left out unless
the field is named in `_always`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from libtortie.errors import Malformed
from libtortie.model.keys import Kind, ResourceKey

API_VERSION = "projectcalico.org/v3"


class Wire(BaseModel):
    """A JSON object of the wire: camelCase names, immutable, unknown fields kept."""

    model_config = ConfigDict(
        frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True
    )
    _always: ClassVar[frozenset[str]] = frozenset()

    def to_wire(self) -> dict[str, Any]:
        """The JSON object as Calico would write it: declared order, empties omitted."""
        out: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = _plain(getattr(self, name))
            if name in self._always or not _empty(value):
                out[field.alias or name] = value
        for name, value in (self.model_extra or {}).items():
            out[name] = _plain(value)
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, Wire):
        return value.to_wire()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _empty(value: Any) -> bool:
    return value is None or value is False or value == 0 or value in ("", [], {})


class OwnerReference(Wire):
    """`metadata.ownerReferences[]`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire):
    """`metadata`; `resourceVersion` is the store's business and never in here."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None
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
    """`IPPool.spec`."""

    cidr: str
    vxlan_mode: Literal["Never", "Always", "CrossSubnet"] = "Never"
    ipip_mode: Literal["Never", "Always", "CrossSubnet"] = "Never"
    nat_outgoing: bool = False
    disabled: bool = False
    block_size: int = 0
    node_selector: str = "all()"
    namespace_selector: str = ""
    disable_bgp_export: bool = Field(default=False, alias="disableBGPExport")
    allowed_uses: tuple[str, ...] = ("Workload", "Tunnel")
    assignment_mode: Literal["Automatic", "Manual"] = "Automatic"


class IPPool(Resource):
    """A range of addresses; `blockSize` 0 means 26 (IPv4) or 122 (IPv6)."""

    kind: Literal["IPPool"] = "IPPool"
    spec: IPPoolSpec


class IPAMConfigurationSpec(Wire):
    """`IPAMConfiguration.spec`."""

    _always: ClassVar[frozenset[str]] = frozenset({"strict_affinity", "auto_allocate_blocks"})
    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = 0
    kubevirt_persistence: Literal["Enabled", "Disabled"] | None = Field(
        default=None, alias="kubeVirtVMAddressPersistence"
    )
    ip_cooldown_seconds: int = 0


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
    protocol: str = "TCP"
    port: int = 0
    host_port: int = 0
    host_ip: str = Field(default="", alias="hostIP")


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
    profiles: tuple[str, ...] = ()
    interface_name: str = ""
    mac: str = ""
    ports: tuple[EndpointPort, ...] = ()


class WorkloadEndpoint(Resource):
    """One attachment of one workload, as policy and routes see it."""

    kind: Literal["WorkloadEndpoint"] = "WorkloadEndpoint"
    spec: WorkloadEndpointSpec


class NodeBGP(Wire):
    """`Node.spec.bgp`; addresses keep their host bits (`172.31.0.11/24`)."""

    as_number: int | None = Field(default=None, alias="asNumber")
    ipv4_address: str = Field(default="", alias="ipv4Address")
    ipv6_address: str = Field(default="", alias="ipv6Address")
    route_reflector_cluster_id: str = Field(default="", alias="routeReflectorClusterID")


class NodeSpec(Wire):
    """`Node.spec`."""

    bgp: NodeBGP | None = None


class Node(Resource):
    """A node as Calico sees it; `status` is always written."""

    _always: ClassVar[frozenset[str]] = Resource._always | {"status"}
    kind: Literal["Node"] = "Node"
    spec: NodeSpec = NodeSpec()
    status: dict[str, Any] = Field(default_factory=dict)


class BGPConfigurationSpec(Wire):
    """`BGPConfiguration.spec`."""

    log_severity_screen: str = ""
    node_to_node_mesh_enabled: bool | None = None
    as_number: int | None = Field(default=None, alias="asNumber")
    listen_port: int = 0


class BGPConfiguration(Resource):
    """Cluster-wide BGP; named `default`."""

    kind: Literal["BGPConfiguration"] = "BGPConfiguration"
    spec: BGPConfigurationSpec = BGPConfigurationSpec()


class BGPPeerSpec(Wire):
    """`BGPPeer.spec`; `peerIP` may carry a port."""

    node: str = ""
    node_selector: str = ""
    peer_ip: str = Field(default="", alias="peerIP")
    as_number: int = Field(default=0, alias="asNumber")


class BGPPeer(Resource):
    """A BGP session beside the mesh."""

    kind: Literal["BGPPeer"] = "BGPPeer"
    spec: BGPPeerSpec


class FelixConfigurationSpec(Wire):
    """`FelixConfiguration.spec`, the fields this agent obeys."""

    ipv4_normal_route_priority: int = Field(default=0, alias="ipv4NormalRoutePriority")
    ipv4_elevated_route_priority: int = Field(default=0, alias="ipv4ElevatedRoutePriority")
    ipv6_normal_route_priority: int = Field(default=0, alias="ipv6NormalRoutePriority")
    ipv6_elevated_route_priority: int = Field(default=0, alias="ipv6ElevatedRoutePriority")
    live_migration_route_convergence_time: str = ""


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

    def to_wire(self) -> dict[str, Any]:
        """An explicit `datastoreReady: false` is written; an unset one is not."""
        out = super().to_wire()
        if self.datastore_ready is False:
            out["datastoreReady"] = False
        return out


class ClusterInformation(Resource):
    """The cluster's identity and whether its datastore may be used; named `default`."""

    kind: Literal["ClusterInformation"] = "ClusterInformation"
    spec: ClusterInformationSpec = ClusterInformationSpec()


_MODELS: dict[Kind, type[Resource]] = {
    Kind.IP_POOL: IPPool,
    Kind.IPAM_CONFIGURATION: IPAMConfiguration,
    Kind.WORKLOAD_ENDPOINT: WorkloadEndpoint,
    Kind.NODE: Node,
    Kind.BGP_CONFIGURATION: BGPConfiguration,
    Kind.BGP_PEER: BGPPeer,
    Kind.FELIX_CONFIGURATION: FelixConfiguration,
    Kind.CLUSTER_INFORMATION: ClusterInformation,
}


def parse_resource(kind: Kind, data: Mapping[str, Any]) -> Resource:
    """The resource a JSON object describes. Raises `Malformed` naming kind, name and field."""
    name = (data.get("metadata") or {}).get("name", "?")
    if data.get("kind") != kind:
        raise Malformed(f"{kind} {name!r}: kind is {data.get('kind')!r}")
    try:
        return _MODELS.get(kind, GenericResource).model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"{kind} {name!r}: {where}: {first['msg']}") from error
