"""Stored resources → what BIRD is configured with on this node. Pure.

Every field of BGPConfiguration, BGPPeer and BGPFilter is obeyed, or its resource is named among the
problems; what is wrong with one never keeps the others from being configured. A session whose
password or filter cannot be had is not opened without it: it is left out, or nothing passes it.

FelixConfiguration alone says what the priorities are; a BGPConfiguration that says otherwise is a
problem in words.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface

from pydantic import ValidationError

from felix_shim.bgp_filter import RouteFilter, route_filter
from felix_shim.bgp_model import HASH, Bfd, BirdInput
from felix_shim.bird_canary import canaries_of
from felix_shim.bird_config import configured
from felix_shim.bird_peers import Neighbourhood, SecretKey, Secrets
from felix_shim.bird_workloads import Workload
from felix_shim.cluster import Cluster
from felix_shim.events import ServiceAddress
from felix_shim.overlay_places import overlay_pools
from felix_shim.settings import Settings
from libtortie.linux.port import IPNetwork
from libtortie.model.bgp_spec import BGPFilterWire
from libtortie.model.field_errors import lines_of, summary
from libtortie.model.fields import network_of
from libtortie.model.ipam import IPAddress

_FILTER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Here:
    """What is known of this node beside what is stored; None: not yet."""

    address: IPv4Interface | None
    address6: IPv6Interface | None = None
    router_id: str = ""
    uplinks: tuple[str, ...] = ()
    bfd: Bfd | None = None
    secrets: Secrets = field(default_factory=Secrets)
    now: datetime = datetime(1, 1, 1, tzinfo=UTC)
    services: frozenset[ServiceAddress] | None = None
    workloads: tuple[Workload, ...] | None = ()


@dataclass(frozen=True, slots=True)
class BirdPlan:
    """The input, and the resources that could not be used, in words.

    `secrets` are the (Secret, key) pairs that passwords are in; `wants_services`: single services'
    addresses matter; `wants_workloads`: workloads of this node do.
    """

    input: BirdInput
    problems: tuple[str, ...] = ()
    secrets: frozenset[SecretKey] = frozenset()
    wants_services: bool = False
    wants_workloads: bool = False


def bird_input(cluster: Cluster, here: Here, settings: Settings) -> BirdPlan:
    """What this node's BIRD needs to know."""
    problems: list[str] = []
    conf = configured(cluster, settings, problems)
    filters = _filters(cluster, problems)
    addresses: dict[int, IPAddress] = {
        one.version: one.ip for one in (here.address, here.address6) if one is not None
    }
    around = Neighbourhood(
        cluster, addresses, conf, filters, here.secrets, problems, here.workloads or ()
    )
    peers = around.peers()
    own = cluster.nodes().get(cluster.node)
    asked = own.metadata.annotations if own is not None else {}
    pools = _pools(cluster)
    has_api = bool(here.secrets.namespace)
    awaited = conf.services.needs_services and has_api and here.services is None
    with_workloads = any(
        peer.spec.to_wire().get("localWorkloadSelector") for peer in cluster.peers()
    )
    awaited |= with_workloads and here.workloads is None
    if not conf.services.whole and not has_api:
        problems.append("BGPConfiguration default: services one by one need the Kubernetes API")
    used = {name for peer in peers for name in peer.filters}
    config = BirdInput(
        node=cluster.node,
        router_id=_router_id(here, cluster.node),
        address=here.address,
        address6=here.address6,
        as_number=conf.as_number_of(own),
        peers=peers,
        filters=tuple(filters[name] for name in sorted(used)),
        blocks=cluster.blocks(),
        pools=pools,
        hidden=_pools(cluster, hidden=True),
        tunnelled=_tunnelled(cluster),
        services=conf.services.aggregates() + conf.services.single(here.services or ()),
        tagged=conf.tagged,
        canaries=canaries_of(asked, pools, here.now, problems),
        priorities=settings.ipv4,
        priorities6=settings.ipv6,
        uplinks=here.uplinks,
        ignored=conf.ignored,
        cluster_id=around.cluster_id,
        cluster_routes=conf.cluster_routes,
        listen_port=conf.port_of(cluster.node),
        bind_node_address=conf.bind_node_address,
        bfd=here.bfd,
        log_level=conf.log_level,
        complete=around.complete and not awaited,
    )
    return BirdPlan(
        config,
        tuple(problems),
        frozenset(around.wanted),
        conf.services.needs_services,
        with_workloads,
    )


def _router_id(here: Here, node: str) -> IPv4Address:
    """The configured one, else the node's IPv4 address, else a number made of its name."""
    if here.router_id not in ("", HASH):
        return IPv4Address(here.router_id)
    if here.address is not None and here.router_id != HASH:
        return here.address.ip
    digest = hashlib.sha256(node.encode()).digest()
    return IPv4Address(int.from_bytes(digest[:4]) or 1)


def _filters(cluster: Cluster, problems: list[str]) -> dict[str, RouteFilter]:
    """BGPFilters by name. One that cannot be obeyed is none: its peers are closed."""
    found = {}
    for resource in cluster.bgp_filters():
        name = resource.metadata.name
        try:
            wire = BGPFilterWire.model_validate(resource.spec.to_wire())
        except ValidationError as error:
            problems.append(f"BGPFilter {name}: {summary(lines_of(error))}")
            continue
        if not _FILTER_NAME.fullmatch(name):
            problems.append(f"BGPFilter {name!r} has no name of a resource")
            continue
        found[name] = route_filter(name, wire)
    return found


def _pools(cluster: Cluster, *, hidden: bool = False) -> tuple[IPNetwork, ...]:
    """The pools, or those that are not announced. A disabled one has workloads still."""
    return tuple(
        network_of(pool.spec.cidr)
        for pool in cluster.pools()
        if pool.spec.disable_bgp_export or not hidden
    )


def _tunnelled(cluster: Cluster) -> tuple[IPNetwork, ...]:
    """The overlay's pools."""
    return tuple(one.cidr for version in (4, 6) for one in overlay_pools(cluster.pools(), version))
