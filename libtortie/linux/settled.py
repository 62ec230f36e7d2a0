"""When the packets are done that were under way at a moment.

nf_tables keeps the rules of two generations. A packet goes by the generation in which a hook began
to judge it, and where its rules jump into a chain it reads that chain's slot of its generation:
after *two* commits, the slot has the rules of the second. So a packet that a commit finds under way
is right as long as the next commit waits until it is done. It may take long: the processor that it
is on can be a virtual one that its host has stopped.

The kernel waits for packets that are being received when a packet socket is closed
(`synchronize_net`): 5-20 ms. That is done aside, so that nobody waits for it but a change that
follows another at once.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from libtortie.errors import KernelError


def packets_done() -> None:
    """Wait until the packets are done that are being received now, on every processor.

    Raises `KernelError` where there are no packet sockets.
    """
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError as error:
        raise KernelError(f"no packet socket to wait for packets under way: {error}") from error


@dataclass(slots=True)
class Settled:
    """What was under way at the last `begin`. One thread at a time uses it.

    `deadline` (s) bounds each wait.
    """

    deadline: float = 10.0
    wait: Callable[[], None] = packets_done
    _aside: threading.Thread | None = None
    _problem: list[KernelError] = field(default_factory=list)

    def begin(self) -> None:
        """Something has changed just now, which packets that are under way do not know."""
        self._problem = []
        problem = self._problem

        def work() -> None:
            try:
                self.wait()
            except KernelError as error:
                problem.append(error)

        self._aside = threading.Thread(target=work, name="settling", daemon=True)
        self._aside.start()

    def await_all(self) -> None:
        """Wait until they are done; at once when they are, or when nothing has begun.

        Raises `KernelError` when that takes too long or cannot be known; then ask again.
        """
        if self._aside is None:
            return
        self._aside.join(self.deadline)
        if self._aside.is_alive():
            raise KernelError(f"packets have been under way for more than {self.deadline:.3g} s")
        if self._problem:
            problem = self._problem[0]
            self.begin()
            raise problem
        self._aside = None
