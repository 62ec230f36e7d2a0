"""The sheets of all pages, made of what the shelves have. What is not there yet is told as such."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from controllers.page.machines import Machine, machines, vm_sheet, vms_table
from controllers.page.moves import Move, move_sheet, moves_of, moves_table
from controllers.page.past import Past
from controllers.page.pools import blocks_table, pools_table
from controllers.page.problems import Health, LastPass, pass_table, problems_table, unjudged_table
from controllers.page.read import Instances, Jobs, Network, Source
from controllers.page.sheet import CALM, LIVE, PAGE_ROWS, Age, Fact, Part, Sheet
from controllers.page.shelf import WAIT_SECONDS, Look, Shelf
from libtortie.errors import NotFound

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

LAST = Part(size=10)
NO_NETWORK, NO_INSTANCES, NO_JOBS, NO_PAST = Network(), Instances(), Jobs(), Past()


@dataclass(frozen=True, slots=True)
class Shelves:
    """What pages are made of, each part kept for some seconds."""

    network: Shelf[Network]
    instances: Shelf[Instances]
    jobs: Shelf[Jobs]
    history: Shelf[Past]
    health: Shelf[Health]

    def all(self) -> tuple[Shelf[Any], ...]:
        """Each of them."""
        return self.network, self.instances, self.jobs, self.history, self.health


def shelves_of(
    source: Source,
    complain: Callable[[str], None],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    wait: float = WAIT_SECONDS,
) -> Shelves:
    """Shelves over a source: what moves is read often, what costs much seldom."""

    def shelf(name: str, read: Callable[[], T], fresh: float) -> Shelf[T]:
        return Shelf(
            name,
            read,
            fresh=fresh,
            complain=complain,
            monotonic=monotonic,
            now=source.now,
            wait=wait,
        )

    return Shelves(
        shelf("ipam", source.network, 5.0),
        shelf("vms", source.instances, 5.0),
        shelf("migrations", source.jobs, 1.0),
        shelf("history", source.history, 2.0),
        shelf("problems", source.health, 60.0),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What VMs' and migrations' pages are made of, and how old each part is."""

    network: Network
    machines: tuple[Machine, ...]
    moves: tuple[Move, ...]
    past: Past
    notes: tuple[str, ...]
    ages: tuple[Age, ...]

    @property
    def refresh(self) -> int:
        """When to look again."""
        return LIVE if any(one.running for one in self.moves) else CALM


