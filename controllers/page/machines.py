"""VMs: what KubeVirt says of their instances beside what IPAM holds for them. Pure.

A VM without an instance (a stopped one) is there for as long as it has an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from controllers.page.moves import Move, moves_table
from controllers.page.past import Past
from controllers.page.sheet import (
    CALM,
    LIVE,
    Cell,
    Fact,
    Part,
    Sheet,
    Table,
    migration_link,
    table_of,
    vm_link,
)
from ipam.vm_handles import Piece, VMHandle
from libtortie.kube.objects import VirtualMachineInstance
from libtortie.model.ipam import Owner

STOPPED = "no instance"
COLUMNS = (
    ("vm", "VM"),
    ("phase", "Phase"),
    ("node", "Node"),
    ("addresses", "Addresses"),
    ("migration", "Migration"),
)


@dataclass(frozen=True, slots=True)
class Instance:
    """A VirtualMachineInstance, as far as it is shown."""

    namespace: str
    name: str
    uid: str
    phase: str
    node: str
    addresses: tuple[str, ...]
    mac: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One VM."""

    namespace: str
    name: str
    instance: Instance | None
    handle: VMHandle | None

    @property
    def phase(self) -> str:
        """KubeVirt's word."""
        return self.instance.phase if self.instance else STOPPED

    @property
    def node(self) -> str:
        """Where it runs; "" for one that does not."""
        return self.instance.node if self.instance else ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """By IPAM, else by KubeVirt."""
        if self.handle is not None:
            return tuple(str(one) for one in self.handle.addresses)
        return self.instance.addresses if self.instance else ()

    def has(self, text: str) -> bool:
        """Whether somebody who searches for `text` means it (any case)."""
        words = (f"{self.namespace}/{self.name}", self.node, *self.addresses)
        return any(text in word.lower() for word in words)


def instance_of(vmi: VirtualMachineInstance) -> Instance:
    """What is shown of one."""
    meta, status = vmi.metadata, vmi.status
    return Instance(
        intern(meta.namespace),
        meta.name,
        meta.uid,
        intern(status.phase),
        intern(status.node_name),
        tuple(one.ip_address for one in status.interfaces if one.ip_address),
        vmi.pod_network_mac(),
    )


def machines(
    instances: Iterable[Instance], handles: Mapping[tuple[str, str], VMHandle]
) -> tuple[Machine, ...]:
    """Every VM, by namespace and name."""
    live = {(one.namespace, one.name): one for one in instances}
    return tuple(
        Machine(*name, live.get(name), handles.get(name)) for name in sorted({*live, *handles})
    )


def vms_table(
    found: Sequence[Machine],
    moves: Iterable[Move],
    part: Part | None = None,
    pager: Callable[[int], str] | None = None,
) -> Table:
    """A row for each VM of a part of the list."""
    moving = {(one.namespace, one.vm): one for one in moves if one.running}

    def row(one: Machine) -> tuple[Cell, ...]:
        move = moving.get((one.namespace, one.name))
        running = migration_link(move.namespace, move.name) if move else None
        return (vm_link(one.namespace, one.name), one.phase, one.node, one.addresses, running)

    return table_of("vms", "VMs", COLUMNS, found, row, part=part, pager=pager)


def vm_sheet(one: Machine, moves: Iterable[Move], past: Past, part: Part) -> Sheet:
    """One VM: what is known of it, whose its addresses are, and what it went through."""
    name = one.namespace, one.name
    own = [move for move in moves if (move.namespace, move.vm) == name]
    told = [fact for fact in past.facts if (fact.namespace, fact.vm) == name]
    facts = (
        Fact("phase", "phase", one.phase),
        Fact("node", "node", one.node),
        Fact("addresses", "addresses", one.addresses),
        Fact("mac", "MAC address", one.instance.mac if one.instance else None),
        Fact("uid", "UID of the instance", one.instance.uid if one.instance else None),
        Fact("handle", "IPAM handle", one.handle.handle_id if one.handle else None),
    )
    pieces = one.handle.pieces if one.handle else ()
    owners = [owner for piece in pieces for owner in _owners(piece)]
    columns = (
        ("address", "Address"),
        ("role", "Owner"),
        ("pod", "Pod"),
        ("node", "Node"),
        ("since", "Since"),
    )
    events = (("time", "Time"), ("by", "By"), ("text", "What"))
    return Sheet(
        f"VM {one.namespace}/{one.name}",
        facts,
        (
            table_of("owners", "Owners of its addresses", columns, owners, lambda row: row),
            moves_table("migrations", "Migrations", own, Part(size=part.size)),
            table_of("history", "History", events, told, lambda f: (f.at, f.by, f.text), part=part),
        ),
        refresh=LIVE if any(move.running for move in own) else CALM,
    )


def _owners(piece: Piece) -> Iterator[tuple[Cell, ...]]:
    """The owners of one address."""
    owners: tuple[tuple[str, Owner], ...] = (
        ("active", piece.owners.active),
        ("alternate", piece.owners.alternate),
    )
    for role, owner in owners:
        if owner or role == "active":
            pod = owner.get("pod") or None
            yield str(piece.address), role, pod, owner.get("node"), owner.get("timestamp")
