"""What a command does to addresses goes into the history, as what agents do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import click

from ipam.annals import Annals
from libtortie.datastore.port import Datastore
from libtortie.history import Direct
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
