"""What became of addresses and migrations, as values: one fact is one decision that was kept.

Not Calico's: a store of our own beside its records. Old and new versions read each other's: a
field that is not known is passed over, one that is missing is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

from libtortie.errors import Malformed
from libtortie.model.ipam import IPAddress


class What(StrEnum):
    """The kinds of facts."""

    GRANTED = "granted"
    RELEASED = "released"
    TARGETED = "targeted"  # a migration target became the second owner
    PROMOTED = "promoted"  # the second owner became the active one
    HANDED_OVER = "handed-over"  # another pod of the VM is the active owner, or none
    MIGRATION = "migration"  # a step that an agent saw: details["step"]


class Step(StrEnum):
    """The steps of a migration."""

    PREPARED = "prepared"
    HEARD = "heard"
    RAISED = "raised"
    REACHED = "reached"  # the network's part of the downtime is over, and measured
    SETTLED = "settled"
    LEFT = "left"
    REFUSED = "refused"
    GATE_LATE = "gate-late"
    GATE_HELD = "gate-held"
    CONVERGENCE_HELD = "convergence-held"


class Lane(StrEnum):
    """Whose facts: VMs' are kept longer than ordinary pods', of which there are so many."""

    VM = "vm"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. `by` is who wrote it: a node, or a program; `node` is where `pod` is; `before` the
    pod that was the active owner. `vm` is empty for ordinary pods."""

    at: datetime
    what: What
    by: str
    handle_id: str = ""
    addresses: tuple[IPAddress, ...] = ()
    namespace: str = ""
    vm: str = ""
    pod: str = ""
    node: str = ""
    before: str = ""
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def lane(self) -> Lane:
        """Where it is kept."""
        return Lane.VM if self.vm else Lane.POD


@dataclass(frozen=True, slots=True)
class Facts:
    """What is stored under one key: some facts of one writer, in order."""

    facts: tuple[Fact, ...]


_TEXTS = ("by", "handle_id", "namespace", "vm", "pod", "node", "before")
_LONGEST = 1024
"""Characters of one text: what comes from outside (an error's text) may be longer."""


def to_wire(fact: Fact) -> dict[str, Any]:
    """A fact for JSON; what is empty is left out."""
    wire: dict[str, Any] = {"at": stamp(fact.at), "what": fact.what.value}
    wire |= {name: text[:_LONGEST] for name in _TEXTS if (text := getattr(fact, name))}
    if fact.addresses:
        wire["addresses"] = [str(one) for one in fact.addresses]
    if fact.details:
        wire["details"] = {name: text[:_LONGEST] for name, text in fact.details.items()}
    return wire


def from_wire(where: str, wire: object) -> Fact:
    """The fact of a JSON value. Raises `Malformed`, naming place and field."""
    if not isinstance(wire, Mapping):
        raise Malformed(f"{where}: not an object")
    try:
        at = datetime.fromisoformat(str(wire.get("at"))).astimezone(UTC)
        what = What(str(wire.get("what")))
        listed = wire.get("addresses") or ()
        addresses = tuple(ip_address(str(one)) for one in listed)
        details = {str(name): str(text) for name, text in dict(wire.get("details") or {}).items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise Malformed(f"{where}: {error}") from error
    texts = {name: str(wire.get(name) or "") for name in _TEXTS}
    return Fact(at, what, addresses=addresses, details=details, **texts)


def stamp(at: datetime) -> str:
    """RFC 3339, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
