"""Who leads, decided from what a Lease of coordination.k8s.io/v1 says and when it was seen. Pure.

client-go's semantics: a lease is somebody's for as long as it says, counted on *our* clock from
when we last saw it change; times that others wrote are never compared, so clocks may disagree as
they like. Every write is guarded by the resourceVersion that was read. The leader believes itself
only for `renew` seconds from before its last successful renewal, which is less than anybody else
waits: between the two it does nothing.

All `now` are seconds of one clock that also runs while the process is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from libtortie.errors import InvalidInput

LONGEST = 300.0
"""Seconds; a lease that says longer (edited by hand) is waited for no longer than this."""
MOST_TRANSITIONS = 1 << 31
"""The API refuses as many; then they are counted from zero, rather than by nobody."""


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds: how long a lease is good, how long its holder goes on without renewing it, and
    the pause between attempts."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def check(self) -> None:
        """Raise `InvalidInput` unless there is room between them, as client-go wants it."""
        if self.lease < 1 or self.lease != int(self.lease):
            raise InvalidInput(f"a lease of {self.lease:g} s: want whole seconds, at least one")
        if self.lease > LONGEST:
            raise InvalidInput(f"a lease of {self.lease:g} s: the longest is {LONGEST:g} s")
        if self.lease <= self.renew:
            raise InvalidInput(
                f"a lease of {self.lease:g} s must be longer than the renewal deadline, "
                f"{self.renew:g} s"
            )
        if self.retry <= 0 or self.renew <= 1.2 * self.retry:
            raise InvalidInput(
                f"a renewal deadline of {self.renew:g} s must be longer than 1.2 times the retry "
                f"period, {self.retry:g} s"
            )


@dataclass(frozen=True, slots=True)
class Spec:
    """What a Lease says. `seconds` is how long it is good; times are their writers'."""

    holder: str = ""
    seconds: float = 0.0
    acquired: datetime | None = None
    renewed: datetime | None = None
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A Lease as the API has it."""

    spec: Spec
    version: str


@dataclass(frozen=True, slots=True)
class Election:
    """What one candidate knows. `lease` was first seen as it is at `since`; `renewed` is when the
    last write of ours that succeeded was begun. Neither means anything while None."""

    identity: str
    timing: Timing = Timing()
    lease: Stored | None = None
    since: float = 0.0
    renewed: float | None = None

    @property
    def holder(self) -> str:
        """Who holds the lease as it was last seen; empty: nobody."""
        return self.lease.spec.holder if self.lease else ""

    @property
    def ours(self) -> bool:
        """Whether the lease, as last seen, is ours."""
        return self.holder == self.identity

    @property
    def reign(self) -> tuple[datetime | None, int] | None:
        """Which of our holdings this is: the lease may have been another's in between."""
        return (self.lease.spec.acquired, self.lease.spec.transitions) if self.lease else None

    def leads(self, now: float) -> bool:
        """Whether we may act: nobody else can have taken the lease by now."""
        return self.remaining(now) > 0

    def remaining(self, now: float) -> float:
        """For how many seconds more we may act without a renewal."""
        if not self.ours or self.renewed is None:
            return 0.0
        return max(0.0, self.renewed + self.timing.renew - now)

    def taken(self, now: float) -> bool:
        """Whether somebody else's lease may still be good. One that says less than ours (edited by
        hand: its holder may not know) is waited for as long as ours."""
        if self.lease is None or not self.holder or self.ours:
            return False
        good = min(max(self.lease.spec.seconds, self.timing.lease), LONGEST)
        return now < self.since + good


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to write: it is another's."""


@dataclass(frozen=True, slots=True)
class Create:
    """There is no lease: make one."""

    spec: Spec


@dataclass(frozen=True, slots=True)
class Update:
    """Write over the one that was read."""

    spec: Spec
    version: str


Step = Wait | Create | Update


def seen(election: Election, found: Stored | None, now: float) -> Election:
    """What is known after the lease was read, or was not there.

    A lease that vanished is waited for as if it were there: its holder may not know yet.
    """
    if found is None:
        gone = election.lease is None or election.ours or not election.taken(now)
        return replace(election, lease=None, renewed=None) if gone else election
    if election.lease is not None and election.lease.spec == found.spec:
        return replace(election, lease=found)
    renewed = election.renewed if found.spec.holder == election.identity else None
    return replace(election, lease=found, since=now, renewed=renewed)


def plan(election: Election, *, exists: bool, now: float, clock: datetime) -> Step:
    """What to write next. `exists`: whether the API has a lease; `clock` is the wall clock, for
    people who read the lease."""
    if election.taken(now):
        return Wait()
    before = election.lease
    if not exists or before is None:
        return Create(_mine(election, clock, clock, 0))
    if election.ours:
        acquired = before.spec.acquired or clock
        spec = _mine(election, acquired, clock, before.spec.transitions)
    else:
        spec = _mine(election, clock, clock, (before.spec.transitions + 1) % MOST_TRANSITIONS)
    return Update(spec, before.version)


def wrote(election: Election, stored: Stored, *, began: float) -> Election:
    """What is known after a write that was begun at `began` succeeded."""
    ours = stored.spec.holder == election.identity
    return replace(election, lease=stored, since=began, renewed=began if ours else None)


def resign(election: Election, clock: datetime) -> Update | None:
    """What a leader writes who leaves: the next one need not wait. None where there is nothing to
    give up."""
    if election.lease is None or not election.ours:
        return None
    spec = Spec("", 1.0, clock, clock, election.lease.spec.transitions)
    return Update(spec, election.lease.version)


def _mine(election: Election, acquired: datetime, renewed: datetime, transitions: int) -> Spec:
    return Spec(election.identity, election.timing.lease, acquired, renewed, transitions)
