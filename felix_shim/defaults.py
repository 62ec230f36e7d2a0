"""What a new cluster is given: identity, pools, tiers, configurations. Pure.

Values and defaults are Calico's, so that either may be there first.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from felix_shim.config import PoolConfig
from libtortie.linux.port import IPNetwork, Route, RouteProto, RouteType
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.resources import (
    BGPConfiguration,
    BGPConfigurationSpec,
    ClusterInformation,
    ClusterInformationSpec,
    FelixConfiguration,
    FelixConfigurationSpec,
    IPAMConfiguration,
    IPAMConfigurationSpec,
    IPPool,
    IPPoolSpec,
    ObjectMeta,
    Tier,
    TierSpec,
)

DEFAULT = "default"
CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, DEFAULT)
FELIX = ResourceKey(Kind.FELIX_CONFIGURATION, DEFAULT)
BGP = ResourceKey(Kind.BGP_CONFIGURATION, DEFAULT)
IPAM = ResourceKey(Kind.IPAM_CONFIGURATION, DEFAULT)
POOL_NAMES = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
BLOCK_SIZES = {4: 26, 6: 122}
IPV4_POOLS = (
    IPv4Network("192.168.0.0/16"),
    *(IPv4Network(f"172.{second}.0.0/16") for second in range(16, 32)),
)
_TIERS = (
    ("default", 1000000, "Deny"),
    ("kube-admin", 1000, "Pass"),
    ("kube-baseline", 10000000, "Pass"),
)
_FIRST_BOOT = {
    "logSeverityScreen": "Info",
    "reportingInterval": "0s",
    "nftablesMode": "Auto",
    "nftablesFlowTableOffload": "Disabled",
    "bpfConnectTimeLoadBalancing": "TCP",
    "bpfHostNetworkedNATWithoutCTLB": "Enabled",
    "floatingIPs": "Disabled",
}


def plan_cluster(
    stored: ClusterInformation | None, *, guid: str, version: str = "", types: Iterable[str] = ()
) -> ClusterInformation:
    """The cluster's identity: GUID and readiness are only ever filled in, types only added."""
    known = stored or ClusterInformation(metadata=ObjectMeta(name=DEFAULT))
    spec = known.spec
    present = [one for one in spec.cluster_type.split(",") if one]
    present += [one for one in dict.fromkeys(types) if one and one not in present]
    update: dict[str, Any] = {
        "cluster_guid": spec.cluster_guid or guid,
        "cluster_type": ",".join(present),
        "calico_version": version or spec.calico_version,
        "datastore_ready": True if spec.datastore_ready is None else spec.datastore_ready,
    }
    fresh: ClusterInformationSpec = spec.model_copy(update=update)
    return known.model_copy(update={"spec": fresh})


def tiers() -> tuple[Tier, ...]:
    """The three that always exist."""
    return tuple(
        Tier(
            metadata=ObjectMeta(name=name),
            spec=TierSpec.model_validate({"order": order, "defaultAction": action}),
        )
        for name, order, action in _TIERS
    )


def plan_felix(stored: FelixConfiguration | None) -> FelixConfiguration:
    """Calico's first-boot object; one that exists only gets two fields it lacks."""
    if stored is not None:
        spec = stored.spec
        update = {
            "log_severity_screen": spec.log_severity_screen or "Info",
            "reporting_interval": spec.reporting_interval or "0s",
        }
        return stored.model_copy(update={"spec": spec.model_copy(update=update)})
    spec = FelixConfigurationSpec.model_validate(_FIRST_BOOT)
    return FelixConfiguration(metadata=ObjectMeta(name=DEFAULT), spec=spec)


def bgp_configuration() -> BGPConfiguration:
    """An empty one, with what Calico's schema stores in it."""
    spec = BGPConfigurationSpec(
        log_severity_screen="Info", service_load_balancer_aggregation="Enabled"
    )
    return BGPConfiguration(metadata=ObjectMeta(name=DEFAULT), spec=spec)


def ipam_configuration(record: IPAMConfig | None) -> IPAMConfiguration:
    """The resource; it says what the record that allocation reads already says.

    A resource that named other values would silently turn address persistence on again.
    """
    held = record or IPAMConfig()
    spec = {
        "strictAffinity": held.strict_affinity,
        "autoAllocateBlocks": held.auto_allocate_blocks,
        "maxBlocksPerHost": held.max_blocks_per_host,
        "kubeVirtVMAddressPersistence": held.kubevirt_persistence.value,
        "ipCooldownSeconds": held.cooldown_seconds,
    }
    return IPAMConfiguration(
        metadata=ObjectMeta(name=DEFAULT), spec=IPAMConfigurationSpec.model_validate(spec)
    )


def pool(cidr: IPNetwork, config: PoolConfig) -> IPPool:
    """The default pool of the CIDR's family."""
    nat = cidr.version == 4 if config.nat_outgoing is None else config.nat_outgoing
    spec = {
        "cidr": str(cidr),
        "natOutgoing": nat,
        "blockSize": config.block_size or BLOCK_SIZES[cidr.version],
        "nodeSelector": config.node_selector,
        "disableBGPExport": config.disable_bgp_export,
        "vxlanMode": config.vxlan_mode,
    }
    return IPPool(
        metadata=ObjectMeta(name=POOL_NAMES[cidr.version]), spec=IPPoolSpec.model_validate(spec)
    )


def free_ipv4_cidr(routes: Iterable[Route]) -> IPv4Network | None:
    """The first private /16 that the node has no route into; None when there is none.

    Routes to workloads and those BIRD made are of pools, old ones maybe: they don't count.
    """
    foreign = [
        route.dst
        for route in routes
        if route.dst.prefixlen
        and route.type is RouteType.UNICAST
        and route.proto != RouteProto.BIRD
        and not route.ifname.startswith(INTERFACE_PREFIX)
    ]
    return next((cidr for cidr in IPV4_POOLS if not any(map(cidr.overlaps, foreign))), None)


def random_ipv6_cidr(noise: bytes) -> IPv6Network:
    """A unique local /48 (RFC 4193) of five random bytes."""
    return IPv6Network((b"\xfd" + noise[:5] + bytes(10), 48))


def usable_cidr(text: str, version: int) -> IPNetwork | None:
    """The first CIDR of a comma-separated list that has the family."""
    for part in text.split(","):
        try:
            cidr = ip_network(part.strip(), strict=False)
        except ValueError:
            continue
        if cidr.version == version:
            return cidr
    return None
