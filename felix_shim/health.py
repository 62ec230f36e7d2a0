"""Whether the agent lives and whether it can do its work, from what its log is told and its probes
see. Judges; does no I/O.

Alive: the reconciler comes when it is called, and the CNI socket leads here. A restart cures both.
It cures no datastore, API, BIRD, kernel or disk that is away, and would only take the agent's
knowledge: these make it unready, however long they last.

Ready: a pod that is scheduled here now gets its network, policy and routes, and a VM that comes is
heard of. Not ready takes nothing from what runs here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from felix_shim.outlets import BIRD, MEMORY, NODE, POLICY, STATUS

STALLED_SECONDS = 8.0
"""How long the reconciler may be at one thing: it works in slices of milliseconds."""
LASTING_SECONDS = 3.0
"""How long work fails before it is told: what succeeds at the second attempt is no trouble."""
WATCH_SECONDS = 6.0
"""Within which a watch that is tried again has failed again, or is well."""
FLAPS, FLAP_SECONDS, QUIET_SECONDS = 4, 60.0, 20.0
"""A watch that was lost so often in so long does not last, until it was not lost for so long."""
WORKS = (POLICY, STATUS, MEMORY, NODE, BIRD)
"""Work that a node needs. A survey that fails is made again, and costs no workload anything."""


Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Failing:
    """Something that has failed since then, and counts as failing `until` then (None: it is told).

    Monotonic seconds."""

    since: float
    reason: str
    until: float | None = None
    flaps: bool = False


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is known now. Seconds: `stalled` since the reconciler was called and has not come.

    `works` and `watches` by name. `away`: by name what keeps a thing that the agent depends on from
    answering (empty: it answers). `socket`: what is wrong with the CNI socket.
    """

    serving: bool
    stopping: bool
    stalled: float
    socket: str = ""
    works: Mapping[str, Failing] = field(default_factory=dict)
    watches: Mapping[str, Failing] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)


def live(vitals: Vitals) -> dict[str, str]:
    """By check what is wrong that a restart would cure; empty where nothing is. Pure."""
    slow = vitals.stalled >= STALLED_SECONDS
    return {
        "reconciler": f"at one thing for {vitals.stalled:.0f} s" if slow else "",
        "cni-socket": "" if vitals.stopping or not vitals.serving else vitals.socket,
    }


def ready(vitals: Vitals, now: float) -> dict[str, str]:
    """By check what keeps the agent from its work; empty where nothing does. Pure."""
    found = live(vitals)
    found["start"] = "" if vitals.serving else "it has not begun to serve CNI requests"
    found["stop"] = "it is stopping" if vitals.stopping else ""
    for work in WORKS:
        failing = vitals.works.get(work)
        lasting = failing is not None and now - failing.since >= LASTING_SECONDS
        found[work] = failing.reason if failing is not None and lasting else ""
    broken = [
        f"{name}: {one.reason}"
        for name, one in sorted(vitals.watches.items())
        if (one.until is None or now < one.until)
        and (one.flaps or now - one.since >= LASTING_SECONDS)
    ]
    found["watches"] = "; ".join(broken[:3]) + (f" and {len(broken) - 3} more" * (len(broken) > 3))
    return {**found, **vitals.away}


def _flaps(lost: deque[float]) -> bool:
    return len(lost) == FLAPS and lost[-1] - lost[0] <= FLAP_SECONDS


class Watched:
    """Keeps what the log is told of work and watches; `told` is its tap. Any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._lock = threading.Lock()
        self._works: dict[str, Failing] = {}
        self._watches: dict[str, Failing] = {}
        self._losses: dict[str, deque[float]] = {}

    def told(self, event: str, fields: Fields) -> None:
        """The log was told something."""
        match event:
            case "apply_failed":
                self._fails(self._works, str(fields.get("work", "")), fields, None)
            case "apply_recovered":
                self._works_again(self._works, str(fields.get("work", "")))
            case "watch_lost" | "watch_lost_still":
                self._lost(str(fields.get("scope", "")), fields, None)
            case "watch_found":
                self._works_again(self._watches, str(fields.get("scope", "")))
            case "api_watch_lost" | "api_watch_lost_still":
                delay = fields.get("retry_seconds")
                seconds = delay if isinstance(delay, int | float) else 0.0
                until = self.monotonic() + seconds + WATCH_SECONDS
                self._lost(str(fields.get("kind", "")), fields, until)

    def failing(self) -> tuple[Mapping[str, Failing], Mapping[str, Failing]]:
        """Works and watches that fail."""
        now = self.monotonic()
        with self._lock:
            flapping = {
                name: Failing(
                    lost[0], f"lost {FLAPS} times in {lost[-1] - lost[0]:.0f} s", flaps=True
                )
                for name, lost in self._losses.items()
                if _flaps(lost) and now - lost[-1] < QUIET_SECONDS
            }
            return dict(self._works), {**self._watches, **flapping}

    def _lost(self, name: str, fields: Fields, until: float | None) -> None:
        """A watch was lost, or still is."""
        now = self.monotonic()
        with self._lock:
            known = self._watches.get(name)
            if known is None or (known.until is not None and now >= known.until):
                self._losses.setdefault(name, deque(maxlen=FLAPS)).append(now)
        self._fails(self._watches, name, fields, until)

    def _fails(
        self,
        where: dict[str, Failing],
        name: str,
        fields: Fields,
        until: float | None,
    ) -> None:
        now, reason = self.monotonic(), str(fields.get("reason", ""))
        with self._lock:
            known = where.get(name)
            over = known is not None and known.until is not None and now >= known.until
            since = now if known is None or over else known.since
            where[name] = Failing(since, reason, until)

    def _works_again(self, where: dict[str, Failing], name: str) -> None:
        with self._lock:
            where.pop(name, None)
