"""`tortiectl vm`: the group."""

from __future__ import annotations

import click

from tortiectl.lazy import Entry, LazyGroup

_AT = "tortiectl.commands"
COMMANDS = {
    "list": Entry(f"{_AT}.vm_list:list_vms", "Show VMs."),
    "show": Entry(f"{_AT}.vm_list:show_vm", "Show one VM and whose its addresses are."),
    "preflight": Entry(
        f"{_AT}.vm_preflight:preflight", "Say what hinders migrations, and the fix."
    ),
    "migrate": Entry(f"{_AT}.vm_migrate:migrate", "Migrate a VM, or cancel its migration."),
    "evacuate-cancel": Entry(
        f"{_AT}.vm_evacuate_cancel:evacuate_cancel", "Clear a leftover evacuation."
    ),
    "downtime": Entry(f"{_AT}.vm_downtime:downtime", "Show how long a migration took."),
    "forecast": Entry(f"{_AT}.vm_forecast:foretell", "Tell how long a migration will take."),
    "trace": Entry(f"{_AT}.vm_trace:trace", "Tell one migration as one timeline."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def vm() -> None:
    """Look at VMs and move them."""
