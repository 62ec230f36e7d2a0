"""How an agent that is told to stop leaves: no VM that is on its way loses a packet by it.

A VM that comes here is heard by this process alone. Between the moment its pod is attached and
the moment its route is raised nobody stands in for the agent, so an orderly stop waits for that
moment, for `drain_seconds` at most; then for the route to be plain again, because a raised one that
nobody takes back would hold against the VM's next move; likewise for a VM that is about to leave,
whose connections this node hands over. CNI requests are answered all the while: a pod that is
attached now may be a VM that comes. Then no further target is told that it may start (its ADD waits
for the next agent), and those that were told are waited for: from there on none can be on its way.
A VM that left in the meantime is owed the last copy of its connections, which is taken a moment
after that (`hand_over.Pace.settle`).

A second signal ends the wait, and so does a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from felix_shim.migration import RAISED, State
from felix_shim.model import Role
from felix_shim.roster import Local
from libtortie.jsonlog import Log

LOOK_SECONDS = 0.02
COPY_SECONDS = 0.5
"""What the last copy of a VM's connections may take, from its departure."""


def on_their_way(locals_: Iterable[Local], *, reported: bool = False) -> tuple[str, ...]:
    """The endpoints of VMs that are about to come here, have just come, or are to leave. Pure.

    `reported`: those targets alone that may start already.
    """
    return tuple(sorted(str(local.id) for local in locals_ if _moves(local, reported=reported)))


def _moves(local: Local, *, reported: bool) -> bool:
    machine = local.machine
    if machine.state is State.TARGET:
        return local.reported or not reported
    leaves = machine.facts.role is Role.SOURCE and not machine.facts.final
    return machine.state in RAISED or (machine.state is State.BASE and leaves)


@dataclass(slots=True)
class Departure:
    """Waits for them, `seconds` altogether, however often it is asked to; what others take to stop
    in between, as a migration proxy that drains, is not of these."""

    locals: Iterable[Local]
    seconds: float
    hurry: Callable[[], bool]
    log: Log
    monotonic: Callable[[], float]
    pause: Callable[[float], object] = threading.Event().wait
    _waited: float = 0.0

    def leave(
        self,
        stop_cni: Callable[[], bool],
        stop_proxy: Callable[[], None] | None,
        let_none_start: Callable[[], None],
    ) -> None:
        """Stop what others ask of the agent, as soon as nobody needs it answered here.

        A migration proxy drains while everybody serves on: its migrations need us.
        """
        self.wait()
        if stop_proxy is not None:
            stop_proxy()
        if not stop_cni():
            self.log.warning("cni_requests_left")
        let_none_start()
        self.wait(reported=True)

    def wait(self, *, reported: bool = False) -> bool:
        """Until no VM is on its way; False when that took too long."""
        began = self.monotonic()
        gone = self._wait(began + self.seconds - self._waited, reported=reported)
        self._waited += self.monotonic() - began
        return gone

    def _wait(self, end: float, *, reported: bool) -> bool:
        told: tuple[str, ...] = ()
        while moving := on_their_way(self.locals, reported=reported):
            if self.hurry() or self.monotonic() >= end:
                self.log.warning("stop_leaves_migrations", endpoints=moving)
                return False
            if moving != told:
                left = round(end - self.monotonic(), 1)
                self.log.info("stop_waits_for_migrations", endpoints=moving, seconds=left)
                told = moving
            self.pause(LOOK_SECONDS)
        if told:
            self.pause(COPY_SECONDS)
        return True
