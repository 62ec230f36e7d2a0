"""The kernel's connection table of one network namespace: read, make, change and delete entries.

Any thread may call. Only entries of zone 0 and of the protocols in `flows.TRACKED` are seen.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from libtortie.linux import conntrack_wire as wire
from libtortie.linux.channel import ANSWER_DEADLINE, Channel, Refused, open_socket
from libtortie.linux.flows import Flow, FlowTuple
from libtortie.model.ipam import IPAddress

_NETLINK_NETFILTER = 12
_NLM_F_EXCL, _NLM_F_CREATE = 0x200, 0x400


class Conntrack:
    """The table of the namespace in which the object was made."""

    def __init__(self, *, deadline: float = ANSWER_DEADLINE) -> None:
        def reopen() -> socket.socket:
            return open_socket(deadline, _NETLINK_NETFILTER)

        self._channel = Channel(reopen(), reopen)

    def close(self) -> None:
        """Release the socket."""
        self._channel.close()

    def flows(self, addresses: Iterable[IPAddress]) -> tuple[Flow, ...]:
        """Every entry that one of these addresses has part in, once. Raises `KernelError`."""
        found: dict[FlowTuple, Flow] = {}
        for address in addresses:
            for role in wire.ROLES:
                query, what = wire.flow_query(address, role), f"connections of {address}"
                for _, body in self._channel.dump(wire.CT_GET, query, what):
                    flow = wire.parse_flow(body)
                    if flow is not None and flow.touches(address):
                        found[flow.original] = flow
        return tuple(found.values())

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
                wire.CT_DELETE, 0, wire.flow_deletion(flow), f"delete {shown(flow)}"
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
