"""`tortiectl bgp tor-config`."""

from __future__ import annotations

import click

from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.model.bgp_spec import community_of
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import Resource
from tortiectl.connection import connect
from tortiectl.options import config_option, not_empty
from tortiectl.tor_config import Stored, tors
from tortiectl.tor_vendors import VENDORS, render

_KINDS = (
    Kind.NODE,
    Kind.BGP_PEER,
    Kind.IP_POOL,
    Kind.BGP_CONFIGURATION,
    Kind.FELIX_CONFIGURATION,
)


@click.command(name="tor-config")
@config_option
@click.option("--vendor", type=click.Choice(VENDORS), required=True, help="Whose words.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="BGPPEER",
    callback=not_empty,
    help="The router's BGPPeer, one for each family.  [default: the only one that is no node]",
)
@click.option(
    "--community",
    default="",
    metavar="AA:NN",
    callback=not_empty,
    help="What a BGPFilter marks raised routes with.  [default: they are known by MED]",
)
@click.pass_context
def tor_config(
    ctx: click.Context, *, config: str, vendor: str, peers: tuple[str, ...], community: str
) -> None:
    """Print the neighbours and policy that a ToR needs to prefer raised host routes.

    It says what must be there and leaves everything else of the router alone.
    """
    try:
        community and community_of(community)
    except ValueError as error:
        raise InvalidInput(f"--community: {error}") from error
    found = tors(read_stored(connect(ctx, config).store), peers, community)
    click.echo(render(vendor, found), nl=False)


def read_stored(store: Datastore) -> Stored:
    """All that is stored of BGP."""
    found = Stored()
    for kind in _KINDS:
        for record in store.list(Resources(kind)).records:
            if isinstance(record.value, Resource):
                found.put(record.value)
    return found
