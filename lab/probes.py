"""UDP probes: one numbered datagram every millisecond from each of several places.

One process serves all places and families (sockets keep the namespace they were opened in), because
two cores are shared with everything that is measured. Sending times are read by this process,
receiving times are the kernel's (SO_TIMESTAMPNS), both on CLOCK_MONOTONIC.

A prober that loses the processor would see an outage of its own making. So its sending times are
evidence too: the part of a gap in which no probe was on its way is `own_stall`, reported and taken
off. What remains is the time for which probes were sent and stayed without an answer.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from itertools import pairwise

from lab import clock, names
from lab.trace import LOST, Sample
from libtortie.linux.netns import Netns

PRIORITY = 25
SO_TIMESTAMPNS = 35
"""`asm-generic/socket.h`; Python names no constant for it."""

_PROBE = struct.Struct("!QQ")
_TIMESPEC = struct.Struct("=qq")
_MAGIC = 0x746F727469652D31
NOTABLE_NS = 5 * clock.NS_PER_MS


@dataclass(frozen=True, slots=True)
class Gap:
    """A silence between two answers; times in ns on CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    own_stall_ns: int = 0
    lost: int = 0

    @property
    def outage_ns(self) -> int:
        """The silence without the prober's own part."""
        return max(0, self.end_ns - self.start_ns - self.own_stall_ns)


@dataclass(frozen=True, slots=True)
class Series:
    """What one prober saw. `gaps` are those over 5 ms and the longest, in order of time;
    `lost_at` is when each lost probe was sent, in ns."""

    sent: int
    lost: int
    rtt_p50_ms: float
    worst_stall_ms: float
    gaps: tuple[Gap, ...] = field(default=())
    lost_at: tuple[int, ...] = field(default=())

    @property
    def longest(self) -> Gap | None:
        """The longest outage; None when there were not two answers."""
        return max(self.gaps, key=lambda gap: gap.outage_ns, default=None)


def settled(sends: Sequence[int]) -> int:
    """How many probes count: those sent at least 100 ms before the end had time to come back."""
    horizon = (sends[-1] if sends else 0) - 100 * clock.NS_PER_MS
    return sum(1 for at in sends if at <= horizon)


def round_trips(sends: Sequence[int], receives: Sequence[int]) -> list[int]:
    """The round trip in ns, or `LOST`, of each probe that counts."""
    count = settled(sends)
    pairs = zip(sends[:count], receives[:count], strict=True)
    return [back - out if back else LOST for out, back in pairs]


