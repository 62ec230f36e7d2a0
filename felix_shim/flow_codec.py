"""Connection-table entries as agents send them to each other. Pure.

What is read here comes from another node: every field is checked, and what a kernel could not have
told is `Malformed`. One entry is a JSON array, about 150 bytes.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from libtortie.errors import Malformed
from libtortie.linux.flows import (
    SCTP,
    TCP,
    TRACKED,
    Flow,
    FlowTuple,
    SctpTracking,
    Status,
    TcpFlag,
    TcpState,
    TcpTracking,
)

LONGEST_TIMEOUT = 30 * 86400
"""Seconds; the kernel's default for an established TCP connection is 5 days."""
_LABEL_BYTES = 16
_ICMP_PORT_MAX = 0xFFFF


def encode_flow(flow: Flow) -> list[Any]:
    """The JSON array of an entry."""
    tcp, sctp = flow.tcp, flow.sctp
    return [
        _encode_tuple(flow.original),
        _encode_tuple(flow.reply),
        int(flow.status),
        flow.timeout,
        [int(tcp.state), *tcp.scales, *map(int, tcp.flags)] if tcp else None,
        [sctp.state, *sctp.tags] if sctp else None,
        flow.mark,
        flow.labels.hex(),
    ]


def decode_flow(item: object) -> Flow:
    """An entry of a JSON array. Raises `Malformed`."""
    if not isinstance(item, list) or len(item) != 8:
        raise Malformed("a connection of another form")
    original, reply, status, timeout, tcp, sctp, mark, labels = item
    first, answer = _tuple(original), _tuple(reply)
    if (first.protocol, first.source.version) != (answer.protocol, answer.source.version):
        raise Malformed("a connection whose directions differ in protocol or family")
    if not isinstance(labels, str) or len(labels) > 2 * _LABEL_BYTES:
        raise Malformed("a connection's labels")
    try:
        label_bytes = bytes.fromhex(labels)
    except ValueError as error:
        raise Malformed("a connection's labels") from error
    return Flow(
        first,
        answer,
        timeout=_number(timeout, LONGEST_TIMEOUT),
        status=Status(_number(status, 0xFF) & (Status.SEEN_REPLY | Status.ASSURED)),
        tcp=_tcp(tcp) if first.protocol == TCP and tcp is not None else None,
        sctp=_sctp(sctp) if first.protocol == SCTP and sctp is not None else None,
        mark=_number(mark, 0xFFFFFFFF),
        labels=label_bytes,
    )


def _encode_tuple(one: FlowTuple) -> list[Any]:
    ends = str(one.source), str(one.destination)
    return [*ends, one.protocol, one.source_port, one.destination_port]


def _tuple(item: object) -> FlowTuple:
    if not isinstance(item, list) or len(item) != 5:
        raise Malformed("a connection's tuple of another form")
    source, destination, protocol, source_port, destination_port = item
    if not isinstance(source, str) or not isinstance(destination, str):
        raise Malformed("a connection's address that is no text")
    try:
        ends = ip_address(source), ip_address(destination)
    except ValueError as error:
        raise Malformed(f"a connection's address: {error}") from error
    if ends[0].version != ends[1].version:
        raise Malformed("a connection between two families")
    if _number(protocol, 0xFF) not in TRACKED:
        raise Malformed(f"a connection of protocol {protocol}")
    ports = _number(source_port, 0xFFFF), _number(destination_port, _ICMP_PORT_MAX)
    return FlowTuple(*ends, protocol, *ports)


def _tcp(item: object) -> TcpTracking:
    state, *rest = _numbers(item, 5, 0xFF)
    try:
        known = TcpState(state)
    except ValueError as error:
        raise Malformed(f"a TCP connection in state {state}") from error
    scales = min(rest[0], 14), min(rest[1], 14)  # RFC 7323 §2.3
    flags = TcpFlag(rest[2] & 0x0F), TcpFlag(rest[3] & 0x0F)
    return TcpTracking(known, scales, flags)


def _sctp(item: object) -> SctpTracking:
    state, one, other = _numbers(item, 3, 0xFFFFFFFF)
    return SctpTracking(_number(state, 0xFF), (one, other))


def _numbers(item: object, count: int, most: int) -> list[int]:
    if not isinstance(item, list) or len(item) != count:
        raise Malformed("a connection's state of another form")
    return [_number(one, most) for one in item]


def _number(item: object, most: int) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= most:
        raise Malformed("a connection's number that cannot be")
    return item
