"""What the kernels did and when: the guest's frames on a node, and every route to its address.

One process holds a packet socket in the target's namespace and a route monitor in each namespace
asked for, and prints one JSON object per event, times on CLOCK_MONOTONIC in ns. Frames carry the
kernel's receive time; route messages are stamped when this process (SCHED_FIFO) has read them, all
that there are before any is looked at.

The packet socket listens on all interfaces through a BPF filter on the guest's source MAC: such
frames exist only on the host end of the guest's own veth, and the interface need not be there yet.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address

from lab import clock, rtnl
from lab.probes import SO_TIMESTAMPNS
from libtortie.linux.netns import Netns
from libtortie.model.ipam import IPAddress

PRIORITY = 28
SO_ATTACH_FILTER = 26
ETH_P_ALL = 3
PACKET_OUTGOING = 4
ETH_P_IP, ETH_P_IPV6, ETH_P_ARP, ETH_P_RARP = 0x0800, 0x86DD, 0x0806, 0x8035
ICMPV6, ADVERTISEMENT, SOLICITED = 58, 136, 0x40
RT_TABLE_MAIN = 254


@dataclass(frozen=True, slots=True)
class FrameSeen:
    """The first frame of a kind from the guest on a node."""

    t_ns: int
    where: str
    what: str
    ifname: str
    kind: str = "frame"


@dataclass(frozen=True, slots=True)
class RouteSeen:
    """A host route of the guest changed in some namespace's main table."""

    t_ns: int
    where: str
    added: bool
    metric: int
    gateway: str
    ifname: str
    proto: int
    version: int = 4
    kind: str = "route"


Seen = FrameSeen | RouteSeen
Stamped = tuple[int, bytes]
"""When a message was read, and the message."""


def classify(frame: bytes, addresses: Sequence[IPAddress]) -> str:
    """`rarp`, `garp`, `arp`, `ip`, `na` (an unsolicited neighbour advertisement), `ip6` or `other`
    for a frame of the guest."""
    ours = [address.packed for address in addresses]
    ethertype = int.from_bytes(frame[12:14], "big")
    if ethertype == ETH_P_RARP:
        return "rarp"
    if ethertype == ETH_P_ARP:
        gratuitous = frame[28:32] == frame[38:42] and frame[28:32] in ours
        return "garp" if gratuitous else "arp"
    if ethertype == ETH_P_IP and frame[26:30] in ours:
        return "ip"
    if ethertype == ETH_P_IPV6 and _advertises(frame[14:], ours):
        return "na"
    return "ip6" if ethertype == ETH_P_IPV6 and frame[22:38] in ours else "other"


def _advertises(packet: bytes, ours: Sequence[bytes]) -> bool:
    """Whether IPv6 says of one of our addresses, unasked, where it is."""
    body = packet[40:]
    if len(body) < 24 or packet[6] != ICMPV6 or body[0] != ADVERTISEMENT or body[4] & SOLICITED:
        return False
    return body[8:24] in ours


def mac_filter(mac: str) -> bytes:
    """Classic BPF: pass frames whose source MAC is this one, and nothing else."""
    raw = bytes.fromhex(mac.replace(":", ""))
    high, low = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big")
    load_word, load_half, jump_equal, ret = 0x20, 0x28, 0x15, 0x06
    program = (
        (load_word, 0, 0, 6),
        (jump_equal, 0, 3, high),
        (load_half, 0, 0, 10),
        (jump_equal, 0, 1, low),
        (ret, 0, 0, 0x40000),
        (ret, 0, 0, 0),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def open_sniffer(netns: str, mac: str) -> socket.socket:
    """A packet socket in a namespace that hears only the guest."""

    def work() -> socket.socket:
        # Protocol "all" from the start, because Python cannot bind to "any interface".
        everything = socket.htons(ETH_P_ALL)
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_PACKET, kind, everything)
        program = mac_filter(mac)
        buffer = ctypes.create_string_buffer(program, len(program))
        head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, head)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        with contextlib.suppress(BlockingIOError):
            while True:  # what came in before the filter was in place
                sock.recv(1)
        return sock

    return Netns().call(netns, work)


class Sniffer:
    """Reports the first frame of each kind, and stops when there was an IP frame of each family."""

    def __init__(
        self, sock: socket.socket, where: str, addresses: Sequence[IPAddress], offset: int
    ) -> None:
        self.sock = sock
        self._where = where
        self._addresses = addresses
        self._last = {"ip" if address.version == 4 else "ip6" for address in addresses}
        self._offset = offset
        self._known: set[str] = set()

    def read(self) -> list[Seen]:
        """Everything new. After the first IP frames the rest of the traffic is of no interest."""
        out: list[Seen] = []
        while True:
            try:
                frame, control, _, sender = self.sock.recvmsg(128, 64)
            except BlockingIOError:
                return out
            ifname, kind = sender[0], sender[2]
            what = classify(frame, self._addresses)
            if kind == PACKET_OUTGOING or what in self._known:
                continue
            self._known.add(what)
            out.append(FrameSeen(self._stamp(control), self._where, what, ifname))
            if self._last <= self._known:
                self.sock.close()
                return out

    def _stamp(self, control: list[tuple[int, int, bytes]]) -> int:
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, rest = struct.unpack_from("=qq", data)
                return int(seconds) * clock.NS_PER_S + int(rest) - self._offset
        return clock.monotonic()


