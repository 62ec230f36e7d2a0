"""`tortiectl ipam check`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from ipam.check import Examination, examine
from ipam.gc import Means, opinions
from libtortie import __version__
from libtortie.access import kubeconfig_in
from libtortie.cycles import unsearched
from libtortie.datastore.port import Datastore, Record
from libtortie.errors import InvalidInput, Malformed, NotFound, TortieError
from libtortie.model.keys import Kind, ResourceKey
from libtortie.wording import visible
from tortiectl.check_report import narrative, report
from tortiectl.connection import connect
from tortiectl.options import config_option, examples, not_empty
from tortiectl.output import readable_json

PROBLEMS = 2
"""Exit status when something is wrong with what is stored."""

_CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, "default")


@click.command(
    epilog=examples(
        "tortiectl ipam check --show-problem-ips",
        "tortiectl ipam check -o report.json --kubeconfig ~/.kube/config",
    )
)
@config_option
@click.option("--show-all-ips", is_flag=True, help="Also every allocated address, and whose it is.")
@click.option("--show-problem-ips", is_flag=True, help="Also each address with a problem.")
@click.option(
    "-o",
    "--output",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="Write a report as JSON to this file.",
)
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="The API whose pods and VMs are asked for, in place of the configured one.",
)
@click.pass_context
def check(
    ctx: click.Context,
    *,
    config: str,
    show_all_ips: bool,
    show_problem_ips: bool,
    output: str,
    kubeconfig: str,
) -> None:
    """Check that what IPAM has stored is sound and agrees with who lives.

    Changes nothing. Exit status 2 when a problem is found, 1 when the check could not be made
    whole, 0 when all is well.
    """
    at = connect(ctx, config)
    if kubeconfig:
        at.config = replace(at.config, kube=lambda: kubeconfig_in(kubeconfig))
    with unsearched():
        seen = opinions(Means(at.store, at.kube, lambda: datetime.now(UTC)))
        found = examine(seen)
        if output:
            body = report(seen, found, _cluster(at.store), __version__)
            _write(Path(output), readable_json(body) + "\n")
        for line in narrative(seen, found, show_all=show_all_ips, show_problems=show_problem_ips):
            click.echo(visible(line))
    if found.problems:
        ctx.exit(PROBLEMS)
    _require_whole(found)


def _require_whole(found: Examination) -> None:
    """Refuse to call a check clean that could not judge everything."""
    if found.unjudged:
        reason = next(iter(found.unjudged.values()))
        raise TortieError(f"{len(found.unjudged)} IPs could not be judged: {reason}")


def _cluster(store: Datastore) -> Record | None:
    try:
        return store.get(_CLUSTER)
    except (NotFound, Malformed):
        return None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: name a file that can be written") from error
