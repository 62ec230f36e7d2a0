"""`tortiectl label`."""

from __future__ import annotations

from typing import Any

import click

from libtortie.errors import InvalidInput
from libtortie.model.spec_nodes import key_problem, value_problem
from libtortie.wording import visible
from tortiectl.commands.completion import complete_kind, complete_name
from tortiectl.commands.get import keys_of
from tortiectl.commands.write import writable
from tortiectl.editing import edit
from tortiectl.options import config_option, examples, namespace_option, not_empty


@click.command(
    epilog=examples(
        "tortiectl label node n1 rack=r1",
        "tortiectl label node n1 rack=r2 --overwrite",
        "tortiectl label node n1 rack --remove",
    )
)
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", callback=not_empty, shell_complete=complete_name)
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...", callback=not_empty)
@click.option("--overwrite", is_flag=True, help="Also where the key has another value.")
@click.option("--remove", is_flag=True, help="Take labels away; give their keys.")
@namespace_option
@config_option
@click.pass_context
def label(
    ctx: click.Context,
    *,
    kind: str,
    name: str,
    labels: tuple[str, ...],
    overwrite: bool,
    remove: bool,
    namespace: str,
    config: str,
) -> None:
    """Set or remove labels of one resource."""
    if remove and overwrite:
        raise click.UsageError("give --remove or --overwrite", ctx)
    wanted = dict(_parsed(text, remove) for text in labels)
    (key,) = keys_of(kind, (name,), namespace)
    store = writable(ctx, config, "update", (key.kind,))

    def change(wire: dict[str, Any]) -> dict[str, Any]:
        held = dict(wire["metadata"].get("labels") or {})
        meta = {**wire["metadata"], "labels": _changed(held, wanted, remove, overwrite)}
        return {**wire, "metadata": meta}

    edit(store, key, change)
    for one in wanted:
        done = "removed label" if remove else "set label"
        word = "from" if remove else "on"
        click.echo(visible(f"Successfully {done} {one} {word} {key.kind} {name}"))


def _parsed(text: str, remove: bool) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if remove and equals:
        raise InvalidInput(f"{text!r}: with --remove give the key alone")
    if not remove and not equals:
        raise InvalidInput(f"{text!r}: want KEY=VALUE, or --remove")
    problem = key_problem(key) or value_problem(value)
    if problem:
        raise InvalidInput(problem)
    return key, value


def _changed(
    held: dict[str, str], wanted: dict[str, str], remove: bool, overwrite: bool
) -> dict[str, str]:
    for key, value in wanted.items():
        if remove and key not in held:
            raise InvalidInput(f"there is no label {key} to be removed")
        if not remove and not overwrite and held.get(key, value) != value:
            raise InvalidInput(f"the label {key} is {held[key]!r}; --overwrite changes it")
    if remove:
        return {key: value for key, value in held.items() if key not in wanted}
    return {**held, **wanted}
