"""Options that several commands have; imported at start-up, so click only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from libtortie.wording import DEFAULT_CONFIG, NODE_FILE

F = TypeVar("F", bound=Callable[..., Any])


class Finite(click.FloatRange):
    """A number in a range; click takes `nan` for one of any range, and `inf` of an open one."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """As the base class."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{found} is no such number.", param, ctx)
        return found


def not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of an option or argument: given empty (a variable that is not set?), refused."""
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if given and "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("is empty; leave it out or give a value", ctx, param)
    return value


def text_option(*names: str, metavar: str, said: str) -> Callable[[F], F]:
    """An option that is "" when it is left out; `said` is its help."""
    return click.option(*names, default="", metavar=metavar, callback=not_empty, help=said)


config_option = text_option(
    "-c",
    "--config",
    metavar="FILE",
    said=f"Where datastore and API are.  [default: {DEFAULT_CONFIG}]",
)
node_config_option = text_option(
    "-c",
    "--config",
    metavar="FILE",
    said=f"The agent's configuration.  [default: {NODE_FILE}, if it is there]",
)
namespace_option = text_option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    said="Of kinds that are in namespaces.  [default: default]",
)


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
