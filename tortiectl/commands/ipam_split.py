"""`tortiectl ipam split`."""

from __future__ import annotations

import click

from libtortie.errors import InvalidInput
from libtortie.model.resources import IPPool
from tortiectl.connection import connect
from tortiectl.options import config_option, examples, not_empty
from tortiectl.readiness import require_locked
from tortiectl.splitting import find, parts_of
from tortiectl.splitting import split as split_pool


@click.command(
    epilog=examples(
        "tortiectl datastore migrate lock",
        "tortiectl ipam split 4 --name pool-a",
        "tortiectl ipam split 2 --cidr 10.65.0.0/16",
        "tortiectl datastore migrate unlock",
    )
)
@click.argument("number", type=click.INT)
@click.option("--cidr", default="", metavar="CIDR", callback=not_empty, help="The pool's range.")
@click.option("--name", default="", metavar="NAME", callback=not_empty, help="The pool's name.")
@config_option
@click.pass_context
def split(ctx: click.Context, *, number: int, cidr: str, name: str, config: str) -> None:
    """Replace a pool by NUMBER pools that share its range; NUMBER is a power of two.

    The datastore has to be locked. Addresses and blocks stay as they are.
    """
    if bool(cidr) == bool(name):
        raise click.UsageError("give --cidr or --name", ctx)
    store = connect(ctx, config).store
    require_locked(store)
    record = find(store, cidr, name)
    if not isinstance(record.value, IPPool):
        raise InvalidInput(f"{name or cidr} is no IP pool")
    parts = parts_of(record.value, number)
    split_pool(store, record, parts)
    names = ", ".join(f"{part.metadata.name} ({part.spec.cidr})" for part in parts)
    click.echo(f"Successfully split IPPool {record.value.metadata.name} into {names}")
