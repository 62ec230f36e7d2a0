"""`tortiectl delete`."""

from __future__ import annotations

import click

from libtortie.model.keys import ResourceKey
from tortiectl.commands.completion import complete_kind, complete_name
from tortiectl.commands.get import keys_of
from tortiectl.commands.write import resources_in, tell, writable
from tortiectl.manifests import Sources
from tortiectl.options import config_option, examples, file_options, namespace_option, not_empty
from tortiectl.removing import remove_all


@click.command(
    epilog=examples(
        "tortiectl delete ippool pool-a",
        "tortiectl delete networkpolicy web db -n shop",
        "tortiectl delete -f manifests/ --skip-not-exists",
    )
)
@click.argument("kind", required=False, default="", shell_complete=complete_kind)
@click.argument(
    "names", nargs=-1, metavar="[NAME]...", callback=not_empty, shell_complete=complete_name
)
@file_options
@click.option(
    "-s", "--skip-not-exists", "--skip-absent", is_flag=True, help="What is not there is no error."
)
@namespace_option
@config_option
@click.pass_context
def delete(
    ctx: click.Context,
    *,
    kind: str,
    names: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    skip_empty: bool,
    skip_not_exists: bool,
    namespace: str,
    config: str,
) -> None:
    """Remove resources by KIND and NAME, or those that are in files.

    A pool is disabled first; its addresses stay with who has them. With a node go its endpoints,
    its peers and settings and its pods' addresses; VMs keep theirs.
    """
    revisions: dict[ResourceKey, str] = {}
    if files:
        if kind:
            raise click.UsageError("give KIND and NAME, or -f FILE", ctx)
        wanted = resources_in(Sources(files, recursive, skip_empty), namespace)
        keys = [one.resource.key for one in wanted]
        revisions = {one.resource.key: one.revision for one in wanted if one.revision}
    else:
        if not kind or not names:
            raise click.UsageError("give KIND and at least one NAME, or -f FILE", ctx)
        keys = keys_of(kind, names, namespace)
    store = writable(ctx, config, "delete", (key.kind for key in keys))
    outcome = remove_all(store, keys, skip_absent=skip_not_exists, revisions=revisions)
    tell("delete", "deleted", outcome, store.atomic)
