"""What is stored where: typed keys and scopes, and Calico's etcd path of each.

A *key* names one stored value, a *scope* a set of them (for list and watch). `path_of` and
`parse_path` are the only owners of the path layout; the etcd, SQLite and memory backends store
by path, the Kubernetes backend maps keys to object names instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Network

from libtortie.errors import Malformed
from libtortie.model.plain_ip import plain_network

IPNetwork = IPv4Network | IPv6Network


@cache
def _plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith("policy"):
        return lower[:-1] + "ies"
    return lower + ("es" if lower.endswith("s") else "s")


class Kind(StrEnum):
    """Resources of projectcalico.org/v3 that we store."""

    IP_POOL = "IPPool"
    IP_RESERVATION = "IPReservation"
    IPAM_CONFIGURATION = "IPAMConfiguration"
    CLUSTER_INFORMATION = "ClusterInformation"
    FELIX_CONFIGURATION = "FelixConfiguration"
    BGP_CONFIGURATION = "BGPConfiguration"
    BGP_PEER = "BGPPeer"
    BGP_FILTER = "BGPFilter"
    NODE = "Node"
    PROFILE = "Profile"
    TIER = "Tier"
    KUBE_CONTROLLERS_CONFIGURATION = "KubeControllersConfiguration"
    HOST_ENDPOINT = "HostEndpoint"
    GLOBAL_NETWORK_POLICY = "GlobalNetworkPolicy"
    GLOBAL_NETWORK_SET = "GlobalNetworkSet"
    WORKLOAD_ENDPOINT = "WorkloadEndpoint"
    NETWORK_POLICY = "NetworkPolicy"
    NETWORK_SET = "NetworkSet"
    STAGED_NETWORK_POLICY = "StagedNetworkPolicy"
    STAGED_GLOBAL_NETWORK_POLICY = "StagedGlobalNetworkPolicy"
    STAGED_KUBERNETES_NETWORK_POLICY = "StagedKubernetesNetworkPolicy"
    CALICO_NODE_STATUS = "CalicoNodeStatus"

    @property
    def plural(self) -> str:
        """Lower-case plural as in paths: `GlobalNetworkPolicy` → `globalnetworkpolicies`."""
        return _plural(self.value)

    @property
    def namespaced(self) -> bool:
        """Whether the kind lives in a namespace."""
        return self in _NAMESPACED


_NAMESPACED = frozenset(
    {
        Kind.WORKLOAD_ENDPOINT,
        Kind.NETWORK_POLICY,
        Kind.NETWORK_SET,
        Kind.STAGED_NETWORK_POLICY,
        Kind.STAGED_KUBERNETES_NETWORK_POLICY,
    }
)
NAMED_IN_ANNOTATION = frozenset(
    {
        Kind.NETWORK_POLICY,
        Kind.GLOBAL_NETWORK_POLICY,
        Kind.STAGED_NETWORK_POLICY,
        Kind.STAGED_GLOBAL_NETWORK_POLICY,
    }
)
"""Calico writes these kinds' names into an annotation on every write."""
_BY_PLURAL = {kind.plural: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """A projectcalico.org/v3 resource; `namespace` is empty for cluster-scoped kinds."""

    kind: Kind
    name: str
    namespace: str = ""

    def __hash__(self) -> int:
        """By the kind's text: an enumeration's own hash costs more than all the rest."""
        return hash((str.__hash__(self.kind), self.name, self.namespace))


@dataclass(frozen=True, slots=True)
class BlockKey:
    """An IPAM allocation block."""

    cidr: IPNetwork

    def __hash__(self) -> int:
        """A network's own costs several times as much, and blocks are looked up all the time."""
        return hash(int(self.cidr.network_address))


@dataclass(frozen=True, slots=True)
class AffinityKey:
    """A node's claim on a block; `type` is `host` or `virtual`."""

    node: str
    cidr: IPNetwork
    type: str = "host"

    def __hash__(self) -> int:
        """As a block's: quick."""
        return hash((self.node, int(self.cidr.network_address)))


@dataclass(frozen=True, slots=True)
class HandleKey:
    """An IPAM handle, by its id (case kept)."""

    handle_id: str

    def __hash__(self) -> int:
        """As a block's: quick."""
        return hash(self.handle_id)


@dataclass(frozen=True, slots=True)
class IPAMConfigKey:
    """The one IPAM configuration that allocation reads."""


Key = ResourceKey | BlockKey | AffinityKey | HandleKey | IPAMConfigKey


@dataclass(frozen=True, slots=True)
class Resources:
    """All resources of a kind, or those of one namespace."""

    kind: Kind
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of a family (4 or 6)."""

    version: int


@dataclass(frozen=True, slots=True)
class Affinities:
    """Block affinities of type `host`: all of them, or one node's of both families."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class Handles:
    """All handles."""


Scope = Resources | Blocks | Affinities | Handles | ResourceKey | IPAMConfigKey
"""A key among them is the scope of that one value."""

_V3 = "/calico/resources/v3/projectcalico.org"
_IPAM = "/calico/ipam/v2"


@lru_cache(maxsize=4096)
def path_of(key: Key) -> str:
    """Calico's etcd key of a stored value. Remembered: a commit asks for each several times."""
    match key:
        case ResourceKey(kind, name, namespace):
            where = f"{namespace}/{name}" if kind.namespaced else name
            return f"{_V3}/{kind.plural}/{where}"
        case BlockKey(cidr):
            return f"{_IPAM}/assignment/ipv{cidr.version}/block/{_dashed(cidr)}"
        case AffinityKey(node, cidr, kind_of_affinity):
            return f"{_IPAM}/{kind_of_affinity}/{node}/ipv{cidr.version}/block/{_dashed(cidr)}"
        case HandleKey(handle_id):
            return f"{_IPAM}/handle/{handle_id}"
        case IPAMConfigKey():
            return f"{_IPAM}/config"


def scope_path(scope: Scope) -> str:
    """The path prefix under which every key of a scope lies (or the one key's own path)."""
    match scope:
        case Resources(kind, namespace):
            return f"{_V3}/{kind.plural}/" + (f"{namespace}/" if namespace else "")
        case Blocks(version):
            return f"{_IPAM}/assignment/ipv{version}/block/"
        case Affinities(node):
            return f"{_IPAM}/host/" + (f"{node}/" if node else "")
        case Handles():
            return f"{_IPAM}/handle/"
        case ResourceKey() | IPAMConfigKey():
            return path_of(scope)


def scope_bounds(scope: Scope) -> tuple[str, str]:
    """The half-open range of paths, in byte order, that holds a scope and nothing else."""
    path = scope_path(scope)
    if isinstance(scope, ResourceKey | IPAMConfigKey):
        return path, path + "\0"
    return path, path[:-1] + chr(ord("/") + 1)


def parse_path(path: str) -> Key:
    """The key stored at a path. Raises `Malformed` for a path that `path_of` never makes."""
    try:
        if path.startswith(_V3 + "/"):
            key: Key = _parse_resource(path[len(_V3) + 1 :].split("/"))
        elif path.startswith(_IPAM + "/"):
            key = _parse_ipam(path[len(_IPAM) + 1 :])
        else:
            raise ValueError("unknown root")
    except (ValueError, KeyError) as error:
        raise Malformed(f"stored path {path!r} is not one of Calico's: {error}") from error
    if path.endswith("/") or path_of(key) != path:
        raise Malformed(f"stored path {path!r} is not one of Calico's: it would be {path_of(key)}")
    return key


def _parse_resource(parts: list[str]) -> ResourceKey:
    kind = _BY_PLURAL[parts[0]]
    if kind.namespaced:
        _, namespace, name = parts
        return ResourceKey(kind, name, namespace)
    _, name = parts
    return ResourceKey(kind, name)


def _parse_ipam(rest: str) -> Key:
    if rest == "config":
        return IPAMConfigKey()
    if rest.startswith("handle/"):
        return HandleKey(rest.removeprefix("handle/"))
    parts = rest.split("/")
    if parts[0] == "assignment":
        _, _, _, dashed = parts
        return BlockKey(_undashed(dashed))
    affinity_type, node, _, _, dashed = parts
    if affinity_type not in ("host", "virtual"):
        raise ValueError(f"unknown affinity type {affinity_type!r}")
    return AffinityKey(node, _undashed(dashed), affinity_type)


def _dashed(cidr: IPNetwork) -> str:
    return f"{cidr.network_address}-{cidr.prefixlen}"


def _undashed(text: str) -> IPNetwork:
    address, _, prefixlen = text.rpartition("-")
    return plain_network(f"{address}/{prefixlen}", strict=True)
