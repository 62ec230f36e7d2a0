"""What the reconciler has around it, as it is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from felix_shim.inbox import Inbox
from felix_shim.outlets import Outlets
from felix_shim.state import Memory
from felix_shim.world import World
from libtortie.jsonlog import Log


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` in seconds; `realtime_ns` in nanoseconds, for the kernel's time stamps."""

    monotonic: Callable[[], float]
    realtime_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Rim:
    """What the reconciler has around it. `recall` reads what the last run remembered."""

    outlets: Outlets
    inbox: Inbox
    log: Log
    clocks: Clocks
    recall: Callable[[World], Memory]
