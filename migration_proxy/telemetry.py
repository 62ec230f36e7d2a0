"""What is counted, and how fast each migration goes; read by the metrics page and `status`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from libtortie.complaint import Complaint
from libtortie.jsonlog import Log
from libtortie.metrics import Counter, Metric
from migration_proxy.model import NAMES
from migration_proxy.session import Session, Trouble

PREFIX = "tortie_migration_proxy"


@dataclass(slots=True)
class Speed:
    """Bytes a second of each migration between the last two looks."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)
    _speeds: dict[tuple[str, ...], float] = field(default_factory=dict)

    def look(self, totals: Mapping[tuple[str, ...], int], now: float) -> None:
        """Note what each has moved until `now`, in seconds of a monotonic clock."""
        with self._lock:
            speeds = {}
            for name, total in totals.items():
                then, before = self._seen.get(name, (now, total))
                speeds[name] = max(0.0, (total - before) / (now - then)) if now > then else 0.0
            self._seen = {name: (now, total) for name, total in totals.items()}
            self._speeds = speeds

    def of(self, key: str, side: str) -> float:
        """Bytes a second; 0 before two looks."""
        with self._lock:
            return self._speeds.get((key, side), 0.0)


class Telemetry:
    """The counters; safe from any thread."""

    def __init__(self) -> None:
        labels = ("side", "stream")
        self.streams = Counter(f"{PREFIX}_streams_total", "Streams that are over.", labels)
        self.bytes = Counter(
            f"{PREFIX}_bytes_total",
            "Bytes of streams that are over.",
            (*labels, "direction"),
        )
        self.failures = Counter(
            f"{PREFIX}_stream_failures_total",
            "Streams that failed, by what stood in the way.",
            (*labels, "trouble"),
        )
        self.handshakes = Counter(
            f"{PREFIX}_handshake_failures_total",
            "TLS handshakes that failed.",
            ("side", "kind"),
        )
        self.speed = Speed()

    def over(self, session: Session) -> None:
        """Count a stream that is over."""
        side, stream = str(session.request.side), NAMES[session.stream.logical]
        self.streams.add(side, stream)
        for direction, amount in zip(("out", "in"), session.moved, strict=True):
            self.bytes.add(side, stream, direction, amount=amount)
        ended = session.ended
        if ended is None or ended.trouble.blames_nobody:
            return
        self.failures.add(side, stream, str(ended.trouble))
        if ended.trouble is Trouble.HANDSHAKE:
            self.handshakes.add(side, ended.kind)

    @staticmethod
    def complaint(log: Log, *, server: bool) -> Callable[[str], None]:
        """Where trouble with TLS files is told, once for each reason."""
        teller = Complaint(log, "tls_files_not_taken")
        role = "server" if server else "client"
        return lambda reason: teller.about(reason, role=role)

    def metrics(self) -> tuple[Metric, ...]:
        """All counters."""
        return self.streams, self.bytes, self.failures, self.handshakes
