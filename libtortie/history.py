"""The history's readers' and keepers' side: what is stored of it, in words, and how much of it.

Promises: reading is one list a lane; what cannot be read is named and hides nothing else; keeping
is bounded by age and number. Never: needed by anything that gives an address or moves a route.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from libtortie.datastore.port import Datastore
from libtortie.errors import (
    AlreadyExists,
    InvalidInput,
    Malformed,
    NotFound,
    TortieError,
    first_line,
)
from libtortie.kube.port import NotServed
from libtortie.model.history import Fact, Facts, Lane, What
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import History, HistoryKey

PORTION = 100
"""Facts of one record, at most."""
MOST_PRUNED = 500
"""Records removed by one `prune`: the rest is the next one's."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept: days, and records of each lane."""

    age: timedelta = timedelta(days=30)
    vm: int = 20_000
    pod: int = 5_000

    def most(self, lane: Lane) -> int:
        """Records of a lane."""
        return self.vm if lane is Lane.VM else self.pod


@dataclass(frozen=True, slots=True)
class Told:
    """What the history says, oldest first; `unreadable` names what cannot be read of it."""

    facts: tuple[Fact, ...] = ()
    unreadable: tuple[str, ...] = ()


def history(
    store: Datastore,
    *,
    vm: tuple[str, str] | None = None,
    address: IPAddress | None = None,
    since: datetime | None = None,
) -> Told:
    """The facts that are about all that is given: a VM (namespace, name), an address, a time.

    A cluster without our CRD has none. Raises what the datastore raises.
    """
    facts: list[Fact] = []
    unreadable: list[str] = []
    for lane in (Lane.VM,) if vm is not None else Lane:
        try:
            listing = store.list(History(lane))
        except NotServed:
            continue
        unreadable += listing.malformed
        for record in listing.records:
            if isinstance(record.value, Facts):
                facts += (one for one in record.value.facts if _fits(one, vm, address, since))
    return Told(tuple(sorted(facts, key=lambda one: one.at)), tuple(unreadable))


def _fits(
    fact: Fact, vm: tuple[str, str] | None, address: IPAddress | None, since: datetime | None
) -> bool:
    of_vm = vm is None or (fact.namespace, fact.vm) == vm
    of_address = address is None or address in fact.addresses
    return of_vm and of_address and (since is None or fact.at >= since)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fact that no datastore takes as it is, and why."""

    fact: Fact
    reason: str


def keep(store: Datastore, facts: Sequence[Fact], origin: str) -> tuple[Refusal, ...]:
    """Store facts, the same `origin` and facts only once however often it is repeated.

    Returns those that the datastore refuses for what they are (`InvalidInput`, `Malformed`), which
    keep no others from it. Raises what else it raises; what was stored before stays.
    """
    refused: list[Refusal] = []
    for lane in Lane:
        mine = [fact for fact in facts if fact.lane is lane]
        for begin in range(0, len(mine), PORTION):
            refused += _put(store, lane, mine[begin : begin + PORTION], f"{origin} {lane} {begin}")
    return tuple(refused)


def _put(store: Datastore, lane: Lane, part: Sequence[Fact], origin: str) -> list[Refusal]:
    """One record; where it is refused, one of each fact."""
    name = record_name(part[0].at, f"{part[0].by} {origin}")
    try:
        store.create(HistoryKey(lane, name), Facts(tuple(part)))
    except AlreadyExists:
        return []
    except (InvalidInput, Malformed) as error:
        if len(part) == 1:
            return [Refusal(part[0], first_line(error))]
        singly = (_put(store, lane, [one], f"{origin} {at}") for at, one in enumerate(part))
        return [one for refused in singly for one in refused]
    return []


def record_name(at: datetime, origin: str) -> str:
    """A record's name: names sort by time, and those of one origin and time are the same."""
    milliseconds = max(0, int(at.timestamp() * 1000))
    return f"{milliseconds:013d}-{hashlib.sha256(origin.encode()).hexdigest()[:12]}"


def time_of(name: str) -> datetime | None:
    """When the first fact of a record was; None for a name that is not ours."""
    digits, _, rest = name.partition("-")
    if not (rest and len(digits) == 13 and digits.isascii() and digits.isdecimal()):
        return None
    return datetime.fromtimestamp(int(digits) / 1000, UTC)


