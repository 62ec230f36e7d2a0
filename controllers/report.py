"""What a pass of garbage collection says, as text for people or as one JSON object. Pure.

The counts have the names of Calico's metrics. What a record says is
shown, and no terminal obeys it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from ipam.gc import Outcome, Swept, Verdict, explain
from ipam.gc_addresses import owner_of
from ipam.gc_inventory import Allocated
from ipam.gc_leftovers import leftovers
from ipam.gc_verdicts import Subject
from ipam.vm_handles import VMHandle
from libtortie.model.times import rfc3339
from libtortie.wording import visible

SHOWN = 5
"""Most reasons for not knowing that are shown."""


def counts(swept: Swept) -> dict[str, int]:
    """How much there is, and how much was found and freed: addresses, except for blocks."""
    inventory = swept.opinions.inventory
    found = inventory.allocated
    outcomes: Counter[Outcome] = Counter()
    for one in swept.verdicts:
        outcomes[one.outcome] += _addresses(one.subject)
    return {
        "ipam_allocations_in_use": len(found),
        "ipam_allocations_borrowed": sum(_borrowed(one, swept) for one in found),
        "ipam_allocations_gc_candidates": outcomes[Outcome.WAIT],
        "ipam_allocations_gc_reclamations": outcomes[Outcome.FREE],
        "ipam_blocks": len(inventory.blocks),
    }


def text(swept: Swept, *, dry_run: bool) -> Iterator[str]:
    """Lines: each verdict (without a dry run only those that keep nothing), then a summary."""
    yield from map(visible, _told(swept, dry_run=dry_run))


def _told(swept: Swept, *, dry_run: bool) -> Iterator[str]:
    shown = [one for one in swept.verdicts if dry_run or one.outcome is not Outcome.KEEP]
    yield from explain(shown)
    if not dry_run:
        yield from _unknown(swept)
    yield from (f"unreadable: {what}" for what in swept.opinions.inventory.unreadable)
    yield from (f"left alone: {what}" for what in leftovers(swept.opinions))
    made = Counter(one.outcome for one in swept.verdicts)
    done = "would be done" if dry_run else "done"
    numbers = ", ".join(f"{name} {value}" for name, value in counts(swept).items())
    yield (
        f"pass: {made[Outcome.KEEP]} kept, {made[Outcome.WAIT]} wait, "
        f"{made[Outcome.FREE]} {done}; {numbers}"
    )


def _unknown(swept: Swept) -> Iterator[str]:
    """Why things were kept that could not be judged, the most frequent reasons first."""
    reasons = _reasons(swept)
    for reason, count in reasons[:SHOWN]:
        yield f"keep ({count}): {reason}"
    if len(reasons) > SHOWN:
        rest = sum(count for _, count in reasons[SHOWN:])
        yield f"keep ({rest}): unknown, for {len(reasons) - SHOWN} more reasons"


def _reasons(swept: Swept) -> list[tuple[str, int]]:
    """Why things were kept that could not be judged, and how many for each reason."""
    return Counter(one.reason for one in swept.verdicts if one.unknown).most_common()


def line(swept: Swept, at: datetime, *, dry_run: bool) -> Iterator[str]:
    """The pass as one JSON object on one line, in pieces: there may be very many verdicts.

    Like the text it has what is kept with a dry run only, and else some reasons for not knowing:
    while the API is away a daemon would write every address of the cluster, pass after pass.
    """
    shown = (one for one in swept.verdicts if dry_run or not _keeps(one))
    reasons = _reasons(swept)
    yield json.dumps({"time": rfc3339(at), "dryRun": dry_run, "counts": counts(swept)})[:-1]
    yield ', "verdicts": ['
    yield from _joined(json.dumps(_verdict(one)) for one in shown)
    rest = {
        "unknown": {
            "count": sum(count for _, count in reasons),
            "reasons": [{"reason": why, "count": count} for why, count in reasons[:SHOWN]],
        },
        "unreadable": list(swept.opinions.inventory.unreadable),
        "leftAlone": list(leftovers(swept.opinions)),
    }
    yield "], " + json.dumps(rest)[1:]


def _joined(items: Iterable[str]) -> Iterator[str]:
    between = ""
    for item in items:
        yield between + item
        between = ", "


def _verdict(one: Verdict[Subject]) -> Mapping[str, object]:
    kind, _, _ = one.subject.key.partition(" ")
    return {
        "kind": kind,
        "subject": one.subject.name,
        "outcome": one.outcome.value,
        "action": one.subject.action,
        "reason": one.reason,
        "seconds": round(one.seconds, 1),
        "unknown": one.unknown,
    }


def _keeps(one: Verdict[Subject]) -> bool:
    return one.outcome is Outcome.KEEP


def _addresses(subject: Subject) -> int:
    """How many addresses a verdict is about."""
    if isinstance(subject, VMHandle):
        return len(subject.pieces)
    return int(isinstance(subject, Allocated))


def _borrowed(one: Allocated, swept: Swept) -> bool:
    """Whether an address is used on another node than its block's."""
    block = swept.opinions.inventory.blocks[one.piece.cidr]
    node = owner_of(one).get("node")
    return bool(node) and block.node not in (None, node)
