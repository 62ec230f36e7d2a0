"""Options of the commands about VMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tortiectl.options import not_empty

F = TypeVar("F", bound=Callable[..., Any])


def namespace_option(command: F) -> F:
    """`-n/--namespace`."""
    return click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAMESPACE",
        callback=not_empty,
        help="Of the VM.  [default: the kubeconfig's, else default]",
    )(command)


def output_option(*forms: str) -> Callable[[F], F]:
    """`-o/--output`; the first form is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True
    )
