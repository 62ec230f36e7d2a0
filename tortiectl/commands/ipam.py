"""`tortiectl ipam`: the group."""

from __future__ import annotations

import click

from tortiectl.lazy import Entry, LazyGroup

COMMANDS = {
    "configure": Entry("tortiectl.commands.ipam_configure:configure", "Change how it allocates."),
    "show": Entry("tortiectl.commands.ipam_show:show", "Show use, an address, or settings."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def ipam() -> None:
    """Show and configure address management."""
