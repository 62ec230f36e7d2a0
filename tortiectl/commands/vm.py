"""`tortiectl vm`: the group."""

from __future__ import annotations

import click

from tortiectl.lazy import Entry, LazyGroup

COMMANDS = {
    "trace": Entry("tortiectl.commands.vm_trace:trace", "Tell one migration as one timeline."),
    "downtime": Entry("tortiectl.commands.vm_downtime:downtime", "Show how long a migration took."),
    "list": Entry("tortiectl.commands.vm_list:list_vms", "Show VMs."),
    "show": Entry("tortiectl.commands.vm_list:show_vm", "Show one VM and whose its addresses are."),
    "migrate": Entry("tortiectl.commands.vm_migrate:migrate", "Migrate a VM, or cancel it."),
    "evacuate-cancel": Entry(
        "tortiectl.commands.vm_evacuate_cancel:evacuate_cancel", "Clear a leftover evacuation."
    ),
    "preflight": Entry(
        "tortiectl.commands.vm_preflight:preflight", "Say what hinders migrations, and the fix."
    ),
    "forecast": Entry(
        "tortiectl.commands.vm_downtime:foretell", "Tell how long a migration will take."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def vm() -> None:
    """Look at VMs and move them."""
