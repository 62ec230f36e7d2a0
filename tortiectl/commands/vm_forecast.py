"""`tortiectl vm forecast`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from libtortie.errors import InvalidInput
from tortiectl.commands.vm_downtime import text_of
from tortiectl.downtime import forecast as forecasts
from tortiectl.downtime import report
from tortiectl.downtime.amounts import quantity
from tortiectl.downtime.forecast import Load
from tortiectl.downtime.job import Job
from tortiectl.downtime.of_vm import Moving, moving
from tortiectl.downtime.read import parse_figures
from tortiectl.kubevirt.access import default_namespace, open_api
from tortiectl.kubevirt.migratable import Around
from tortiectl.kubevirt.objects import Claim, KubeVirt
from tortiectl.kubevirt.options import namespace_option, output_option
from tortiectl.kubevirt.reading import Gap, get_vmi, read_list, split_id
from tortiectl.kubevirt.settings import settings_of
from tortiectl.options import Finite, config_option, not_empty
from tortiectl.output import readable_json

NEVER = 2
"""Exit status when it does not end by itself."""


def _amount(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option with a quantity."""
    if value is None:
        return None
    try:
        return quantity(value.removesuffix("/s"))
    except InvalidInput as error:
        raise click.BadParameter(str(error), ctx, param) from error


@dataclass(frozen=True, slots=True)
class _Given:
    """What the options say; None: not said."""

    memory: float | None
    disks: float | None
    bandwidth: float | None
    dirty_rate: float | None
    limit: float | None


@click.command()
@click.argument("vm", default="", callback=not_empty)
@config_option
@namespace_option
@click.option("--memory", callback=_amount, metavar="SIZE", help="The guest's memory, e.g. 4Gi.")
@click.option("--disks", callback=_amount, metavar="SIZE", help="Disks to copy.")
@click.option(
    "--bandwidth", callback=_amount, metavar="RATE", help="Bytes a second, e.g. 100Mi or 1.25G."
)
@click.option(
    "--dirty-rate", callback=_amount, metavar="RATE", help="What the guest dirties a second."
)
@click.option(
    "--disk-writes", callback=_amount, default="0", metavar="RATE", help="On disks to copy."
)
@click.option("--downtime-ms", type=Finite(min=0), default=forecasts.DOWNTIME_MS, show_default=True)
@click.option(
    "--completion-timeout-per-gib", "limit", type=Finite(min=0), metavar="SECONDS",
    help="KubeVirt's, for each GB; 0: none.  [default: 150]",
)  # fmt: skip
@click.option("--auto-converge", is_flag=True, help="allowAutoConverge is on.")
@click.option("--post-copy", is_flag=True, help="allowPostCopy is on.")
@click.option("--workload-disruption", is_flag=True, help="allowWorkloadDisruption is on.")
@click.option(
    "-f", "--file", "source", default="", metavar="FILE", callback=not_empty,
    help="Take what is not given from an earlier migration's figures.",
)  # fmt: skip
@output_option("text", "json")
@click.pass_context
def foretell(
    ctx: click.Context,
    *,
    vm: str,
    config: str,
    namespace: str,
    memory: float | None,
    disks: float | None,
    bandwidth: float | None,
    dirty_rate: float | None,
    disk_writes: float,
    downtime_ms: float,
    limit: float | None,
    auto_converge: bool,
    post_copy: bool,
    workload_disruption: bool,
    source: str,
    output: str,
) -> int:
    """Tell how long a migration will take, and whether it ends by itself.

    With VM its memory, the disks that are copied and KubeVirt's limits are looked up; options win,
    then an earlier migration's figures (--file). Exit status 2 when it does not end by itself.
    """
    known = _looked_up(ctx, config, vm, namespace) if vm else Moving()
    measured = parse_figures(text_of(source), source) if source else Job("nobody")
    given = _Given(memory, disks, bandwidth, dirty_rate, limit)
    load = Load(
        memory=_needed("--memory", given.memory, known.memory, measured.memory_total),
        bandwidth=_needed(
            "--bandwidth", given.bandwidth, measured.average_bandwidth, measured.bandwidth,
            known.bandwidth,
        ),
        dirty_rate=_first(given.dirty_rate, measured.dirty_rate) or 0.0,
        disks=_first(given.disks, known.disks) or 0.0,
        disk_write_rate=disk_writes,
        downtime_ms=downtime_ms,
        completion_s_per_gb=_needed(
            "--completion-timeout-per-gib", given.limit, known.limit, forecasts.COMPLETION_S_PER_GB
        ),
        auto_converge=auto_converge or known.auto_converge,
        post_copy=post_copy or known.post_copy,
        disruption=workload_disruption or known.disruption,
    )  # fmt: skip
    found = forecasts.forecast(load)
    if output == "json":
        click.echo(readable_json(report.forecast_document(load, found), sort_keys=True))
    else:
        click.echo("\n".join(report.forecast_lines(load, found)))
    return 0 if found.seconds is not None else NEVER


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _needed(option: str, *values: float | None) -> float:
    found = _first(*values)
    if found is None:
        raise click.UsageError(f"{option} is needed: give it, or figures that have it (--file)")
    return found


def _looked_up(ctx: click.Context, config: str, vm: str, namespace: str) -> Moving:
    access = open_api(ctx, config)
    place, name = split_id(vm, default_namespace(access, namespace))
    vmi = get_vmi(access.objects, name, place)
    claims = read_list(access.objects, Claim, place)
    kubevirts = read_list(access.objects, KubeVirt).objects
    settings = settings_of(kubevirts[0] if kubevirts else None)
    by_id = None if claims.gap is not Gap.NONE else {one.id: one for one in claims.objects}
    return moving(vmi, Around(claims=by_id, settings=settings))
