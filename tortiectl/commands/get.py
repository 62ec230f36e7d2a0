"""`tortiectl get`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from libtortie.datastore.port import Datastore, Record
from libtortie.errors import InvalidInput, Malformed, NotFound
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.wording import meant, visible
from tortiectl.connection import connect
from tortiectl.kinds import names_of, parse_kind
from tortiectl.options import config_option, not_empty
from tortiectl.output import FORMATS, render, wire_of

DEFAULT_NAMESPACE = "default"

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _kinds_help() -> str:
    lines = [f"  {kind}: {', '.join(names_of(kind)[2:]) or kind.plural}" for kind in Kind]
    return "\b\nKinds and their short names:\n" + "\n".join(lines)


@click.command(epilog=_kinds_help())
@click.argument("kind")
@click.argument("names", nargs=-1, metavar="[NAME]...", callback=not_empty)
@config_option
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(FORMATS),
    default="ps",
    show_default=True,
    help="Form of the output.",
)
@click.option(
    "-n",
    "--namespace",
    default="",
    callback=not_empty,
    help="Of namespaced kinds.  [default: default]",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Of namespaced kinds: all of them.")
@click.pass_context
def get(
    ctx: click.Context,
    *,
    kind: str,
    names: tuple[str, ...],
    config: str,
    form: str,
    namespace: str,
    all_namespaces: bool,
) -> None:
    """Show resources of a KIND: all, or those with a NAME.

    A resource that cannot be read or does not exist is named on standard error, and the exit
    status is 1; the others are shown all the same.
    """
    wanted = parse_kind(kind)
    where = _namespace(wanted, namespace, all_namespaces, names)
    found = fetch(connect(ctx, config).store, wanted, names, where)
    if found.records or not names:
        wires = [wire_of(record) for record in found.records]
        text = render(wanted, wires, form, single=len(names) == 1, all_namespaces=all_namespaces)
        if text:
            click.echo(text)
    for complaint in found.complaints:
        click.echo(visible(complaint), err=True)
    if found.complaints:
        ctx.exit(1)


@dataclass(frozen=True, slots=True)
class Found:
    """Resources, and what is to be said about others."""

    records: tuple[Record, ...]
    complaints: tuple[str, ...]


def fetch(store: Datastore, kind: Kind, names: Sequence[str], namespace: str) -> Found:
    """Resources of a kind, in path order or in the order of their names as given."""
    if not names:
        listing = store.list(Resources(kind, namespace))
        return Found(listing.records, listing.malformed)
    records, complaints = [], []
    for name in dict.fromkeys(names):
        try:
            records.append(store.get(ResourceKey(kind, name, namespace)))
        except NotFound:
            complaints.append(_absent(store, kind, name, namespace))
        except Malformed as error:
            complaints.append(str(error))
    return Found(tuple(records), tuple(complaints))


def _absent(store: Datastore, kind: Kind, name: str, namespace: str) -> str:
    """Calico's words for a resource that is not there, and the one that was probably meant."""
    keys = (record.key for record in store.list(Resources(kind, namespace)).records)
    hint = meant(name, (key.name for key in keys if isinstance(key, ResourceKey)))
    full = f"{namespace}/{name}" if namespace else name
    return f"resource does not exist: {kind}({full}) with error: <nil>{hint}"


def _namespace(kind: Kind, given: str, everywhere: bool, names: Sequence[str]) -> str:
    """The namespace to look in; "" for all of them and for kinds that have none."""
    if not kind.namespaced:
        if given or everywhere:
            raise InvalidInput(f"{kind} is not in a namespace: leave out -n and -A")
        return ""
    if everywhere:
        if given or names:
            raise InvalidInput("-A shows all namespaces: leave out -n and names")
        return ""
    if given and not _DNS_LABEL.fullmatch(given):
        raise InvalidInput(
            f"namespace {given!r} is no DNS label (1 to 63 of a-z, 0-9 and, inside, -); "
            "for all namespaces give -A"
        )
    return given or DEFAULT_NAMESPACE
