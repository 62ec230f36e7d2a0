"""Makes the stored owner of a VM's addresses agree with where the VM runs.

A thread of its own retries until IPAM says so, however long the store is away; routes never wait
for it. What is wanted is a level, given whole each time: after a restart of the agent the same
set is wanted again, and what agrees already costs one read. What agreed once is looked at again
now and then: two agents whose knowledge is not equally old may each have taken the seat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from felix_shim.model import EndpointId
from ipam.client import Retry
from libtortie.errors import MigrationRefused, NotFound, OwnerMismatch, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.model.ipam import Owner

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
REFUSED_DELAY = 30.0
"""Seconds before asking again after an answer that another attempt will hardly change."""
AGREED_DELAY = 300.0
"""Seconds before a claim that was met is looked at again: another agent whose API was late may have
taken the seat meanwhile."""
SETTLE_SECONDS = 0.1
"""How long an agent lets the routes of a cut-over go first: whoever follows the datastore wakes."""
RETRY = Retry(attempts=3, seconds=2.0)
"""What the IPAM client may try within one promotion: one VM's trouble must not hold up the next,
and this loop tries again anyway."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """An endpoint that must be active owner of its VM's addresses.

    `episode` is its machine's, for the log: a claim that goes on through several is one claim.
    """

    endpoint: EndpointId
    handle_id: str
    owner: Owner
    episode: int = field(compare=False)


@dataclass(slots=True)
class _Claim:
    wanted: Ownership
    due: float
    delay: float = FIRST_DELAY
    agreed: bool = False  # told once; it is looked at again all the same
    complaint: str = ""


@dataclass(slots=True)
class OwnerKeeper:
    """`promote(handle, owner)` is `IPAMClient.promote`, with `RETRY`; `monotonic` is in seconds.

    `settle`: seconds before a new claim is attempted for the first time.
    """

    promote: Callable[[str, Owner], bool]
    log: Log
    monotonic: Callable[[], float]
    settle: float = 0.0
    _claims: dict[EndpointId, _Claim] = field(default_factory=dict)
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def want(self, wanted: Mapping[EndpointId, Ownership]) -> None:
        """From now on these endpoints must be owners, and no others are ours to see to."""
        now = self.monotonic()
        with self._condition:
            for endpoint in [known for known in self._claims if known not in wanted]:
                del self._claims[endpoint]
            for endpoint, ownership in wanted.items():
                claim = self._claims.get(endpoint)
                if claim is None or claim.wanted != ownership:
                    self._claims[endpoint] = _Claim(ownership, now + self.settle)
            self._condition.notify()

    def run(self) -> None:
        """The thread's body: attempt what is due until `stop`."""
        while True:
            with self._condition:
                while not self._stopped and self._next_due() is None:
                    self._condition.wait(self._patience())
                claim = None if self._stopped else self._next_due()
            if claim is None:
                return
            self.attempt(claim)

    def attempt_due(self) -> int:
        """Attempt everything that is due now; returns how many that were."""
        attempts = 0
        while True:
            with self._condition:
                claim = self._next_due()
            if claim is None:
                return attempts
            self.attempt(claim)
            attempts += 1

    def waiting(self) -> int:
        """How many claims IPAM does not agree to yet; from any thread."""
        with self._condition:
            return sum(not claim.agreed for claim in self._claims.values())

    def stop(self) -> None:
        """Make `run` return after the attempt it is at."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def attempt(self, claim: _Claim) -> None:
        """One promotion, and when to try again if it did not do."""
        wanted = claim.wanted
        try:
            agreed = self.promote(wanted.handle_id, wanted.owner)
        except (OwnerMismatch, MigrationRefused, NotFound) as error:
            self._failed(claim, error, REFUSED_DELAY)
        except TortieError as error:
            self._failed(claim, error, claim.delay)
        else:
            if agreed:
                self._agreed(claim)
            else:
                self._failed(claim, None, claim.delay)

    def _agreed(self, claim: _Claim) -> None:
        wanted, told = claim.wanted, claim.agreed
        claim.agreed, claim.complaint, claim.delay = True, "", FIRST_DELAY
        claim.due = self.monotonic() + AGREED_DELAY
        if not told:
            self.log.info(
                "owner_swapped",
                endpoint=wanted.endpoint,
                handle_id=wanted.handle_id,
                episode=wanted.episode,
            )

    def _failed(self, claim: _Claim, error: TortieError | None, delay: float) -> None:
        claim.agreed = False
        claim.due = self.monotonic() + delay
        claim.delay = min(LONGEST_DELAY, 2 * claim.delay)
        complaint = "not agreed yet" if error is None else first_line(error)
        if complaint != claim.complaint:
            claim.complaint = complaint
            self.log.warning(
                "owner_swap_failed",
                endpoint=claim.wanted.endpoint,
                handle_id=claim.wanted.handle_id,
                reason=complaint,
                retry_seconds=delay,
            )

    def _next_due(self) -> _Claim | None:
        now = self.monotonic()
        due = [one for one in self._claims.values() if one.due <= now]
        return min(due, key=lambda one: one.due, default=None)

    def _patience(self) -> float | None:
        waiting = [one.due for one in self._claims.values()]
        return max(0.0, min(waiting) - self.monotonic()) if waiting else None
