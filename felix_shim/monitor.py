"""What the agent shows of itself: metrics and probes, from its first moment to its last.

The page is there before the datastore is, so that a node that waits for it is alive and not ready
rather than silent. Nothing in here decides anything for a workload, and nobody waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from felix_shim import health
from felix_shim.bird_daemon import bird_metrics, export_watch
from felix_shim.cni_server import CNIServer
from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.drivers.nftables_counters import ForgedFrames
from felix_shim.health import Vitals, Watched
from felix_shim.inbox import Inbox
from felix_shim.migration import RAISED
from felix_shim.owners import OwnerKeeper
from felix_shim.roster import Roster
from felix_shim.telemetry import Telemetry
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.jsonlog import JsonLog
from libtortie.kube.client import HttpKubeClient
from libtortie.metrics import Gauge, Metric, Readings
from libtortie.model.keys import Kind, ResourceKey
from libtortie.probing import Prober, answers, api_answers, can_write
from libtortie.serving import Server
from libtortie.serving_pages import PROBES, Findings, Health, pages


@dataclass(slots=True)
class Monitor:
    """Made before everything else: from then on what the log is told is counted."""

    config: NodeConfig
    log: JsonLog
    crew: Crew
    telemetry: Telemetry = field(default_factory=Telemetry)
    watched: Watched = field(default_factory=Watched)
    _probers: tuple[Prober, ...] = ()
    _inbox: Inbox | None = None
    _cni: CNIServer | None = None

    def __post_init__(self) -> None:
        self.log.listen(self._told)

    def _told(self, event: str, fields: health.Fields) -> None:
        self.telemetry.told(event, fields)
        self.watched.told(event, fields)

    def begin(self) -> None:
        """Serve, if that is asked for. Raises `InvalidInput` for files that let nobody in."""
        place, log = self.config.metrics_place, self.log
        if not place.port:
            return
        server = Server(
            place,
            pages(self.telemetry.all, Health(self.live, self.ready)),
            serving=lambda port: log.info("metrics_serving", port=port),
            trouble=Complaint(log, "metrics_not_served").about,
            open=PROBES,
        )
        server.check()
        self.crew.start("metrics", server.run, server.stop)
        self._probe("state-dir", partial(can_write, Path(self.config.state_dir)))

    def depends_on(self, store: Datastore, kube: HttpKubeClient | None) -> None:
        """Watch over datastore and API."""
        if not self.config.metrics_port:
            return
        own = ResourceKey(Kind.NODE, self.config.node)
        self._probe("datastore", lambda: answers(lambda: store.get(own)))
        if kube is not None:
            self._probe("api", partial(api_answers, kube))

    def show(self, inbox: Inbox, roster: Roster, owners: OwnerKeeper) -> None:
        """Watch over the reconciler, and show what it knows."""
        self._inbox = inbox
        watch = export_watch(self.config, self.telemetry.exported)
        if watch is not None:
            self.telemetry.export = watch.expect
            self.crew.start("export-watch", watch.run, watch.stop)
        self.telemetry.serve(*bird_metrics(self.config), *gauges(inbox, roster, owners))

    def serves(self, cni: CNIServer) -> None:
        """CNI requests are answered from now on."""
        self._cni = cni

    @property
    def serving(self) -> bool:
        """Whether CNI requests have ever been answered."""
        return self._cni is not None

    def live(self) -> Findings:
        """For `/livez`."""
        return health.live(self._vitals())

    def ready(self) -> Findings:
        """For `/readyz`."""
        return health.ready(self._vitals(), self.watched.monotonic())

    def _vitals(self) -> Vitals:
        works, watches = self.watched.failing()
        cni, inbox = self._cni, self._inbox
        unknown = ", ".join(self.config.unknown_keys)
        wrong = {"config": f"node.yaml has keys that are not known: {unknown}"} if unknown else {}
        return Vitals(
            serving=self.serving,
            stopping=self.crew.over.is_set(),
            stalled=inbox.call() if inbox is not None and not inbox.closed else 0.0,
            socket=cni.lost() if cni is not None else "",
            works=works,
            watches=watches,
            away={**wrong, **{one.name: one.wrong() for one in self._probers}},
        )

    def _probe(self, name: str, look: Callable[[], object]) -> None:
        prober = Prober(name, look)
        self._probers += (prober,)
        self.crew.start(f"probe-{name}", prober.run, prober.stop)


def gauges(inbox: Inbox, roster: Roster, owners: OwnerKeeper) -> tuple[Metric, ...]:
    """What is asked for at each scrape."""

    def states() -> dict[tuple[str, ...], float]:
        found = Counter((str(local.machine.state),) for local in roster)
        return {state: float(count) for state, count in found.items()}

    def raised() -> float:
        return float(sum(len(one.destinations) for one in roster if one.machine.state in RAISED))

    return (
        Gauge("tortie_reconciler_queue_length", "Events that wait.", lambda: float(len(inbox))),
        Readings("tortie_endpoints", "Local endpoints by migration state.", ("state",), states),
        Gauge("tortie_raised_routes", "Host routes that are raised for VMs that arrived.", raised),
        Gauge(
            "tortie_owner_swaps_pending",
            "VMs that are here and whose addresses IPAM still has as another's.",
            lambda: float(owners.waiting()),
        ),
        Readings(
            "tortie_forged_frames_total",
            "Frames of workloads dropped for a source or an ARP sender that is not theirs.",
            ("reason",),
            ForgedFrames().read,
            "counter",
        ),
    )
