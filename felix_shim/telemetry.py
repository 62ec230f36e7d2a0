"""The agent's own metrics. Whatever it decides it tells its log, and what it tells is counted.

So log and metrics never disagree, and no code that decides knows of either. `told` is the log's
tap: it never raises, keeps nothing without a bound, and has no label that could grow without end.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from felix_shim.migration import RAISED, State
from libtortie.metrics import Counter, Gauge, Histogram, Metric, Recent

MOST_PENDING = 1024
MOST_RECENT = 64
MOVE_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
"""Seconds, of what a migration's traffic waits for."""
QUEUE_BOUNDS = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)

Fields = Mapping[str, object]
Export = Callable[[object, object, float, float], None]
"""Takes an endpoint, the network of its raised route, when its VM was heard, and when raised."""


class Pending:
    """When something began that has not ended, by key; the oldest goes when there are too many."""

    def __init__(self) -> None:
        self._since: OrderedDict[object, float] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, key: object, since: float) -> None:
        """It begins, unless it has begun."""
        with self._lock:
            self._since.setdefault(key, since)
            while len(self._since) > MOST_PENDING:
                self._since.popitem(last=False)

    def oldest(self) -> float | None:
        """When the one that began first did."""
        with self._lock:
            return min(self._since.values(), default=None)

    def end(self, key: object) -> float | None:
        """It ends; when it began."""
        with self._lock:
            return self._since.pop(key, None)


