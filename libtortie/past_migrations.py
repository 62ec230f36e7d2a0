"""What the history says of migrations. Pure.

Nodes' clocks may be wrong: what one agent saw is in the order of its clock, which does not jump
(`libtortie.steady`), and of a VM's migrations one follows another where the VM left a pod that it
came to by that. So neither outcome nor order depend on two clocks; what they differ by is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from libtortie.model.history import Fact, Step, What
from libtortie.model.ipam import IPAddress

RUNNING, SETTLED, LOST, REFUSED = "running", "settled", "lost", "refused"
_ENDS = {Step.SETTLED: SETTLED, Step.LEFT: LOST, Step.REFUSED: REFUSED}
APART = "the clocks of its two nodes differ by {:.0f} s or more"


@dataclass(frozen=True, slots=True)
class PastMigration:
    """One migration, as its target's agent and IPAM saw it. `outcome` is `running` until the
    target's agent says how it ended; `lost`: the VM did not come.

    `downtime_ms` is the network's part of the VM's downtime: from its first frame on the target
    until its route was raised and, where there is BIRD, ready for its peers; None if not measured.
    `apart`: how much later than by its node's clock it began at least, since the migration before
    it began later by another's.
    """

    migration_uid: str
    namespace: str = ""
    vm: str = ""
    source: str = ""
    target: str = ""
    addresses: tuple[IPAddress, ...] = ()
    prepared: datetime | None = None
    heard: datetime | None = None
    raised: datetime | None = None
    promoted: datetime | None = None
    ended: datetime | None = None
    outcome: str = RUNNING
    sign_to_route_ms: float | None = None
    downtime_ms: float | None = None
    pod: str = ""
    left: str = ""
    apart: timedelta = timedelta(0)

    @property
    def began(self) -> datetime | None:
        """The first that an agent or IPAM knows of it."""
        times = (self.prepared, self.heard, self.raised, self.promoted, self.ended)
        return min((time for time in times if time is not None), default=None)


def migrations(facts: Iterable[Fact]) -> tuple[PastMigration, ...]:
    """What facts say of migrations, the newest first. Pure; their order does not matter."""
    found: dict[str, PastMigration] = {}
    for fact in sorted(facts, key=lambda one: one.at):
        uid = fact.details.get("migration_uid", "")
        if uid:
            found[uid] = _with(found.get(uid, PastMigration(uid)), fact)
    ended = (_judged(one) for one in found.values())
    return tuple(reversed(_one_after_another(sorted(ended, key=_begun))))


def _one_after_another(found: Sequence[PastMigration]) -> list[PastMigration]:
    """Each behind the one that brought its VM to where it left, whatever clocks say."""
    by_pod = {(one.namespace, one.pod): one for one in found if one.pod}
    ordered: dict[str, PastMigration] = {}
    for each in found:
        chain: list[PastMigration] = []
        one: PastMigration | None = each
        while one is not None and one.migration_uid not in ordered and one not in chain:
            chain.append(one)
            one = by_pod.get((one.namespace, one.left))
        for link in reversed(chain):
            before = by_pod.get((link.namespace, link.left))
            known = ordered.get(before.migration_uid) if before is not None else None
            ordered[link.migration_uid] = replace(link, apart=_apart(known, link))
    return list(ordered.values())


def _apart(before: PastMigration | None, after: PastMigration) -> timedelta:
    if before is None or before.began is None or after.began is None:
        return timedelta(0)
    return max(timedelta(0), before.began + before.apart + timedelta.resolution - after.began)


def _begun(one: PastMigration) -> tuple[datetime, str]:
    return one.began or datetime.min.replace(tzinfo=UTC), one.migration_uid


def _with(one: PastMigration, fact: Fact) -> PastMigration:
    one = replace(
        one,
        namespace=one.namespace or fact.namespace,
        vm=one.vm or fact.vm,
        target=one.target or fact.node,
        source=one.source or fact.details.get("source", ""),
        addresses=one.addresses or fact.addresses,
        pod=one.pod or fact.pod,
        left=one.left or fact.before,
    )
    step = fact.details.get("step", "")
    if fact.what is What.TARGETED or step == Step.PREPARED:
        return replace(one, prepared=one.prepared or fact.at)
    if fact.what is What.PROMOTED:
        return replace(one, promoted=one.promoted or fact.at)
    if step in _ENDS:
        if one.outcome == SETTLED:  # and has moved on, by another migration
            return one
        return replace(one, ended=fact.at, outcome=_ENDS[Step(step)])
    if step == Step.HEARD:
        return replace(one, heard=one.heard or fact.at)
    return _measured(one, fact, step)


def _judged(one: PastMigration) -> PastMigration:
    """A VM that was proved here, and left, had come."""
    return replace(one, outcome=SETTLED) if one.outcome == LOST and one.promoted else one


def _measured(one: PastMigration, fact: Fact, step: str) -> PastMigration:
    """What an agent took the time of; the first arrival counts."""
    if step == Step.RAISED:
        latency = _first(one.sign_to_route_ms, fact.details.get("latency_ms"))
        return replace(one, raised=one.raised or fact.at, sign_to_route_ms=latency)
    if step == Step.REACHED:
        return replace(one, downtime_ms=_first(one.downtime_ms, fact.details.get("downtime_ms")))
    return one


def _first(known: float | None, text: str | None) -> float | None:
    return known if known is not None else _number(text)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
