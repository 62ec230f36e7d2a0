"""One call of the plugin as the log and the metrics tell it: whose, how it ended, where time went.

`skel` records every call and tells it once, at its end. Whoever works for a call says which phase
it is in (`with phase(IPAM)`) or adds a field (`note`). Outside a recorded call both do nothing,
so no code has to know whether anybody listens. A call belongs to its thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from libtortie.metrics import Counter, Histogram, Metric

LOCK, IDENTITY, IPAM, WIRING, ENDPOINT, POLICY = (
    "lock",
    "identity",
    "ipam",
    "wiring",
    "endpoint",
    "policy_wait",
)
PHASES = (LOCK, IDENTITY, IPAM, WIRING, ENDPOINT, POLICY)
"""What a call's time is spent on. `lock` is waiting for another call for the same pod."""

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Seconds, of the histograms."""

_REFUSALS = {
    1: "version",
    2: "unsupported_field",
    3: "unknown_container",
    4: "environment",
    6: "undecodable",
    7: "configuration",
    11: "try_again",
    50: "not_ready",
    51: "impaired",
    101: "identity",
    102: "no_free_address",
    103: "address_of_another",
    104: "migration_target",
    108: "attachment_conflict",
    110: "check_failed",
}
"""CNI codes of refusals, and the reason they stand for. By 101, 103 and 104 a pod is denied what it
claims."""


@dataclass(slots=True)
class Call:
    """A call under way. Times are in seconds; `fields` is what the log line says besides."""

    command: str
    monotonic: Callable[[], float] = time.monotonic
    phases: dict[str, float] = field(default_factory=dict)
    fields: dict[str, object] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.monotonic()

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's time."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    @property
    def seconds(self) -> float:
        """What the call took, without waiting for another one's lock: that is nobody's failure."""
        return self.ended - self.began - self.phases.get(LOCK, 0.0)

    def told(self) -> Mapping[str, object]:
        """The fields of its log line; milliseconds."""
        times = {f"{name}_ms": _ms(self.phases[name]) for name in PHASES if name in self.phases}
        return {**self.fields, "duration_ms": _ms(self.seconds), **times}


_current: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def recorded(call: Call) -> Iterator[Call]:
    """Make a call the current one of this thread."""
    token = _current.set(call)
    try:
        yield call
    finally:
        call.ended = call.monotonic()
        _current.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the time inside to a phase of the current call."""
    call = _current.get()
    if call is None:
        yield
        return
    begun = call.monotonic()
    try:
        yield
    finally:
        call.spend(name, call.monotonic() - begun)


def note(**fields: object) -> None:
    """Add fields to the current call's log line."""
    call = _current.get()
    if call is not None:
        call.fields.update(fields)


class CallMetrics:
    """Calls as an agent's metrics."""

    def __init__(self) -> None:
        self.calls = Counter(
            "tortie_cni_calls_total",
            "CNI calls served, by CNI error code (0: success).",
            ("command", "code"),
        )
        self.refusals = Counter(
            "tortie_cni_refusals_total",
            "CNI requests that were refused; identity, address_of_another and migration_target are "
            "pods that claimed what is not theirs.",
            ("reason",),
            [(reason,) for reason in _REFUSALS.values()],
        )
        self.durations = Histogram(
            "tortie_cni_call_seconds",
            "Time of a CNI call in the agent, without lock waits.",
            ("command",),
            bounds=BOUNDS,
        )
        self.phases = Histogram(
            "tortie_cni_phase_seconds",
            "Time of each phase of a CNI call.",
            ("command", "phase"),
            bounds=BOUNDS,
        )

    def observe(self, call: Call, code: int) -> None:
        """Count an ended call."""
        self.calls.add(call.command, str(code))
        if code in _REFUSALS:
            self.refusals.add(_REFUSALS[code])
        self.durations.observe(call.seconds, call.command)
        for name, seconds in call.phases.items():
            self.phases.observe(seconds, call.command, name)

    def all(self) -> tuple[Metric, ...]:
        """The metrics, to be served."""
        return self.calls, self.refusals, self.durations, self.phases


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
