"""A node, its pods and the world beyond in network namespaces; packets made by hand go through.

A frame is put on the sender's end of its wire and looked for on the receiver's. Whether it was
dropped is known without waiting: behind it, on the same processor, goes one that the node itself
sends, which no policy is about; when that is there and the frame is not, it will never be.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from libtortie.linux.netns import Netns
from libtortie.model.names import HOST_SIDE_MAC
from tests.fakes.fresh_names import fresh_name
from tests.fakes.packets import Packet

Address = IPv4Address | IPv6Address
PATIENCE = 60.0
FAR_MAC, UPLINK_MAC = "02:00:00:00:00:f1", "02:00:00:00:00:f0"


@dataclass(frozen=True, slots=True)
class Wire:
    """One end of the node's wires: the interface there, and who is at the other end."""

    interface: str
    mac: str
    addresses: tuple[Address, ...]
    node_mac: str = HOST_SIDE_MAC


def far_wire(addresses: tuple[Address, ...]) -> Wire:
    """The world beyond the node, which has these addresses."""
    return Wire("up0", FAR_MAC, addresses, UPLINK_MAC)


class WiredNode:
    """Use by `wired`. Nothing stops what the node sends to `marker_port` (UDP)."""

    marker_port = 9

    def __init__(self, wires: tuple[Wire, ...]) -> None:
        self.namespace = fresh_name("w")
        self.wires = wires
        self._inside = {wire.interface: fresh_name("p") for wire in wires}
        self._ends: dict[str, socket.socket] = {}
        self._own: dict[int, socket.socket] = {}
        self._remembers = False

    def call(self, work: Callable[[], object]) -> object:
        """Do something in the node's namespace."""
        return Netns(deadline=2 * PATIENCE).call(f"/run/netns/{self.namespace}", work)

    def reaches(self, packet: Packet, receiver: Wire | None = None) -> bool:
        """Whether a packet comes from its sender's wire out of its receiver's, or this one."""
        return bool(self.crosses(packet, receiver))

    def crosses(
        self, packet: Packet, receiver: Wire | None = None, sender: Wire | None = None
    ) -> bytes:
        """The frame as which it comes out; empty: it does not.

        `sender`: another one than who has the address, or with another MAC.
        """
        sender = sender or self._of(packet.source)
        receiver = receiver or self._of(packet.destination)
        token = secrets.token_bytes(12)
        self.forget_connections()
        end = self._ends[receiver.interface]
        frame = frame_of(packet, sender, token)
        self._ends[sender.interface].send(frame)
        marker = secrets.token_bytes(12)
        own = self._own[packet.version]
        address = next(one for one in receiver.addresses if one.version == packet.version)
        own.sendto(marker, (str(address), self.marker_port))
        seen = b""
        while True:
            heard = end.recv(2048)
            seen = heard if token in heard else seen
            if marker in heard:
                return seen

    def ip(self, words: str) -> None:
        """Have `ip` do this in the node's namespace."""
        self._ip(self.namespace, words)

    def forget_connections(self) -> None:
        """No packet is known to belong to one before."""
        if not self._remembers:
            self.call(lambda: _run("conntrack", "-F"))

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Meanwhile connections are known that were there before."""
        self._remembers = True
        try:
            yield
        finally:
            self._remembers = False

    def _of(self, address: Address) -> Wire:
        return next(wire for wire in self.wires if address in wire.addresses)

    # -- making it ---------------------------------------------------------------------------

    def open(self) -> None:
        """Namespaces, wires, routes, neighbours, sockets."""
        _run("ip", "netns", "add", self.namespace)
        self._ip(self.namespace, "link set lo up")
        self.call(self._forward)
        for wire in self.wires:
            self._wire(wire)
        for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
            made = self.call(partial(socket.socket, family, socket.SOCK_DGRAM))
            self._own[version] = _socket(made)

    def close(self) -> None:
        """Everything away again."""
        for sock in (*self._ends.values(), *self._own.values()):
            sock.close()
        for name in (self.namespace, *self._inside.values()):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    @staticmethod
    def _forward() -> None:
        for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path(f"/proc/sys/net/{name}").write_text("1")
        Path("/proc/sys/net/netfilter/nf_conntrack_checksum").write_text("0")  # SCTP's is none
        for conf in ("all", "default"):
            Path(f"/proc/sys/net/ipv4/conf/{conf}/rp_filter").write_text("0")
            Path(f"/proc/sys/net/ipv6/conf/{conf}/accept_dad").write_text("0")

    def _wire(self, wire: Wire) -> None:
        there = self._inside[wire.interface]
        _run("ip", "netns", "add", there)
        self._ip(
            self.namespace,
            f"link add {wire.interface} address {wire.node_mac} type veth "
            f"peer name eth0 address {wire.mac} netns {there}",
        )
        self._ip(self.namespace, f"link set {wire.interface} up")
        self._ip(there, "link set eth0 up")
        for number, address in enumerate(wire.addresses):
            family = f"-{address.version}"
            bits = address.max_prefixlen
            at = f"dev {wire.interface}"
            self._ip(self.namespace, f"{family} route add {address}/{bits} {at}")
            self._ip(self.namespace, f"{family} neigh add {address} lladdr {wire.mac} {at}")
            if number == 0 and wire.interface == "up0":
                self._ip(self.namespace, f"addr add 172.31.0.11/24 {at}")
                self._ip(self.namespace, f"addr add fd00:31::11/64 {at} nodad")
        end = Netns(deadline=2 * PATIENCE).call(f"/run/netns/{there}", _sniffer)
        self._ends[wire.interface] = _socket(end)

    @staticmethod
    def _ip(namespace: str, words: str) -> None:
        _run("ip", "-n", namespace, *words.split())


@contextmanager
def pinned() -> Iterator[None]:
    """This thread stays on one processor."""
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(processors)})
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def wired(wires: tuple[Wire, ...]) -> Iterator[WiredNode]:
    """A node with these wires; this thread stays on one processor meanwhile."""
    node = WiredNode(wires)
    with pinned():
        try:
            node.open()
            yield node
        finally:
            node.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _sniffer() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    sock.bind(("eth0", 0x0003))
    sock.settimeout(PATIENCE)
    return sock


def _socket(made: object) -> socket.socket:
    assert isinstance(made, socket.socket)
    return made


def frame_of(packet: Packet, sender: Wire, token: bytes) -> bytes:
    """A packet on the wire."""
    body = _summed(packet, transport_of(packet, token))
    source, destination = packet.source.packed, packet.destination.packed
    macs = bytes.fromhex((sender.node_mac + sender.mac).replace(":", ""))
    if packet.version == 6:
        header = struct.pack("!IHBB", 6 << 28, len(body), packet.protocol, 64)
        return macs + b"\x86\xdd" + header + source + destination + body
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, packet.protocol, 0)
    summed = _checksum(head + source + destination)
    header = head[:10] + struct.pack("!H", summed) + source + destination
    return macs + b"\x08\x00" + header + body


def transport_of(packet: Packet, token: bytes) -> bytes:
    """A connection's first segment, without checksum."""
    ports = struct.pack("!HH", packet.source_port, packet.destination_port)
    match packet.protocol:
        case 6:
            return ports + struct.pack("!IIBBHHH", 1, 0, 0x50, 2, 65535, 0, 0) + token
        case 17:
            return ports + struct.pack("!HH", 8 + len(token), 0) + token
        case 132:
            init = struct.pack("!BBHIIHHI", 1, 0, 20 + len(token), 7, 65535, 1, 1, 1)
            return ports + struct.pack("!II", 0, 0) + init + token
        case 1 | 58:
            return struct.pack("!BBHHH", *packet.icmp, 0, 1, 1) + token
    return struct.pack("!HH", 0, 0x0800) + token


def _summed(packet: Packet, body: bytes) -> bytes:
    """With the checksum that conntrack and receivers look at; of SCTP's and GRE's nobody does."""
    at = {6: 16, 17: 6, 1: 2, 58: 2}.get(packet.protocol)
    if at is None:
        return body
    pseudo = b""
    if packet.protocol != 1:
        pseudo = packet.source.packed + packet.destination.packed
        pseudo += struct.pack("!II", len(body), packet.protocol)
    padding = b"\0" * (len(body) % 2)
    found = struct.pack("!H", _checksum(pseudo + body + padding))
    return body[:at] + found + body[at + 2 :]


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
