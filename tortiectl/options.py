"""Options that several commands have; imported at start-up, so click only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CONFIG = "/etc/tortie/tortiectl.cfg"


def config_option(command: F) -> F:
    """`-c/--config`."""
    return click.option(
        "-c",
        "--config",
        default="",
        metavar="FILE",
        help=f"Where datastore and API are.  [default: {DEFAULT_CONFIG}]",
    )(command)
