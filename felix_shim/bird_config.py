"""BGPConfigurations → what they say about this node, with defaults filled in. Pure.

`default` holds for the cluster, `node.<name>` beats it field by field for one node. A field that
cannot be used is named and costs no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from felix_shim.bgp_model import DEFAULT_AS, LogLevel, Tagged
from felix_shim.bird_services import Ranges, Use
from felix_shim.cluster import Cluster
from felix_shim.settings import Settings
from libtortie.model.bgp_spec import (
    BGP_PORT,
    ONLY_DEFAULT,
    BGPConfigurationWire,
    PasswordWire,
    PrefixAdvertisementWire,
    community_of,
    seconds_of,
)
from libtortie.model.field_errors import lines_of
from libtortie.model.fields import network_of
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address
from libtortie.model.resources import Node, Wire

W = TypeVar("W", bound=Wire)


@dataclass(frozen=True, slots=True)
class Configured:
    """What holds here. `ports` are other nodes' where they have one of their own; by the address
    of `towards_workloads`, of each family, workloads of a node know it as a neighbour."""

    default_as: int = DEFAULT_AS
    mesh: bool = True
    mesh_password: PasswordWire | None = None
    mesh_restart: int | None = None
    services: Ranges = field(default_factory=Ranges)
    tagged: tuple[Tagged, ...] = ()
    ignored: tuple[str, ...] = ()
    log_level: LogLevel = LogLevel.INFO
    bind_node_address: bool = False
    cluster_routes: bool = True
    port: int = BGP_PORT
    ports: Mapping[str, int] = field(default_factory=dict)
    towards_workloads: Mapping[int, IPAddress] = field(default_factory=dict)

    def port_of(self, node: str) -> int:
        """Where a node listens for BGP."""
        return self.ports.get(node, self.port)

    def as_number_of(self, node: Node | None) -> int:
        """A node's own AS number, or the cluster's."""
        own = node.spec.bgp.as_number if node is not None and node.spec.bgp else None
        return own or self.default_as


def read_leniently(model: type[W], name: str, spec: dict[str, Any], problems: list[str]) -> W:
    """The spec without the fields that cannot be used; each of those is a problem."""
    try:
        return model.model_validate(spec)
    except ValidationError as error:
        problems += [f"{name}: {line}" for line in lines_of(error)]
        bad = {str(one["loc"][0]) for one in error.errors(include_url=False) if one["loc"]}
        left = {field: value for field, value in spec.items() if field not in bad}
        return read_leniently(model, name, left, problems) if bad else model()


def configured(cluster: Cluster, settings: Settings, problems: list[str]) -> Configured:
    """What the stored BGPConfigurations come to for this node."""
    read = {
        name: _read(name, spec.spec.to_wire(), problems)
        for name, spec in sorted(cluster.bgp_configurations().items())
        if name in ("default", f"node.{cluster.node}")
    }
    default = read.get("default", BGPConfigurationWire())
    own = read.get(f"node.{cluster.node}", BGPConfigurationWire())
    locked_out = _password_lost(cluster, default)
    if locked_out:
        problems.append("BGPConfiguration default: no mesh: its nodeMeshPassword cannot be used")
    both = default.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
    _compare_priorities(both, settings, problems)
    return Configured(
        default_as=default.as_number or DEFAULT_AS,
        mesh=default.node_to_node_mesh_enabled is not False and not locked_out,
        mesh_password=default.node_mesh_password,
        mesh_restart=_seconds(default.node_mesh_max_restart_time),
        services=_services(default),
        tagged=tuple(_tagged(both, problems)),
        ignored=both.ignored_interfaces,
        log_level=LogLevel(both.log_severity_screen or LogLevel.INFO),
        bind_node_address=both.bind_mode == "NodeIP",
        cluster_routes=both.program_cluster_routes not in ("Disabled", "EnabledIPIPOnly"),
        port=default.listen_port or BGP_PORT,
        ports=_ports(cluster),
        towards_workloads=_towards_workloads(default),
    )


def _towards_workloads(spec: BGPConfigurationWire) -> dict[int, IPAddress]:
    texts = (spec.local_workload_peering_ipv4, spec.local_workload_peering_ipv6)
    found = map(plain_address, filter(None, texts))
    return {address.version: address for address in found}


def _read(name: str, spec: dict[str, Any], problems: list[str]) -> BGPConfigurationWire:
    where = f"BGPConfiguration {name}"
    wire = read_leniently(BGPConfigurationWire, where, spec, problems)
    unread = set(wire.model_extra or {})
    if name != "default":
        unread |= {
            BGPConfigurationWire.model_fields[field].alias or field
            for field in wire.model_fields_set & ONLY_DEFAULT
        }
    if unread:
        problems.append(f"{where}: not obeyed: {', '.join(sorted(unread))}")
    return wire


def _password_lost(cluster: Cluster, read: BGPConfigurationWire) -> bool:
    """Whether the mesh is to have a password, and what says which is wrong: never without it."""
    stored = cluster.bgp_configurations().get("default")
    asked = stored is not None and stored.spec.to_wire().get("nodeMeshPassword") is not None
    return asked and read.node_mesh_password is None


def _seconds(text: str) -> int | None:
    return seconds_of(text, 0, 4095) if text else None


def _services(spec: BGPConfigurationWire) -> Ranges:
    lists = {
        Use.CLUSTER: spec.service_cluster_ips,
        Use.EXTERNAL: spec.service_external_ips,
        Use.BALANCER: spec.service_load_balancer_ips,
    }
    ranges = {use: tuple(network_of(one.cidr) for one in found) for use, found in lists.items()}
    return Ranges(ranges, spec.service_load_balancer_aggregation != "Disabled")


def _tagged(spec: BGPConfigurationWire, problems: list[str]) -> Iterator[Tagged]:
    named = {one.name: community_of(one.value) for one in spec.communities}
    for advertisement in spec.prefix_advertisements:
        found = tuple(_communities(advertisement, named, problems))
        yield Tagged(network_of(advertisement.cidr), found)


def _communities(
    advertisement: PrefixAdvertisementWire,
    named: dict[str, tuple[int, ...]],
    problems: list[str],
) -> Iterator[tuple[int, ...]]:
    for text in advertisement.communities:
        if text in named:
            yield named[text]
            continue
        try:
            yield community_of(text)
        except ValueError as error:
            where = f"BGPConfiguration: prefixAdvertisements {advertisement.cidr}"
            problems.append(f"{where}: {error}, nor the name of one")


def _ports(cluster: Cluster) -> dict[str, int]:
    found = {}
    for name, resource in cluster.bgp_configurations().items():
        wire = read_leniently(BGPConfigurationWire, name, resource.spec.to_wire(), [])
        if name.startswith("node.") and wire.listen_port:
            found[name.removeprefix("node.")] = wire.listen_port
    return found


def _compare_priorities(
    spec: BGPConfigurationWire, settings: Settings, problems: list[str]
) -> None:
    """One source of truth: a second opinion is said to be one, and not followed."""
    for version, wanted, holds in (
        (4, spec.ipv4_normal_route_priority, settings.ipv4.normal),
        (6, spec.ipv6_normal_route_priority, settings.ipv6.normal),
    ):
        field = f"ipv{version}NormalRoutePriority"
        if wanted not in (0, holds):
            problems.append(
                f"BGPConfiguration: {field} {wanted} is not FelixConfiguration's {holds}, which "
                f"holds: set both alike"
            )
