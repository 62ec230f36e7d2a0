"""The moment of a live migration: the guest leaves one pod's cable and appears on the other's.

Run as a process in the hypervisor's namespace, prepared beforehand (`ready` on stdout), started
by a line on stdin. Then: the source's port stops forwarding; the blackout passes; the target's
port forwards; the first RARP leaves. After that it sends the rest of QEMU's announcements.

The blackout is counted from after the source's port was switched off to before the target's was
switched on: the shorter reading, so that what the network is charged with is never too small.
The guest's kernel keeps running meanwhile, cut off; a stopped guest would neither hear nor
answer either, so on the wire it is the same.

QEMU's announcements (virtio-net, measured on 7.2): five broadcast RARPs of 60 bytes at 0, 50, 200,
450 and 800 ms whose source is the guest's MAC and which hold no IP address; and, where the guest
driver has been asked to, about 26 ms after each the guest kernel's own: gratuitous ARP requests,
and unsolicited neighbour advertisements for its IPv6 address.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from lab import clock
from lab.rtnl import BridgePorts, PortState, port_state_request

RARP_TIMES_MS = (0, 50, 200, 450, 800)
GARP_DELAY_MS = 26
ETH_P_ARP, ETH_P_RARP, ETH_P_IPV6 = 0x0806, 0x8035, 0x86DD
ARP_REQUEST, RARP_REQUEST_REVERSE = 1, 3
ICMPV6, ADVERTISEMENT, OVERRIDE = 58, 136, 0x20
ALL_NODES = IPv6Address("ff02::1")
FRAME_MIN = 60
BROADCAST = b"\xff" * 6
PRIORITY = 30
SETTLE_MS = 850
"""When the process ends, and with it the migration for KubeVirt: libvirt's completion and the
status' way through virt-handler and virt-controller take about as long."""


@dataclass(frozen=True, slots=True)
class Cutover:
    """What to do. `source` may be empty: a guest that only appears; so may either address."""

    source: str
    target: str
    mac: str
    address: str
    blackout_ms: float = 50.0
    garp: bool = False
    silent: bool = False
    address6: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened, by CLOCK_MONOTONIC in ns.

    Of QEMU also what `query-migrate` says at the end: its downtime and the whole migration, in ms.
    """

    unplugged_ns: int
    plugged_ns: int
    announced_ns: tuple[int, ...] = field(default=())
    qemu_downtime_ms: float | None = None
    qemu_total_ms: float | None = None

    @property
    def blackout_ms(self) -> float:
        """How long the guest was on no cable."""
        return clock.ms(self.plugged_ns - self.unplugged_ns)

    def to_json(self) -> str:
        """For an annotation; read by `report_from_json`."""
        return json.dumps(asdict(self))


def report_from_json(text: str) -> Report:
    """A report as `Report.to_json` wrote it."""
    data = json.loads(text)
    return Report(**{**data, "announced_ns": tuple(data["announced_ns"])})


def rarp_frame(mac: str) -> bytes:
    """QEMU's announcement: opcode 3, both hardware addresses the guest's, no IP address."""
    own = _mac_bytes(mac)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, RARP_REQUEST_REVERSE)
    frame = BROADCAST + own + struct.pack("!H", ETH_P_RARP) + body + own + bytes(4) + own + bytes(4)
    return frame.ljust(FRAME_MIN, b"\0")


def garp_frame(mac: str, address: str) -> bytes:
    """A guest kernel's gratuitous ARP request (RFC 5227 §3): sender and target are its own IP."""
    own, ip = _mac_bytes(mac), IPv4Address(address).packed
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, ARP_REQUEST)
    return BROADCAST + own + struct.pack("!H", ETH_P_ARP) + body + own + ip + bytes(6) + ip


