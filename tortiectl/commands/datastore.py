"""`tortiectl datastore migrate`: a datastore locked, carried elsewhere, unlocked."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import config_option, examples, not_empty

COMMANDS = {
    "migrate": Entry("tortiectl.commands.datastore:migrate", "Carry its contents to another."),
}
MIGRATE = {
    "lock": Entry("tortiectl.commands.datastore:lock", "Let nobody allocate or free."),
    "export": Entry("tortiectl.commands.datastore:export", "Write the contents."),
    "import": Entry("tortiectl.commands.datastore:import_", "Read them into another datastore."),
    "unlock": Entry("tortiectl.commands.datastore:unlock", "Let everybody work again."),
}
_STORY = examples(
    "tortiectl datastore migrate lock -c old.cfg",
    "tortiectl datastore migrate export -c old.cfg > contents",
    "tortiectl datastore migrate import -c new.cfg -f contents",
    "tortiectl datastore migrate unlock -c new.cfg",
)


@click.group(cls=LazyGroup, entries=COMMANDS)
def datastore() -> None:
    """Work on a datastore as a whole."""


@click.group(cls=LazyGroup, entries=MIGRATE, epilog=_STORY)
def migrate() -> None:
    """Carry the contents of a datastore to another: SQLite, etcd and Kubernetes, each to each."""


@click.command(epilog=_STORY)
@config_option
@click.pass_context
def lock(ctx: click.Context, config: str) -> None:
    """Lock the datastore: no address is allocated or freed until it is unlocked."""
    from tortiectl.connection import connect
    from tortiectl.readiness import set_ready

    set_ready(connect(ctx, config).store, False)
    click.echo("Datastore locked.")


@click.command(epilog=_STORY)
@config_option
@click.pass_context
def unlock(ctx: click.Context, config: str) -> None:
    """Unlock the datastore."""
    from tortiectl.connection import connect
    from tortiectl.readiness import set_ready

    set_ready(connect(ctx, config).store, True)
    click.echo("Datastore unlocked.")


@click.command(epilog=_STORY)
@click.option(
    "--with-endpoints",
    is_flag=True,
    help="Also profiles and workload endpoints, for a target that is not Kubernetes.",
)
@config_option
@click.pass_context
def export(ctx: click.Context, *, with_endpoints: bool, config: str) -> None:
    """Write the contents of a locked datastore to standard output."""
    from itertools import chain

    from libtortie.wording import visible
    from tortiectl.connection import connect
    from tortiectl.migrating import history_of, ipam_of, resources_of
    from tortiectl.migration_file import SEPARATOR, cluster_text, ipam_text, resources_text
    from tortiectl.readiness import cluster_of, require_locked

    store = connect(ctx, config).store
    require_locked(store)
    for kind, records in resources_of(store, everything=with_endpoints):
        for piece in resources_text(kind, records):
            click.echo(piece)
    click.echo(SEPARATOR)
    click.echo(cluster_text(cluster_of(store)[0]))
    click.echo(SEPARATOR)

    def unreadable(text: str) -> None:
        click.echo(visible(f"history: cannot be read, and is left out: {text}"), err=True)

    for piece in ipam_text(chain(ipam_of(store), history_of(store, unreadable))):
        click.echo(piece)


@click.command(name="import", epilog=_STORY)
@click.option(
    "-f",
    "--filename",
    required=True,
    metavar="FILE",
    callback=not_empty,
    help="What `export` wrote; - is standard input.",
)
@config_option
@click.pass_context
def import_(ctx: click.Context, *, filename: str, config: str) -> None:
    """Read exported contents into this datastore, which is locked by it.

    May be repeated. A record of IPAM that is there already and another is an error, and nothing is
    written then.
    """
    from libtortie.access import text_of
    from libtortie.wording import visible
    from tortiectl.connection import connect
    from tortiectl.migrating import import_all
    from tortiectl.migration_file import parse

    stdin = filename == "-"
    text = sys.stdin.read() if stdin else text_of(Path(filename))
    contents = parse(text, "standard input" if stdin else filename)
    at = connect(ctx, config)
    count = len(contents.resources) + len(contents.ipam) + len(contents.history)
    with click.progressbar(
        length=count, label="Importing", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        done = import_all(at.store, contents, at.config.datastore.type, bar.update)
    for text in (*contents.unread, *filter(None, [done.lost])):
        click.echo(visible(f"not in the history: {text}"), err=True)
    click.echo(
        f"Successfully imported {done.resources} resources and {done.records} records of IPAM"
        f"{f', {done.history} of the history' if contents.history else ''}. "
        "The datastore is locked: `tortiectl datastore migrate unlock` when all nodes use it."
    )
