"""`tortiectl`: the calicoctl-like command line.

This module is all that `tortiectl --help` imports beside click, so it imports nothing else of
weight. Every failure is one message on standard error and exit status 1, as calicoctl's; 130 after
an interrupt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from libtortie import __version__
from libtortie.errors import TortieError
from libtortie.wording import is_text, visible
from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import Finite, not_empty

FAILED = 1
INTERRUPTED = 130

LINE_END = "\n"
REQUEST_TIMEOUT = 5.0
"""Seconds; also the bound of one call of each backend and of the API's client."""

LOG_LEVELS = ("debug", "info", "warning", "error", "fatal", "panic")

COMMANDS = {
    "apply": Entry("tortiectl.commands.write:apply", "Store resources, new or instead of others."),
    "bgp": Entry("tortiectl.commands.bgp:bgp", "Prepare and prove the routers of the nodes."),
    "cluster": Entry("tortiectl.commands.diags:cluster", "Collect what support asks for."),
    "completion": Entry(
        "tortiectl.commands.completion:completion", "Print what completes commands in a shell."
    ),
    "cpu-models": Entry(
        "tortiectl.commands.cpu_models:cpu_models", "Show CPU models that nodes have in common."
    ),
    "create": Entry("tortiectl.commands.write:create", "Store new resources."),
    "datastore": Entry("tortiectl.commands.datastore:datastore", "Lock and carry a datastore."),
    "delete": Entry("tortiectl.commands.delete:delete", "Remove resources."),
    "get": Entry("tortiectl.commands.get:get", "Show resources."),
    "ipam": Entry("tortiectl.commands.ipam:ipam", "Show and configure address management."),
    "label": Entry("tortiectl.commands.label:label", "Set or remove labels of a resource."),
    "migration-proxy": Entry(
        "tortiectl.commands.migration_proxy:migration_proxy",
        "Look into this node's migration proxy.",
    ),
    "node": Entry("tortiectl.commands.node:node", "Look into this node; install the CNI plugin."),
    "patch": Entry("tortiectl.commands.patch:patch", "Change fields of a resource."),
    "replace": Entry("tortiectl.commands.write:replace", "Store resources instead of others."),
    "validate": Entry("tortiectl.commands.write:validate", "Say what is wrong with resources."),
    "version": Entry("tortiectl.commands.version:version", "Show client and cluster versions."),
    "vm": Entry("tortiectl.commands.vm:vm", "Look at VMs and move them."),
}


@dataclass(frozen=True, slots=True)
class Globals:
    """The options before the command."""

    context: str = ""
    log_level: str = "warning"
    request_timeout: float | None = None


class Tortiectl(LazyGroup):
    """The root: where errors become messages and exit statuses."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; in standalone mode this does not return."""
        args = sys.argv[1:] if args is None else list(args)
        try:
            _require_text(args)
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            if not standalone_mode:
                return result
        except click.ClickException as error:
            if not standalone_mode:
                raise
            _complain(error)
            sys.exit(FAILED)
        except OSError as error:
            if not standalone_mode:
                raise
            _drop_output()
            what = error.filename or "output"
            _complain(click.ClickException(f"{what}: {error.strerror or error}"))
            sys.exit(FAILED)
        except click.Abort:
            if not standalone_mode:
                raise
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        sys.exit(result if isinstance(result, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our errors become click's."""
        try:
            return super().invoke(ctx)
        except TortieError as error:
            raise click.ClickException(str(error)) from error
        except UnicodeEncodeError as error:
            raise click.ClickException(
                f"output: not all of it can be written as {error.encoding}: set PYTHONUTF8=1"
            ) from error


def _require_text(args: Sequence[str]) -> None:
    for arg in args:
        if not is_text(arg):
            raise click.UsageError(f"argument {arg!r} is not UTF-8")


def _drop_output() -> None:
    """Leave nothing for the interpreter to write, and complain about, as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: click.ClickException) -> None:
    """One message, red on a terminal that wants colour, with the way to the command's help."""
    color = False if os.environ.get("NO_COLOR") else None
    ctx = getattr(error, "ctx", None)
    label = click.style("Error:", fg="red", bold=True)
    click.echo(f"{label} {visible(error.format_message(), keep=LINE_END)}", err=True, color=color)
    if isinstance(error, click.UsageError) and ctx is not None:
        click.echo(f"See `{ctx.command_path} --help`.", err=True)


@click.command(
    cls=Tortiectl,
    entries=COMMANDS,
    name="tortiectl",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--context",
    default="",
    metavar="NAME",
    callback=not_empty,
    help="Context of the kubeconfig to use.",
)
@click.option(
    "-l",
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="warning",
    show_default=True,
    help="What libraries may say on standard error.",
)
@click.option(
    "--request-timeout",
    type=Finite(0.1, 3600),
    metavar="SECONDS",
    help=f"How long datastore and API may be silent, in all.  [default: {REQUEST_TIMEOUT:g}]",
)
@click.option(
    "--allow-version-mismatch",
    is_flag=True,
    help="For calicoctl's users: versions are never compared.",
)
@click.version_option(__version__, "--version", message="tortiectl v%(version)s")
@click.pass_context
def main(
    ctx: click.Context,
    *,
    context: str,
    log_level: str,
    request_timeout: float | None,
    allow_version_mismatch: bool,
) -> None:
    """Show and change what the cluster's network is told.

    Where the datastore is: the file given with -c, else /etc/tortie/tortiectl.cfg, else the
    environment (DATASTORE_TYPE, TORTIE_SQLITE_PATH, KUBECONFIG ...), else this node's
    /etc/tortie/node.yaml.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    ctx.obj = Globals(context, log_level, request_timeout)


if __name__ == "__main__":
    main()
