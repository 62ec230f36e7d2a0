"""`tortiectl create`, `apply`, `replace` and `validate`: policies from files into the datastore.

All documents are looked at before any is stored: when one is refused, with each wrong field's
path, nothing is written.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import click

from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, InvalidInput, NotFound, TortieError
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Resource
from libtortie.model.times import rfc3339
from libtortie.wording import visible
from tortiectl.connection import connect
from tortiectl.manifests import KINDS, documents, name_of, read, tier_of
from tortiectl.options import config_option, not_empty

Write = Callable[[Datastore, Resource], None]


def create_one(store: Datastore, resource: Resource) -> None:
    """Store what is not there yet. Raises `AlreadyExists`."""
    meta = resource.metadata.model_copy(
        update={"uid": str(uuid.uuid4()), "creation_timestamp": rfc3339(datetime.now(UTC))}
    )
    try:
        store.create(resource.key, resource.model_copy(update={"metadata": meta}))
    except AlreadyExists as error:
        raise AlreadyExists(f"resource already exists: {_called(resource)}") from error


def replace_one(store: Datastore, resource: Resource) -> None:
    """Store what is there already, in place of it. Raises `NotFound`, `Conflict`."""
    try:
        known = store.get(resource.key)
    except NotFound as error:
        raise NotFound(f"resource does not exist: {_called(resource)}") from error
    assert isinstance(known.value, Resource)
    kept = known.value.metadata
    meta = resource.metadata.model_copy(
        update={"uid": kept.uid, "creation_timestamp": kept.creation_timestamp}
    )
    store.update(resource.key, resource.model_copy(update={"metadata": meta}), known.revision)


def apply_one(store: Datastore, resource: Resource) -> None:
    """Store it, whether or not it is there."""
    try:
        replace_one(store, resource)
    except NotFound:
        create_one(store, resource)


def _command(name: str, done: str, help_text: str, write: Write | None) -> click.Command:
    @click.command(name=name, help=help_text, epilog=f"Kinds: {', '.join(KINDS)}.")
    @click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=True,
        callback=not_empty,
        metavar="FILE",
        help="YAML or JSON, also of several resources; - is standard input. May be repeated.",
    )
    @click.option(
        "-n",
        "--namespace",
        default="",
        callback=not_empty,
        help="Of resources in namespaces that name none.  [default: default]",
    )
    @config_option
    @click.pass_context
    def command(ctx: click.Context, *, files: tuple[str, ...], namespace: str, config: str) -> None:
        resources, problems = read(documents(files), namespace)
        if problems:
            raise InvalidInput("\n".join(problems))
        if write is not None:
            _write_all(connect(ctx, config).store, resources, write, name)
        click.echo(_success(done, resources))

    return command


def _write_all(store: Datastore, resources: list[Resource], write: Write, verb: str) -> None:
    own = {one.metadata.name for one in resources if Kind(one.kind) is Kind.TIER}
    missing = []
    for one in resources:
        tier = tier_of(one)
        if tier and tier not in own and not _is_there(store, tier):
            missing.append(f"{name_of(one)}: spec.tier: there is no tier {tier!r}")
    if missing:
        raise InvalidInput("\n".join(missing))
    for number, one in enumerate(sorted(resources, key=lambda one: one.kind != Kind.TIER)):
        try:
            write(store, one)
        except TortieError as error:
            before = f"; {number} before it were written" if number else ""
            text = f"failed to {verb} '{one.kind}' resource: [{error}]{before}"
            raise InvalidInput(text) from error


def _is_there(store: Datastore, tier: str) -> bool:
    try:
        store.get(ResourceKey(Kind.TIER, tier))
    except NotFound:
        return False
    return True


def _success(done: str, resources: list[Resource]) -> str:
    """Calico's words."""
    kinds = Counter(one.kind for one in resources)
    what = f" '{next(iter(kinds))}'" if len(kinds) == 1 else ""
    return visible(f"Successfully {done} {len(resources)}{what} resource(s)")


def _called(resource: Resource) -> str:
    meta = resource.metadata
    full = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return f"{resource.kind}({full}) with error: <nil>"


create = _command("create", "created", "Store new resources.", create_one)
apply = _command("apply", "applied", "Store resources, new or instead of others.", apply_one)
replace = _command("replace", "replaced", "Store resources instead of others.", replace_one)
validate = _command("validate", "validated", "Say what is wrong with resources.", None)
