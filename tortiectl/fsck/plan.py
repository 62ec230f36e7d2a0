"""What becomes of each address and why; the plan's file. Pure.

An address is only planned to be freed when the collector's own rules doubt it. The plan says all
that was judged (handle, owners, sequence number): applying it frees what still is exactly that and
is still doubted, and undoing it can give the address back to whom it was taken from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address, ip_network
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ipam.gc import Opinions
from ipam.gc_inventory import Allocated
from ipam.gc_verdicts import Opinion, Subject
from ipam.ownership import Owners
from ipam.vm_handles import Piece, VMHandle
from libtortie.datastore import gojson
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress, Owner
from tortiectl.text_tables import columns

FORMAT = "tortie.io/fsck-plan/v1"
HEADINGS = ("ADDRESS", "HANDLE", "OWNER", "AGE", "NEXT", "REASON")


@dataclass(frozen=True, slots=True)
class Line:
    """One address: whose, since when, and what is next (`keep`, `free`, `ask again`)."""

    handle: str
    piece: Piece
    next: str
    reason: str


def explained(seen: Opinions) -> tuple[Line, ...]:
    """Every address that is held, in order."""
    found = [
        Line(one.subject.handle_id, one.subject.piece, _next(one), one.reason)
        for one in seen.addresses
    ]
    found += [
        Line(one.subject.handle_id, piece, _next(one), one.reason)
        for one in seen.vms
        for piece in one.subject.pieces
    ]
    return tuple(sorted(found, key=_order))


def _order(line: Line) -> tuple[int, int]:
    return line.piece.address.version, int(line.piece.address)


def _next(one: Opinion[Any]) -> str:
    if one.unknown:
        return "ask again"
    return "free" if one.doubted else "keep"


def owner_text(owners: Owners) -> str:
    """`shop/web-0 on n1`, of the active owner, else of the alternate."""
    owner = owners.active or owners.alternate
    name = owner.get("pod") or owner.get("vmi-name") or owner.get("type") or ""
    if not name:
        return "nobody"
    place = f"{owner['namespace']}/" if owner.get("namespace") else ""
    return f"{place}{name}{' on ' + owner['node'] if owner.get('node') else ''}"


def age_text(owners: Owners, now: datetime) -> str:
    """How long the active owner has been it, by its own timestamp (Go's time text)."""
    text = (owners.active or owners.alternate).get("timestamp", "").partition(" +")[0]
    try:
        since = datetime.fromisoformat(text[:26]).replace(tzinfo=now.tzinfo)
    except ValueError:
        return "-"
    minutes = int((now - since).total_seconds() // 60)
    if minutes < 120:
        return f"{max(0, minutes)}m"
    return f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // 1440}d"


def table(lines: Sequence[Line], now: datetime) -> str:
    """For people."""
    rows = [
        (
            str(one.piece.address),
            one.handle or "-",
            owner_text(one.piece.owners),
            age_text(one.piece.owners, now),
            one.next,
            one.reason,
        )
        for one in lines
    ]
    return columns(HEADINGS, rows)


class Action(BaseModel):
    """One address to free, with all that was judged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str
    address: str
    block: str
    handle: str
    sequence_number: int | None
    active: dict[str, str]
    alternate: dict[str, str]
    reason: str

    @property
    def piece(self) -> Piece:
        """As IPAM has it. Raises `ValueError`."""
        owners = Owners(self.active, self.alternate)
        return Piece(ip_address(self.address), ip_network(self.block), self.sequence_number, owners)


class Plan(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str
    written: str
    datastore: str
    actions: tuple[Action, ...]


def plan_of(lines: Iterable[Line], written: str, datastore: str) -> Plan:
    """What is to be freed."""
    return Plan(
        format=FORMAT,
        written=written,
        datastore=datastore,
        actions=tuple(
            Action(
                action="free",
                address=str(one.piece.address),
                block=str(one.piece.cidr),
                handle=one.handle,
                sequence_number=one.piece.number,
                active=dict(one.piece.owners.active),
                alternate=dict(one.piece.owners.alternate),
                reason=one.reason,
            )
            for one in lines
            if one.next == "free"
        ),
    )


def parse_plan(text: str, where: str) -> Plan:
    """A plan's file. Raises `InvalidInput` naming file and field."""
    try:
        plan = Plan.model_validate(gojson.loads(text.encode()))
        _ = [action.piece for action in plan.actions]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{where}: {place}: {first['msg']}") from None
    except ValueError as error:
        raise InvalidInput(f"{where}: no plan of ipam fsck: {error}") from None
    if plan.format != FORMAT:
        raise InvalidInput(f"{where}: its format is {plan.format!r}, not {FORMAT}")
    return plan


def still_due(plan: Plan, seen: Opinions) -> Iterator[tuple[Action, Opinion[Subject] | str]]:
    """Of each action what is doubted now, just as it was judged; else why it is not done."""
    addresses: Mapping[IPAddress, Opinion[Allocated]] = {
        one.subject.piece.address: one for one in seen.addresses
    }
    machines: Mapping[IPAddress, Opinion[VMHandle]] = {
        piece.address: one for one in seen.vms for piece in one.subject.pieces
    }
    planned = {action.piece.address for action in plan.actions}
    lines = {one.piece.address: one for one in explained(seen)}
    for action in plan.actions:
        piece = action.piece
        now = lines.get(piece.address)
        if now is None:
            yield action, "it is free already"
        elif now.handle != action.handle or now.piece != piece:
            yield action, "it has changed since it was judged"
        elif now.next != "free":
            yield action, f"not doubted any more: {now.reason}"
        elif piece.address in machines:
            one = machines[piece.address]
            whole = all(each.address in planned for each in one.subject.pieces)
            yield action, one if whole else "not all addresses of its VM are in the plan"
        else:
            yield action, addresses[piece.address]


def owner_for_undo(action: Action) -> tuple[str, Owner]:
    """The node and the owner that an address is given back to."""
    return action.active.get("node", ""), action.active
