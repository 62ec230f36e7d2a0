"""A VM's connections: what of the source's table is worth having at the target, and putting it in.

The kernel tells a connection's state, not the sequence numbers it has seen. An entry that is made
by hand takes them from the first packet it meets, in whichever direction, and is liberal about
windows from then on. So one-directional rules (`ct state established accept`) hold across a
migration, also where `nf_conntrack_tcp_loose` is 0 and the first packet is an answer.

Never: an entry in which the VM has no part, and never one taken away for an address that the VM
still has somewhere. `docs/adr/0010` says which of two entries is the newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from libtortie.errors import KernelError, first_line
from libtortie.linux.flows import Flow, FlowTuple, TcpState
from libtortie.model.ipam import IPAddress

Addresses = frozenset[IPAddress]
_SLACK_SECONDS = 5
"""A copy that has less than this, or a tenth, more time left is no reason to touch an entry."""
_ENDING = frozenset(
    {
        TcpState.FIN_WAIT,
        TcpState.CLOSE_WAIT,
        TcpState.LAST_ACK,
        TcpState.TIME_WAIT,
        TcpState.CLOSE,
    }
)


class Table(Protocol):
    """The kernel's connection table (`libtortie.linux.conntrack`)."""

    def flows(self, addresses: Iterable[IPAddress]) -> tuple[Flow, ...]:
        """Every entry in which one of these addresses has part."""
        ...

    def create(self, flow: Flow) -> bool:
        """Make an entry; False when one of its tuples is taken."""
        ...

    def update(self, flow: Flow) -> bool:
        """Give the entry of the same tuples this state; False when there is none."""
        ...

    def delete(self, flow: Flow) -> bool:
        """Remove an entry; False when there was none."""
        ...


def portable(flow: Flow, vm: Addresses) -> Flow | None:
    """An entry as the VM's next node must have it; None for one that cannot move.

    What the VM opened is rewritten on its own node (a Service's address to a pod's), so that goes
    along; unless its source was rewritten to an address of the node, to which the answers go. Of
    what others opened, only what reaches the VM goes along: who rewrote it is still on the way.
    """
    if flow.original.source in vm:
        return None if flow.source_translated else _liberal(flow)
    if flow.reply.source in vm:
        return _liberal(replace(flow, original=flow.reply.inverse()))
    return None


def concerns(flow: Flow, vm: Addresses) -> bool:
    """Whether the VM is the one who opened this, or whom it reaches."""
    return flow.original.source in vm or flow.reply.source in vm


@dataclass(frozen=True, slots=True)
class Step:
    """What one entry of a copy makes of the table: first `gone` go, then `made` or `changed`."""

    gone: tuple[Flow, ...] = ()
    made: Flow | None = None
    changed: Flow | None = None


def plan(
    incoming: Flow, present: Mapping[FlowTuple, Flow], vm: Addresses, *, arrived: bool
) -> Step:
    """What to do about one entry of a copy. `present` are this table's, by both their tuples.

    `arrived`: the VM speaks here, so that an entry here may know more than the copy.
    """
    rivals = {
        rival.original: rival
        for one in (incoming.original, incoming.reply)
        if (rival := present.get(one)) is not None
    }
    same = rivals.pop(incoming.original, None)
    if same is not None and same.reply == incoming.reply and not rivals:
        merged = _merged(same, incoming, arrived=arrived)
        return Step(changed=merged if merged != same else None)
    clashing = (*rivals.values(), *((same,) if same is not None else ()))
    if any(_stays(rival, incoming, vm, arrived=arrived) for rival in clashing):
        return Step()
    return Step(gone=clashing, made=incoming)


def _stays(rival: Flow, incoming: Flow, vm: Addresses, *, arrived: bool) -> bool:
    """Whether an entry that stands in the copy's way is worth more.

    One that has the directions the other way round was guessed from the middle. One of the VM's
    own, from a time before it came back, is old until the VM speaks here.
    """
    if rival.original == incoming.reply and rival.reply == incoming.original:
        return False
    return arrived or rival.original.source not in vm


