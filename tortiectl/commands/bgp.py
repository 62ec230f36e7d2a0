"""`tortiectl bgp`: what routers beside the cluster must be told, and whether they obey."""

from __future__ import annotations

import click

from tortiectl.lazy import Entry, LazyGroup

COMMANDS = {
    "canary": Entry(
        "tortiectl.commands.bgp_canary:canary", "Prove that the ToR prefers a raised route."
    ),
    "tor-config": Entry(
        "tortiectl.commands.bgp_tor_config:tor_config", "Print what the ToR must be told."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS, name="bgp")
def bgp() -> None:
    """Prepare and prove the routers that the nodes peer with."""
