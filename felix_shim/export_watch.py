"""Sees when BIRD has taken a raised route from the kernel: from then on its peers are told.

BIRD says nothing by itself, so it is asked, shortly after each raise and never longer than
`GIVE_UP_SECONDS`; raises that wait meanwhile are few, or are passed over. It only measures: nothing
waits for it, and a BIRD that does not answer costs a measurement.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from libtortie.errors import TortieError
from libtortie.model.ipam import IPAddress

FIRST_SECONDS = 0.002
LONGEST_SECONDS = 0.1
GIVE_UP_SECONDS = 10.0
MOST_WAITING = 16


@dataclass(frozen=True, slots=True)
class _Raise:
    endpoint: object
    address: IPAddress
    heard: float
    raised: float
    expected: float


@dataclass(slots=True)
class ExportWatch:
    """`has_raised(address)` asks BIRD; `told(endpoint, heard, raised, now)` gets times of day,
    as if nobody had set the clock since the raise."""

    has_raised: Callable[[IPAddress], bool]
    told: Callable[[object, float, float, float], None]
    monotonic: Callable[[], float] = time.monotonic
    _raises: deque[_Raise] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False

    def expect(self, endpoint: object, dst: object, heard: float, raised: float) -> None:
        """A route was raised; any thread, at once."""
        if isinstance(dst, IPv4Network | IPv6Network):
            with self._changed:
                self._raises.append(
                    _Raise(endpoint, dst.network_address, heard, raised, self.monotonic())
                )
                self._changed.notify_all()

    def run(self) -> None:
        """A thread's body, until `stop`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._raises or self._stopped)
                if self._stopped:
                    return
                one = self._raises.popleft()
            self._await(one)

    def stop(self) -> None:
        """Make `run` return."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _await(self, one: _Raise) -> None:
        end, pause = self.monotonic() + GIVE_UP_SECONDS, FIRST_SECONDS
        while self.monotonic() < end:
            try:
                if self.has_raised(one.address):
                    now = one.raised + self.monotonic() - one.expected
                    self.told(one.endpoint, one.heard, one.raised, now)
                    return
            except (TortieError, OSError):
                pause = LONGEST_SECONDS
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, pause):
                    return
            pause = min(LONGEST_SECONDS, 2 * pause)