def _merged(present: Flow, incoming: Flow, *, arrived: bool) -> Flow:
    """One flow seen by two nodes: what was seen is seen, and the further state holds."""
    ours, theirs = _stage(present), _stage(incoming)
    reused = not arrived and _ending(present) and not _ending(incoming)
    newer = theirs > ours or reused
    tcp = incoming.tcp if newer else present.tcp
    timeout = present.timeout
    if newer or (theirs == ours and _worth(incoming.timeout - present.timeout, incoming.timeout)):
        timeout = incoming.timeout
    return replace(
        present,
        status=present.status | incoming.status,
        tcp=tcp.liberal() if tcp is not None else None,
        sctp=incoming.sctp if newer else present.sctp,
        timeout=timeout,
    )


def _worth(more: int, whole: int) -> bool:
    return more > max(_SLACK_SECONDS, whole // 10)


def _ending(flow: Flow) -> bool:
    return flow.tcp is not None and flow.tcp.state in _ENDING


def _stage(flow: Flow) -> int:
    """How far along its life a flow is."""
    if flow.tcp is not None:
        opening = flow.tcp.state is TcpState.SYN_SENT2
        return int(TcpState.SYN_SENT if opening else flow.tcp.state)
    if flow.sctp is not None:
        return flow.sctp.state
    return int(flow.status)


def _liberal(flow: Flow) -> Flow:
    return replace(flow, tcp=flow.tcp.liberal()) if flow.tcp is not None else flow


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a copy; `error` is the first the kernel said about `failed` entries."""

    made: int = 0
    changed: int = 0
    gone: int = 0
    kept: int = 0
    foreign: int = 0
    failed: int = 0
    error: str = ""


@dataclass(slots=True)
class Copy:
    """One VM's entries on their way into this node's table, copy after copy."""

    table: Table
    vm: Addresses
    _made: set[FlowTuple] = field(default_factory=set)

    def take(self, flows: Collection[Flow], *, arrived: bool) -> Outcome:
        """Put one whole copy in. Raises `KernelError` when the table cannot be read.

        One entry that the kernel refuses is counted and stops no other. Until the VM has arrived,
        what an earlier copy brought and this one does not have goes again: it ended meanwhile.
        """
        present: dict[FlowTuple, Flow] = {}
        for flow in self.table.flows(self.vm):
            present[flow.original] = present[flow.reply] = flow
        count = dict.fromkeys(("made", "changed", "gone", "kept", "foreign", "failed"), 0)
        error = ""
        for flow in flows:
            if not concerns(flow, self.vm):
                count["foreign"] += 1
                continue
            step = plan(flow, present, self.vm, arrived=arrived)
            try:
                count[self._apply(step)] += 1
                count["gone"] += len(step.gone)
            except KernelError as refusal:
                count["failed"] += 1
                error = error or first_line(refusal)
        if not arrived:
            count["gone"] += self._drop_ended({flow.original for flow in flows}, present)
        return Outcome(**count, error=error)

    def _apply(self, step: Step) -> str:
        for flow in step.gone:
            self.table.delete(flow)
        if step.made is not None:
            if self.table.create(step.made):
                self._made.add(step.made.original)
                return "made"
        elif step.changed is not None and self.table.update(step.changed):
            return "changed"
        return "kept"

    def _drop_ended(self, listed: set[FlowTuple], present: Mapping[FlowTuple, Flow]) -> int:
        ended = [present[one] for one in self._made - listed if one in present]
        self._made &= listed
        return sum(self.table.delete(flow) for flow in ended)


def forget(table: Table, addresses: Iterable[IPAddress]) -> int:
    """Delete every entry of addresses that are somebody else's from now on. Raises `KernelError`.

    To be done before the new owner's rules are in force: until then nothing passes its interface,
    so that no entry can come back.
    """
    return sum(table.delete(flow) for flow in table.flows(addresses))
