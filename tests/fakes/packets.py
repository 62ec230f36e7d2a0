"""Packets as values, for whatever judges them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

TCP, UDP, SCTP, ICMP, ICMPV6 = 6, 17, 132, 1, 58
WITH_PORTS = frozenset({TCP, UDP, SCTP})


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection. Ports count for TCP, UDP and SCTP, `icmp` for ICMP.

    `original` is the destination and port it came with, when they were translated.
    """

    source: IPv4Address | IPv6Address
    destination: IPv4Address | IPv6Address
    protocol: int
    source_port: int = 0
    destination_port: int = 0
    icmp: tuple[int, int] = (0, 0)
    link_in: str = ""
    link_out: str = ""
    original: tuple[IPv4Address | IPv6Address, int] | None = None

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.source.version
