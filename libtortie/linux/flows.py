"""The entries of the kernel's connection table, as values. Pure.

An entry has two tuples: the first packet's (`original`) and the one that the kernel expects of
answers (`reply`). Without NAT one is the other turned round; with NAT the difference says what is
rewritten: `reply.source` is where a packet really goes, `reply.destination` whom it seems to come
from. State, window scales and marks hang on the entry; the windows themselves cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from libtortie.model.ipam import IPAddress

ICMP, TCP, UDP, ICMPV6, SCTP, UDPLITE = 1, 6, 17, 58, 132, 136
ICMPS = frozenset({ICMP, ICMPV6})
TRACKED = frozenset({ICMP, TCP, UDP, ICMPV6, SCTP, UDPLITE})
"""Protocols whose tuples are known here; of others a tuple is more than what `FlowTuple` holds."""

_ICMP_ANSWERS = {8: 0, 0: 8, 13: 14, 14: 13, 15: 16, 16: 15, 17: 18, 18: 17}
_ICMPV6_ANSWERS = {128: 129, 129: 128, 139: 140, 140: 139}


class Status(IntFlag):
    """Bits of an entry's status that a copy can carry (linux/nf_conntrack_common.h)."""

    NONE = 0
    SEEN_REPLY = 1 << 1
    ASSURED = 1 << 2


class TcpState(IntEnum):
    """`enum tcp_conntrack`, in the kernel's numbers."""

    NONE = 0
    SYN_SENT = 1
    SYN_RECV = 2
    ESTABLISHED = 3
    FIN_WAIT = 4
    CLOSE_WAIT = 5
    LAST_ACK = 6
    TIME_WAIT = 7
    CLOSE = 8
    SYN_SENT2 = 9


class TcpFlag(IntFlag):
    """Flags of one direction of a TCP entry."""

    WINDOW_SCALE = 0x01
    SACK_PERM = 0x02
    CLOSE_INIT = 0x04
    BE_LIBERAL = 0x08
    """Packets outside of the window that the kernel has in mind are no reason to drop them."""


@dataclass(frozen=True, slots=True)
class FlowTuple:
    """One direction: addresses, IP protocol and ports.

    Of ICMP `source_port` is the identifier, and `destination_port` type and code in one number.
    """

    source: IPAddress
    destination: IPAddress
    protocol: int
    source_port: int = 0
    destination_port: int = 0

    def inverse(self) -> FlowTuple:
        """The tuple of an answer, where nothing is rewritten."""
        if self.protocol in ICMPS:
            answers = _ICMP_ANSWERS if self.protocol == ICMP else _ICMPV6_ANSWERS
            kind = self.destination_port >> 8
            port = answers.get(kind, kind) << 8 | self.destination_port & 0xFF
            return FlowTuple(self.destination, self.source, self.protocol, self.source_port, port)
        return FlowTuple(
            self.destination,
            self.source,
            self.protocol,
            self.destination_port,
            self.source_port,
        )


@dataclass(frozen=True, slots=True)
class TcpTracking:
    """What the kernel tells of a TCP connection; pairs are (original, reply)."""

    state: TcpState
    scales: tuple[int, int] = (0, 0)
    flags: tuple[TcpFlag, TcpFlag] = (TcpFlag(0), TcpFlag(0))

    def liberal(self) -> TcpTracking:
        """The same, judged without regard to windows, which a copy does not know."""
        one, other = self.flags
        return replace(self, flags=(one | TcpFlag.BE_LIBERAL, other | TcpFlag.BE_LIBERAL))


@dataclass(frozen=True, slots=True)
class SctpTracking:
    """An SCTP association: the kernel's state number and both verification tags."""

    state: int
    tags: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Flow:
    """An entry. `timeout` is how many seconds it has left; `labels` are raw bytes, or empty."""

    original: FlowTuple
    reply: FlowTuple
    timeout: int
    status: Status = Status.NONE
    tcp: TcpTracking | None = None
    sctp: SctpTracking | None = None
    mark: int = 0
    labels: bytes = b""

    @property
    def destination_translated(self) -> bool:
        """Whether packets go elsewhere than they say (DNAT)."""
        plain = self.original.inverse()
        return (plain.source, plain.source_port) != (self.reply.source, self.reply.source_port)

    @property
    def source_translated(self) -> bool:
        """Whether packets seem to come from elsewhere than they do (SNAT)."""
        plain = self.original.inverse()
        return (plain.destination, plain.destination_port) != (
            self.reply.destination,
            self.reply.destination_port,
        )

    def touches(self, address: IPAddress) -> bool:
        """Whether one end of it is this address, before or after rewriting."""
        first, answer = self.original, self.reply
        return address in (first.source, first.destination, answer.source, answer.destination)
