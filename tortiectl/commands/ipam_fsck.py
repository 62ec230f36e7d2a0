"""`tortiectl ipam fsck`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from ipam.client import AddressRequest, IPAMClient
from ipam.gc import Means, opinions
from ipam.gc_apply import apply
from ipam.gc_verdicts import Outcome, Verdict
from libtortie.cycles import unsearched
from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.model.times import rfc3339
from libtortie.wording import visible
from tortiectl.connection import Connection, connect
from tortiectl.fsck.plan import (
    Action,
    Plan,
    explained,
    owner_for_undo,
    parse_plan,
    plan_of,
    still_due,
    table,
)
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json

NOT_ALL = 2
"""Exit status when something is to be freed, or an action was not done."""

Now = Callable[[], datetime]


def _file(name: str, help_: str) -> Callable[..., Callable[..., None]]:
    return click.option(name, default="", metavar="FILE", callback=not_empty, help=help_)


@click.command()
@config_option
@_file("--plan", "Write what is to be freed to this file.")
@_file("--apply", "Free what a plan says, where it still is as it was judged.")
@_file("--undo", "Give what a plan freed back to whom it was taken from.")
@click.pass_context
def fsck(ctx: click.Context, *, config: str, plan: str, apply: str, undo: str) -> int:
    """Explain every address: owner, age, reason, what is next.

    Changes nothing without --apply. Exit status 2 when something is to be freed, and with --apply
    or --undo when not all of the plan was done.
    """
    if sum(map(bool, (plan, apply, undo))) > 1:
        raise click.UsageError("one of --plan, --apply, --undo", ctx)
    at = connect(ctx, config)
    with unsearched():
        if apply:
            return _apply(at, parse_plan(_text(apply), apply))
        if undo:
            return _undo(at, parse_plan(_text(undo), undo))
        lines = explained(opinions(_means(at)))
    now = _now()
    click.echo(visible(table(lines, now), keep="\n"))
    made = plan_of(lines, rfc3339(now), at.name)
    click.echo(f"{len(lines)} addresses, {len(made.actions)} to be freed")
    if plan:
        _write(Path(plan), readable_json(made.model_dump()) + "\n")
    return NOT_ALL if made.actions else 0


def _now() -> datetime:
    return datetime.now(UTC)


def _means(at: Connection) -> Means:
    return Means(at.store, at.kube, _now)


def _apply(at: Connection, plan: Plan) -> int:
    """Judge again, and free what both judgements and the API by name condemn."""
    means = _means(at)
    seen = opinions(means)
    due = list(still_due(plan, seen))
    verdicts = {
        one.subject.key: Verdict(one.subject, Outcome.FREE, one.reason)
        for _, one in due
        if not isinstance(one, str)
    }
    done = {one.subject.key: one for one in apply(means, seen.inventory, tuple(verdicts.values()))}
    whole = True
    for action, one in due:
        if isinstance(one, str):
            whole = _tell(action, f"kept: {one}", False) and whole
            continue
        verdict = done[one.subject.key]
        freed = verdict.outcome is Outcome.FREE
        whole = _tell(action, "freed" if freed else f"kept: {verdict.reason}", freed) and whole
    return 0 if whole else NOT_ALL


def _undo(at: Connection, plan: Plan) -> int:
    """Allocate again what was freed, each address by its name."""
    whole = True
    for action in plan.actions:
        node, owner = owner_for_undo(action)
        client = IPAMClient(at.store, node, now=_now)
        held = client.owner_of(action.piece.address)
        if held is not None:
            whole = _tell(action, f"kept: it belongs to {held.handle_id} now", False) and whole
            continue
        try:
            client.assign(action.handle, owner, AddressRequest(addresses=(action.piece.address,)))
        except TortieError as error:
            whole = _tell(action, f"not given back: {first_line(error)}", False) and whole
            continue
        note = ", but its alternate owner is not" if action.alternate else ""
        _tell(action, f"given back{note}", True)
    return 0 if whole else NOT_ALL


def _tell(action: Action, text: str, done: bool) -> bool:
    click.echo(visible(f"{action.address} of {action.handle or '(no handle)'}: {text}"))
    return done


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: name a file that can be written") from error