def analyse(sends: Sequence[int], receives: Sequence[int], interval_ns: int) -> Series:
    """Judge a run: `receives[i]` is when probe i was answered, 0 when it never was.

    Probes still on their way at the end of the run (sent less than 100 ms before it) count as
    neither sent nor lost. Answers may overtake each other. A silence that lasts to the end of the
    run, or from its beginning, is a gap like any other.
    """
    count = settled(sends)
    answered = sorted((at, index) for index, at in enumerate(receives) if at)
    gaps = [
        _gap(sends, receives, before, after, interval_ns) for before, after in pairwise(answered)
    ]
    gaps += _silent_ends(sends, receives, answered, count)
    longest = max(gaps, key=lambda gap: gap.outage_ns, default=None)
    rtts = sorted(at - sends[index] for at, index in answered)
    lost_at = tuple(sends[index] for index in range(count) if not receives[index])
    strides = [later - sooner for sooner, later in pairwise(sends)]
    return Series(
        sent=count,
        lost=len(lost_at),
        rtt_p50_ms=clock.ms(rtts[len(rtts) // 2]) if rtts else 0.0,
        worst_stall_ms=clock.ms(max(0, max(strides, default=0) - interval_ns)),
        gaps=tuple(gap for gap in gaps if gap.outage_ns >= NOTABLE_NS or gap is longest),
        lost_at=lost_at,
    )


def _silent_ends(
    sends: Sequence[int], receives: Sequence[int], answered: list[tuple[int, int]], count: int
) -> list[Gap]:
    """Lost probes before the first answer and after the last one."""
    if not count:
        return []
    if not answered:
        return [Gap(sends[0], sends[count - 1], 0, count)]
    first, last = answered[0], max(answered, key=lambda item: item[1])
    ends = []
    if first[1] > 0:
        ends.append(Gap(sends[0], first[0], 0, first[1]))
    silent = sum(1 for index in range(last[1] + 1, count) if not receives[index])
    if silent:
        ends.append(Gap(last[0], sends[count - 1], 0, silent))
    return ends


def _gap(
    sends: Sequence[int],
    receives: Sequence[int],
    before: tuple[int, int],
    after: tuple[int, int],
    interval_ns: int,
) -> Gap:
    (start, last_heard), (end, first_heard) = before, after
    lost = sum(1 for at in receives[last_heard + 1 : first_heard] if not at)
    # Where the outage began lies between the last answered probe and the one sent next; where
    # it ended, between the first answered and the one sent before. Only there can a late send
    # lengthen what was seen; a probe sent in between is the judge of the rest.
    edges = {(last_heard, last_heard + 1), (first_heard - 1, first_heard)}
    stall = sum(
        max(0, sends[later] - sends[sooner] - interval_ns)
        for sooner, later in edges
        if 0 <= sooner < later < len(sends) and last_heard <= sooner and later <= first_heard
    )
    return Gap(start, end, min(stall, end - start), lost)


class Prober:
    """One place's socket and its records."""

    def __init__(self, sock: socket.socket, to_monotonic: int) -> None:
        self._sock = sock
        self._offset = to_monotonic
        self.sends = array("q")
        self.receives = array("q")

    def send(self) -> None:
        """Send the next probe; a refusal by the kernel (no route, ICMP) is a lost probe."""
        self.sends.append(clock.monotonic())
        self.receives.append(0)
        try:
            self._sock.send(_PROBE.pack(_MAGIC, len(self.sends) - 1))
        except OSError:
            return

    def drain(self) -> None:
        """Take every answer that has arrived, at the kernel's time."""
        while True:
            try:
                data, control, _, _ = self._sock.recvmsg(64, 64)
            except BlockingIOError:
                return
            except OSError:
                continue
            if len(data) != _PROBE.size:
                continue
            magic, number = _PROBE.unpack(data)
            if magic == _MAGIC and number < len(self.receives) and not self.receives[number]:
                self.receives[number] = self._stamp(control)

    def _stamp(self, control: Iterable[tuple[int, int, bytes]]) -> int:
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, rest = _TIMESPEC.unpack_from(data)
                return int(seconds) * clock.NS_PER_S + int(rest) - self._offset
        return clock.monotonic()


def open_probe(netns: str, target: tuple[str, int]) -> socket.socket:
    """A connected, non-blocking UDP socket in a namespace, with the kernel's time stamps."""

    def work() -> socket.socket:
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.connect(target)
        return sock

    return Netns().call(netns, work)


def probe(probers: Sequence[Prober], interval_ns: int) -> None:
    """Probe until a line (or the end) comes on stdin. Missed ticks are skipped, never caught up."""
    tick = 0
    due = clock.monotonic()
    while True:
        for prober in probers:
            prober.send()
            prober.drain()
        tick += 1
        if tick % 50 == 0 and select.select([sys.stdin], [], [], 0)[0]:
            break
        due += interval_ns
        rest = due - clock.monotonic()
        if rest > 0:
            time.sleep(rest / clock.NS_PER_S)
        else:
            due = clock.monotonic()
    time.sleep(0.05)
    for prober in probers:
        prober.drain()


def series_to_json(series: Mapping[str, Series]) -> dict[str, object]:
    """The result as this process prints it."""
    return {name: asdict(one) for name, one in series.items()}


def series_from_json(data: Mapping[str, Mapping[str, object]]) -> dict[str, Series]:
    """The result as its reader wants it."""
    out = {}
    for name, one in data.items():
        fields = dict(one)
        gaps, lost_at = fields.pop("gaps"), fields.pop("lost_at")
        assert isinstance(gaps, list) and isinstance(lost_at, list)
        kept = tuple(Gap(**gap) for gap in gaps)
        out[name] = Series(**fields, gaps=kept, lost_at=tuple(lost_at))  # type: ignore[arg-type]  # our own JSON
    return out


def samples_from_json(
    data: Mapping[str, tuple[Sequence[int], Sequence[int]]],
) -> dict[str, tuple[Sample, ...]]:
    """Every probe that counts, by prober: its sending time and round trip in ns."""
    return {
        name: tuple(Sample(*pair) for pair in zip(sends, trips, strict=False))
        for name, (sends, trips) in data.items()
    }


def main() -> None:
    """`python -m lab.probes --target IP:PORT … --from NAME=NETNS_PATH …`.

    A prober is called after its place, and by `names.prober` where it probes IPv6.
    """
    parser = argparse.ArgumentParser(description="probe a guest from several namespaces")
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--from", dest="places", action="append", required=True)
    parser.add_argument("--interval-us", type=int, default=1000)
    args = parser.parse_args()
    places = dict(place.split("=", 1) for place in args.places)
    offset = clock.realtime_offset()
    probers = {
        names.prober(name, ip_address(host).version): Prober(
            open_probe(path, (host, int(port))), offset
        )
        for host, _, port in (target.rpartition(":") for target in args.target)
        for name, path in places.items()
    }
    clock.be_punctual(PRIORITY)
    print(json.dumps({"ready": True}), flush=True)
    probe(list(probers.values()), args.interval_us * 1000)
    result = {
        name: analyse(prober.sends, prober.receives, args.interval_us * 1000)
        for name, prober in probers.items()
    }
    samples = {
        name: (prober.sends.tolist(), round_trips(prober.sends, prober.receives))
        for name, prober in probers.items()
    }
    print(json.dumps({"series": series_to_json(result), "samples": samples}), flush=True)


if __name__ == "__main__":
    main()