def advertisement_frame(mac: str, address: str) -> bytes:
    """A guest kernel's unsolicited neighbour advertisement (RFC 4861 §7.2.6): to all nodes."""
    own, ip = _mac_bytes(mac), IPv6Address(address).packed
    option = struct.pack("!BB", 2, 1) + own  # target link-layer address
    body = struct.pack("!BBHI", ADVERTISEMENT, 0, 0, OVERRIDE << 24) + ip + option
    pseudo = ip + ALL_NODES.packed + struct.pack("!II", len(body), ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    head = struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, 255) + ip + ALL_NODES.packed
    return b"\x33\x33" + ALL_NODES.packed[12:] + own + struct.pack("!H", ETH_P_IPV6) + head + body


def checksum(data: bytes) -> int:
    """The Internet's checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def announcements(what: Cutover) -> tuple[tuple[float, bytes], ...]:
    """Frames with their times in ms after the guest appeared, in order."""
    if what.silent:
        return ()
    frames = [(float(at), rarp_frame(what.mac)) for at in RARP_TIMES_MS]
    own = [garp_frame(what.mac, what.address)] if what.address else []
    own += [advertisement_frame(what.mac, what.address6)] if what.address6 else []
    if what.garp:
        frames += [(float(at + GARP_DELAY_MS), frame) for at in RARP_TIMES_MS for frame in own]
    return tuple(sorted(frames, key=lambda item: item[0]))


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def sleep_until(deadline_ns: int) -> None:
    """Return at a moment of CLOCK_MONOTONIC (at once when it has passed)."""
    rest = deadline_ns - clock.monotonic()
    if rest > 0:
        time.sleep(rest / clock.NS_PER_S)


def perform(
    what: Cutover,
    ports: BridgePorts,
    send: Callable[[bytes], object],
    tell: Callable[[int, int], None],
) -> Report:
    """Cut over, tell both times as soon as the first announcement is out, then announce on."""
    off = _request(what.source, PortState.DISABLED)
    on = _request(what.target, PortState.FORWARDING)
    frames = announcements(what)
    if off:
        ports.send(off, what.source)
    unplugged = clock.monotonic()
    sleep_until(unplugged + int(what.blackout_ms * clock.NS_PER_MS))
    plugged = clock.monotonic()
    ports.send(on, what.target)
    sent = []
    for index, (at, frame) in enumerate(frames):
        sleep_until(plugged + int(at * clock.NS_PER_MS))
        sent.append(clock.monotonic())
        send(frame)
        if index == 0:
            tell(unplugged, plugged)
    if not frames:
        tell(unplugged, plugged)
    sleep_until(plugged + SETTLE_MS * clock.NS_PER_MS)
    return Report(unplugged, plugged, tuple(sent))


def _request(ifname: str, state: PortState) -> bytes:
    return port_state_request(socket.if_nametoindex(ifname), state) if ifname else b""


def main() -> None:
    """`python -m lab.cutover '{"source": …}'`: ready, wait for a line, cut over, report."""
    parser = argparse.ArgumentParser(description="cut a guest over from one pod to another")
    parser.add_argument("cutover", help="a JSON object with the fields of Cutover")
    parser.add_argument("--report", type=Path, required=True, help="where the report is kept")
    options = parser.parse_args()
    what = Cutover(**json.loads(options.cutover))
    clock.be_punctual(PRIORITY)
    ports = BridgePorts()
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.bind((what.target, 0))
    say({"ready": True})
    if not sys.stdin.readline():
        return
    report = perform(
        what, ports, wire.send, lambda off, on: say({"unplugged_ns": off, "plugged_ns": on})
    )
    keep(report, options.report)
    say(asdict(report))


def keep(report: Report, file: Path) -> None:
    """Write a report down whole, for who starts anew while the guest moves."""
    fresh = file.with_suffix(".new")
    fresh.write_text(report.to_json())
    fresh.rename(file)


def say(message: dict[str, object]) -> None:
    """Tell who started this; a guest that is moving moves on when nobody listens any more."""
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
