"""Bodies of ctnetlink messages, packed and walked by hand. Pure.

Layouts: linux/netfilter/nfnetlink_conntrack.h. Numbers in attributes are big-endian; the message's
own header and the filter's flags are the host's.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from socket import AF_INET, AF_INET6, AF_UNSPEC

from libtortie.linux.flows import (
    ICMP,
    ICMPS,
    TRACKED,
    Flow,
    FlowTuple,
    SctpTracking,
    Status,
    TcpFlag,
    TcpState,
    TcpTracking,
)
from libtortie.linux.wire import attribute, attributes
from libtortie.model.ipam import IPAddress

_SUBSYSTEM = 1 << 8  # NFNL_SUBSYS_CTNETLINK
CT_NEW, CT_GET, CT_DELETE = _SUBSYSTEM, _SUBSYSTEM | 1, _SUBSYSTEM | 2
CT_GET_STATS = _SUBSYSTEM | 5
_STATS_ENTRIES = 1
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _PROTOINFO, _NAT_SRC, _TIMEOUT, _MARK = 1, 2, 3, 4, 6, 7, 8
_NAT_DST, _ZONE, _LABELS = 13, 18, 22
_TUPLE_IP, _TUPLE_PROTO, _TUPLE_ZONE = 1, 2, 3
_IP_V4_SRC, _IP_V4_DST, _IP_V6_SRC, _IP_V6_DST = 1, 2, 3, 4
_PROTO_NUM, _SRC_PORT, _DST_PORT = 1, 2, 3
_ICMP_ID, _ICMP_TYPE, _ICMP_CODE = 4, 5, 6
_ICMPV6_ID, _ICMPV6_TYPE, _ICMPV6_CODE = 7, 8, 9
_INFO_TCP, _INFO_SCTP = 1, 3
_TCP_STATE, _TCP_SCALE_ORIG, _TCP_SCALE_REPLY, _TCP_FLAGS_ORIG, _TCP_FLAGS_REPLY = 1, 2, 3, 4, 5
_SCTP_STATE, _SCTP_TAG_ORIG, _SCTP_TAG_REPLY = 1, 2, 3
_NAT_V4_MIN, _NAT_V4_MAX, _NAT_PROTO, _NAT_V6_MIN, _NAT_V6_MAX = 1, 2, 3, 4, 5
_NAT_PORT_MIN, _NAT_PORT_MAX = 1, 2
_NESTED = 0x8000
_CONFIRMED = 1 << 3  # IPS_CONFIRMED: what is made by hand is in the table at once
_HEADER = struct.Struct("=BBH")
_KNOWN_FLAGS = 0x0F


def every_flow() -> bytes:
    """A dump of all entries, or the question how many there are."""
    return _HEADER.pack(AF_UNSPEC, 0, 0)


def parse_count(body: memoryview) -> int:
    """How many entries there are; more than there can be when the answer does not say."""
    found = attributes(body, _HEADER.size).get(_STATS_ENTRIES)
    return 1 << 32 if found is None else _number(found)


def flow_creation(flow: Flow) -> bytes:
    """A new entry. Where it rewrites, the kernel is told the plain reply and what to rewrite it
    to: told the rewritten reply it would find nothing to do, and never rewrite."""
    parts = [
        _header(flow.original.source),
        _tuple(_TUPLE_ORIG, flow.original),
        _tuple(_TUPLE_REPLY, flow.original.inverse()),
        _rewriting(flow),
        _changeable(flow),
        _mark(flow),
    ]
    return b"".join(parts)


def flow_update(flow: Flow) -> bytes:
    """An entry's status, state and time left. What it rewrites cannot be changed."""
    return flow_name(flow.original) + _changeable(flow)


def flow_name(original: FlowTuple) -> bytes:
    """The one entry that began so: to ask for it, or to remove it."""
    return _header(original.source) + _tuple(_TUPLE_ORIG, original)


def parse_flow(body: memoryview) -> Flow | None:
    """An entry; None for other protocols and zones, and for what is broken."""
    found = attributes(body, _HEADER.size)
    if _ZONE in found or not {_TUPLE_ORIG, _TUPLE_REPLY} <= found.keys():
        return None
    original, reply = _parse_tuple(found[_TUPLE_ORIG]), _parse_tuple(found[_TUPLE_REPLY])
    if original is None or reply is None:
        return None
    info = attributes(found.get(_PROTOINFO, memoryview(b"")), 0)
    return Flow(
        original,
        reply,
        timeout=_number(found.get(_TIMEOUT)),
        status=Status(_number(found.get(_STATUS)) & (Status.SEEN_REPLY | Status.ASSURED)),
        tcp=_parse_tcp(info.get(_INFO_TCP)),
        sctp=_parse_sctp(info.get(_INFO_SCTP)),
        mark=_number(found.get(_MARK)),
        labels=bytes(found.get(_LABELS, b"")),
    )


def _header(address: IPAddress) -> bytes:
    """`struct nfgenmsg`."""
    return _HEADER.pack(AF_INET if address.version == 4 else AF_INET6, 0, 0)


def _nest(kind: int, content: bytes) -> bytes:
    return attribute(kind | _NESTED, content)


def _u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">B", value))


def _u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">H", value))


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def _tuple(kind: int, one: FlowTuple) -> bytes:
    source, destination = (
        (_IP_V4_SRC, _IP_V4_DST) if one.source.version == 4 else (_IP_V6_SRC, _IP_V6_DST)
    )
    addresses = attribute(source, one.source.packed) + attribute(
        destination, one.destination.packed
    )
    return _nest(kind, _nest(_TUPLE_IP, addresses) + _nest(_TUPLE_PROTO, _protocol(one)))


