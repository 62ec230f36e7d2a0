"""Options of the commands about VMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tortiectl.options import text_option

F = TypeVar("F", bound=Callable[..., Any])


namespace_option = text_option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    said="Of the VM.  [default: the kubeconfig's, else default]",
)


def output_option(*forms: str) -> Callable[[F], F]:
    """`-o/--output`; the first form is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True
    )
