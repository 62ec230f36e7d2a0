"""`tortiectl migration-proxy`: what this node's migration proxy does, and what is wrong with it."""

from __future__ import annotations

import click

from libtortie.control_client import DEFAULT_SOCKET, ask
from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import not_empty
from tortiectl.proxy_report import report, troubled

COMMANDS = {
    "status": Entry(
        "tortiectl.commands.migration_proxy:status",
        "Show listeners, ports, peers, progress, and causes of trouble.",
    ),
}
TROUBLE = 2


@click.group(cls=LazyGroup, entries=COMMANDS, name="migration-proxy")
def migration_proxy() -> None:
    """Look into this node's migration proxy."""


@click.command()
@click.option(
    "--socket",
    default=DEFAULT_SOCKET,
    show_default=True,
    metavar="PATH",
    callback=not_empty,
    help="The daemon's control socket.",
)
@click.option("--migration", default="", metavar="UID", help="Only this migration.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text")
def status(socket: str, migration: str, output: str) -> int:
    """Show the migrations of this node, both sides.

    Exit status 2 when something is wrong with one of them, or with the certificates.
    """
    found = ask(socket, {"do": "status"})
    if migration:
        found["migrations"] = [one for one in found["migrations"] if one["migration"] == migration]
        if not found["migrations"]:
            raise click.ClickException(
                f"migration {migration}: this node's proxy has no listener for it: it was not "
                "started, or was stopped"
            )
    if output == "json":
        from tortiectl.output import readable_json

        click.echo(readable_json(found, sort_keys=True))
    else:
        click.echo(report(found))
    return TROUBLE if troubled(found) else 0
