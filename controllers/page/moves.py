"""Migrations: what KubeVirt says of each beside what agents recorded. Pure.

KubeVirt keeps a VM's last few and forgets them with the VM; agents' records stay longer. What both
know is one migration, by its UID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from controllers.page.past import Past
from controllers.page.sheet import (
    CALM,
    Cell,
    Fact,
    Part,
    Sheet,
    Table,
    migration_link,
    table_of,
    vm_link,
)
from libtortie.kube.migrations import Migration
from libtortie.past_migrations import APART, RUNNING, PastMigration
from libtortie.timeline import (
    Moment,
    Timeline,
    at,
    misfits,
    moved,
    of_migration,
    picture,
    time_of,
    zero_of,
)

EARLIEST = datetime.min.replace(tzinfo=UTC)
COLUMNS = (
    ("migration", "Migration"),
    ("vm", "VM"),
    ("phase", "Phase"),
    ("source", "From"),
    ("target", "To"),
    ("began", "Began"),
    ("seconds", "Seconds"),
    ("downtime_ms", "Network downtime (ms)"),
    ("sign_to_route_ms", "Sign to route (ms)"),
)


@dataclass(frozen=True, slots=True)
class Move:
    """One migration. `name` is its UID where only agents know of it; `moments` are in order, with
    nodes' clocks moved by `shifts` to fit KubeVirt's. `apart` is as in `PastMigration`."""

    namespace: str
    name: str
    uid: str
    vm: str
    phase: str
    running: bool
    source: str
    target: str
    began: datetime | None
    ended: datetime | None
    moments: tuple[Moment, ...]
    reason: str = ""
    downtime_ms: float | None = None
    sign_to_route_ms: float | None = None
    shifts: Mapping[str, timedelta] = field(default_factory=dict)
    apart: timedelta = timedelta(0)

    def seconds(self) -> float | None:
        """How long it took, to its end."""
        if self.began is None or self.ended is None:
            return None
        return round((self.ended - self.began).total_seconds(), 3)


def moves_of(jobs: Iterable[Migration], past: Past) -> tuple[Move, ...]:
    """All that anybody knows of, newest first."""
    recorded = {one.migration_uid: one for one in past.migrations}
    found: list[Move] = []
    for job in jobs:
        known = recorded.pop(job.metadata.uid, None)
        move = _of_job(job)
        found.append(_with_record(move, known, past) if known else move)
    found += [_of_record(one, past) for one in recorded.values()]
    return tuple(sorted(found, key=_newest, reverse=True))


def _newest(one: Move) -> tuple[datetime, str]:
    began = one.began or EARLIEST
    return (began + one.apart if one.name == one.uid else began), one.uid


def _of_job(job: Migration) -> Move:
    state = job.status.migration_state
    moments = tuple(sorted(of_migration(job)))
    ended = time_of(state.end_timestamp)
    if job.final and ended is None:
        ended = moments[-1].time if moments else None
    return Move(
        job.metadata.namespace,
        job.metadata.name,
        job.metadata.uid,
        job.spec.vmi_name,
        job.status.phase or "new",
        not job.final,
        state.source_node,
        state.target_node,
        time_of(job.metadata.creation_timestamp),
        ended if job.final else None,
        moments,
        state.failure_reason,
    )


def _with_record(move: Move, known: PastMigration, past: Past) -> Move:
    moments = [*move.moments, *past.moments.get(move.uid, ())]
    shifts = misfits(moments)
    return replace(
        move,
        source=move.source or known.source,
        target=move.target or known.target,
        began=move.began or known.began,
        moments=tuple(sorted(moved(moments, shifts))),
        downtime_ms=known.downtime_ms,
        sign_to_route_ms=known.sign_to_route_ms,
        shifts=shifts,
        apart=known.apart,
    )


def _of_record(one: PastMigration, past: Past) -> Move:
    """One that KubeVirt has forgotten: it runs no more, whatever agents have seen of its end."""
    uid = one.migration_uid
    return Move(
        namespace=one.namespace,
        name=uid,
        uid=uid,
        vm=one.vm,
        phase="end not seen" if one.outcome == RUNNING else one.outcome,
        running=False,
        source=one.source,
        target=one.target,
        began=one.began,
        ended=one.ended,
        moments=tuple(sorted(past.moments.get(uid, ()))),
        downtime_ms=one.downtime_ms,
        sign_to_route_ms=one.sign_to_route_ms,
        apart=one.apart,
    )


def moves_table(
    key: str,
    title: str,
    found: Sequence[Move],
    part: Part | None = None,
    pager: Callable[[int], str] | None = None,
) -> Table:
    """A row for each of a part of the list."""
    return table_of(key, title, COLUMNS, found, _row, part=part, pager=pager)


def _row(one: Move) -> tuple[Cell, ...]:
    return (
        migration_link(one.namespace, one.name),
        vm_link(one.namespace, one.vm),
        one.phase,
        one.source,
        one.target,
        one.began,
        one.seconds(),
        one.downtime_ms,
        one.sign_to_route_ms,
    )


def move_sheet(one: Move, now: datetime, part: Part) -> Sheet:
    """One migration's story; while it runs the picture goes up to `now`."""
    told = Timeline(one.moments, one.shifts, zero_of(one.moments), now if one.running else None)
    facts = (
        Fact("vm", "VM", vm_link(one.namespace, one.vm)),
        Fact("phase", "phase", one.phase),
        Fact("running", "running", one.running),
        Fact("source", "from node", one.source),
        Fact("target", "to node", one.target),
        Fact("began", "began", one.began),
        Fact("ended", "ended", one.ended),
        Fact("seconds", "seconds", one.seconds()),
        Fact("downtime_ms", "network downtime, ms", one.downtime_ms),
        Fact("sign_to_route_ms", "first sign of the VM to its route, ms", one.sign_to_route_ms),
        Fact("reason", "why it failed", one.reason),
        Fact("uid", "UID", one.uid),
    )
    columns = (
        ("time", "Time"),
        ("since_zero", "Since zero"),
        ("where", "Where"),
        ("source", "By"),
        ("text", "What"),
    )

    def row(moment: Moment) -> tuple[Cell, ...]:
        return moment.time, at(moment, told), moment.where, moment.source, moment.text

    title = f"Migration {one.namespace}/{one.name}"
    notes = (
        "Zero is the VM's first sign on the target, else its route there, else the beginning; "
        "~ marks times in whole seconds.",
        *(
            f"The clock of {node} is wrong: its times were moved by {by.total_seconds():+.0f} s to "
            "fit KubeVirt's, and seconds are uncertain."
            for node, by in sorted(one.shifts.items())
        ),
        *([f"{APART.format(one.apart.total_seconds())}."] if one.apart else ()),
    )
    return Sheet(
        title,
        facts,
        (table_of("moments", "Timeline", columns, one.moments, row, part=part),),
        picture(told, title) if one.moments else None,
        notes,
        refresh=1 if one.running else CALM,
    )
