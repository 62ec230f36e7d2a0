"""A wired node whose own traffic is looked at, too: what it hears, what it sends, what it forwards.

Whether a packet was dropped is known without waiting, as in `wired_pods.py`: behind it goes one
that no policy can stop (UDP to failsafe port 68, or from the node to 67), on the same processor.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tests.fakes.packets import ICMP, ICMPV6, SCTP, TCP, UDP, Packet
from tests.fakes.wired_pods import (
    PATIENCE,
    Address,
    Wire,
    WiredNode,
    frame_of,
    pinned,
    transport_of,
)

OPEN_IN, OPEN_OUT = 68, 67
"""Ports that no policy can close, by which a marker gets to the node and from it."""
_PROTOCOLS = (TCP, UDP, SCTP, ICMP, 47)


class WiredHost(WiredNode):
    """Use by `wired_host`. `own` are the node's addresses, on `up0`."""

    marker_port = OPEN_OUT

    def __init__(self, wires: tuple[Wire, ...], own: tuple[Address, ...]) -> None:
        super().__init__(wires)
        self.own = own
        self._ears: dict[tuple[int, int], socket.socket] = {}

    def open(self) -> None:
        """Also ears for what gets to the node, of each protocol."""
        super().open()
        for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
            for protocol in _PROTOCOLS:
                number = ICMPV6 if (version, protocol) == (6, ICMP) else protocol
                made = self.call(partial(socket.socket, family, socket.SOCK_RAW, number))
                assert isinstance(made, socket.socket)
                made.setblocking(False)
                self._ears[version, number] = made

    def close(self) -> None:
        """Everything away again."""
        for sock in self._ears.values():
            sock.close()
        super().close()

    def hears(self, packet: Packet, sender: Wire | None = None) -> bool:
        """Whether a packet gets to the node itself; `sender`: as in `crosses`."""
        sender = sender or self._of(packet.source)
        token = self._token()
        self.forget_connections()
        for version, protocol in self._ears:
            self._drain(version, protocol)
        end = self._ends[sender.interface]
        end.send(frame_of(packet, sender, token))
        marker, uplink = self._token(), self._uplink
        far = next(one for one in uplink.addresses if one.version == packet.version)
        opens = Packet(far, self._own_address(packet.version), UDP, 9, OPEN_IN)
        self._ends[uplink.interface].send(frame_of(opens, uplink, marker))
        heard, until = b"", time.monotonic() + PATIENCE
        while marker not in heard:  # sent and received by one processor: it is there at once
            assert time.monotonic() < until, "the way to the node is closed even to the marker"
            heard += self._drain(packet.version, UDP)
        for one in (end, self._ends[uplink.interface]):
            self._forget_answers(one)
        if packet.protocol != UDP:
            heard += self._drain(packet.version, packet.protocol)
        return token in heard

    def sends(self, packet: Packet) -> bool:
        """Whether a packet of the node itself comes out of its receiver's wire."""
        token = self._token()
        self.forget_connections()
        ear = self._ears[packet.version, packet.protocol]
        to = (str(packet.destination), 0)
        with suppress(PermissionError):  # the node is told so at once
            self._ears_send(ear, packet, token, to)
        marker = self._token()
        self._own[packet.version].sendto(marker, (str(packet.destination), OPEN_OUT))
        end = self._ends[self._of(packet.destination).interface]
        seen = False
        while True:
            heard = end.recv(2048)
            seen |= token in heard
            if marker in heard:
                return seen

    def _ears_send(
        self, ear: socket.socket, packet: Packet, token: bytes, to: tuple[str, int]
    ) -> None:
        ear.setblocking(True)
        try:
            ear.sendto(transport_of(packet, token), to)
        finally:
            ear.setblocking(False)

    @staticmethod
    def _forget_answers(end: socket.socket) -> None:
        """What the node has answered, which nobody looks at, leaves room for what is looked at."""
        end.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                end.recv(1)
        end.settimeout(PATIENCE)

    def _own_address(self, version: int) -> Address:
        return next(one for one in self.own if one.version == version)

    @property
    def _uplink(self) -> Wire:
        return next(wire for wire in self.wires if wire.interface == "up0")

    def _drain(self, version: int, protocol: int) -> bytes:
        heard = b""
        ear = self._ears[version, protocol]
        while True:
            try:
                heard += ear.recv(2048)
            except BlockingIOError:
                return heard

    @staticmethod
    def _token() -> bytes:
        return secrets.token_bytes(12)


@contextmanager
def wired_host(wires: tuple[Wire, ...], own: tuple[Address, ...]) -> Iterator[WiredHost]:
    """Such a node; this thread stays on one processor meanwhile."""
    node = WiredHost(wires, own)
    with pinned():
        try:
            node.open()
            yield node
        finally:
            node.close()
