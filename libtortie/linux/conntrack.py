"""The kernel's connection table of one network namespace: read, make, change and delete entries.

Any thread may call. Only entries of zone 0 and of the protocols in `flows.TRACKED` are seen.

To send its table by netlink the kernel goes through every bucket, of all namespaces, with softirqs
off until a datagram is full: with few entries that is all 262,144 buckets at once, 9 ms in which
the processor forwards nothing, and where the kernel selects entries it is so however many there
are. procfs goes through the same buckets with softirqs on, and in a tenth of the time. So a small
table is looked through there, and each entry found is asked for by name; a large one comes by
netlink in datagrams that are soon full, and is selected from here.
"""

from __future__ import annotations

import errno
import mmap
import socket
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from libtortie.linux import conntrack_wire as wire
from libtortie.linux.channel import ANSWER_DEADLINE, Channel, Refused, open_socket
from libtortie.linux.conntrack_listing import listed_flows
from libtortie.linux.flows import Flow, FlowTuple
from libtortie.linux.netns import identity, inside, open_namespace, own_identity
from libtortie.model.ipam import IPAddress

T = TypeVar("T")

LISTING = Path("/proc/thread-self/net/nf_conntrack")
_NETLINK_NETFILTER = 12
_MOST_LISTED = 1000
"""Entries up to which procfs is read: older kernels begin anew with each page of it."""
_READINGS = 4
"""Of the listing, at most, where entries come and go meanwhile."""
_ONE_PAGE = mmap.PAGESIZE
"""What is shorter the kernel has listed in one go."""
_DATAGRAM = min(mmap.PAGESIZE, 8192)
"""The least in which the kernel prepares a dump: some 18 entries, 0.4 ms at 1,000 and less with
more, where 64 KiB take 2 ms."""
_NLM_F_EXCL, _NLM_F_CREATE = 0x200, 0x400


class Conntrack:
    """The table of the namespace in which the object was made, which it keeps until closed."""

    def __init__(self, *, deadline: float = ANSWER_DEADLINE) -> None:
        self._deadline = deadline
        self._namespace = open_namespace("")
        try:
            self._channel = Channel(
                open_socket(deadline, _NETLINK_NETFILTER), self._reopen, buffer=_DATAGRAM
            )
        except BaseException:
            self._namespace.close()
            raise

    def close(self) -> None:
        """Release the socket and the namespace."""
        self._channel.close()
        self._namespace.close()

    def flows(self, addresses: Iterable[IPAddress]) -> tuple[Flow, ...]:
        """Every entry that one of these addresses has part in, once. Raises `KernelError`."""
        wanted = frozenset(addresses)
        count = self._count()
        if not count or not wanted:
            return ()
        bodies = self._listed(wanted, count) if count <= _MOST_LISTED else None
        if bodies is None:
            bodies = self._dumped(wanted)
        found = (flow for body in bodies if (flow := wire.parse_flow(body)) is not None)
        return tuple(
            {one.original: one for one in found if not wanted.isdisjoint(one.ends)}.values()
        )

    def _listed(self, wanted: Collection[IPAddress], count: int) -> list[memoryview] | None:
        """Entries of which procfs knows; None where it lists nothing.

        Between two pages the kernel keeps its place by counting, in a bucket's chain or, older
        ones, from the start: it passes over one entry for each that went meanwhile. So more than
        one page is read until a reading names nothing new, and what is less than there was before
        is read once more.
        """
        names: set[FlowTuple] = set()
        for reading in range(_READINGS):
            try:
                text = self._run(_read_listing)
            except OSError:
                return None
            found = listed_flows(text, wanted)
            sure = len(text) < _ONE_PAGE or (reading > 0 and found <= names)
            names |= found
            if sure and text.count("\n") >= count:
                break
        asked = (self._one(wire.flow_name(name)) for name in names)
        return [body for body in asked if body is not None]

    def _one(self, name: bytes) -> memoryview | None:
        """One entry by its name; None when it has gone."""
        try:
            answer = self._channel.get(wire.CT_GET, name, "a connection")
        except Refused as error:
            if error.code == errno.ENOENT:
                return None
            raise
        return None if answer is None else answer[1]

    def _dumped(self, wanted: Collection[IPAddress]) -> list[memoryview]:
        """Entries that have the bytes of an address anywhere, from the whole table."""
        marks = [address.packed for address in wanted]
        answers = self._channel.dump(wire.CT_GET, wire.every_flow(), "connections", wanted=marks)
        return [body for _, body in answers if any(mark in bytes(body) for mark in marks)]

    def _reopen(self) -> socket.socket:
        return self._run(lambda: open_socket(self._deadline, _NETLINK_NETFILTER))

    def _run(self, work: Callable[[], T]) -> T:
        """Work in the table's namespace."""
        if own_identity() == identity(self._namespace):
            return work()
        return inside(self._namespace, work, self._deadline, "work in the table's namespace")

    def _count(self) -> int:
        """How many entries there are; more than there can be when the kernel does not say."""
        answer = self._channel.get(wire.CT_GET_STATS, wire.every_flow(), "count of connections")
        return wire.parse_count(answer[1]) if answer is not None else 1 << 32

    def create(self, flow: Flow) -> bool:
        """Make an entry; False when one of its tuples is taken. Raises `KernelError`."""
        flags = _NLM_F_CREATE | _NLM_F_EXCL
        try:
            self._channel.request(
                wire.CT_NEW, flags, wire.flow_creation(flow), f"make {shown(flow)}"
            )
        except Refused as error:
            if error.code == errno.EEXIST:
                return False
            raise
        return True

    def update(self, flow: Flow) -> bool:
        """Give the entry of the same tuples this state; False when there is none.

        What an entry was seen to be (answered, assured) is never taken back. Raises `KernelError`.
        """
        try:
            self._channel.request(wire.CT_NEW, 0, wire.flow_update(flow), f"change {shown(flow)}")
        except Refused as error:
            if error.code == errno.ENOENT:
                return False
            raise
        return True

    def delete(self, flow: Flow) -> bool:
        """Remove an entry; False when there was none. Raises `KernelError`."""
        try:
            self._channel.request(
                wire.CT_DELETE, 0, wire.flow_name(flow.original), f"delete {shown(flow)}"
            )
        except Refused as error:
            if error.code == errno.ENOENT:
                return False
            raise
        return True


def shown(flow: Flow) -> str:
    """A flow, for people."""
    one = flow.original
    ends = f"{one.source}:{one.source_port} to {one.destination}:{one.destination_port}"
    return f"the connection {ends} (protocol {one.protocol})"


def _read_listing() -> str:
    return LISTING.read_text(errors="replace")
