"""`tortiectl patch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from libtortie.access import parse_yaml, text_of
from libtortie.errors import InvalidInput
from libtortie.patches import json_patch, merge_patch
from tortiectl.commands.completion import complete_kind, complete_name
from tortiectl.commands.get import keys_of
from tortiectl.commands.write import writable
from tortiectl.editing import edit
from tortiectl.options import config_option, examples, namespace_option, not_empty

TYPES = ("strategic", "merge", "json")


@click.command(
    epilog=examples(
        'tortiectl patch ippool pool-a -p \'{"spec": {"disabled": true}}\'',
        "tortiectl patch node n1 -p 'spec: {bgp: {asNumber: 64512}}'",
        'tortiectl patch bgpfilter f -t json -p \'[{"op": "remove", "path": "/spec/exportV4/0"}]\'',
    )
)
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", callback=not_empty, shell_complete=complete_name)
@click.option("-p", "--patch", "text", default="", callback=not_empty, help="JSON or YAML.")
@click.option(
    "--patch-file", default="", metavar="FILE", callback=not_empty, help="A file that holds it."
)
@click.option(
    "-t",
    "--type",
    "form",
    type=click.Choice(TYPES),
    default="strategic",
    show_default=True,
    help="json: RFC 6902; merge and strategic: RFC 7386, since no list here has keys.",
)
@namespace_option
@config_option
@click.pass_context
def patch(
    ctx: click.Context,
    *,
    kind: str,
    name: str,
    text: str,
    patch_file: str,
    form: str,
    namespace: str,
    config: str,
) -> None:
    """Change fields of one resource.

    The result is checked as a whole before it is stored. A metadata.resourceVersion in the patch is
    insisted on.
    """
    if bool(text) == bool(patch_file):
        raise click.UsageError("give -p PATCH or --patch-file FILE", ctx)
    where = patch_file or "the patch"
    body = parse_yaml(text_of(Path(patch_file)) if patch_file else text, where)
    if form != "json" and not isinstance(body, dict):
        raise InvalidInput(f"{where}: is not an object; a list of operations has --type json")
    (key,) = keys_of(kind, (name,), namespace)
    store = writable(ctx, config, "update", (key.kind,))
    insist = ""
    if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
        insist = str(body["metadata"].get("resourceVersion") or "")
    changed = json_patch if form == "json" else merge_patch
    edit(store, key, partial(changed, patch=body), insist=insist)
    click.echo(f"Successfully patched 1 '{key.kind}' resource")
