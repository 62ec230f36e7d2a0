"""Tells the owner of a VM's block that the VM is here: by the agents' channel, ahead of the store.

In the overlay every node without a way of its own sends to the block's owner, so that one matters
most after the source, which is told with the request for connections (`hand_over.py`). Others
learn it from the store. The connection stands before the VM comes; what is said through it is
judged by who hears it. Nothing here is waited for, and what is not told costs speed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from felix_shim.exchange import Wish
from felix_shim.model import EndpointId
from felix_shim.peer_messages import End, Moved
from felix_shim.peers import Link, Spawn
from libtortie.errors import Malformed, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.model.ipam import IPAddress

LATE_SECONDS = 10.0
"""So long after the VM came the news is still worth an attempt: then the store has told it."""
PAUSE_SECONDS = 0.2
IDLE_SECONDS = 45.0
"""A connection that said nothing for so long is made anew: the other side waits for 60."""
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Tidings:
    """A VM that is on its way to here, or has `arrived`, and which node is to know first."""

    migration_uid: str
    addresses: tuple[IPAddress, ...]
    node: str
    node_address: IPAddress
    arrived: bool = False


@dataclass(slots=True)
class Herald:
    """`want` is the reconciler's, at once; each of the tidings has a thread, made by `spawn`."""

    dial: Callable[[Tidings], Link]
    spawn: Spawn
    log: Log
    monotonic: Callable[[], float]
    _wanted: dict[EndpointId, Tidings] = field(default_factory=dict)
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        """A thread's body: nothing but to be there until `stop`."""
        with self._condition:
            while not self._stopped:
                self._condition.wait()

    def want(self, tidings: Mapping[EndpointId, Tidings]) -> None:
        """From now on these are to be told, and no others."""
        with self._condition:
            fresh = [
                (endpoint, one)
                for endpoint, one in tidings.items()
                if not _same(self._wanted.get(endpoint), one)
            ]
            self._wanted = dict(tidings)
            self._condition.notify_all()
            if self._stopped:
                return
        for endpoint, one in fresh:
            self.spawn("herald", partial(self._follow, endpoint, one))

    def stop(self) -> None:
        """What is being told ends by itself, soon."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _follow(self, endpoint: EndpointId, mine: Tidings) -> None:
        """Have a connection, wait for the VM, say so; again after trouble, while it is news."""
        came: float | None = None
        while (now := self._current(endpoint, mine)) is not None:
            if now.arrived and came is None:
                came = self.monotonic()
            try:
                with self.dial(now) as link:
                    if self._await(endpoint, mine) and self._tell(link, mine):
                        return
            except (TortieError, OSError) as error:
                if came is not None and self.monotonic() - came > LATE_SECONDS:
                    reason = first_line(error)
                    self.log.info(
                        "cut_over_not_told", endpoint=endpoint, node=mine.node, reason=reason
                    )
                    return
                self._pause(endpoint, mine)

    def _tell(self, link: Link, mine: Tidings) -> bool:
        """Raises `Unavailable`, `Malformed`."""
        link.send(Moved(mine.migration_uid, mine.addresses))
        if not isinstance(link.receive(PATIENCE), End):
            raise Malformed(f"node {link.node} answers what was not asked")
        self.log.info("cut_over_told", node=link.node, migration_uid=mine.migration_uid)
        return True

    def _await(self, endpoint: EndpointId, mine: Tidings) -> bool:
        """Wait for the VM; False when that took the connection too long, or nobody wants it."""
        end = self.monotonic() + IDLE_SECONDS
        with self._condition:
            while (now := self._now(endpoint, mine)) is not None:
                if now.arrived:
                    return True
                left = end - self.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
        return False

    def _pause(self, endpoint: EndpointId, mine: Tidings) -> None:
        with self._condition:
            if self._now(endpoint, mine) is not None:
                self._condition.wait(PAUSE_SECONDS)

    def _current(self, endpoint: EndpointId, mine: Tidings) -> Tidings | None:
        with self._condition:
            return self._now(endpoint, mine)

    def _now(self, endpoint: EndpointId, mine: Tidings) -> Tidings | None:
        """How these tidings stand; None when they are over. The lock is held."""
        current = self._wanted.get(endpoint)
        return current if not self._stopped and _same(current, mine) else None


def tidings(
    wishes: Mapping[EndpointId, Wish],
    owner_of: Callable[[IPAddress], str],
    address_of: Callable[[str], IPAddress | None],
) -> dict[EndpointId, Tidings]:
    """Whom to tell of which VM: the owner of its block, where that is not the source.

    `owner_of` knows of addresses in the overlay that are in another node's block. Pure.
    """
    found = {}
    for endpoint, wish in wishes.items():
        owners = (owner_of(address) for address in wish.addresses)
        node = next((one for one in owners if one and one != wish.source), "")
        there = address_of(node) if node else None
        if there is not None:
            uid, addresses = wish.migration_uid, wish.addresses
            found[endpoint] = Tidings(uid, addresses, node, there, wish.arrived)
    return found


def _same(one: Tidings | None, other: Tidings) -> bool:
    return one is not None and replace(one, arrived=False) == replace(other, arrived=False)
