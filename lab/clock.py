"""One clock for everything the lab measures: CLOCK_MONOTONIC, in nanoseconds.

All namespaces share the machine's clock, so times of the hypervisor, the probes and the route
monitors can be subtracted. The kernel stamps packets with CLOCK_REALTIME; `realtime_offset`
brings those back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def monotonic() -> int:
    """Now, in nanoseconds."""
    return time.monotonic_ns()


def realtime_offset() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC in ns, from the tightest of several readings."""
    best: tuple[int, int] | None = None
    for _ in range(20):
        before = time.monotonic_ns()
        wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.monotonic_ns()
        reading = (after - before, wall - (before + after) // 2)
        best = reading if best is None else min(best, reading)
    assert best is not None
    return best[1]


def ms(ns: int) -> float:
    """Nanoseconds as milliseconds, to the microsecond."""
    return round(ns / NS_PER_MS, 3)


def be_punctual(priority: int) -> bool:
    """Ask for SCHED_FIFO and no garbage collector pauses; False when the machine refuses.

    A measuring process that waits for the processor would report its own wait as an outage.
    """
    gc.disable()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        return True
    return False
