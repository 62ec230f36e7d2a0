"""`tortiectl vm migrate`."""

from __future__ import annotations

import random
import string
import time
from typing import Any

import click

from libtortie.errors import InvalidInput, NotFound, TortieError, Unavailable
from libtortie.kube.migrations import Migration
from libtortie.wording import visible
from tortiectl.kubevirt.access import Access, default_namespace, open_api
from tortiectl.kubevirt.mirror import Mirror, Trouble, Wanted
from tortiectl.kubevirt.objects import VMI, Node
from tortiectl.kubevirt.options import namespace_option
from tortiectl.kubevirt.placement import HOSTNAME
from tortiectl.kubevirt.reading import decode, get_vmi, read_list, split_id
from tortiectl.migrate.explain import explanation, verbatim
from tortiectl.migrate.live import Figures, settled
from tortiectl.migrate.progress import Story, conclusion, succeeded
from tortiectl.options import Finite, config_option, not_empty

FAILED = 2
"""Exit status when the VM has not moved."""
PREFIX = "kubevirt-migrate-vm-"
_SUFFIX = string.ascii_lowercase + string.digits


@click.command()
@click.argument("vm")
@config_option
@namespace_option
@click.option("--to", default="", metavar="NODE", callback=not_empty, help="Only to this node.")
@click.option("--watch", is_flag=True, help="Follow it to its end.")
@click.option("--cancel", is_flag=True, help="Cancel what runs.")
@click.option(
    "--timeout", type=Finite(min=0), default=0.0, metavar="SECONDS",
    help="Of --watch; 0 is none. What runs goes on.",
)  # fmt: skip
@click.pass_context
def migrate(
    ctx: click.Context,
    *,
    vm: str,
    config: str,
    namespace: str,
    to: str,
    watch: bool,
    cancel: bool,
    timeout: float,
) -> int:
    """Migrate a running VM, or cancel its migration.

    Says KubeVirt's refusal word for word, and what it means. Exit status 1 when it is refused; with
    --watch 2 when the VM has not moved, or with --cancel has.
    """
    if cancel and to:
        raise click.UsageError("either --to or --cancel", ctx)
    access = open_api(ctx, config)
    place, name = split_id(vm, default_namespace(access, namespace))
    vmi = get_vmi(access.objects, name, place)
    live = _live(access, vmi)
    job = _cancel(access, vmi, live) if cancel else _begin(access, vmi, to)
    if not watch:
        return 0
    moved = _follow(access, vmi, job, timeout)
    return 0 if moved is not cancel else FAILED


def _live(access: Access, vmi: VMI) -> list[Migration]:
    listed = read_list(access.objects, Migration, vmi.metadata.namespace)
    mine = [one for one in listed.objects if one.spec.vmi_name == vmi.metadata.name]
    return sorted((one for one in mine if not one.final), key=lambda one: one.metadata.name)


def _cancel(access: Access, vmi: VMI, live: list[Migration]) -> str:
    """Delete each live migration; the name of the last."""
    if not live:
        raise NotFound(f"VMI {vmi.id} has no migration that runs: nothing to cancel")
    for one in live:
        access.client.delete(
            Migration, one.metadata.name, one.metadata.namespace, uid=one.metadata.uid
        )
        handed = vmi.status.migration_state.migration_uid == one.metadata.uid
        how = (
            "it is aborted as soon as it runs, and goes through if the guest has moved by then"
            if handed
            else "its target pod goes"
        )
        _say(f"{vmi.id}: migration {one.metadata.name} cancelled: {how}")
    return live[-1].metadata.name


def _begin(access: Access, vmi: VMI, to: str) -> str:
    """Create the migration; its name. Raises `InvalidInput` with the refusal, explained."""
    meta = vmi.metadata
    spec: dict[str, Any] = {"vmiName": meta.name}
    if to:
        spec["addedNodeSelector"] = {HOSTNAME: _hostname(access, vmi, to)}
    suffix = "".join(random.choice(_SUFFIX) for _ in range(5))
    body = {
        "apiVersion": "kubevirt.io/v1",
        "kind": Migration.api.kind,
        "metadata": {"name": PREFIX + suffix, "namespace": meta.namespace},
        "spec": spec,
    }
    try:
        made = access.client.create(Migration, body)
    except Unavailable:
        raise
    except TortieError as error:
        why = explanation(str(error))
        text = verbatim(str(error))
        raise InvalidInput(f"{text}\n{vmi.id}: {why}" if why else text) from error
    _say(f"{vmi.id}: migration {made.metadata.name} asked for{f', to {to}' if to else ''}")
    return made.metadata.name


def _hostname(access: Access, vmi: VMI, to: str) -> str:
    """The label by which a node is chosen. Raises `NotFound`, `InvalidInput`."""
    if vmi.status.node_name == to:
        raise InvalidInput(f"VMI {vmi.id} runs on {to} already")
    try:
        node = decode(Node, access.objects.get(Node.api, to))
    except NotFound:
        raise NotFound(f"there is no node {to}") from None
    if node.spec.unschedulable or not node.ready:
        why = "is cordoned" if node.spec.unschedulable else "is not ready"
        raise InvalidInput(f"node {to} {why}: the target pod would wait there for ever")
    return node.metadata.labels.get(HOSTNAME, to)


def _follow(access: Access, vmi: VMI, job: str, timeout: float) -> bool:
    """Until it has ended; whether the VM has moved. Raises `Unavailable` at the time limit."""
    story, meta = Story(job), vmi.metadata
    ends = time.monotonic() + timeout if timeout else float("inf")
    figures = Figures(access, vmi, _say)
    one = f"metadata.name={meta.name}"
    with Mirror(
        access.client,
        Wanted(Migration, meta.namespace),
        Wanted(VMI, meta.namespace, field_selector=one),
    ) as mirror:
        for change in mirror.changes(min(1.0, timeout) if timeout else 1.0):
            if isinstance(change, Trouble):
                click.echo(visible(change.text), err=True)
                continue
            found = mirror.of(Migration).get(f"{meta.namespace}/{job}")
            now = mirror.of(VMI).get(vmi.id)
            for line in story.look(found, now):
                _say(f"{vmi.id}: {line}")
            if story.ended(found):
                _say(f"{vmi.id}: {conclusion(found, now)}")
                if succeeded(found):
                    settled(access, vmi, story.target, _say)
                return succeeded(found)
            if story.started and not story.cut_over:
                figures.tell()
            if time.monotonic() >= ends:
                raise Unavailable(f"{vmi.id}: after {timeout:g} s its migration {job} still runs")
    raise AssertionError("a mirror's changes never end")


def _say(text: str) -> None:
    click.echo(visible(text))
