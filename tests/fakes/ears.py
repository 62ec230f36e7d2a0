"""Ears in network namespaces, and somebody who tries what policy denies."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from libtortie.linux.netns import Netns
from tests.fakes.policed_flows import PATIENCE

T = TypeVar("T")
DENIED = 9999
"""The port that no policy of a test allows."""
_ETH_P_ALL, _ETH_P_IP = 0x0003, 0x0800
_SO_RCVBUFFORCE, _SOL_PACKET, _PACKET_STATISTICS = 33, 263, 6
_ECHO_REQUEST = 8


def judged(frame: bytes, vm: bytes) -> str:
    """Which way a frame goes, and whether policy allows it: "denied in", "allowed out"; or none."""
    if len(frame) < 38 or int.from_bytes(frame[12:14], "big") != _ETH_P_IP:
        return ""
    source, destination = frame[26:30], frame[30:34]
    if vm not in (source, destination):
        return ""
    way = "in" if destination == vm else "out"
    payload = frame[14 + 4 * (frame[14] & 0x0F) :]
    match frame[23]:
        case socket.IPPROTO_ICMP if payload[:1] == bytes([_ECHO_REQUEST]):
            return f"denied {way}"
        case socket.IPPROTO_TCP | socket.IPPROTO_UDP:
            to = int.from_bytes(payload[2:4], "big")
            return f"denied {way}" if to == DENIED else f"allowed {way}"
    return ""


@dataclass
class Ear:
    """Hears everything in one network namespace, on whatever link."""

    path: str
    vm: bytes
    heard: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        def listen() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
            sock.setblocking(False)
            return sock

        self.socket = inside(self.path, listen)

    def listen(self) -> None:
        """Take what has come."""
        while True:
            try:
                frame = self.socket.recv(128)
            except BlockingIOError:
                break
            except OSError:  # a link went down
                continue
            if what := judged(frame, self.vm):
                self.heard[what] += 1
        statistics = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self.lost += struct.unpack("=II", statistics)[1]


def inside(path: str, work: Callable[[], T]) -> T:
    """Run work in a network namespace."""
    return Netns(deadline=2 * PATIENCE).call(path, work)


def echo_request(identifier: int) -> bytes:
    """An echo request."""
    words = (_ECHO_REQUEST << 8, identifier, 1)
    total = sum(words)
    return struct.pack("!4H", words[0], ~(total + (total >> 16)) & 0xFFFF, *words[1:])


class Intruder:
    """Sends a datagram and an echo request that are denied, every few milliseconds, and listens
    whether they arrive in the namespace of the one they are for."""

    def __init__(self, here: str, there: str, address: str, every: float = 0.002) -> None:
        self.ear = Ear(there, socket.inet_aton(address))
        self._address, self._every = address, every
        self._sockets = inside(here, _senders)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="intruder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give up."""
        self._over.set()
        self._thread.join()
        for sock in (*self._sockets, self.ear.socket):
            sock.close()

    def _run(self) -> None:
        udp, icmp = self._sockets
        while not self._over.wait(self._every):
            with suppress(OSError):
                udp.sendto(b"?", (self._address, DENIED))
            with suppress(OSError):
                icmp.sendto(echo_request(1), (self._address, 0))
            self.ear.listen()


def _senders() -> tuple[socket.socket, socket.socket]:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
    return udp, socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
