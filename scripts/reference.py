"""docs/reference.md, from the code: every key of every configuration file, every option.

`python -m scripts.reference` prints it; a test holds the page to it. What a key is for is told
where its part is documented; here is what it may be, and what it is unless it is set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cni_plugin.types import NetConf
from controllers.command_line import build_parser as controllers
from felix_shim.agent import main as node
from felix_shim.config import NodeConfig
from libtortie.client_config import VARIABLES, Spec
from migration_proxy.config import ProxyConfig
from migration_proxy.daemon import build_parser as proxy
from tortiectl.cli import main as tortiectl

HEAD = """\
# Reference

Made from the code by `make reference`. What the keys are for is on the pages named.
"""
FILES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("The agent: /etc/tortie/node.yaml", "[node.md](node.md)", NodeConfig),
    ("The plugin: its object in the conflist", "[cni.md](cni.md)", NetConf),
    (
        "The migration proxy: /etc/tortie/migration-proxy.yaml",
        "[migration-proxy.md](migration-proxy.md)",
        ProxyConfig,
    ),
)
_BOUNDS = (
    (annotated_types.Ge, "ge", "at least {}"),
    (annotated_types.Gt, "gt", "more than {}"),
    (annotated_types.Le, "le", "at most {}"),
    (annotated_types.Lt, "lt", "less than {}"),
)
_NAMES = {str: "text", int: "number", float: "number", bool: "`true`, `false`", NoneType: "none"}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, where, model in FILES:
        rows = [f"| `{key}` | {kind} | {default} |" for key, kind, default in keys(model)]
        table = ["| key | may be | default |", "|---|---|---|", *rows]
        parts.append(f"## {title}\n\nSee {where}.\n\n" + "\n".join(table) + "\n")
    rows = [f"| `{key}` | `{variable}` |" for key, variable in VARIABLES.items()]
    assert {field.alias or name for name, field in Spec.model_fields.items()} == set(VARIABLES)
    table = ["| key of `spec` | variable |", "|---|---|", *rows]
    parts.append(
        "## tortiectl: /etc/tortie/tortiectl.cfg and the environment\n\n"
        "See [tortiectl.md](tortiectl.md#where-datastore-and-api-are). `CALICO_` before a "
        "variable's name beats the bare one.\n\n" + "\n".join(table) + "\n"
    )
    parts.append("## Options\n")
    parts += [section("tortie-node", click_options(node)), *click_sections(tortiectl)]
    for made in (controllers(), proxy()):
        parts += argparse_sections(made)
    return "\n".join(parts)


def keys(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, what it may be, default; keys of an object within come after its name and a dot."""
    for name, field in model.model_fields.items():
        if field.init is False:
            continue
        key = before + (field.alias or name)
        inner = _model(field.annotation)
        if inner is not None:
            yield from keys(inner, f"{key}.")
        else:
            yield key, _kind(field), _default(field)


def _model(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType):
        found = [one for one in map(_model, get_args(annotation)) if one is not None]
        return found[0] if found else None
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _kind(field: FieldInfo) -> str:
    bounds = [
        text.format(getattr(one, attribute))
        for one in field.metadata
        for kind, attribute, text in _BOUNDS
        if isinstance(one, kind)
    ]
    return ", ".join([_of(field.annotation), *bounds])


def _of(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(inner[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" if one != "" else "empty" for one in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_of(one) for one in inner if one is not NoneType))
    if origin is tuple:
        many = [one for one in inner if one is not Ellipsis]
        return f"list of {_of(many[0])}"
    if origin is dict:
        return "object"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "must be given"
    if value in ("", None, (), {}):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{json.dumps(value) if isinstance(value, bool | int | float) else value}`"


def section(title: str, rows: list[tuple[str, str]]) -> str:
    """A program, and its options with their help."""
    lines = [f"| `{names}` | {text} |" for names, text in rows]
    table = ["| option | |", "|---|---|", *lines] if lines else []
    return "\n".join([f"### {title}\n", *table, ""] if table else [f"### {title}\n"])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def click_options(command: click.Command) -> list[tuple[str, str]]:
    """Options as `--help` has them."""
    context = click.Context(command, info_name=command.name, terminal_width=400)
    found = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        named = isinstance(parameter, click.Option) and "--help" not in parameter.opts
        if record is not None and named:
            found.append((record[0].replace("|", "\\|"), _cell(record[1])))
    return found


def click_sections(command: click.Command, before: str = "") -> Iterator[str]:
    """A command and all below it."""
    name = f"{before} {command.name}".strip()
    context = click.Context(command, info_name=command.name)
    options = click_options(command)
    if not isinstance(command, click.Group):
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        yield section(" ".join([name, *(one.make_metavar(context) for one in arguments)]), options)
        return
    if options:
        yield section(name, options)
    for one in command.list_commands(context):
        found = command.get_command(context, one)
        assert found is not None
        yield from click_sections(found, name)


def argparse_sections(made: argparse.ArgumentParser) -> Iterator[str]:
    """A program and its commands."""
    rows, below = [], []
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = list(dict.fromkeys(action.choices.values()))
        elif action.help is not argparse.SUPPRESS and "--help" not in action.option_strings:
            value = action.metavar or (",".join(map(str, action.choices)) if action.choices else "")
            names = ", ".join(action.option_strings) + (f" {value}" if value else "")
            rows.append((names, _cell((action.help or "").replace("%%", "%"))))
    if rows:
        yield section(made.prog, rows)
    for one in below:
        yield from argparse_sections(one)


if __name__ == "__main__":
    click.echo(page(), nl=False)
