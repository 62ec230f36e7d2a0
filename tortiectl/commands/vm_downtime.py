"""`tortiectl vm downtime`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from libtortie.errors import InvalidInput, NotFound
from libtortie.wording import visible
from tortiectl.downtime import report
from tortiectl.downtime.chart import chart, page
from tortiectl.downtime.fetch import fetch
from tortiectl.downtime.job import Job, Outcome
from tortiectl.downtime.read import parse_figures
from tortiectl.downtime.records import parse_records
from tortiectl.kubevirt.access import default_namespace, open_api
from tortiectl.kubevirt.objects import LABEL_ROLE, LAUNCHER, Pod
from tortiectl.kubevirt.options import namespace_option, output_option
from tortiectl.kubevirt.reading import Gap, get_vmi, read_list, split_id
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json

UNFINISHED = 2
"""Exit status when the migration did not succeed (yet)."""
_STDIN = "-"


@click.command()
@click.argument("vm", default="", callback=not_empty)
@config_option
@namespace_option
@click.option(
    "-f",
    "--file",
    "source",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="Read the figures from a file (`-`: standard input) and ask nobody.",
)
@click.option(
    "--records",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="Take the network downtime from a demo's report.json or the target agent's log.",
)
@click.option(
    "--plot",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="Draw them: a name that ends in .svg, or in .html.",
)
@output_option("text", "json")
@click.pass_context
def downtime(
    ctx: click.Context,
    *,
    vm: str,
    config: str,
    namespace: str,
    source: str,
    records: str,
    plot: str,
    output: str,
) -> int:
    """Show how long VM's last migration took, and how long its guest stood still.

    Asks libvirt on the node that the VM went to, by kubectl exec; or reads what was saved: the
    output of `virsh domjobinfo`, QMP's answers to query-migrate, a demo's report.json, an agent's
    log. Exit status 2 when the migration did not succeed, or has not yet.
    """
    if not vm and not source:
        raise click.UsageError("name a VM, or a file with --file", ctx)
    form = _plot_form(plot)
    if source:
        title, text = vm or ("" if source == _STDIN else source), text_of(source)
        job = parse_figures(text, source if source != _STDIN else "standard input", vm)
    else:
        title, job = _asked(ctx, config, vm, namespace)
    if records:
        job = replace(job, network_downtime_ms=_network(records, title if vm else ""))
    if form:
        drawn = page(job, title) if form == "html" else f"{chart(job, title)}\n"
        _write(plot, drawn)
    if output == "json":
        click.echo(readable_json(report.document(job, vm and title), sort_keys=True))
    else:
        click.echo("\n".join(visible(line) for line in report.lines(job, title)))
    return UNFINISHED if _unfinished(job) else 0


def _asked(ctx: click.Context, config: str, vm: str, namespace: str) -> tuple[str, Job]:
    access = open_api(ctx, config)
    place, name = split_id(vm, default_namespace(access, namespace))
    vmi = get_vmi(access.objects, name, place)
    pods = read_list(access.objects, Pod, place, label_selector=f"{LABEL_ROLE}={LAUNCHER}")
    if pods.gap is not Gap.NONE:
        raise NotFound(f"pods of namespace {place}: {pods.reason}")
    text = fetch(vmi, pods.objects, access.execute)
    return vmi.id, parse_figures(text, f"virsh domjobinfo of {vmi.id}")


def _network(path: str, vm: str) -> float | None:
    try:
        return parse_records(text_of(path), vm).network_downtime_ms
    except (InvalidInput, NotFound) as error:
        raise type(error)(f"{path}: {error}") from None


def _unfinished(job: Job) -> bool:
    return job.outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.RUNNING)


def _plot_form(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if path and suffix not in (".svg", ".html"):
        raise click.BadParameter(f"{path}: want a name that ends in .svg or .html")
    return suffix.lstrip(".")


def text_of(path: str) -> str:
    """A file's text, or standard input's. Raises `InvalidInput`."""
    try:
        data = sys.stdin.buffer.read() if path == _STDIN else Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    return data.decode("utf-8", "replace")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: name a file that can be written") from error
