"""What every `lab` command has in common: its errors, its nodes, and becoming another program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import NoReturn, ParamSpec

import click

from lab import names
from lab.state import StateDir, refuse_foreign
from lab.tools import LabError
from libtortie.errors import TortieError

P = ParamSpec("P")
STARTERS = ("up", "demo", "bench", "upgrade")
"""Commands that start a lab of their own: any lab that is up is in their way."""
READERS = ("status", "apiserver")


def reported(work: Callable[P, None]) -> Callable[P, None]:
    """One line on standard error and exit code 1 for every error of ours.

    A command that changes the lab that is up is refused when that is another's.
    """

    @wraps(work)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        if os.geteuid() != 0:
            raise click.ClickException("the lab makes network namespaces: run it as root")
        try:
            _refuse_foreign()
            work(*args, **kwargs)
        except (TortieError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return wrapper


def _refuse_foreign() -> None:
    root = click.get_current_context().find_root()
    if root.invoked_subcommand not in (*STARTERS, *READERS) and isinstance(root.obj, StateDir):
        refuse_foreign(root.obj, given=root.params.get("state_dir") is not None)


def known_node(state: StateDir, node: str, besides: Sequence[str] = ()) -> None:
    """Raise `LabError` when no lab is up or it has no such node; `besides` would do as well."""
    nodes = [known.name for known in names.lab_nodes(state.read().nodes)]
    if node and node not in nodes:
        raise LabError(f"no node {node!r}; there are {', '.join((*nodes, *besides))}")


def replace_process(argv: list[str]) -> NoReturn:
    """Become another program."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)
