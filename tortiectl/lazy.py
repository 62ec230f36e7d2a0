"""Click groups whose commands are imported when they are run.

Help and names come from a table, so that `tortiectl --help` imports no command. A name that is
almost one of the table's is answered with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from libtortie.wording import meant


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is (`module:attribute`) and its line in the group's help."""

    target: str
    help: str


class LazyGroup(click.Group):
    """A group over a table of entries."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry] | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.entries = dict(entries or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The table's names, without importing a command; then the group's options."""
        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer an unknown name with the one that was probably meant."""
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            hint = meant(name, self.entries)
            raise click.UsageError(f"no such command: {name}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
