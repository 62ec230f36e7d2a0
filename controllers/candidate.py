"""A candidate for a Lease: reads it, writes what `election` decides, and tells whether we lead.

It promises: `leads` is true only while nobody else can have the lease. An API that is away, a
refusal and a lease that was edited by hand end nothing but that. One thread attempts and resigns;
any may ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from controllers.election import Create, Election, Spec, Stored, Update, plan, resign, seen, wrote
from libtortie.errors import AlreadyExists, Conflict, NotFound, TortieError, first_line
from libtortie.kube.leases import Lease, LeaseSpec, micro_time
from libtortie.metrics import Gauge

LATE_SECONDS = 60.0
"""An attempt is two calls, each of which ends within half the renewal deadline."""


class LeaseApi(Protocol):
    """Of the Kubernetes client what is needed here: these are the rights as well."""

    def get(self, model: type[Lease], name: str, namespace: str = "") -> Lease:
        """Raises `NotFound`."""
        ...

    def create(self, model: type[Lease], body: Mapping[str, Any]) -> Lease:
        """Raises `AlreadyExists`."""
        ...

    def update(self, model: type[Lease], body: Mapping[str, Any]) -> Lease:
        """Raises `Conflict`."""
        ...


def boot_time() -> float:
    """Seconds since boot. It runs on while the process is stopped or the machine asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Candidate:
    """One that wants the lease `name` in `namespace`. `tell` gets news, `complain` what lasts;
    `trouble` is why the last attempt failed."""

    api: LeaseApi
    namespace: str
    name: str
    election: Election
    tell: Callable[[str], None]
    complain: Callable[[str], None]
    clock: Callable[[], float] = boot_time
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    trouble: str = ""
    _lease: Lease | None = None
    _attempted: float | None = None

    @property
    def lease_name(self) -> str:
        """As people write it."""
        return f"{self.namespace}/{self.name}"

    def leads(self) -> bool:
        """Whether we may act now."""
        return self.election.leads(self.clock())

    def gauge(self) -> Gauge:
        """For Prometheus."""
        return leads_gauge(self.leads)

    def pause(self) -> float:
        """Seconds to the next attempt, at most: a leader looks again when its time is over."""
        timing, left = self.election.timing, self.election.remaining(self.clock())
        return min(timing.retry, left) if left else timing.retry

    def attempt(self) -> None:
        """Take, renew or look at the lease, once; what fails is told once while it lasts."""
        before, self._attempted = self.election.holder, self.clock()
        try:
            if not self._renewed():
                self._look()
        except TortieError as error:
            self._told(f"lease {self.lease_name}: {first_line(error)}")
        else:
            self._told("")
        if self.election.holder != before:
            self.tell(f"lease {self.lease_name}: held by {self.election.holder or 'nobody'}")

    def stalled(self) -> str:
        """Why nothing is attempted any more, which a restart would cure; empty if it is."""
        idle = 0.0 if self._attempted is None else self.clock() - self._attempted
        return f"the lease was last looked at {idle:.0f} s ago" if idle > LATE_SECONDS else ""

    def give_up(self) -> None:
        """Let the next one have the lease at once. To be called when nothing acts any more."""
        step = resign(self.election, self.wall())
        if step is None:
            return
        self.election = replace(self.election, renewed=None)  # whatever becomes of the write
        try:
            self._write(step)
        except TortieError as error:
            self.complain(f"lease {self.lease_name} is not given up: {first_line(error)}")
        else:
            self.tell(f"lease {self.lease_name}: given up")

    def _renewed(self) -> bool:
        """Renew without reading, as its holder may; False when it has to be read first."""
        if not self.leads():
            return False
        step = plan(self.election, exists=True, now=self.clock(), clock=self.wall())
        try:
            self._write(step)
        except (Conflict, NotFound):
            return False
        return True

    def _look(self) -> None:
        found: Stored | None = None
        try:
            self._lease = self.api.get(Lease, self.name, self.namespace)
            found = stored(self._lease)
        except NotFound:
            self._lease = None
        now = self.clock()
        self.election = seen(self.election, found, now)
        step = plan(self.election, exists=found is not None, now=now, clock=self.wall())
        try:
            self._write(step)
        except (Conflict, NotFound, AlreadyExists):
            return  # somebody was faster: what they wrote is read next time

    def _write(self, step: object) -> None:
        began = self.clock()
        if isinstance(step, Create):
            place = {"name": self.name, "namespace": self.namespace}
            self._lease = self.api.create(Lease, {"metadata": place, "spec": _body(step.spec)})
        elif isinstance(step, Update) and self._lease is not None:
            metadata = self._lease.kept(step.version)
            self._lease = self.api.update(Lease, {"metadata": metadata, "spec": _body(step.spec)})
        else:
            return
        self.election = wrote(self.election, stored(self._lease), began=began)

    def _told(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self.complain(trouble)
        self.trouble = trouble


def leads_gauge(leads: Callable[[], bool]) -> Gauge:
    """The sum over all instances is 1, or 0 between two leaders."""
    text = "1 while this instance leads (with --leader-elect)."
    return Gauge("tortie_leader", text, lambda: float(leads()))


def stored(lease: Lease) -> Stored:
    """The values of a Lease."""
    return Stored(_spec(lease.spec), lease.metadata.resource_version)


def _spec(spec: LeaseSpec) -> Spec:
    return Spec(
        holder=spec.holder_identity,
        seconds=float(spec.lease_duration_seconds),
        acquired=spec.acquire_time,
        renewed=spec.renew_time,
        transitions=spec.lease_transitions,
    )


def _body(spec: Spec) -> dict[str, Any]:
    times = {"acquireTime": spec.acquired, "renewTime": spec.renewed}
    return {
        "holderIdentity": spec.holder,
        "leaseDurationSeconds": int(spec.seconds),
        "leaseTransitions": spec.transitions,
        **{key: micro_time(time) for key, time in times.items() if time is not None},
    }
