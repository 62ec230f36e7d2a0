"""`tortiectl create`, `apply`, `replace` and `validate`: resources from files into the datastore.

All documents are looked at before any is stored: when one is refused, with each wrong field's
path, nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import click

from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.resources import Resource
from libtortie.wording import visible
from tortiectl.connection import connect
from tortiectl.manifests import Sources, Wanted, documents, read
from tortiectl.options import config_option, examples, file_options, namespace_option
from tortiectl.references import in_order, missing, refusal
from tortiectl.writing import Outcome, Verb, write_all

_DONE = {Verb.CREATE: "created", Verb.APPLY: "applied", Verb.REPLACE: "replaced"}
_KINDS = "Kinds: " + ", ".join(Kind) + "."


def resources_in(sources: Sources, namespace: str) -> list[Wanted]:
    """What files hold, all of it right. Raises `InvalidInput` with everything that is wrong."""
    if not sources.names:
        raise click.UsageError("give -f FILE (- is standard input)")
    wanted, problems = read(documents(sources), namespace)
    if problems:
        raise InvalidInput("\n".join(problems))
    return wanted


def tell(verb: str, done: str, outcome: Outcome, whole: bool) -> None:
    """Calico's words for what became of a command. Raises `InvalidInput` when it failed."""
    if not outcome.errors:
        click.echo(success(done, outcome.done))
        return
    kinds = {resource.kind for resource, _ in outcome.errors}
    what = f"'{next(iter(kinds))}' resource" if len(kinds) == 1 else "resources"
    reasons = "\n".join(why for _, why in outcome.errors)
    if outcome.done:
        names = ", ".join(_name(one) for one in outcome.done)
        raise InvalidInput(
            f"Partial success: {success(done, outcome.done)} ({names})\nhit error: [{reasons}]"
        )
    end = "" if whole else "; nothing was written before it"
    raise InvalidInput(f"failed to {verb} {what}: [{reasons}]{end}")


def success(done: str, resources: Sequence[Resource]) -> str:
    """Calico's words."""
    kinds = Counter(one.kind for one in resources)
    what = f" '{next(iter(kinds))}'" if len(kinds) == 1 else ""
    return visible(f"Successfully {done} {len(resources)}{what} resource(s)")


def writable(ctx: click.Context, config: str, verb: str, kinds: Iterable[str]) -> Datastore:
    """The command's store; what it never does is refused before anything is asked of it."""
    at = connect(ctx, config)
    datastore = at.config.datastore.type
    reasons = dict.fromkeys(refusal(Kind(kind), verb, datastore) for kind in kinds)
    found = [why for why in reasons if why]
    if found:
        raise InvalidInput("\n".join(found))
    return at.store


def _name(resource: Resource) -> str:
    meta = resource.metadata
    full = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return f"{resource.kind} {full}"


def _run(
    ctx: click.Context, verb: Verb, wanted: list[Wanted], config: str, skip_exists: bool
) -> None:
    store = writable(ctx, config, verb, (one.resource.kind for one in wanted))
    problems = list(missing(store, [one.resource for one in wanted]))
    if problems:
        raise InvalidInput("\n".join(problems))
    outcome = write_all(store, verb, in_order(wanted), skip_exists=skip_exists)
    tell(verb, _DONE[verb], outcome, store.atomic)


def _command(verb: Verb, help_text: str, *lines: str) -> Callable[..., None]:
    @click.command(name=verb, help=help_text, epilog=examples(*lines) + "\n\n" + _KINDS)
    @file_options
    @namespace_option
    @config_option
    @click.pass_context
    def command(
        ctx: click.Context,
        *,
        files: tuple[str, ...],
        recursive: bool,
        skip_empty: bool,
        namespace: str,
        config: str,
        skip_exists: bool = False,
    ) -> None:
        wanted = resources_in(Sources(files, recursive, skip_empty), namespace)
        _run(ctx, verb, wanted, config, skip_exists)

    return command


create = click.option(
    "--skip-exists", is_flag=True, help="Leave resources alone that are there already."
)(
    _command(
        Verb.CREATE,
        "Store new resources from files; one that is there already is an error.\n\n"
        "Everything is looked at before anything is written.",
        "tortiectl create -f pool.yaml",
        "tortiectl create -f manifests/ -R --skip-exists",
    )
)
apply = _command(
    Verb.APPLY,
    "Store resources from files, new or in place of those that are there.\n\n"
    "Everything is looked at before anything is written. A resourceVersion in a file is insisted "
    "on: a resource that was changed since is an error.",
    "tortiectl apply -f pool.yaml -f policies/",
    "kubectl get ippools.projectcalico.org -o yaml | tortiectl apply -f -",
)
replace = _command(
    Verb.REPLACE,
    "Store resources from files in place of those that are there.",
    "tortiectl get ippool pool-a -o yaml > pool.yaml; $EDITOR pool.yaml",
    "tortiectl replace -f pool.yaml",
)


@click.command(
    epilog=examples("tortiectl validate -f manifests/ -R", "tortiectl validate -f -")
    + "\n\n"
    + _KINDS
)
@file_options
@namespace_option
def validate(files: tuple[str, ...], *, recursive: bool, skip_empty: bool, namespace: str) -> None:
    """Say everything that is wrong with resources in files; asks no datastore."""
    wanted = resources_in(Sources(files, recursive, skip_empty), namespace)
    click.echo(success("validated", [one.resource for one in wanted]))
