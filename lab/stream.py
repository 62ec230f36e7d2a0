"""One TCP connection from outside, a numbered line every 10 ms, each expected back once, in order.

The connection is opened once and never again: whatever ends it, or swaps, repeats or loses a
line, ends the claim that it survived.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from lab import clock

PRIORITY = 22
KEPT_ARRIVALS = 20_000
"""Arrivals remembered between two reports: 200 s at a line every 10 ms."""
ROUND_S = 0.2
QUIET_ROUNDS = 100
"""After how many rounds without an echo a report gives the last ones up: 20 s are longer than many
TCP retransmissions. Rounds, because the time for which this process itself stood still is none of
the guest's silence."""


@dataclass(slots=True)
class Echoes:
    """Judges the bytes that come back. `expected` is the number of the next line."""

    expected: int = 0
    broken: str = ""
    longest_gap_ns: int = 0
    arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_ARRIVALS))
    _rest: bytes = b""
    _last_ns: int = 0

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take received bytes; remembers the first line that was not the expected one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line != b"%d" % self.expected and not self.broken:
                self.broken = f"expected line {self.expected}, got {line[:40]!r}"
            self.expected += 1
        if lines:
            if self._last_ns:
                self.longest_gap_ns = max(self.longest_gap_ns, now_ns - self._last_ns)
            self._last_ns = now_ns
            self.arrivals.append(now_ns)

    def forget_gap(self, now_ns: int) -> None:
        """Start looking for the longest gap anew."""
        self.longest_gap_ns = 0
        self._last_ns = now_ns
        self.arrivals.clear()


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The connection since the last report; `arrivals` are times in ns at which lines came."""

    sent: int
    echoed: int
    error: str
    longest_gap_ms: float
    port: int
    arrivals: Sequence[int] = ()

    @property
    def survived(self) -> bool:
        """Same connection, every line back, once, in order."""
        return not self.error and self.sent == self.echoed > 0

    def gaps(self, over_ns: int) -> tuple[tuple[int, int], ...]:
        """Silences longer than `over_ns`: when the last line before and the first after came."""
        return tuple(
            (sooner, later) for sooner, later in pairwise(self.arrivals) if later - sooner > over_ns
        )


class Stream:
    """The connection, driven by `run` until stdin ends."""

    def __init__(self, target: tuple[str, int], interval_ns: int) -> None:
        self._sock = socket.create_connection(target, timeout=10)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        self._port = self._sock.getsockname()[1]
        self._interval = interval_ns
        self._sent = 0
        self._error = ""
        self._unsent = b""
        self._echoes = Echoes()
        self._loop = selectors.DefaultSelector()
        self._loop.register(self._sock, selectors.EVENT_READ)
        self._loop.register(sys.stdin, selectors.EVENT_READ, "stdin")

    def run(self) -> None:
        """Send and check; a line on stdin asks for a report, the end of stdin ends it all."""
        due = clock.monotonic()
        while True:
            now = clock.monotonic()
            if now >= due and not self._error:
                self._send_line()
                due = max(due + self._interval, now)
            wait = max(0.0, (due - clock.monotonic()) / clock.NS_PER_S)
            for key, _ in self._loop.select(wait if not self._error else None):
                if key.data == "stdin":
                    if not sys.stdin.readline():
                        return
                    print(json.dumps(asdict(self._report())), flush=True)
                    due = clock.monotonic()
                else:
                    self._receive()

    def _send_line(self) -> None:
        self._unsent += b"%d\n" % self._sent
        self._sent += 1
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))

    def _receive(self) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        if not data:
            self._fail("closed by the guest")
            return
        self._echoes.feed(data, clock.monotonic())
        if self._echoes.broken:
            self._fail(self._echoes.broken)

    def _fail(self, why: str) -> None:
        if not self._error:
            self._error = why
            self._loop.unregister(self._sock)

    def _report(self) -> StreamReport:
        """Pause sending, let the echoes come home, judge, go on."""
        quiet = 0
        self._sock.setblocking(True)
        while not self._error and self._echoes.expected < self._sent and quiet < QUIET_ROUNDS:
            before = self._echoes.expected
            self._flush_and_wait()
            quiet = 0 if self._echoes.expected > before else quiet + 1
        self._sock.setblocking(False)
        report = StreamReport(
            self._sent,
            self._echoes.expected,
            self._error,
            clock.ms(self._echoes.longest_gap_ns),
            self._port,
            list(self._echoes.arrivals),
        )
        self._echoes.forget_gap(clock.monotonic())
        return report

    def _flush_and_wait(self) -> None:
        self._sock.settimeout(ROUND_S)
        try:
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            data = self._sock.recv(65536)
        except TimeoutError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        if not data:
            self._fail("closed by the guest")
            return
        self._echoes.feed(data, clock.monotonic())


def main() -> None:
    """`python -m lab.stream --target IP:PORT`, in the client's namespace."""
    parser = argparse.ArgumentParser(description="a TCP connection that must not break")
    parser.add_argument("--target", required=True)
    parser.add_argument("--interval-ms", type=int, default=10)
    args = parser.parse_args()
    host, _, port = args.target.rpartition(":")
    stream = Stream((host, int(port)), args.interval_ms * clock.NS_PER_MS)
    clock.be_punctual(PRIORITY)
    print(json.dumps({"ready": True}), flush=True)
    stream.run()


if __name__ == "__main__":
    main()
