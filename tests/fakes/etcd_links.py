"""The links between an etcd cluster's members, which a test can cut, whatever their clients reach.

Each member is known to the others by a relay. Members say who they are in the head of their
requests (`X-Server-From`), so a relay can bar one of them; links that are barred are cut.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.tcp_proxy import TcpProxy

_SENDER = re.compile(rb"X-Server-From: ([0-9a-f]+)", re.IGNORECASE)


class PeerRelay(TcpProxy):
    """Relays what members say to one of them, but for those that are barred."""

    def __init__(self, target: int, listener: socket.socket | None = None) -> None:
        self.barred: frozenset[str] = frozenset()
        self.closed_to_all = False
        super().__init__(target, listener)

    def admits(self, head: bytes) -> bool:
        """Whether a request whose head this is may pass."""
        if self.closed_to_all:
            return False
        return not any(one.decode() in self.barred for one in _SENDER.findall(head))

    def passes(self, data: bytes, replies: bool) -> bool:
        return replies or self.admits(data)


class Links:
    """A cluster's members and the relays before them."""

    def __init__(self, members: Sequence[EtcdMember], relays: Sequence[PeerRelay]) -> None:
        self.members = members
        self._relays = relays

    def isolate(self, member: EtcdMember) -> None:
        """Cut a member off from the others; its clients still reach it."""
        number = member.member_id()
        for one, relay in zip(self.members, self._relays, strict=True):
            relay.closed_to_all = one is member
            relay.barred = frozenset({number})
            relay.cut()

    def heal(self) -> None:
        """Let everybody speak to everybody."""
        for relay in self._relays:
            relay.closed_to_all, relay.barred = False, frozenset()


@contextmanager
def linked_members(directory: Path, count: int = 3) -> Iterator[Links]:
    """A cluster that is up, whose links can be cut."""
    relays: list[PeerRelay] = []
    with ExitStack() as stack:

        def relayed(port: int) -> int:
            relay = PeerRelay(port)
            stack.callback(relay.close)
            relays.append(relay)
            return relay.port

        members = stack.enter_context(etcd_members(directory, count, relayed=relayed))
        yield Links(members, relays)
