"""`tortiectl completion`, and what completes kinds and names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from tortiectl.options import examples

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TORTIECTL_COMPLETE"


@click.command(
    epilog=examples(
        'eval "$(tortiectl completion bash)"',
        "tortiectl completion fish > ~/.config/fish/completions/tortiectl.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, kinds and names in a SHELL."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "tortiectl", VARIABLE).source())


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Kinds, in the plural, as kubectl's users type them."""
    from libtortie.model.keys import Kind

    return [kind.plural for kind in Kind if kind.plural.startswith(incomplete.lower())]


def complete_name(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of what is stored of the kind that was typed; none where nobody answers."""
    from libtortie.errors import TortieError
    from libtortie.model.keys import ResourceKey, Resources
    from tortiectl.commands.get import namespace_of
    from tortiectl.connection import connect
    from tortiectl.kinds import parse_kind

    try:
        kind = parse_kind(ctx.params.get("kind") or "")
        where = namespace_of(kind, ctx.params.get("namespace") or "", False, ())
        store = connect(ctx, ctx.params.get("config") or "").store
        keys = store.names(Resources(kind, where))
    except (TortieError, OSError):
        return []
    return [
        CompletionItem(key.name)
        for key in keys
        if isinstance(key, ResourceKey) and key.name.startswith(incomplete)
    ]
