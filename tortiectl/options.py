"""Options that several commands have; imported at start-up, so click only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from libtortie.wording import DEFAULT_CONFIG

F = TypeVar("F", bound=Callable[..., Any])


def not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of an option or argument: given empty (a variable that is not set?), refused."""
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if given and "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("is empty; leave it out or give a value", ctx, param)
    return value


def config_option(command: F) -> F:
    """`-c/--config`."""
    return click.option(
        "-c",
        "--config",
        default="",
        metavar="FILE",
        callback=not_empty,
        help=f"Where datastore and API are.  [default: {DEFAULT_CONFIG}]",
    )(command)


def namespace_option(command: F) -> F:
    """`-n/--namespace`."""
    return click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAMESPACE",
        callback=not_empty,
        help="Of kinds that are in namespaces.  [default: default]",
    )(command)


def file_options(command: F) -> F:
    """`-f`, `-R`, `--skip-empty`: where manifests are."""
    for decorate in (
        click.option("--skip-empty", is_flag=True, help="Pass over files without a resource."),
        click.option("-R", "--recursive", is_flag=True, help="Directories within directories too."),
        click.option(
            "-f",
            "--filename",
            "files",
            multiple=True,
            callback=not_empty,
            metavar="FILE",
            help="YAML or JSON, also of several resources; a directory; - is standard input. "
            "May be repeated.",
        ),
    ):
        command = decorate(command)
    return command


def examples(*lines: str) -> str:
    """The examples of a command's help, as its epilog; a first word of `#` is a comment."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
