"""What agents have recorded of addresses and migrations, in the form in which it is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from libtortie.datastore.port import Datastore
from libtortie.history import history, sentence
from libtortie.model.history import Fact
from libtortie.past_migrations import PastMigration, migrations
from libtortie.timeline import Moment, moment_of


@dataclass(frozen=True, slots=True)
class Told:
    """One fact as a sentence. `vm` is empty of an ordinary pod's."""

    at: datetime
    namespace: str
    vm: str
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class Past:
    """All of it, newest first; a migration's moments by its UID."""

    facts: tuple[Told, ...] = ()
    migrations: tuple[PastMigration, ...] = ()
    moments: Mapping[str, tuple[Moment, ...]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def read_past(store: Datastore) -> Past:
    """All that is recorded. Raises what the datastore raises."""
    found = history(store)
    return past_of(found.facts, found.unreadable)


def past_of(facts: Iterable[Fact], unreadable: tuple[str, ...] = ()) -> Past:
    """Facts, the oldest first, as they are shown."""
    told: list[Told] = []
    moments: defaultdict[str, list[Moment]] = defaultdict(list)
    known = tuple(facts)
    for fact in known:
        if fact.vm:
            told.append(Told(fact.at, fact.namespace, fact.vm, fact.by, sentence(fact)))
        if uid := fact.details.get("migration_uid"):
            moments[uid].append(moment_of(fact))
    return Past(
        tuple(reversed(told)),
        migrations(known),
        {uid: tuple(each) for uid, each in moments.items()},
        unreadable,
    )
