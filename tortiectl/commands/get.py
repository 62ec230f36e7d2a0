"""`tortiectl get`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from libtortie.access import text_of
from libtortie.cycles import unsearched
from libtortie.datastore.port import Datastore, Record
from libtortie.errors import InvalidInput, Malformed, NotFound
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.written import DEFAULT_NAMESPACE
from libtortie.wording import meant, visible
from tortiectl.commands.completion import complete_kind, complete_name
from tortiectl.connection import connect
from tortiectl.kinds import names_of, parse_kind
from tortiectl.manifests import Sources, documents, kind_of
from tortiectl.options import config_option, examples, file_options, namespace_option, not_empty
from tortiectl.output import (
    FROM_FILE,
    Asked,
    Form,
    exported,
    parse_form,
    render,
    streamed,
    wire_of,
)

WRITE = 1 << 16
"""Characters."""
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _kinds_help() -> str:
    lines = [f"  {kind}: {', '.join(names_of(kind)[2:]) or kind.plural}" for kind in Kind]
    return "\b\nKinds and their short names:\n" + "\n".join(lines)


@click.command(
    epilog=examples(
        "tortiectl get ippools -o wide",
        "tortiectl get wep -A -o json",
        "tortiectl get nodes -o custom-columns=NAME,IPV4",
        "tortiectl get gnp -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'",
        "tortiectl get ippool pool-a -o yaml --export > pool.yaml",
    )
    + "\n\n"
    + _kinds_help()
)
@click.argument("kind", required=False, default="", shell_complete=complete_kind)
@click.argument(
    "names", nargs=-1, metavar="[NAME]...", callback=not_empty, shell_complete=complete_name
)
@file_options
@config_option
@click.option(
    "-o",
    "--output",
    default="ps",
    show_default=True,
    metavar="FORM",
    callback=not_empty,
    help="ps, wide, yaml, json, name, custom-columns=HEADING,... (or HEADING:.path,...), "
    "jsonpath=TEMPLATE, jsonpath-as-json=PATH; the first two of these also from a file: "
    "custom-columns-file=FILE, jsonpath-file=FILE.",
)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Of kinds in namespaces: all of them.")
@click.option("--export", is_flag=True, help="Without uid, revision, time of creation and status.")
@click.pass_context
def get(
    ctx: click.Context,
    *,
    kind: str,
    names: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    skip_empty: bool,
    config: str,
    output: str,
    namespace: str,
    all_namespaces: bool,
    export: bool,
) -> None:
    """Show resources of a KIND: all, or those with a NAME, or those that files name.

    A resource that cannot be read or does not exist is named on standard error, and the exit
    status is 1; the others are shown all the same.
    """
    form = _form(output)
    if bool(files) == bool(kind):
        raise click.UsageError("give a KIND, or -f FILE", ctx)
    complaints: list[str] = []
    for question in _questions(kind, names, Sources(files, recursive, skip_empty), namespace,
                               all_namespaces):  # fmt: skip
        store = connect(ctx, config).store
        wires = (
            exported(wire_of(record)) if export else wire_of(record)
            for record in records(store, question, complaints)
        )
        _show(question, wires, form)
    for complaint in complaints:
        click.echo(visible(complaint), err=True)
    if complaints:
        ctx.exit(1)


@dataclass(frozen=True, slots=True)
class Question:
    """Resources of a kind in a namespace ("": in all), all of them or those with names."""

    asked: Asked
    namespace: str
    names: tuple[str, ...] = ()


def _questions(
    kind: str, names: tuple[str, ...], sources: Sources, namespace: str, everywhere: bool
) -> list[Question]:
    if kind:
        wanted = parse_kind(kind)
        where = namespace_of(wanted, namespace, everywhere, names)
        return [Question(Asked(wanted, len(names) == 1, everywhere), where, names)]
    if everywhere:
        raise InvalidInput("-A shows all namespaces: leave out -f")
    found: dict[tuple[Kind, str], list[str]] = {}
    for document in documents(sources):
        of = kind_of(document)
        meta = document.body.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        where = str(meta.get("namespace") or namespace or DEFAULT_NAMESPACE)
        if not meta.get("name"):
            raise InvalidInput(f"{document.where}: metadata.name: is missing")
        key = (of, where if of.namespaced else "")
        found.setdefault(key, []).append(str(meta["name"]))
    single = len(found) == 1 and sum(map(len, found.values())) == 1
    return [Question(Asked(of, single), where, tuple(n)) for (of, where), n in found.items()]


def _form(output: str) -> Form:
    form = parse_form(output)
    if form.name in FROM_FILE:
        text = text_of(Path(form.text)).rstrip("\n")
        return Form(FROM_FILE[form.name], text)
    return form


def _show(question: Question, wires: Iterator[dict[str, Any]], form: Form) -> None:
    """Write what was found; one resource that is not there leaves nothing to write."""
    asked = question.asked
    if form.streams and not question.names:
        with unsearched():
            for text in gathered(streamed(asked, wires, form)):
                click.echo(text)
        return
    found = list(wires)
    if question.names and not found:
        return
    text = render(asked, found, form)
    if text or form.name in ("json", "yaml"):
        click.echo(text)


def gathered(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces, a line end between them, in texts of some size: each text is one write."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size > WRITE:
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)


def records(store: Datastore, question: Question, complaints: list[str]) -> Iterator[Record]:
    """Resources, part by part; what is to be said about others goes to `complaints`."""
    kind = question.asked.kind
    if question.names:
        found = fetch(store, kind, question.names, question.namespace)
        complaints += found.complaints
        yield from found.records
        return
    for part in store.parts(Resources(kind, question.namespace)):
        complaints += part.malformed
        yield from part.records


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


def keys_of(kind: str, names: Sequence[str], namespace: str) -> list[ResourceKey]:
    """The resources that KIND, NAMEs and `-n` mean. Raises `InvalidInput`."""
    found = parse_kind(kind)
    where = namespace_of(found, namespace, False, names)
    return [ResourceKey(found, name, where) for name in names]


def namespace_of(kind: Kind, given: str, everywhere: bool, names: Sequence[str]) -> str:
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
