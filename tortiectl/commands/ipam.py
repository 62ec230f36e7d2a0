"""`tortiectl ipam`: the group."""

from __future__ import annotations

from typing import Any

import click

from libtortie.errors import Malformed
from tortiectl.lazy import Entry, LazyGroup

COMMANDS = {
    "adopt": Entry("tortiectl.commands.ipam_adopt:adopt", "Reserve addresses for VMs to come."),
    "check": Entry("tortiectl.commands.ipam_check:check", "Look for leaks and damage."),
    "configure": Entry("tortiectl.commands.ipam_configure:configure", "Change how it allocates."),
    "fsck": Entry("tortiectl.commands.ipam_fsck:fsck", "Explain every address; free by a plan."),
    "release": Entry("tortiectl.commands.ipam_release:release", "Release addresses nobody uses."),
    "show": Entry("tortiectl.commands.ipam_show:show", "Show use, an address, or settings."),
    "split": Entry("tortiectl.commands.ipam_split:split", "Split a pool into several."),
}

REMEDIES = {
    "kubeVirtVMAddressPersistence": "--kubevirt-ip-persistence=Enabled|Disabled",
    "maxBlocksPerHost": "--max-blocks-per-host=N",
    "ipCooldownSeconds": "--ip-cooldown-seconds=N",
    "strictAffinity": "--strictaffinity=true|false",
    "strict_affinity": "--strictaffinity=true|false",
}
"""Stored field → what sets it."""


class IpamGroup(LazyGroup):
    """Its commands' errors name the command that repairs a setting that cannot be read."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Malformed as error:
            option = next((o for name, o in REMEDIES.items() if name in str(error)), "")
            if not option:
                raise
            raise Malformed(f"{error}: `tortiectl ipam configure {option}` sets it anew") from error


@click.group(cls=IpamGroup, entries=COMMANDS)
def ipam() -> None:
    """Show and configure address management."""
