"""`tortiectl vm trace`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import click

from libtortie.errors import InvalidInput, NotFound, TortieError, first_line
from libtortie.kube.migrations import Migration
from libtortie.kube.objects import Api
from libtortie.kube.port import NotServed
from libtortie.timeline import Moment, Timeline, of_migration
from libtortie.wording import visible
from tortiectl.annals import all_told
from tortiectl.kubevirt.access import Access, default_namespace, open_api
from tortiectl.kubevirt.options import namespace_option
from tortiectl.kubevirt.reading import absent, decode, read_list, split_id
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json
from tortiectl.trace import render
from tortiectl.trace.moments import of_events, of_history, of_log, subject_of, timeline

EVENT = Api("", "v1", "events", "Event", True)


@click.command()
@click.argument("migration")
@config_option
@namespace_option
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", callback=not_empty,
    help="The log of an agent, of source or target; may be repeated.",
)  # fmt: skip
@click.option(
    "--clock", "clocks", multiple=True, metavar="NODE=MS", callback=not_empty,
    help="Move the times of a node's log by so many ms; may be repeated.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(("text", "json", "html")), default="text")
@click.pass_context
def trace(
    ctx: click.Context,
    *,
    migration: str,
    config: str,
    namespace: str,
    logs: tuple[str, ...],
    clocks: tuple[str, ...],
    output: str,
) -> None:
    """Tell one migration as one timeline: KubeVirt's phases, Events, the history, and what agents
    logged.

    MIGRATION is the name of a VirtualMachineInstanceMigration. Agents' logs (`log_file` in
    node.yaml) have routes, signs of the VM, IPAM's owner and BGP to the millisecond.
    """
    shifts = dict(_shift(text) for text in clocks)
    access = open_api(ctx, config)
    place, name = split_id(migration, default_namespace(access, namespace))
    found = _find(access, place, name)
    about = subject_of(found)
    moments = [*of_migration(found), *_events(access, found)]
    moments += of_history(all_told(lambda: access.connection.store), about, steps=not logs)
    for path in logs:
        moments += of_log(_text(path), about)
    told = timeline(moments, about, shifts)
    title = f"{found.id} of {found.spec.vmi_name}: {about.source_node or '?'} to "
    _tell(told, f"{title}{about.target_node or '?'}", found.id, output)


def _find(access: Access, place: str, name: str) -> Migration:
    try:
        return decode(Migration, access.objects.get(Migration.api, name, place))
    except NotServed:
        raise absent(access.objects) from None
    except NotFound:
        known = [one.metadata.name for one in read_list(access.objects, Migration, place).objects]
        there = f"; there are {', '.join(sorted(known))}" if known else ""
        raise NotFound(
            f"there is no migration {place}/{name} (KubeVirt keeps five of a VM){there}"
        ) from None


def _events(access: Access, found: Migration) -> Iterator[Moment]:
    meta = found.metadata
    names = frozenset({meta.name, found.spec.vmi_name})
    try:
        bodies, _ = access.objects.list(EVENT, meta.namespace)
    except TortieError as error:
        click.echo(visible(f"Events: {first_line(error)}"), err=True)
        return
    yield from of_events(bodies, subject_of(found), names)


def _shift(text: str) -> tuple[str, timedelta]:
    node, _, number = text.partition("=")
    try:
        return node, timedelta(milliseconds=float(number))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r}: want NODE=MS, for example n2=-12.5") from None


def _tell(told: Timeline, title: str, name: str, output: str) -> None:
    bodies: Mapping[str, object] = render.document(told, name)
    if output == "json":
        click.echo(readable_json(bodies, sort_keys=True))
    elif output == "html":
        click.echo(render.page(told, title), nl=False)
    else:
        click.echo("\n".join(visible(line) for line in render.lines(told, title)))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
