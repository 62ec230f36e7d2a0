"""`tortiectl ipam release`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Set
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from ipam.attempts import Attempts, Retry
from ipam.check import Examination, examine
from ipam.free import Seat, free, remove_handle, seat_of
from ipam.gc import Means, opinions
from libtortie import __version__
from libtortie.access import text_of
from libtortie.cycles import unsearched
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, TortieError
from libtortie.model.ipam import Block, IPAddress
from libtortie.model.keys import Blocks
from libtortie.model.names import vm_of_handle
from tortiectl.commands.ipam_show import parse_address
from tortiectl.connection import Connection, connect
from tortiectl.options import config_option, examples, not_empty
from tortiectl.readiness import cluster_of
from tortiectl.release_reports import Leak, Present, common, parse, problems_of

_RETRY = Retry(attempts=20, seconds=5.0)
_LINE = 50


@click.command(
    epilog=examples(
        "tortiectl ipam release --ip 10.65.0.9",
        "tortiectl ipam check -o first.json; sleep 3600",
        "tortiectl datastore migrate lock; tortiectl ipam check -o second.json",
        "tortiectl ipam release --from-report first.json --from-report second.json",
        "tortiectl datastore migrate unlock",
    )
)
@click.option(
    "--ip", default="", metavar="ADDRESS", callback=not_empty, help="Release this address."
)
@click.option(
    "--from-report",
    "reports",
    multiple=True,
    metavar="FILE",
    callback=not_empty,
    help="Release what this report of `ipam check` says nobody uses; of several what all say.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also in an unlocked datastore, by reports of other versions or all too old; with --ip "
    "also an address that is used, or a VM's.",
)
@config_option
@click.pass_context
def release(
    ctx: click.Context, *, ip: str, reports: tuple[str, ...], force: bool, config: str
) -> None:
    """Release an address, or all that reports say nobody uses.

    What is used now stays, whatever a report says, and so does the address of a VM that is there,
    running or stopped.
    """
    if bool(ip) == bool(reports):
        raise click.UsageError("give --ip ADDRESS or --from-report FILE", ctx)
    address = parse_address(ip) if ip else None
    read = [parse(text_of(Path(name)), name) for name in reports]
    at = connect(ctx, config)
    attempts = Attempts(at.store, _RETRY, time.monotonic, time.sleep)
    with unsearched():
        if address is not None:
            _release_one(at, attempts, address, force)
            return
        record, spec = cluster_of(at.store)
        now = Present(
            __version__,
            spec.cluster_guid if spec else "",
            bool(spec and spec.datastore_ready is False),
            record.revision if record else "",
        )
        problems = list(problems_of(read, now, force=force))
        if problems:
            raise InvalidInput("\n".join(problems))
        failed = _release_all(at, attempts, *common(read))
    if failed:
        ctx.exit(1)


def _release_one(at: Connection, attempts: Attempts, address: IPAddress, force: bool) -> None:
    block = _block_of(at.store, address)
    seat = seat_of(block, address) if block else None
    if seat is None:
        raise InvalidInput(f"{address} is not assigned")
    if not force:
        _require_unused(_examined(at), seat)
    if not free(attempts, seat, _now):
        raise TortieError(f"{address} was changed meanwhile: look again with `ipam show --ip`")
    click.echo(f"Successfully released IP address {address}")


def _require_unused(found: Examination, seat: Seat) -> None:
    """Refuse to release what somebody uses, or a VM will use again."""
    users = [user.name for user in found.users.get(seat.address, ())]
    if users:
        raise InvalidInput(
            f"{seat.address} is used by {', '.join(users)}: --force releases it all the same"
        )
    machine = vm_of_handle(seat.handle_id)
    if machine and seat.address not in found.leaked:
        why = found.unjudged.get(seat.address, "it is kept for it")
        raise InvalidInput(
            f"{seat.address} is the address of VM {'/'.join(machine)}: {why}; --force releases it "
            "all the same"
        )


def _release_all(
    at: Connection, attempts: Attempts, leaks: list[Leak], handles: list[tuple[str, str]]
) -> bool:
    """Free what reports say and what is so still; whether something failed."""
    click.echo(f"Releasing {len(leaks)} IP addresses...")
    seats = _seats(at.store, {leak.address for leak in leaks})
    leaked = _examined(at).leaked
    done: Counter[str] = Counter()
    for leak in leaks:
        seat = seats.get(leak.address)
        if seat is None or leak.address not in leaked or not _is(seat, leak):
            done["skipped"] += 1
        else:
            done[_try(str(leak.address), partial(free, attempts, seat, _now))] += 1
    click.echo(
        f"Released {done['done']} IP addresses; {done['skipped']} skipped, which are in use, "
        f"changed or a VM's; {done['failed']} errors."
    )
    click.echo(f"Releasing {len(handles)} handles...")
    freed: Counter[str] = Counter()
    for place, (handle_id, revision) in enumerate(handles, start=1):
        became = _try(handle_id, partial(remove_handle, attempts, handle_id, revision))
        freed[became] += 1
        click.echo("x" if became == "failed" else ".", nl=place % _LINE == 0)
    if len(handles) % _LINE:
        click.echo()
    click.echo(
        f"Released {freed['done']} handles; {freed['skipped']} skipped; {freed['failed']} errors."
    )
    return bool(done["failed"] or freed["failed"])


def _seats(store: Datastore, wanted: Set[IPAddress]) -> dict[IPAddress, Seat]:
    """The allocations of some addresses."""
    found = {}
    for version in (4, 6):
        for record in store.list(Blocks(version)).records:
            block = record.value
            if not isinstance(block, Block):
                continue
            for ordinal, index in enumerate(block.allocations):
                address = block.address(ordinal)
                if index is not None and address in wanted and (seat := seat_of(block, address)):
                    found[address] = seat
    return found


def _is(seat: Seat, leak: Leak) -> bool:
    return (seat.handle_id, seat.number) == (leak.handle_id, leak.number)


def _try(what: str, act: Callable[[], bool]) -> str:
    try:
        return "done" if act() else "skipped"
    except TortieError as error:
        click.echo(f"{what}: {error}", err=True)
        return "failed"


def _examined(at: Connection) -> Examination:
    return examine(opinions(Means(at.store, at.kube, _now)))


def _block_of(store: Datastore, address: IPAddress) -> Block | None:
    for record in store.list(Blocks(address.version)).records:
        if isinstance(record.value, Block) and address in record.value.cidr:
            return record.value
    return None


def _now() -> datetime:
    return datetime.now(UTC)
