"""The gate before a raise: the VM was heard, but is its policy the latest?

A raised route brings traffic. It waits until the agent is in sync with what policy is made of, and
until the kernel has the endpoint's chains for the latest of that; but not without end: an old
policy is better than no network. What the loaded policy denies passes in no case, and where none
is loaded nothing passes, so that there is nothing to raise a route for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from felix_shim.model import Endpoint, EndpointId
from libtortie.jsonlog import Log
from libtortie.metrics import Counter, Metric
from libtortie.model.felix_values import OnTimeout

DEFAULT_SECONDS = 0.5
WAITS = "tortie_policy_gate_waits_total"


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How long a raise waits for policy (s), and what then."""

    seconds: float = DEFAULT_SECONDS
    on_timeout: OnTimeout = OnTimeout.RAISE


@dataclass(frozen=True, slots=True)
class Standing:
    """`in_force`: the kernel has a complete policy of the endpoint; `latest`: it is the latest
    that the agent knows of; `in_sync`: the agent hears of every change."""

    in_force: bool
    latest: bool
    in_sync: bool

    @property
    def lacks(self) -> str:
        """What is waited for; empty: nothing."""
        if not self.in_force:
            return "no rules of the endpoint are in the kernel"
        if not self.latest:
            return "the endpoint's latest rules are not in the kernel"
        return "" if self.in_sync else "the agent is not in sync with the datastore"


class Verdict(Enum):
    """May the route be raised? LATE: it may, although policy is not the latest."""

    OPEN = auto()
    WAIT = auto()
    LATE = auto()
    HELD = auto()


def judge(standing: Standing, waited: float, settings: GateSettings) -> Verdict:
    """What to do about a raise that has waited so many seconds. Pure."""
    if not standing.lacks:
        return Verdict.OPEN
    if waited < settings.seconds:
        return Verdict.WAIT
    hold = settings.on_timeout is OnTimeout.HOLD or not standing.in_force
    return Verdict.HELD if hold else Verdict.LATE


@dataclass(slots=True)
class _Wait:
    """One raise that waits. `told` is what was said of it last."""

    episode: int
    since: float
    told: Verdict = Verdict.WAIT


@dataclass(slots=True)
class Gate:
    """The raises that wait; the reconciler's thread alone asks.

    `warn(endpoint, text)` makes an event of it.
    """

    log: Log
    warn: Callable[[Endpoint, str], None]
    _waits: dict[EndpointId, _Wait] = field(default_factory=dict)
    _count: Counter = field(
        default_factory=lambda: Counter(
            WAITS,
            "Raises of a VM's route that waited for policy, by how that ended.",
            ("result",),
            [("ready",), ("late",), ("held",)],
        )
    )

    def metrics(self) -> tuple[Metric, ...]:
        """For the scraper: `ready`, `late`, `held`."""
        return (self._count,)

    def waiting(self) -> Iterator[EndpointId]:
        """Those whose raise waits."""
        return iter(tuple(self._waits))

    def began(self, endpoint: EndpointId, episode: int) -> bool:
        """Whether this episode's raise waits already."""
        known = self._waits.get(endpoint)
        return known is not None and known.episode == episode

    def drop(self, endpoint: EndpointId) -> None:
        """It is not to be raised any more."""
        self._waits.pop(endpoint, None)

    def passes(
        self,
        endpoint: Endpoint,
        episode: int,
        standing: Standing,
        now: float,
        settings: GateSettings,
    ) -> bool:
        """Whether this endpoint's route may be raised now; told and counted once."""
        wait = self._waits.get(endpoint.id)
        if wait is None or wait.episode != episode:
            wait = _Wait(episode, now)
        waited = now - wait.since
        verdict = judge(standing, waited, settings)
        if verdict is Verdict.OPEN:
            if self._waits.pop(endpoint.id, None) is not None:
                self._say("policy_gate_opened", endpoint, wait, waited, "")
                self._count.add("ready")
            return True
        if endpoint.id not in self._waits or self._waits[endpoint.id] is not wait:
            self._waits[endpoint.id] = wait
            self._say("policy_gate_waits", endpoint, wait, waited, standing.lacks)
        if verdict is not wait.told and verdict is not Verdict.WAIT:
            self._overdue(endpoint, wait, verdict, waited, standing.lacks)
        return verdict is Verdict.LATE

    def _overdue(
        self, endpoint: Endpoint, wait: _Wait, verdict: Verdict, waited: float, lacks: str
    ) -> None:
        wait.told = verdict
        late = verdict is Verdict.LATE
        outcome = "raised with the last complete policy" if late else "held back"
        self._say("policy_gate_late" if late else "policy_gate_held", endpoint, wait, waited, lacks)
        self._count.add("late" if late else "held")
        self.warn(endpoint, f"route {outcome} after {waited * 1000:.0f} ms: {lacks}")

    def _say(self, event: str, endpoint: Endpoint, wait: _Wait, waited: float, lacks: str) -> None:
        fields: dict[str, object] = {"endpoint": endpoint.id, "episode": wait.episode}
        fields["waited_ms"] = round(waited * 1000, 3)
        if lacks:
            fields["reason"] = lacks
        say = self.log.warning if wait.told is not Verdict.WAIT and lacks else self.log.info
        say(event, **fields)