class Pages:
    """Each page as a sheet. Safe among threads."""

    def __init__(
        self,
        shelves: Shelves,
        passes: LastPass | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._shelves, self._passes, self._now = shelves, passes, now
        self._machines = _Joined(_machines)
        self._moves = _Joined(_moves)

    def overview(self, part: Part) -> Sheet:
        """How much there is of all, and what moves now."""
        self._shelves.health.ask()
        seen, health = self._seen(), self._shelves.health.look(wait=False)
        running = [one for one in seen.moves if one.running]
        ended = [one for one in seen.moves if not one.running]
        found = len(health.value.findings) if health.value is not None else None
        facts = (
            Fact("vm_count", "VMs", len(seen.machines)),
            Fact("running_count", "running migrations", len(running)),
            Fact("used_count", "addresses in use", sum(p.use.used for p in seen.network.pools)),
            Fact("problem_count", "problems", found),
        )
        tables = (
            moves_table("running", "Running migrations", running, part),
            moves_table("past", "Last migrations", ended, LAST),
            pools_table(seen.network.pools),
        )
        ages = (*seen.ages, _age(self._shelves.health, health))
        return Sheet(
            "The cluster", facts, tables, notes=seen.notes, ages=ages, refresh=seen.refresh
        )

    def vms(self, part: Part, search: str) -> Sheet:
        """Every VM, or those that are searched for."""
        seen = self._seen()
        wanted = search.strip().lower()
        found = [one for one in seen.machines if one.has(wanted)] if wanted else seen.machines
        pager = _pager("/vms", part, q=search)
        table = vms_table(found, seen.moves, part, pager)
        return Sheet(
            "VMs",
            tables=(table,),
            notes=seen.notes,
            ages=seen.ages,
            refresh=seen.refresh,
            search=search,
        )

    def vm(self, part: Part, namespace: str, name: str) -> Sheet:
        """One VM. Raises `NotFound`."""
        seen = self._seen()
        for one in seen.machines:
            if (one.namespace, one.name) == (namespace, name):
                made = vm_sheet(one, seen.moves, seen.past, part)
                return _with(made, seen.notes, seen.ages)
        raise NotFound(_absent(f"VM {namespace}/{name}", seen.ages))

    def moves(self, part: Part) -> Sheet:
        """Every migration that anybody knows of."""
        seen = self._seen()
        running = [one for one in seen.moves if one.running]
        ended = [one for one in seen.moves if not one.running]
        tables = (
            moves_table("running", "Running", running, Part(size=part.size)),
            moves_table("past", "Past", ended, part, _pager("/migrations", part)),
        )
        return Sheet(
            "Migrations",
            tables=tables,
            notes=seen.notes,
            ages=seen.ages,
            refresh=seen.refresh,
        )

    def move(self, part: Part, namespace: str, name: str) -> Sheet:
        """One migration by its name, or by its UID. Raises `NotFound`."""
        seen = self._seen()
        for one in seen.moves:
            if one.namespace == namespace and name in (one.name, one.uid):
                return _with(move_sheet(one, self._now(), part), seen.notes, seen.ages)
        raise NotFound(_absent(f"migration {namespace}/{name}", seen.ages))

    def ipam(self, part: Part, pool: str) -> Sheet:
        """Pools and blocks, or the blocks of one pool (by its CIDR). Raises `NotFound`."""
        shelf = self._shelves.network
        shelf.ask()
        look = shelf.look()
        net, age = look.value or NO_NETWORK, _age(shelf, look)
        if pool and pool not in {str(one.cidr) for one in net.pools}:
            raise NotFound(_absent(f"pool {pool}", (age,)))
        pools = [one for one in net.pools if pool in ("", str(one.cidr))]
        blocks = [one for one in net.blocks if pool in ("", one.pool)]
        tables = (pools_table(pools), blocks_table(blocks, part, _pager("/ipam", part, pool=pool)))
        notes = tuple(f"cannot be read: {text}" for text in net.unreadable)
        title = f"Pool {pool}" if pool else "IPAM"
        return Sheet(title, tables=tables, notes=notes, ages=(age,), refresh=CALM)

    def problems(self, part: Part) -> Sheet:
        """What `ipam check` finds, and what the collector of this process did last."""
        shelf = self._shelves.health
        shelf.ask()
        look = shelf.look()
        health = look.value or Health()
        tables = [
            problems_table(health.findings, part, _pager("/problems", part)),
            unjudged_table(health.unjudged),
        ]
        facts: tuple[Fact, ...] = ()
        if self._passes is not None:
            last = self._passes.last()
            facts = (Fact("collected", "the collector's last pass", last.at if last else None),)
            tables.append(pass_table(last))
        return Sheet("Problems", facts, tuple(tables), ages=(_age(shelf, look),), refresh=CALM)

    def _seen(self) -> Seen:
        shelves = self._shelves
        asked: tuple[Shelf[Any], ...] = (
            shelves.network,
            shelves.instances,
            shelves.jobs,
            shelves.history,
        )
        for shelf in asked:
            shelf.ask()
        network, instances = shelves.network.look(), shelves.instances.look()
        jobs, history = shelves.jobs.look(), shelves.history.look()
        net, there = network.value or NO_NETWORK, instances.value or NO_INSTANCES
        past, work = history.value or NO_PAST, jobs.value or NO_JOBS
        notes = dict.fromkeys(
            [
                *filter(None, (there.note, work.note)),
                *(f"cannot be read: {text}" for text in (*net.unreadable, *past.unreadable)),
            ]
        )
        looks: tuple[Look[Any], ...] = (network, instances, jobs, history)
        return Seen(
            net,
            self._machines.of(there, net),
            self._moves.of(work, past),
            past,
            tuple(notes),
            tuple(map(_age, asked, looks)),
        )


class _Joined(Generic[A, B, T]):
    """What is made of two readings: once for these two, not for each request."""

    def __init__(self, make: Callable[[A, B], T]) -> None:
        self._make = make
        self._last: tuple[A, B, T] | None = None

    def of(self, first: A, second: B) -> T:
        """Made, or as it was made. Two threads may both make it: it is the same."""
        last = self._last
        if last is None or last[0] is not first or last[1] is not second:
            last = self._last = first, second, self._make(first, second)
        return last[2]


def _machines(there: Instances, net: Network) -> tuple[Machine, ...]:
    return machines(there.found, net.handles)


def _moves(work: Jobs, past: Past) -> tuple[Move, ...]:
    return moves_of(work.found, past)


def _pager(path: str, part: Part, **query: str) -> Callable[[int], str]:
    """The address of another part of the same list."""
    kept = {key: value for key, value in query.items() if value}
    if part.size != PAGE_ROWS:
        kept["size"] = str(part.size)

    def to(number: int) -> str:
        return f"{path}?{urlencode({**kept, 'page': number}, errors='replace')}"

    return to


def _age(shelf: Shelf[T], look: Look[T]) -> Age:
    return Age(shelf.name, look.at, look.trouble)


def _absent(what: str, ages: tuple[Age, ...]) -> str:
    """That something is not there, as far as that is known."""
    blind = [f"{one.name}: {one.trouble}" for one in ages if one.trouble]
    text = f"there is no {what}"
    return f"{text}, as far as is known: {'; '.join(blind)}" if blind else text


def _with(sheet: Sheet, notes: tuple[str, ...], ages: tuple[Age, ...]) -> Sheet:
    return replace(sheet, notes=(*sheet.notes, *notes), ages=ages)
