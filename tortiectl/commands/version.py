"""`tortiectl version`."""

from __future__ import annotations

import click

from libtortie import __version__
from tortiectl.options import config_option


@click.command()
@config_option
@click.option("--client", is_flag=True, help="Only this program's version; asks nobody.")
@click.pass_context
def version(ctx: click.Context, config: str, client: bool) -> None:
    """Show the version of this program and of the cluster (its ClusterInformation)."""
    click.echo(f"Client Version:    v{__version__}")
    if client:
        return
    from libtortie.wording import visible
    from tortiectl.cluster import cluster_lines
    from tortiectl.connection import connect

    for line in cluster_lines(connect(ctx, config).store):
        click.echo(visible(line))