class Monitor:
    """Reports changes of host routes to a guest's addresses in one namespace."""

    def __init__(self, netns: str, where: str, addresses: Sequence[IPAddress]) -> None:
        self._where = where
        self._hosts = {(str(address), address.max_prefixlen) for address in addresses}
        self.sock = Netns().call(netns, rtnl.route_monitor)
        self._names: dict[int, str] = {}

    def drain(self) -> list[Stamped]:
        """Every message there is, at the time of its reading."""
        out: list[Stamped] = []
        while True:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return out
            out.append((clock.monotonic(), data))

    def tell(self, drained: Iterable[Stamped]) -> Iterator[Seen]:
        """What messages say of the guest's addresses."""
        for now, data in drained:
            for change in rtnl.parse_route_changes(data):
                host = (change.dst, change.prefixlen)
                if host in self._hosts and change.table == RT_TABLE_MAIN:
                    yield self._seen(change, now)

    def _seen(self, change: rtnl.RouteChange, now: int) -> RouteSeen:
        return RouteSeen(
            now,
            self._where,
            change.added,
            change.metric,
            change.gateway,
            "" if change.gateway else self._name(change.ifindex),
            change.proto,
            ip_address(change.dst).version,
        )

    def _name(self, ifindex: int) -> str:
        """Name of a link, asked only for on-link routes and remembered: it may go at any time."""
        if ifindex not in self._names:
            self._names[ifindex] = rtnl.link_name(self.sock, ifindex) or f"#{ifindex}"
        return self._names[ifindex]


class Holder:
    """Tells nothing before `hold_s` seconds have passed since the first of it was seen: telling
    takes the processor from those who are watched."""

    def __init__(
        self,
        tell: Callable[[Seen], None],
        hold_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._hold_s = hold_s
        self._now = now
        self._held: list[Seen] = []
        self._due = 0.0

    def take(self, event: Seen) -> None:
        """One more; told at once where nothing is held back."""
        if not self._hold_s:
            self._tell(event)
            return
        if not self._held:
            self._due = self._now() + self._hold_s
        self._held.append(event)

    def patience(self) -> float | None:
        """Seconds until `release` has something to do; None: nothing is held."""
        return max(0.0, self._due - self._now()) if self._held else None

    def release(self, *, whatever: bool = False) -> None:
        """Tell what is due, or `whatever` is held."""
        if self._held and (whatever or self._now() >= self._due):
            for event in self._held:
                self._tell(event)
            self._held.clear()


def watch(sniffer: Sniffer, monitors: list[Monitor], holder: Holder) -> None:
    """Report until stdin ends."""
    loop = selectors.DefaultSelector()
    loop.register(sys.stdin, selectors.EVENT_READ)
    loop.register(sniffer.sock, selectors.EVENT_READ, sniffer)
    for monitor in monitors:
        loop.register(monitor.sock, selectors.EVENT_READ, monitor)
    while True:
        ready = [key for key, _ in loop.select(holder.patience())]
        # First the times: what is made of one message would be added to the next one's.
        drained = [(one, one.drain()) for one in monitors if one in {key.data for key in ready}]
        events = [event for one, found in drained for event in one.tell(found)]
        for key in ready:
            if key.data is sniffer:
                events += sniffer.read()
                if sniffer.sock.fileno() < 0:
                    loop.unregister(key.fileobj)
        for event in events:
            holder.take(event)
        ended = any(key.data is None for key in ready)
        holder.release(whatever=ended)
        if ended:
            return


def main() -> None:
    """`python -m lab.observers --address IP --mac MAC --frames NAME=NETNS --routes …`."""
    parser = argparse.ArgumentParser(description="watch a guest's frames and routes")
    parser.add_argument("--address", action="append", required=True, type=ip_address)
    parser.add_argument("--mac", required=True)
    parser.add_argument("--frames", required=True)
    parser.add_argument("--routes", action="append", required=True)
    parser.add_argument("--hold-ms", type=int, default=0, help="tell so much later, all at once")
    args = parser.parse_args()
    where, path = args.frames.split("=", 1)
    sniffer = Sniffer(open_sniffer(path, args.mac), where, args.address, clock.realtime_offset())
    monitors = [
        Monitor(netns, name, args.address)
        for name, netns in (place.split("=", 1) for place in args.routes)
    ]
    clock.be_punctual(PRIORITY)
    print(json.dumps({"ready": True}), flush=True)
    holder = Holder(lambda event: print(json.dumps(asdict(event)), flush=True), args.hold_ms / 1000)
    watch(sniffer, monitors, holder)


if __name__ == "__main__":
    main()
