"""Which host routes this node's workloads need, and how to get there without a gap. Pure.

A workload's address is one route, `<address>/32 (or /128) dev cali…`, in the main table. Its metric
says how sure this node is of the workload: `normal`, or `elevated` (a lower number, which the
kernel and, through BIRD, every other node prefers) around a live migration's cut-over. BIRD's
own routes take the metric `bird`, between the two, so that a raised local route beats what other
nodes still announce, and what a raised node announces beats our unraised one.

The kernel's key of a route is (table, destination, metric): a change of metric is an add and a
delete, in that order, or there is a moment with no route at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from ipaddress import ip_network

from felix_shim.migration import State
from felix_shim.model import Endpoint
from libtortie.linux.port import MAIN_TABLE, Route, RouteProto, RouteType
from libtortie.model.felix_values import (
    ELEVATED_PRIORITY,
    NORMAL_PRIORITY,
    PRIORITY_MAX,
    are_priorities,
)
from libtortie.model.names import INTERFACE_PREFIX


@dataclass(frozen=True, slots=True)
class Priorities:
    """The two kernel metrics of workload routes; lower wins, at least 2 apart."""

    normal: int = NORMAL_PRIORITY
    elevated: int = ELEVATED_PRIORITY

    def __post_init__(self) -> None:
        if not are_priorities(self.normal, self.elevated):
            raise ValueError(
                f"route priorities: normal {self.normal} must exceed elevated {self.elevated} "
                f"by at least 2, both within 1..{PRIORITY_MAX}"
            )

    @property
    def bird(self) -> int:
        """The metric of every route BIRD installs: midway, never equal to either."""
        return (self.normal + self.elevated) // 2

    @property
    def overlay(self) -> int:
        """The metric of routes into the overlay: worse than BIRD's, better than an unraised local
        one, so that a node that a VM left sends on what still comes. Where the two configured
        ones leave no room for it, BIRD's, which has no routes to the overlay's addresses."""
        return (self.bird + self.normal) // 2


def route_priority(state: State, priorities: Priorities) -> int | None:
    """The metric of an endpoint's route in this state; None: no route."""
    match state:
        case State.BASE:
            return priorities.normal
        case State.LIVE | State.TIME_WAIT:
            return priorities.elevated
        case State.TARGET | State.SUPPRESSED | State.DEPARTED | State.REFUSED | State.ENDED:
            return None


def endpoint_routes(
    endpoint: Endpoint, state: State, priorities: Priorities, *, ipv6: Priorities | None = None
) -> tuple[Route, ...]:
    """The routes of one endpoint, none while its state has none. `ipv6` defaults to the same."""
    routes = []
    for address in endpoint.destinations:
        family = priorities if address.version == 4 else ipv6 or priorities
        priority = route_priority(state, family)
        if priority is not None:
            routes.append(
                Route(
                    dst=ip_network(address),
                    priority=priority,
                    ifname=endpoint.interface,
                    link_scope=address.version == 4,  # IPv6 routes have no scope
                )
            )
    return tuple(routes)


def desired_routes(
    endpoints: Iterable[tuple[Endpoint, State]],
    priorities: Priorities,
    *,
    ipv6: Priorities | None = None,
) -> frozenset[Route]:
    """The routes of all endpoints, at most one per kernel key.

    Two endpoints that claim one address with one metric is a fault elsewhere; the choice is by
    interface name, so that it does not depend on any order. An address that is an endpoint's own
    is nobody's floating one, wherever its owner is.
    """
    by_key: dict[tuple[object, int], Route] = {}
    everyone = tuple(endpoints)
    owned = {address for endpoint, _ in everyone for address in endpoint.addresses}
    for endpoint, state in everyone:
        for route in endpoint_routes(endpoint, state, priorities, ipv6=ipv6):
            address = route.dst.network_address
            if address in owned and address not in endpoint.addresses:
                continue
            rival = by_key.get((route.dst, route.priority))
            if rival is None or route.ifname < rival.ifname:
                by_key[route.dst, route.priority] = route
    return frozenset(by_key.values())


def evidence(
    interface: str, present: Iterable[Route], ipv4: Priorities, ipv6: Priorities
) -> tuple[bool, bool]:
    """Whether there is a normal and a raised route to a workload's own veth."""
    own = [route for route in present if route.ifname == interface]
    families = {4: ipv4, 6: ipv6}
    return (
        any(route.priority == families[route.dst.version].normal for route in own),
        any(route.priority == families[route.dst.version].elevated for route in own),
    )


def is_ours(route: Route) -> bool:
    """Whether a kernel route is one this agent may delete: a host route on a workload's veth.

    Routes that the kernel made itself (link-local prefixes) are not, nor what BIRD learned from a
    workload that is its neighbour.
    """
    return (
        route.table == MAIN_TABLE
        and route.type is RouteType.UNICAST
        and route.ifname.startswith(INTERFACE_PREFIX)
        and route.dst.prefixlen == route.dst.max_prefixlen
        and route.proto not in (RouteProto.KERNEL, RouteProto.BIRD)
    )


def plan_routes(desired: Set[Route], actual: Iterable[Route]) -> tuple[list[Route], list[Route]]:
    """(adds, deletes): apply all adds, in order, before the first delete.

    Adds replace the route of the same key, so a route that only moves to another interface is
    not deleted. Raised routes come first.
    """
    present = {route for route in actual if is_ours(route)}
    wanted_keys = {(route.dst, route.priority) for route in desired}
    adds = sorted(desired - present, key=_order)
    stale = (route for route in present - desired if (route.dst, route.priority) not in wanted_keys)
    return adds, sorted(stale, key=_order)


def _order(route: Route) -> tuple[int, int, int, str]:
    return route.priority, route.dst.version, int(route.dst.network_address), route.ifname