def outdated(names: Sequence[str], now: datetime, age: timedelta, most: int) -> tuple[str, ...]:
    """Which of a lane's records go: too old, or more than there may be; oldest first. Pure.

    Times in the future (a clock that was wrong) count by number alone.
    """
    known = sorted((when, name) for name in names if (when := time_of(name)) is not None)
    surplus = max(0, len(known) - most)
    return tuple(name for at, (when, name) in enumerate(known) if at < surplus or now - when > age)


def prune(store: Datastore, now: datetime, bounds: Bounds | None = None) -> int:
    """Remove what is too old or too much, some of it at a time; how many records went.

    May run anywhere, and twice at once. Raises what the datastore raises.
    """
    bounds = bounds or Bounds()
    removed = 0
    for lane in Lane:
        try:
            keys = store.names(History(lane))
        except NotServed:
            continue
        names = [key.name for key in keys if isinstance(key, HistoryKey)]
        for name in outdated(names, now, bounds.age, bounds.most(lane))[:MOST_PRUNED]:
            try:
                store.delete(HistoryKey(lane, name))
            except NotFound:
                continue
            removed += 1
    return removed


def pruned(store: Datastore, now: datetime, bounds: Bounds | None = None) -> str:
    """As `prune`; an error is a text and nothing else, empty for none."""
    try:
        prune(store, now, bounds)
    except TortieError as error:
        return str(error)
    return ""


@dataclass(slots=True)
class Direct:
    """Facts of a program that runs beside no agent: gathered, and stored by `flush`.

    A kill loses what was not flushed. `trouble` is why the last flush did not store all; that is
    then given up, so that nothing grows.
    """

    store: Datastore
    origin: str
    trouble: str = ""
    _gathered: list[Fact] = field(default_factory=list)
    _flushed: int = 0

    def write(self, facts: Sequence[Fact]) -> None:
        """Gather facts; a portion of them is stored at once."""
        self._gathered += facts
        if len(self._gathered) >= PORTION:
            self.flush()

    def flush(self) -> None:
        """Store what was gathered. Never raises what the datastore raises."""
        facts, self._gathered = self._gathered, []
        if not facts:
            return
        self._flushed += 1
        try:
            refused = keep(self.store, facts, f"{self.origin} {self._flushed}")
        except TortieError as error:
            self.trouble = first_line(error)
        else:
            self.trouble = refused[0].reason if refused else ""


# -- in words --------------------------------------------------------------------------------------


def sentence(fact: Fact) -> str:
    """A fact in one line of English, without its time; not escaped."""
    who = _pod(fact)
    held = ", ".join(map(str, fact.addresses)) or "no address"
    before = fact.before or "?"
    match fact.what:
        case What.MIGRATION:
            more = "".join(f", {name} {text}" for name, text in _shown(fact))
            return f"migration to {who}: {fact.details.get('step', '?')}{more}"
        case What.HANDED_OVER if not fact.pod:
            return f"{held} kept for {fact.namespace}/{fact.vm}, which is stopped"
    words = {
        What.GRANTED: f"granted to {who}",
        What.RELEASED: f"released, last held by {who}",
        What.TARGETED: f"shared with {who}, target of a migration from {before}",
        What.PROMOTED: f"now owned by {who}, before by {before}",
        What.HANDED_OVER: f"kept: now owned by {who}, before by {fact.before or 'no pod'}",
    }
    return f"{held} {words[fact.what]}"


def _pod(fact: Fact) -> str:
    where = f" on {fact.node}" if fact.node else ""
    if not fact.pod:
        return f"{fact.handle_id or 'nobody'}{where}"
    of_vm = f" of VM {fact.vm}" if fact.vm else ""
    return f"{fact.namespace}/{fact.pod}{of_vm}{where}"


def _shown(fact: Fact) -> Iterable[tuple[str, str]]:
    named = {
        "latency_ms": "ms from sign to route",
        "downtime_ms": "ms of network downtime",
        "reason": "reason",
        "sign": "sign",
    }
    return ((named[name], fact.details[name]) for name in named if name in fact.details)
