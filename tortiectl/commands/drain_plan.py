"""`tortiectl node drain-plan`."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from libtortie.cycles import unsearched
from libtortie.errors import NotFound, Unavailable
from libtortie.kube.migrations import Migration
from libtortie.wording import visible
from tortiectl.drain.plan import Plan, document, lines, plan_drain
from tortiectl.drain.progress import Look, Progress
from tortiectl.kubevirt.access import Access, open_api
from tortiectl.kubevirt.mirror import Mirror, Trouble, Wanted
from tortiectl.kubevirt.objects import LABEL_ROLE, LAUNCHER, VMI, Node, Pod
from tortiectl.kubevirt.options import output_option
from tortiectl.options import Finite, config_option
from tortiectl.output import readable_json
from tortiectl.preflight.read import read_cluster

BLOCKED = 2
"""Exit status when the drain does not end by itself, or went another way than planned."""


@click.command("drain-plan")
@click.argument("node")
@config_option
@click.option("--watch", is_flag=True, help="Follow the drain until no VM is left on the node.")
@click.option(
    "--timeout", type=Finite(min=0), default=0.0, metavar="SECONDS",
    help="Of --watch; 0 is none.",
)  # fmt: skip
@output_option("text", "json")
@click.pass_context
def drain_plan(
    ctx: click.Context, *, node: str, config: str, watch: bool, timeout: float, output: str
) -> int:
    """Show which VMs of NODE will migrate, restart or block its drain, in which order, and why.

    Drains nothing: `kubectl drain` does. Exit status 2 when the drain would never end, and with
    --watch when a VM went another way than the plan said.
    """
    if watch and output != "text":
        raise click.UsageError("--watch tells its story as text", ctx)
    access = open_api(ctx, config)
    with unsearched():
        cluster = read_cluster(access)
    if node not in cluster.nodes:
        known = ", ".join(sorted(cluster.nodes))
        raise NotFound(f"there is no node {node}; nodes are {known}")
    plan = plan_drain(cluster, node)
    if output == "json":
        click.echo(readable_json(document(plan), sort_keys=True))
    else:
        _say("\n".join(lines(plan)))
    if watch and plan.steps:
        return _follow(access, plan, timeout, time.monotonic)
    return BLOCKED if plan.blocked else 0


def _follow(access: Access, plan: Plan, timeout: float, clock: Callable[[], float]) -> int:
    """Until the node is empty. Raises `NotFound` when it vanishes with VMs on it."""
    node, ends = plan.node, clock() + timeout if timeout else float("inf")
    progress = Progress(node, plan)
    with Mirror(
        access.client,
        Wanted(Node, field_selector=f"metadata.name={node}"),
        Wanted(VMI),
        Wanted(Migration),
        Wanted(
            Pod, label_selector=f"{LABEL_ROLE}={LAUNCHER}", field_selector=f"spec.nodeName={node}"
        ),
    ) as mirror:
        for change in mirror.changes(min(1.0, timeout) if timeout else 1.0):
            if isinstance(change, Trouble):
                click.echo(visible(change.text), err=True)
                continue
            now = Look(
                mirror.of(Node).get(node), mirror.of(VMI), mirror.of(Migration), mirror.of(Pod)
            )
            for line in progress.look(now):
                _say(line)
            left = progress.left(now)
            if not left:
                return _concluded(progress, node)
            if now.node is None:
                raise NotFound(
                    f"node {node} is gone from the API, and what ran there is not known to have "
                    f"left: {', '.join(left)}"
                )
            if clock() >= ends:
                raise Unavailable(f"after {timeout:g} s still on node {node}: {', '.join(left)}")
    raise AssertionError("a mirror's changes never end")


def _concluded(progress: Progress, node: str) -> int:
    _say(f"node {node} is empty")
    planned = True
    for vm, text, expected in progress.outcome():
        planned = planned and expected
        _say(f"  {vm}: {text}{'' if expected else ', which was not the plan'}")
    return 0 if planned else BLOCKED


def _say(text: str) -> None:
    click.echo(visible(text, keep="\n"))
