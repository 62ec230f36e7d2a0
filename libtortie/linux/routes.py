"""Route messages: RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE. Pure; see `wire.py`.

The kernel's key of a route is (table, destination, metric), but a deletion treats everything
that is zero as "any": an IPv4 deletion with metric 0 takes the first metric it meets.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6

from libtortie.linux.port import IPNetwork, Route, RouteType
from libtortie.linux.wire import ATTRIBUTE, attribute, attributes, family_of, number, u32
from libtortie.model.ipam import IPAddress

IP6_RT_PRIO_USER = 1024
"""The metric IPv6 gives a route that asks for none (linux/ipv6_route.h)."""

_SCOPE_UNIVERSE, _SCOPE_LINK, _SCOPE_NOWHERE = 0, 253, 255
_RTNH_F_ONLINK = 4
_RTM_F_CLONED = 0x200
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA = 9, 15, 18
_RTMSG = struct.Struct("=BBBBBBBBI")
_FAMILY = struct.Struct("=H")
_TYPES = {RouteType.UNICAST: 1, RouteType.BLACKHOLE: 6}
_TYPE_OF = {number: kind for kind, number in _TYPES.items()}

Attributes = Mapping[int, memoryview]


def effective_priority(route: Route) -> int:
    """The metric the kernel stores: IPv6 has no metric 0."""
    if route.priority == 0 and route.dst.version == 6:
        return IP6_RT_PRIO_USER
    return route.priority


def route_query(version: int, table: int, *, ifindex: int = 0) -> bytes:
    """RTM_GETROUTE dump of one table, filtered by the kernel (strict checking is on)."""
    header = _RTMSG.pack(family_of(version), 0, 0, 0, _table_field(table), 0, 0, 0, 0)
    return header + number(_RTA_TABLE, table) + (number(_RTA_OIF, ifindex) if ifindex else b"")


def route_addition(route: Route, ifindex: int) -> bytes:
    """RTM_NEWROUTE."""
    scope = _SCOPE_LINK if route.link_scope and route.dst.version == 4 else _SCOPE_UNIVERSE
    header = _header(
        route,
        proto=int(route.proto),
        scope=scope,
        kind=_TYPES[route.type],
        flags=_RTNH_F_ONLINK if route.onlink else 0,
    )
    gateway = route.gateway
    if gateway is None:
        hop = b""
    elif gateway.version == route.dst.version:
        hop = attribute(_RTA_GATEWAY, gateway.packed)
    else:  # struct rtvia: family, address
        hop = attribute(_RTA_VIA, _FAMILY.pack(family_of(gateway.version)) + gateway.packed)
    return header + _route_attributes(route, ifindex) + hop


def route_deletion(route: Route, ifindex: int) -> bytes:
    """RTM_DELROUTE by key alone: any type, scope, protocol and next hop; `ifindex` 0: any link."""
    return _header(route, scope=_SCOPE_NOWHERE) + _route_attributes(route, ifindex)


def route_mark(dst: IPNetwork) -> bytes | None:
    """The bytes that every route to exactly `dst` contains; None for a default route."""
    if dst.prefixlen == 0:
        return None
    packed = dst.network_address.packed
    return ATTRIBUTE.pack(4 + len(packed), _RTA_DST) + packed


def parse_route(body: memoryview, ifname: Callable[[int], str]) -> Route | None:
    """A route; None for types that are none of ours (local, broadcast, multicast, cached ...).

    Of several next hops the first is shown.
    """
    family, prefixlen, _, _, table, proto, scope, kind, flags = _RTMSG.unpack_from(body)
    route_type = _TYPE_OF.get(kind)
    if route_type is None or flags & _RTM_F_CLONED or family not in (AF_INET, AF_INET6):
        return None
    found = attributes(body, _RTMSG.size)
    hop, oif = found, u32(found.get(_RTA_OIF))
    multipath = found.get(_RTA_MULTIPATH)
    if multipath is not None and len(multipath) >= 8:  # struct rtnexthop, then its attributes
        length, hop_flags, _, oif = struct.unpack_from("=HBBi", multipath)
        flags |= hop_flags
        hop = attributes(multipath[:length], 8)
    return Route(
        dst=_network(family, bytes(found.get(_RTA_DST, b"")), prefixlen),
        priority=u32(found.get(_RTA_PRIORITY)),
        # On IPv6 a blackhole carries lo, which says nothing.
        ifname=ifname(oif) if oif and route_type is RouteType.UNICAST else "",
        gateway=_gateway(hop),
        proto=proto,
        type=route_type,
        link_scope=scope == _SCOPE_LINK,
        onlink=bool(flags & _RTNH_F_ONLINK),
        table=u32(found.get(_RTA_TABLE)) or table,
    )


def _header(
    route: Route, *, proto: int = 0, scope: int = 0, kind: int = 0, flags: int = 0
) -> bytes:
    """`struct rtmsg`."""
    family, prefixlen = family_of(route.dst.version), route.dst.prefixlen
    table = _table_field(route.table)
    return _RTMSG.pack(family, prefixlen, 0, 0, table, proto, scope, kind, flags)


def _route_attributes(route: Route, ifindex: int) -> bytes:
    out = number(_RTA_TABLE, route.table)
    if route.dst.prefixlen:
        out += attribute(_RTA_DST, route.dst.network_address.packed)
    if ifindex:
        out += number(_RTA_OIF, ifindex)
    priority = effective_priority(route)
    return out + number(_RTA_PRIORITY, priority) if priority else out


@functools.lru_cache(maxsize=1 << 14)
def _network(family: int, packed: bytes, prefixlen: int) -> IPNetwork:
    if family == AF_INET:
        return IPv4Network((packed or bytes(4), prefixlen))
    return IPv6Network((packed or bytes(16), prefixlen))


def _gateway(hop: Attributes) -> IPAddress | None:
    value = hop.get(_RTA_GATEWAY)
    if value is None and _RTA_VIA in hop:
        value = hop[_RTA_VIA][2:]  # struct rtvia: family, address
    return None if value is None else _address(bytes(value))


@functools.lru_cache(maxsize=1 << 12)
def _address(packed: bytes) -> IPAddress:
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def _table_field(table: int) -> int:
    """`rtm_table` is one byte; RT_TABLE_COMPAT says that RTA_TABLE holds the number."""
    return 252 if table > 255 else table
