"""`tortiectl ipam show`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import click

from ipam.block import expire_cooldown
from ipam.persistence import persistence
from ipam.settings import read_config, read_pools, read_reservations, stored_persistence
from ipam.transaction import Transaction
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, TortieError
from libtortie.model.ipam import Attribute, Block, IPAddress
from libtortie.model.keys import Blocks
from libtortie.model.plain_ip import plain_address
from libtortie.wording import visible
from tortiectl import ipam_report as report
from tortiectl.connection import Connection, connect
from tortiectl.options import config_option, examples, not_empty
from tortiectl.text_tables import boxed


@click.command(
    epilog=examples(
        "tortiectl ipam show --show-blocks",
        "tortiectl ipam show --ip 10.65.0.9",
        "tortiectl ipam show --show-configuration",
    )
)
@config_option
@click.option(
    "--ip",
    default="",
    metavar="ADDRESS",
    callback=not_empty,
    help="Only this address: who has it.",
)
@click.option("--show-blocks", is_flag=True, help="Also the blocks of each pool.")
@click.option("--show-borrowed", is_flag=True, help="Addresses used off their block's node.")
@click.option("--show-configuration", is_flag=True, help="The settings in force.")
@click.pass_context
def show(
    ctx: click.Context,
    *,
    config: str,
    ip: str,
    show_blocks: bool,
    show_borrowed: bool,
    show_configuration: bool,
) -> None:
    """Show how much of each pool is used, who has an address, or the settings.

    An address that was released and is cooling down is an error, as for calicoctl.
    """
    if bool(ip) + show_blocks + show_borrowed + show_configuration > 1:
        raise click.UsageError(
            "give one of --ip, --show-blocks, --show-borrowed, --show-configuration", ctx
        )
    address = parse_address(ip) if ip else None
    at = connect(ctx, config)
    complaints: tuple[str, ...] = ()
    if address is not None:
        lines: Iterator[str] | list[str] = _one_address(at.store, address)
    elif show_configuration:
        lines = _configuration(at)
    elif show_borrowed:
        lines = [boxed(report.BORROWED_HEADINGS, report.borrowed_rows(_blocks(at.store)))]
    else:
        table, complaints = _use(at.store, show_blocks)
        lines = [table]
    for line in lines:
        click.echo(line)
    for complaint in complaints:
        click.echo(visible(complaint), err=True)
    if complaints:
        ctx.exit(1)


def parse_address(text: str) -> IPAddress:
    try:
        return plain_address(text)
    except ValueError as error:
        raise InvalidInput(f"--ip: '{text}' is not an IP address") from error


def _one_address(store: Datastore, address: IPAddress) -> Iterator[str]:
    attribute = _attribute(_blocks(store), address)
    if attribute is not None and attribute.released_at is not None:
        seconds = read_config(Transaction(store)).cooldown_seconds
        raise TortieError(report.cooling_text(address, attribute, seconds))
    return report.address_lines(address, attribute)


def _attribute(blocks: list[Block], address: IPAddress) -> Attribute | None:
    for block in blocks:
        if address in block.cidr:
            return block.attribute(block.ordinal(address))
    return None


def _configuration(at: Connection) -> list[str]:
    tx = Transaction(at.store)
    config, stored = read_config(tx), stored_persistence(tx)
    effective = persistence(at.store, at.kube)
    table = boxed(report.CONFIG_HEADINGS, report.config_rows(config, effective))
    where = f" (Kubernetes API at {at.kube.server})" if at.kube is not None else ""
    return [table, report.persistence_text(effective, stored), f"Datastore: {at.name}{where}"]


def _use(store: Datastore, show_blocks: bool) -> tuple[str, tuple[str, ...]]:
    """The table of what can be read, and a line about each pool that cannot."""
    tx = Transaction(store)
    reserved = read_reservations(tx).networks
    pools, broken = read_pools(tx)
    rows = report.use_rows(pools, _blocks(store), reserved, show_blocks=show_blocks)
    complaints = tuple(f"a pool cannot be read: {reason}" for reason in broken)
    return boxed(report.USE_HEADINGS, rows), complaints


def _blocks(store: Datastore) -> list[Block]:
    """Every block as allocation would find it now, with what has cooled down free.

    Raises `TortieError` for one that cannot be read: a count without it would be wrong.
    """
    cooldown, now = read_config(Transaction(store)).cooldown_seconds, datetime.now(UTC)
    found: list[Block] = []
    for version in (4, 6):
        listing = store.list(Blocks(version))
        if listing.malformed:
            raise TortieError(f"a block cannot be read: {'; '.join(listing.malformed)}")
        found += [
            expire_cooldown(record.value, now=now, cooldown=cooldown)
            for record in listing.records
            if isinstance(record.value, Block)
        ]
    return found