@dataclass(frozen=True, slots=True)
class Moves:
    """Of migrations, as this node sees them."""

    signs: Counter = field(
        default_factory=lambda: Counter(
            "tortie_vm_signs_total", "Signs of arriving VMs that moved their routes.", ("kind",)
        )
    )
    signs_dropped: Counter = field(
        default_factory=lambda: Counter(
            "tortie_vm_signs_dropped_total",
            "Signs of VMs that counted for nothing: of a pod that may not speak for its VM "
            "(refused_pod), of one that goes on here while the VM is elsewhere (elsewhere), late, "
            "not_awaited, or of one that is gone.",
            ("reason",),
            [("refused_pod",), ("elsewhere",), ("late",), ("not_awaited",), ("gone",)],
        )
    )
    transitions: Counter = field(
        default_factory=lambda: Counter(
            "tortie_migration_transitions_total",
            "Moves of endpoints' migration state machines.",
            ("from", "to"),
        )
    )
    sign_to_route: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_migration_sign_to_route_seconds",
            "From the kernel's time stamp of a VM's first frame here to its raised route.",
            bounds=MOVE_BOUNDS,
        )
    )
    route_to_bgp: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_migration_route_to_bgp_seconds",
            "From the raised route to BIRD's having it for its peers.",
            bounds=MOVE_BOUNDS,
        )
    )
    route_to_peer: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_migration_route_to_peer_seconds",
            "On the node that a VM leaves: from the other agent's notice of the raised route until "
            "this node sent the VM's traffic there.",
            bounds=MOVE_BOUNDS,
        )
    )
    downtime: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_migration_network_downtime_seconds",
            "The network's part of a migration's downtime: from a VM's first frame here until its "
            "route was raised and, where there is BIRD, ready for its peers.",
            bounds=MOVE_BOUNDS,
        )
    )
    last_downtime: Recent = field(
        default_factory=lambda: Recent(
            "tortie_migration_last_network_downtime_seconds",
            f"The same of each of the last {MOST_RECENT} arrivals.",
            ("namespace", "pod"),
            MOST_RECENT,
        )
    )
    gate_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_policy_gate_wait_seconds",
            "How long raises waited for policy, by how that ended.",
            ("result",),
            bounds=MOVE_BOUNDS,
        )
    )
    owner_swaps: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_owner_swap_seconds",
            "From a VM's being heard here to this node's owning its addresses in IPAM.",
            bounds=(0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0),
        )
    )
    swap_failures: Counter = field(
        default_factory=lambda: Counter(
            "tortie_owner_swap_failures_total", "New reasons for which an owner was not swapped."
        )
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Of what the agent does."""

    callers_refused: Counter = field(
        default_factory=lambda: Counter(
            "tortie_cni_callers_refused_total",
            "Connections to the CNI socket by who may not, or without a request.",
            ("reason",),
            [("uid",), ("unreadable",)],
        )
    )
    apply_failures: Counter = field(
        default_factory=lambda: Counter(
            "tortie_apply_failures_total", "Attempts of work that failed.", ("work",)
        )
    )
    route_failures: Counter = field(
        default_factory=lambda: Counter(
            "tortie_route_failures_total", "Changes of routes that the kernel refused."
        )
    )
    watches_lost: Counter = field(
        default_factory=lambda: Counter(
            "tortie_watch_failures_total", "Watches that broke or could not begin.", ("source",)
        )
    )
    queue_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "tortie_reconciler_queue_seconds",
            "How long events waited for the reconciler: signs of VMs, and others.",
            ("queue",),
            bounds=QUEUE_BOUNDS,
        )
    )


class Telemetry:
    """`told` is safe from any thread. `monotonic` and `realtime` are in seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        realtime: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic, self._realtime = monotonic, realtime
        self._others: tuple[Metric, ...] = ()
        self.export: Export | None = None
        """Who sees when BIRD has a raised route; None where there is no BIRD."""
        self.reached: Callable[[object, float], None] | None = None
        """Who else wants the downtime of each arrival: endpoint, seconds."""
        self._swaps, self._heard, self._notices = Pending(), Pending(), Pending()
        self._raises = Pending()
        self.moves, self.work = Moves(), Work()
        self.oldest_raise = Gauge(
            "tortie_raised_route_oldest_seconds",
            "How long the route that was raised first of those that still are has been; 0: none.",
            self._oldest_raise,
        )
        self._hear: dict[str, Callable[[Fields], None]] = {
            "sign": self._sign,
            "sign_dropped": self._sign_dropped,
            "route_raised": self._raised,
            "migration_begun": self._begun,
            "route_failed": lambda _: self.work.route_failures.add(),
            "migration_transition": self._moved,
            "endpoint_removed": self._gone,
            "cut_over_noticed": self._noticed,
            "policy_gate_opened": lambda fields: self._gated("ready", fields),
            "policy_gate_late": lambda fields: self._gated("late", fields),
            "policy_gate_held": lambda fields: self._gated("held", fields),
            "owner_swapped": self._swapped,
            "cni_refused": lambda _: self.work.callers_refused.add("uid"),
            "cni_unreadable": lambda _: self.work.callers_refused.add("unreadable"),
            "owner_swap_failed": lambda _: self.moves.swap_failures.add(),
            "apply_failed": lambda fields: self.work.apply_failures.add(
                str(fields.get("work", ""))
            ),
            "watch_lost": lambda _: self.work.watches_lost.add("datastore"),
            "watch_lost_still": lambda _: self.work.watches_lost.add("datastore"),
            "api_watch_lost": lambda _: self.work.watches_lost.add("api"),
            "api_watch_lost_still": lambda _: self.work.watches_lost.add("api"),
        }

    def serve(self, *metrics: Metric) -> None:
        """Have others' metrics scraped with these."""
        self._others += metrics

    def all(self) -> tuple[Metric, ...]:
        """Everything, for a scrape."""
        own = (
            getattr(group, one.name) for group in (self.moves, self.work) for one in fields(group)
        )
        return (*own, self.oldest_raise, *self._others)

    def told(self, event: str, fields: Fields) -> None:
        """The log was told something."""
        hear = self._hear.get(event)
        if hear is not None:
            hear(fields)

    def waited(self, urgent: bool, seconds: float) -> None:
        """The reconciler took an event that waited so long."""
        self.work.queue_seconds.observe(seconds, "signs" if urgent else "events")

    def exported(self, endpoint: object, heard: float, raised: float, now: float) -> None:
        """BIRD has the route of an endpoint's VM; times of day."""
        self.moves.route_to_bgp.observe(max(0.0, now - raised))
        self._down(endpoint, now - heard)

    # -- events ------------------------------------------------------------------------------

    def _sign(self, fields: Fields) -> None:
        self.moves.signs.add(str(fields.get("kind", "")))
        stamp = fields.get("kernel_ns")
        if isinstance(stamp, int):
            self._heard.end(fields.get("endpoint"))
            self._heard.begin(fields.get("endpoint"), stamp / 1e9)

    def _sign_dropped(self, fields: Fields) -> None:
        self.moves.signs_dropped.add(str(fields.get("reason", "")))

    def _raised(self, fields: Fields) -> None:
        """A route was raised; the first of each arrival is timed."""
        endpoint, latency = fields.get("endpoint"), fields.get("latency_ms")
        heard = self._heard.end(endpoint)
        if heard is None:
            return
        now = self._realtime()
        if isinstance(latency, int | float):
            now = heard + latency / 1000
        self.moves.sign_to_route.observe(max(0.0, now - heard))
        if self.export is None:
            self._down(endpoint, now - heard)
        else:
            self.export(endpoint, fields.get("dst"), heard, now)

    def _down(self, endpoint: object, seconds: float) -> None:
        self.moves.downtime.observe(max(0.0, seconds))
        namespace, _, pod = str(endpoint).partition("/")
        self.moves.last_downtime.set(max(0.0, seconds), namespace, pod.partition("/")[0])
        if self.reached is not None:
            self.reached(endpoint, max(0.0, seconds))

    def _moved(self, fields: Fields) -> None:
        before, after = str(fields.get("from", "")), str(fields.get("to", ""))
        self.moves.transitions.add(before, after)
        endpoint, now = fields.get("endpoint"), self._monotonic()
        if after in RAISED:
            self._raises.begin(endpoint, now)
        else:
            self._raises.end(endpoint)
            self._heard.end(endpoint)
        if after == State.LIVE:
            self._swaps.begin(endpoint, now)
        elif after in (State.DEPARTED, State.REFUSED, State.ENDED, State.SUPPRESSED):
            self._swaps.end(endpoint)
        if after == State.DEPARTED:
            noticed = self._notices.end(endpoint)
            if noticed is not None:
                self.moves.route_to_peer.observe(max(0.0, now - noticed))

    def _begun(self, fields: Fields) -> None:
        if str(fields.get("state", "")) in RAISED:
            self._raises.begin(fields.get("endpoint"), self._monotonic())

    def _gone(self, fields: Fields) -> None:
        """Whatever had begun is over."""
        for pending in (self._raises, self._heard, self._swaps, self._notices):
            pending.end(fields.get("endpoint"))

    def _oldest_raise(self) -> float:
        since = self._raises.oldest()
        return 0.0 if since is None else self._monotonic() - since

    def _noticed(self, fields: Fields) -> None:
        self._notices.end(fields.get("endpoint"))
        self._notices.begin(fields.get("endpoint"), self._monotonic())

    def _gated(self, result: str, fields: Fields) -> None:
        waited = fields.get("waited_ms")
        if isinstance(waited, int | float):
            self.moves.gate_seconds.observe(waited / 1000, result)

    def _swapped(self, fields: Fields) -> None:
        since = self._swaps.end(fields.get("endpoint"))
        if since is not None:
            self.moves.owner_swaps.observe(max(0.0, self._monotonic() - since))
