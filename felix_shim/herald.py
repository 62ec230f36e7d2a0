"""Tells where a VM was, and the owner of its block, that it is here: by the agents' channel, ahead
of the store.

In the overlay every node without a way of its own sends to the block's owner, so that one matters
most after the source, which is told with the request for connections, too (`hand_over.py`). Others
learn it from the store. The connection stands before the VM comes; what is said through it is
judged by who hears it, and believed for a while: so it is said again until the record has it.
Nothing here is waited for, and what is not told costs speed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from felix_shim.exchange import Wish
from felix_shim.migration import has_claimed
from felix_shim.model import EndpointId
from felix_shim.peer_messages import End, Moved, Refused
from felix_shim.peers import Link, Spawn
from felix_shim.roster import Local
from libtortie.errors import Malformed, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.model.ipam import IPAddress

LATE_SECONDS = 10.0
"""So long after the VM came there is an attempt every `PAUSE_SECONDS`; then less often."""
PAUSE_SECONDS = 0.2
REPEAT_SECONDS = 3.0
"""Less than a third of the time for which it is believed."""
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


Addressee = tuple[EndpointId, str]
"""A VM, and a node that is to hear of it."""


class _TooOldError(TortieError):
    """An agent that does not know what it is told; it learns it from the store."""


@dataclass(slots=True)
class Herald:
    """`want` is the reconciler's, at once; each of the tidings has a thread, made by `spawn`."""

    dial: Callable[[Tidings], Link]
    spawn: Spawn
    log: Log
    monotonic: Callable[[], float]
    _wanted: dict[Addressee, Tidings] = field(default_factory=dict)
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        """A thread's body: nothing but to be there until `stop`."""
        with self._condition:
            while not self._stopped:
                self._condition.wait()

    def want(self, tidings: Mapping[Addressee, Tidings]) -> None:
        """From now on these are to be told, and no others."""
        with self._condition:
            fresh = [
                (whom, one)
                for whom, one in tidings.items()
                if not _same(self._wanted.get(whom), one)
            ]
            self._wanted = dict(tidings)
            self._condition.notify_all()
            if self._stopped:
                return
        for whom, one in fresh:
            self.spawn("herald", partial(self._follow, whom, one))

    def stop(self) -> None:
        """What is being told ends by itself, soon."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _follow(self, whom: Addressee, mine: Tidings) -> None:
        """Have a connection, wait for the VM, say so, and again while it is wanted; anew after
        trouble, of which the log hears once it has lasted."""
        came: float | None = None
        told = silent = False
        while (now := self._current(whom, mine)) is not None:
            if now.arrived and came is None:
                came = self.monotonic()
            try:
                with self.dial(now) as link:
                    while self._await(whom, mine):
                        self._tell(link, mine)
                        if not told:
                            self.log.info(
                                "cut_over_told", node=link.node, migration_uid=mine.migration_uid
                            )
                        told = True
                        self._pause(whom, mine, REPEAT_SECONDS)
            except _TooOldError as error:
                self.log.info(
                    "cut_over_not_told", endpoint=whom[0], node=mine.node, reason=str(error)
                )
                return
            except (TortieError, OSError) as error:
                late = came is not None and self.monotonic() - came > LATE_SECONDS
                if late and not (told or silent):
                    silent, reason = True, first_line(error)
                    self.log.info(
                        "cut_over_not_told", endpoint=whom[0], node=mine.node, reason=reason
                    )
                self._pause(whom, mine, REPEAT_SECONDS if late else PAUSE_SECONDS)

    def _tell(self, link: Link, mine: Tidings) -> None:
        """Raises `Unavailable`, `Malformed`, `_TooOldError`."""
        link.send(Moved(mine.migration_uid, mine.addresses))
        answer = link.receive(PATIENCE)
        if isinstance(answer, Refused):
            raise _TooOldError(f"node {link.node}: {answer.reason}")
        if not isinstance(answer, End):
            raise Malformed(f"node {link.node} answers what was not asked")

    def _await(self, whom: Addressee, mine: Tidings) -> bool:
        """Wait for the VM; False when that took the connection too long, or nobody wants it."""
        end = self.monotonic() + IDLE_SECONDS
        with self._condition:
            while (now := self._now(whom, mine)) is not None:
                if now.arrived:
                    return True
                left = end - self.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
        return False

    def _pause(self, whom: Addressee, mine: Tidings, seconds: float) -> None:
        """Wait, but not when more is known than before, and not for what is over."""
        end = self.monotonic() + seconds
        with self._condition:
            known = self._now(whom, mine)
            while known is not None and self._now(whom, mine) == known:
                left = end - self.monotonic()
                if left <= 0:
                    return
                self._condition.wait(left)

    def _current(self, whom: Addressee, mine: Tidings) -> Tidings | None:
        with self._condition:
            return self._now(whom, mine)

    def _now(self, whom: Addressee, mine: Tidings) -> Tidings | None:
        """How these tidings stand; None when they are over. The lock is held."""
        current = self._wanted.get(whom)
        return current if not self._stopped and _same(current, mine) else None


class Places(Protocol):
    """Where addresses are, as `overlay_desk.OverlayDesk` knows it."""

    def covers(self, address: IPAddress) -> bool:
        """Whether an address is in the overlay."""

    def owner_elsewhere(self, address: IPAddress) -> str:
        """The other node whose block an address of the overlay is from, or ""."""

    def is_recorded(self, local: Local) -> bool:
        """Whether the store has had a VM's addresses here since that came."""


def unrecorded(
    roster: Iterable[Local], wishes: Mapping[EndpointId, Wish], places: Places
) -> dict[EndpointId, Wish]:
    """The VMs that are on their way to here, or have come and are not known to have by the store:
    it may be away for longer than their routes stay raised. Pure."""
    found = {}
    for local in roster:
        vm, wish = local.endpoint.vm, wishes.get(local.id)
        if vm is None or (wish is not None and not wish.arrived):
            known = wish
        elif has_claimed(local.machine) and not places.is_recorded(local):
            uid, addresses = local.machine.migration_uid, local.endpoint.addresses
            known = wish or Wish(uid, vm.vmi_uid, addresses, arrived=True)
        else:
            known = None
        if known is not None and known.migration_uid:
            found[local.id] = known
    return found


def tidings(
    news: Mapping[EndpointId, Wish],
    places: Places,
    address_of: Callable[[str], IPAddress | None],
) -> dict[Addressee, Tidings]:
    """Whom to tell of which VM: of one in the overlay its block's owner, and its source. Pure.

    The source has no connection of this kind before the VM has come: it hears of that first by the
    one through which connections are asked for, and peers take no more than a few of one node.
    """
    found = {}
    for endpoint, one in news.items():
        inside = [address for address in one.addresses if places.covers(address)]
        nodes = {places.owner_elsewhere(address) for address in inside}
        for node in sorted(nodes | ({one.source} if inside and one.arrived else set())):
            there = address_of(node) if node else None
            if there is not None:
                uid, addresses = one.migration_uid, one.addresses
                found[endpoint, node] = Tidings(uid, addresses, node, there, one.arrived)
    return found


def _same(one: Tidings | None, other: Tidings) -> bool:
    return one is not None and replace(one, arrived=False) == replace(other, arrived=False)
