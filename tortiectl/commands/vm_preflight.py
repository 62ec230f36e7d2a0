"""`tortiectl vm preflight`."""

from __future__ import annotations

import click

from libtortie.cycles import unsearched
from libtortie.errors import NotFound, TortieError
from libtortie.wording import visible
from tortiectl.kubevirt.access import default_namespace, open_api
from tortiectl.kubevirt.options import namespace_option, output_option
from tortiectl.kubevirt.reading import get_vmi, split_id
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json
from tortiectl.preflight import report
from tortiectl.preflight.examine import Scope, Verdict, examine
from tortiectl.preflight.findings import Severity, worst
from tortiectl.preflight.read import read_cluster

FOUND = 2
"""Exit status when something would go wrong."""
_LIMITS = {"blocks": Severity.BLOCKS, "breaks": Severity.BREAKS, "risk": Severity.RISK}


@click.command()
@click.argument("vm", default="", callback=not_empty)
@config_option
@namespace_option
@click.option("--node", default="", metavar="NODE", callback=not_empty, help="VMs on this node.")
@click.option("--all", "everything", is_flag=True, help="All VMs that run (-n: of a namespace).")
@click.option(
    "--fail-on", type=click.Choice(tuple(_LIMITS)), default="breaks", show_default=True,
    help="The least severity that gives exit status 2.",
)  # fmt: skip
@click.option(
    "--conflist", default="", metavar="FILE", callback=not_empty,
    help="Also judge this CNI configuration of a node.",
)  # fmt: skip
@output_option("text", "table", "json")
@click.pass_context
def preflight(
    ctx: click.Context,
    *,
    vm: str,
    config: str,
    namespace: str,
    node: str,
    everything: bool,
    fail_on: str,
    conflist: str,
    output: str,
) -> int:
    """Say why VMs cannot migrate, or would lose their connections: every reason, with its fix.

    Exit status 2 when something is found that blocks or breaks connections, 1 when not all could
    be judged, else 0.
    """
    if sum((bool(vm), bool(node), everything)) != 1:
        raise click.UsageError("name a VM, or give one of --node and --all", ctx)
    access = open_api(ctx, config)
    place = namespace
    if vm:
        place, name = split_id(vm, default_namespace(access, namespace))
        vmi = get_vmi(access.objects, name, place)
        if not vmi.running:
            phase = "being deleted" if vmi.metadata.deleting else vmi.status.phase or "new"
            raise NotFound(f"VMI {vmi.id} does not run: it is {phase}")
        vm = vmi.id
    with unsearched():
        cluster = read_cluster(access, place, conflist)
        if node and node not in cluster.nodes:
            known = ", ".join(sorted(cluster.nodes))
            raise NotFound(f"there is no node {node}; nodes are {known}")
        verdict = examine(cluster, Scope(vm, node))
    _tell(verdict, output)
    found = worst(verdict.findings)
    if found is not None and found.rank <= _LIMITS[fail_on].rank:
        return FOUND
    if verdict.holes:
        raise TortieError(f"not all could be judged: {verdict.holes[0]}")
    return 0


def _tell(verdict: Verdict, output: str) -> None:
    if output == "json":
        click.echo(readable_json(report.document(verdict), sort_keys=True))
        return
    told = report.lines(verdict) if output == "text" else report.table(verdict)
    click.echo("\n".join(visible(line, keep="\n") for line in told))
