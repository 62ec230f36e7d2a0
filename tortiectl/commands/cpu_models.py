"""`tortiectl cpu-models`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from libtortie.errors import NotFound, Unauthorized
from tortiectl.kubevirt.access import open_api
from tortiectl.kubevirt.compare import NodeCPU, common_models, compare, runs_vms
from tortiectl.kubevirt.cpu import Labels
from tortiectl.kubevirt.objects import Node
from tortiectl.kubevirt.options import output_option
from tortiectl.kubevirt.reading import Gap, read_list
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json
from tortiectl.text_tables import columns

NONE_IN_COMMON = 2
"""Exit status when no named model is common to all nodes."""
NOTE = (
    "LiveMigratable does not consider CPUs: a VM may have it and no node to go to. A VM stays with "
    "its vendor."
)


@click.command("cpu-models")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", callback=not_empty)
@config_option
@click.option("--common", is_flag=True, help="Only models that all nodes can run, best first.")
@click.option(
    "--host-model", is_flag=True,
    help="Only a line for each node: NODE MODEL FEATURE[,FEATURE...].",
)  # fmt: skip
@output_option("text", "json")
@click.pass_context
def cpu_models(
    ctx: click.Context,
    *,
    nodes: tuple[str, ...],
    config: str,
    common: bool,
    host_model: bool,
    output: str,
) -> int:
    """Show CPU models that nodes have in common, and where host-model VMs could go.

    Without NODE: every node on which KubeVirt runs VMs. A name that --common prints can go into
    a VM's spec.template.spec.domain.cpu.model. The features of --host-model are the host model's
    required ones that only that node has; `-` is none. Exit status 2 when --common finds none.
    """
    if common and host_model:
        raise click.UsageError("either --common or --host-model", ctx)
    labels = _labels(ctx, config, nodes)
    compared = labels if len(nodes) != 1 else _labels(ctx, config, ())
    shared = common_models({name: labels[name] for name in nodes or sorted(labels)})
    found = compare({**compared, **labels}, nodes or sorted(labels))
    if output == "json":
        click.echo(readable_json(document(shared, found), sort_keys=True))
    elif common:
        for name in shared:
            click.echo(name)
    elif host_model:
        for one in found:
            click.echo(f"{one.node} {one.host_model or '-'} {','.join(one.only_here) or '-'}")
    else:
        click.echo(text(shared, found))
    if common and not shared:
        click.echo("no named model can run on all of these nodes", err=True)
        return NONE_IN_COMMON
    return 0


def _labels(ctx: click.Context, config: str, wanted: Sequence[str]) -> Mapping[str, Labels]:
    """Labels by node. Raises `NotFound` for one that does not exist, or when there are none."""
    listed = read_list(open_api(ctx, config).objects, Node)
    if listed.gap is not Gap.NONE:
        raise Unauthorized(listed.reason)
    by_name = {node.metadata.name: node.metadata.labels for node in listed.objects}
    for name in wanted:
        if name not in by_name:
            raise NotFound(f"there is no node {name}; nodes are {', '.join(sorted(by_name))}")
    if wanted:
        return {name: by_name[name] for name in wanted}
    found = {name: labels for name, labels in by_name.items() if runs_vms(labels)}
    if not found:
        raise NotFound("no node has KubeVirt's labels: virt-handler runs nowhere")
    return found


def text(shared: Sequence[str], found: Sequence[NodeCPU]) -> str:
    """Both answers, and why a host-model VM would have nowhere to go. Pure."""
    rows = [
        (
            one.node,
            one.vendor or "-",
            one.host_model or "-",
            ",".join(one.only_here) or "-",
            ",".join(one.targets) or f"nowhere: {one.reason}",
        )
        for one in found
    ]
    headings = ("NODE", "VENDOR", "HOST MODEL", "ONLY HERE", "A HOST-MODEL VM CAN GO TO")
    names = ", ".join(shared) or "none"
    return f"Common named models, best first: {names}\n\n{columns(headings, rows)}\n\n{NOTE}"


def document(shared: Sequence[str], found: Sequence[NodeCPU]) -> dict[str, Any]:
    """For programs. Pure."""
    return {
        "common": list(shared),
        "nodes": [
            {
                "node": one.node,
                "vendor": one.vendor,
                "host_model": one.host_model,
                "only_here": list(one.only_here),
                "targets": list(one.targets),
                "reason": one.reason,
            }
            for one in found
        ],
        "note": NOTE,
    }
