"""`tortiectl version`."""

from __future__ import annotations

import time

import click

from libtortie import __version__
from tortiectl.options import config_option, examples


@click.command(epilog=examples("tortiectl version --client", "tortiectl version --poll 10s"))
@config_option
@click.option("--client", is_flag=True, help="Only this program's version; asks nobody.")
@click.option(
    "-p",
    "--poll",
    default="0s",
    show_default=True,
    metavar="TIME",
    help="Ask again after this time and tell of changes, until interrupted; 0s: once.",
)
@click.pass_context
def version(ctx: click.Context, *, config: str, client: bool, poll: str) -> None:
    """Show the version of this program and of the cluster (its ClusterInformation)."""
    click.echo(f"Client Version:    v{__version__}")
    if client:
        return
    from libtortie.errors import InvalidInput
    from libtortie.model.times import parse_duration
    from libtortie.wording import visible
    from tortiectl.cluster import cluster_lines
    from tortiectl.connection import connect

    try:
        seconds = parse_duration(poll)
    except ValueError as error:
        raise InvalidInput(f"--poll: {error}") from error
    store = connect(ctx, config).store
    told: list[str] = []
    while True:
        lines = list(cluster_lines(store))
        if lines != told:
            for line in lines:
                click.echo(visible(line))
        if not seconds:
            return
        told = lines
        time.sleep(seconds)
