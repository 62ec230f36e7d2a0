"""The history in commands: what they do to addresses goes into it, as what agents do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import click

from ipam.annals import Annals
from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError, first_line
from libtortie.history import Direct, history
from libtortie.model.history import Fact
from libtortie.wording import visible

WHO = "tortiectl"


@contextmanager
def recorded(store: Datastore) -> Iterator[Annals]:
    """The history for the commands inside; stored at the end, also of one that failed half-way.

    What the datastore does not take is said on standard error and fails nothing.
    """
    direct = Direct(store, f"{WHO} {uuid.uuid4().hex}")
    try:
        yield Annals(WHO, lambda: datetime.now(UTC), direct.write)
    finally:
        direct.flush()
        if direct.trouble:
            click.echo(visible(f"not in the history: {direct.trouble}"), err=True)


def all_told(store: Callable[[], Datastore]) -> tuple[Fact, ...]:
    """The history; what of it cannot be read is said on standard error, and the rest is shown."""
    try:
        told = history(store())
    except TortieError as error:
        click.echo(visible(f"history: {first_line(error)}"), err=True)
        return ()
    for text in told.unreadable:
        click.echo(visible(f"cannot be read: {text}"), err=True)
    return told.facts
