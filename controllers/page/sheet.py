"""What a page says, before it is HTML or JSON: facts, tables, a picture. Values only.

One description serves both forms, so that neither has what the other lacks. Keys are for
programs and stay; labels and headings are for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

from libtortie.svg import Markup

T = TypeVar("T")

PAGE_ROWS = 100
MOST_ROWS = 1000
LIVE, CALM = 2, 5
"""Seconds after which a page is looked at again, while something moves and else."""
FIRST = "it is being read for the first time"
"""The one trouble that is none."""


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to another page of ours; JSON has the text."""

    text: str
    to: str


Plain = str | int | float | bool | datetime | Link | None
Cell = Plain | tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing about the page's subject."""

    key: str
    label: str
    value: Cell


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a long list is asked for; pages count from 1."""

    number: int = 1
    size: int = PAGE_ROWS


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind; `total` counts all there are, of which `rows` are one page's.

    `columns` are pairs of key and heading. `pager` makes the address of another page.
    """

    key: str
    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: int
    part: Part = Part()
    pager: Callable[[int], str] | None = None

    @property
    def pages(self) -> int:
        """How many there are, at least one."""
        return max(1, -(-self.total // self.part.size))


@dataclass(frozen=True, slots=True)
class Age:
    """Of when something is that the page was made of, and why it is no newer."""

    name: str
    at: datetime | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page. `refresh` is in seconds; `search` is what its list was searched for (None: it
    cannot be)."""

    title: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    picture: Markup | None = None
    notes: tuple[str, ...] = ()
    ages: tuple[Age, ...] = ()
    refresh: int = CALM
    search: str | None = None
    wrong: int = 0
    """HTTP's status of a request that gets no page."""

    @property
    def status(self) -> int:
        """HTTP's: 503 while nothing that it is made of is known."""
        unknown = bool(self.ages) and all(one.at is None for one in self.ages)
        return self.wrong or (503 if unknown else 200)


def table_of(
    key: str,
    title: str,
    columns: tuple[tuple[str, str], ...],
    items: Sequence[T],
    row: Callable[[T], tuple[Cell, ...]],
    *,
    part: Part | None = None,
    pager: Callable[[int], str] | None = None,
) -> Table:
    """One part of a list as a table; only its rows are made. Without `part` it is the first."""
    wanted = part or Part()
    first = (wanted.number - 1) * wanted.size
    rows = tuple(row(one) for one in items[first : first + wanted.size])
    return Table(key, title, columns, rows, len(items), wanted, pager)


def vm_link(namespace: str, name: str) -> Link:
    """To a VM's page."""
    return _below("/vms", namespace, name)


def migration_link(namespace: str, name: str) -> Link:
    """To a migration's page; `name` may be its UID."""
    return _below("/migrations", namespace, name)


def _below(path: str, namespace: str, name: str) -> Link:
    """To what has this name; half a character, which JSON may hold, leads nowhere."""
    words = (quote(word, safe="", errors="replace") for word in (namespace, name))
    return Link(f"{namespace}/{name}", "/".join((path, *words)))
