"""Whether an address of the overlay that left this node may lose its own route yet.

A VM's addresses leave together, and the ways to where it is now come one after the other: each
family has a tunnel of its own, and a record of its own that says so. An own route that goes before
the way is there leaves what still arrives to the block's blackhole, or to a block's owner who sends
it back. So each goes when *its* way is in the kernel: the order of these changes is of no account.

It does not wait for longer than the convergence time: by then nobody sends here any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from felix_shim.drivers.routetable import RouteTable
from felix_shim.migration import State
from felix_shim.overlay_desk import OverlayDesk
from felix_shim.roster import Local
from libtortie.linux.port import IPNetwork

_LEFT = frozenset({State.DEPARTED, State.SUPPRESSED})


@dataclass(slots=True)
class Ways:
    """What is waited for, since when (monotonic seconds), and for which departure."""

    routes: RouteTable
    overlay: OverlayDesk
    _since: dict[IPNetwork, tuple[object, float]] = field(default_factory=dict)

    def awaited(
        self, dst: IPNetwork, workloads: Iterable[Local], now: float, seconds: float
    ) -> float | None:
        """Until when the own route to an address has to stay for want of another way; None: it
        may go. `seconds` is how long that is waited for at most."""
        left = tuple(
            (one.id, one.machine.episode) for one in workloads if one.machine.state in _LEFT
        )
        lacking = left and self.overlay.covers(dst.network_address)
        if not lacking or self.routes.tunnelled(dst) is not None:
            self._since.pop(dst, None)
            return None
        known, since = self._since.get(dst, (left, now))
        if known != left:
            since = now  # it came back meanwhile
        self._since[dst] = (left, since)
        return since + seconds if since + seconds > now else None
