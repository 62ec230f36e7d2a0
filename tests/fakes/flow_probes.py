"""Echo requests from several addresses of one namespace, in both families, and which were answered.

A router that spreads flows over several ways does so by their addresses: each of these is a flow of
its own. The kernel answers them, so that no busy process looks like a lost packet. A process of its
own sends them; what it saw comes as `Lost`.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from lab import clock
from lab.probes import SO_TIMESTAMPNS, Prober, probe, round_trips
from lab.trace import LOST
from libtortie.linux.netns import Netns
from tests.fakes.node_process import DEADLINE

INTERVAL_NS = 10 * clock.NS_PER_MS
_ECHO = {4: 8, 6: 128}
_HEADER = 8


class EchoSocket:
    """What a prober wants of a socket, over a kernel's echo socket, which has a header."""

    def __init__(self, source: str, target: str) -> None:
        self._version = ip_address(target).version
        family, protocol = (
            (socket.AF_INET, socket.IPPROTO_ICMP)
            if self._version == 4
            else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
        )
        self._sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, protocol)
        self._sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sock.bind((source, 0))
        self._sock.connect((target, 0))

    def send(self, data: bytes) -> int:
        """One echo request; the kernel fills in checksum and identifier."""
        return self._sock.send(struct.pack("!BBHHH", _ECHO[self._version], 0, 0, 0, 0) + data)

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, str]:
        """One answer, without its header."""
        data, control, flags, _ = self._sock.recvmsg(size + _HEADER, room)
        return data[_HEADER:], control, flags, ""


@dataclass(slots=True)
class Seen:
    """By flow, `source > target`: how many counted, and when each lost one was sent (ns)."""

    sent: dict[str, int] = field(default_factory=dict)
    lost_at: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def lost_outside(self, windows: Iterable[tuple[int, int]]) -> dict[str, list[float]]:
        """Flows with losses at other times than these: ms since the first window's begin."""
        known = list(windows)
        begin = known[0][0] if known else 0
        found = {
            flow: [
                round((at - begin) / clock.NS_PER_MS, 1)
                for at in lost
                if not any(since <= at <= until for since, until in known)
            ]
            for flow, lost in self.lost_at.items()
        }
        return {flow: lost for flow, lost in found.items() if lost}


@contextmanager
def probing(space: str, sources: Sequence[str], targets: Sequence[str]) -> Iterator[Seen]:
    """Probe for as long as the block lasts; what was seen is there when it is over."""
    command = [sys.executable, "-m", "tests.fakes.flow_probes", "--netns", f"/run/netns/{space}"]
    for target in targets:
        version = ip_address(target).version
        for source in sources:
            if ip_address(source).version == version:
                command += ["--flow", f"{source}>{target}"]
    seen = Seen()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        yield seen
        out, _ = process.communicate("stop\n", timeout=DEADLINE)
        for flow, (sent, lost) in json.loads(out).items():
            seen.sent[flow], seen.lost_at[flow] = sent, tuple(lost)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """`python -m tests.fakes.flow_probes --netns PATH --flow SOURCE>TARGET …`."""
    parser = argparse.ArgumentParser(description="echo requests, each flow by itself")
    parser.add_argument("--netns", required=True)
    parser.add_argument("--flow", action="append", required=True)
    args = parser.parse_args()
    offset = clock.realtime_offset()

    def opened() -> list[EchoSocket]:
        return [EchoSocket(*flow.split(">")) for flow in args.flow]

    probers = [Prober(one, offset) for one in Netns().call(args.netns, opened)]  # type: ignore[arg-type]  # sends and receives as one
    print(json.dumps({"ready": True}), flush=True)
    probe(probers, INTERVAL_NS)
    result = {}
    for flow, prober in zip(args.flow, probers, strict=True):
        trips = round_trips(prober.sends, prober.receives)
        lost = [at for at, trip in zip(prober.sends, trips, strict=False) if trip == LOST]
        result[flow] = (len(trips), lost)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