def _protocol(one: FlowTuple) -> bytes:
    number = _u8(_PROTO_NUM, one.protocol)
    if one.protocol not in ICMPS:
        return number + _u16(_SRC_PORT, one.source_port) + _u16(_DST_PORT, one.destination_port)
    ident, kind, code = (
        (_ICMP_ID, _ICMP_TYPE, _ICMP_CODE)
        if one.protocol == ICMP
        else (_ICMPV6_ID, _ICMPV6_TYPE, _ICMPV6_CODE)
    )
    type_and_code = _u8(kind, one.destination_port >> 8) + _u8(code, one.destination_port & 0xFF)
    return number + _u16(ident, one.source_port) + type_and_code


def _rewriting(flow: Flow) -> bytes:
    found = b""
    if flow.source_translated:
        found += _nat(_NAT_SRC, flow.reply.destination, flow.reply.destination_port, flow)
    if flow.destination_translated:
        found += _nat(_NAT_DST, flow.reply.source, flow.reply.source_port, flow)
    return found


def _nat(kind: int, address: IPAddress, port: int, flow: Flow) -> bytes:
    low, high = (_NAT_V4_MIN, _NAT_V4_MAX) if address.version == 4 else (_NAT_V6_MIN, _NAT_V6_MAX)
    content = attribute(low, address.packed) + attribute(high, address.packed)
    if flow.original.protocol not in ICMPS:
        content += _nest(_NAT_PROTO, _u16(_NAT_PORT_MIN, port) + _u16(_NAT_PORT_MAX, port))
    return _nest(kind, content)


def _changeable(flow: Flow) -> bytes:
    content = _u32(_STATUS, flow.status | _CONFIRMED) + _u32(_TIMEOUT, flow.timeout)
    if flow.tcp is not None:
        content += _nest(_PROTOINFO, _nest(_INFO_TCP, _tcp(flow.tcp)))
    elif flow.sctp is not None:
        tags = _u32(_SCTP_TAG_ORIG, flow.sctp.tags[0]) + _u32(_SCTP_TAG_REPLY, flow.sctp.tags[1])
        state = _u8(_SCTP_STATE, flow.sctp.state)
        content += _nest(_PROTOINFO, _nest(_INFO_SCTP, state + tags))
    return content


def _tcp(tracking: TcpTracking) -> bytes:
    flags = (struct.pack(">BB", one, _KNOWN_FLAGS) for one in tracking.flags)
    return (
        _u8(_TCP_STATE, tracking.state)
        + _u8(_TCP_SCALE_ORIG, tracking.scales[0])
        + _u8(_TCP_SCALE_REPLY, tracking.scales[1])
        + attribute(_TCP_FLAGS_ORIG, next(flags))
        + attribute(_TCP_FLAGS_REPLY, next(flags))
    )


def _mark(flow: Flow) -> bytes:
    found = _u32(_MARK, flow.mark) if flow.mark else b""
    return found + (attribute(_LABELS, flow.labels) if any(flow.labels) else b"")


def _parse_tuple(value: memoryview) -> FlowTuple | None:
    found = attributes(value, 0)
    addresses = attributes(found.get(_TUPLE_IP, memoryview(b"")), 0)
    protocol = attributes(found.get(_TUPLE_PROTO, memoryview(b"")), 0)
    number = _number(protocol.get(_PROTO_NUM))
    pair = _parse_addresses(addresses)
    if pair is None or number not in TRACKED or _TUPLE_ZONE in found:
        return None
    if number in ICMPS:
        ident, kind, code = (
            (_ICMP_ID, _ICMP_TYPE, _ICMP_CODE)
            if number == ICMP
            else (_ICMPV6_ID, _ICMPV6_TYPE, _ICMPV6_CODE)
        )
        port = _number(protocol.get(kind)) << 8 | _number(protocol.get(code))
        return FlowTuple(*pair, number, _number(protocol.get(ident)), port)
    ports = _number(protocol.get(_SRC_PORT)), _number(protocol.get(_DST_PORT))
    return FlowTuple(*pair, number, *ports)


def _parse_addresses(found: dict[int, memoryview]) -> tuple[IPAddress, IPAddress] | None:
    try:
        if _IP_V4_SRC in found:
            return (
                IPv4Address(bytes(found[_IP_V4_SRC])),
                IPv4Address(bytes(found[_IP_V4_DST])),
            )
        return IPv6Address(bytes(found[_IP_V6_SRC])), IPv6Address(bytes(found[_IP_V6_DST]))
    except (KeyError, ValueError):
        return None


def _parse_tcp(value: memoryview | None) -> TcpTracking | None:
    if value is None:
        return None
    found = attributes(value, 0)
    try:
        state = TcpState(_number(found.get(_TCP_STATE)))
    except ValueError:
        return None
    scales = _number(found.get(_TCP_SCALE_ORIG)), _number(found.get(_TCP_SCALE_REPLY))
    flags = [
        TcpFlag(bytes(found.get(kind, b"\0"))[0] & _KNOWN_FLAGS)
        for kind in (_TCP_FLAGS_ORIG, _TCP_FLAGS_REPLY)
    ]
    return TcpTracking(state, scales, (flags[0], flags[1]))


def _parse_sctp(value: memoryview | None) -> SctpTracking | None:
    if value is None:
        return None
    found = attributes(value, 0)
    tags = _number(found.get(_SCTP_TAG_ORIG)), _number(found.get(_SCTP_TAG_REPLY))
    return SctpTracking(_number(found.get(_SCTP_STATE)), tags)


def _number(value: memoryview | None) -> int:
    return 0 if value is None else int.from_bytes(value, "big")
