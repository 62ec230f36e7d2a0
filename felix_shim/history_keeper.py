"""Keeps the history from this node: the spool to the datastore, and migrations' steps to the spool.

A thread of its own; nothing waits for it. Steps are heard on the reconciler's thread, which must
not wait for a disk: they go to the spool from here, a moment later. What the datastore does not
take stays in the spool and is tried again, however long that is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from felix_shim.model import EndpointId
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError, Unavailable, first_line
from libtortie.history import pruned
from libtortie.history_spool import Spool
from libtortie.jsonlog import Log
from libtortie.model.history import Fact, Step, What
from libtortie.model.ipam import IPAddress

GATHER_SECONDS = 0.2
"""What comes so soon after a fact is stored with it."""
LOOK_SECONDS = 5.0
"""Between looks for what other processes of this node (the plugin's fallback) appended."""
TROUBLE_SECONDS = 5.0
REFUSED_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
MOST_HEARD = 4096
"""Steps that wait for the spool; the oldest go when a disk stands still for that long."""


@dataclass(slots=True)
class HistoryKeeper:
    """`write` and `hear` from any thread; `run` is the thread's body. `prunes`: nobody else does
    (a datastore of this host alone)."""

    store: Datastore
    spool: Spool
    node: str
    log: Log
    now: Callable[[], datetime]
    prunes: bool = False
    _known: dict[object, Mapping[str, object]] = field(default_factory=dict)
    _moving: dict[object, str] = field(default_factory=dict)
    _heard: deque[Fact] = field(default_factory=lambda: deque(maxlen=MOST_HEARD))
    _noted: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "history_waits")

    def write(self, facts: Sequence[Fact]) -> None:
        """Keep facts: in the spool when this returns, in the datastore soon."""
        self.spool.append(facts)
        self._noted.set()

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """A listener of the log: the steps of migrations are facts."""
        endpoint = fields.get("endpoint")
        if not isinstance(endpoint, EndpointId):
            return
        with self._lock:
            if event == "endpoint_added" and fields.get("vmi"):
                self._known[endpoint] = fields
            known = self._known.get(endpoint)
            if event == "endpoint_removed":
                self._known.pop(endpoint, None)
                self._moving.pop(endpoint, None)
            uid = str(fields.get("migration_uid") or self._moving.get(endpoint, ""))
            if known is not None and uid:
                self._moving[endpoint] = uid
        step = step_of(event, fields)
        if known is not None and step is not None and uid:
            self._heard.append(self._fact(endpoint, known, _details(fields, step, uid)))
            self._noted.set()

    def reached(self, endpoint: object, seconds: float) -> None:
        """The network leads to a VM again, so long after its first sign here (`Telemetry`)."""
        if not isinstance(endpoint, EndpointId):
            return
        with self._lock:
            known, uid = self._known.get(endpoint), self._moving.get(endpoint)
        if known is not None and uid:
            lasted = {"downtime_ms": f"{seconds * 1000:.3f}"}
            details = {"step": Step.REACHED.value, "migration_uid": uid, **lasted}
            self._heard.append(self._fact(endpoint, known, details))
            self._noted.set()

    def _fact(
        self, endpoint: EndpointId, known: Mapping[str, object], details: Mapping[str, str]
    ) -> Fact:
        return Fact(
            at=self.now(),
            what=What.MIGRATION,
            by=self.node,
            addresses=cast("tuple[IPAddress, ...]", known.get("addresses") or ()),
            namespace=endpoint.namespace,
            vm=str(known.get("vmi")),
            pod=endpoint.pod,
            node=self.node,
            details=details,
        )

    def run(self) -> None:
        """Until `stop`: what is in the spool to the datastore."""
        pause, since_pruned = 0.0, PRUNE_SECONDS
        while not self._stop.wait(pause):
            self.now()  # a clock that was set is followed by who reads it meanwhile, too
            pause = self.attempt()
            since_pruned += pause or LOOK_SECONDS
            if self.prunes and since_pruned >= PRUNE_SECONDS:
                since_pruned = 0.0
                self._complaint.about(pruned(self.store, self.now()))
            if not pause:
                self._noted.wait(LOOK_SECONDS)
                self._noted.clear()
                self._take_down()
                self._stop.wait(GATHER_SECONDS)
        self._take_down()

    def _take_down(self) -> None:
        """What was heard, to the spool."""
        facts = [self._heard.popleft() for _ in range(len(self._heard))]
        if facts:
            self.spool.append(facts)

    def stop(self) -> None:
        """Make `run` return; what is left is in the spool, for the next start."""
        self._stop.set()
        self._noted.set()

    def attempt(self) -> float:
        """Empty the spool; seconds to wait before the next attempt, 0 when it worked."""
        self._take_down()
        try:
            self.spool.drain(self.store)
        except Unavailable as error:
            self._complaint.about(first_line(error))
            return TROUBLE_SECONDS
        except (TortieError, OSError) as error:
            self._complaint.about(f"{type(error).__name__}: {first_line(error)}")
            return REFUSED_SECONDS
        self._complaint.about("")
        return 0.0


def step_of(event: str, fields: Mapping[str, object]) -> Step | None:
    """The step that a line of the log is about. Pure."""
    if event == "migration_begun":
        return Step.PREPARED if fields.get("state") == "target" else None
    if event == "migration_transition":
        step, before = _AFTER.get(str(fields.get("to"))), fields.get("from")
        if step is Step.LEFT and before == "base":
            return None  # the next migration's doing
        return None if step is Step.SETTLED and before != "time-wait" else step
    return _EVENTS.get(event)


_AFTER = {
    "target": Step.PREPARED,
    "base": Step.SETTLED,
    "suppressed": Step.LEFT,
    "departed": Step.LEFT,
    "refused": Step.REFUSED,
}
_EVENTS = {
    "sign": Step.HEARD,
    "route_raised": Step.RAISED,
    "policy_gate_late": Step.GATE_LATE,
    "policy_gate_held": Step.GATE_HELD,
    "convergence_held": Step.CONVERGENCE_HELD,
}
_DETAILS = {"kind": "sign", "latency_ms": "latency_ms", "reason": "reason", "episode": "episode",
            "input": "input", "waited_ms": "waited_ms"}  # fmt: skip


def _details(fields: Mapping[str, object], step: Step, uid: str) -> dict[str, str]:
    """What a line of the log says of a step beside whose it is."""
    more = {_DETAILS[name]: str(fields[name]) for name in _DETAILS if fields.get(name) is not None}
    return {"step": step.value, "migration_uid": uid, **more}
