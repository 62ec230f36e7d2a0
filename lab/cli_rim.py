"""What every `lab` command has in common: its errors, its nodes, and becoming another program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import click

from lab import names
from lab.state import StateDir
from lab.tools import LabError
from libtortie.errors import TortieError

P = ParamSpec("P")


def reported(work: Callable[P, None]) -> Callable[P, None]:
    """One line on standard error and exit code 1 for every error of ours."""

    @wraps(work)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        if os.geteuid() != 0:
            raise click.ClickException("the lab makes network namespaces: run it as root")
        try:
            work(*args, **kwargs)
        except (TortieError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return wrapper


def known_node(state: StateDir, node: str) -> None:
    """Raise `LabError` when no lab is up or it has no such node."""
    nodes = [known.name for known in names.lab_nodes(state.read().nodes)]
    if node and node not in nodes:
        raise LabError(f"no node {node!r}; there are {', '.join(nodes)}")


def replace_process(argv: list[str]) -> NoReturn:
    """Become another program."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)
