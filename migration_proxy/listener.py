"""A listening socket with its thread, and the threads of its streams.

An accept that fails for want of descriptors or memory is tried again; any other failure closes the
listener, and `alive` says so. Streams that have not proved themselves yet are few: the oldest of
the party with the most of them makes way for a new one, so that silent peers keep no others out.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from migration_proxy.model import Request, Side, Stream
from migration_proxy.order import Order
from migration_proxy.rate import Rate
from migration_proxy.relay import wake_pair
from migration_proxy.session import Means, Phase, Session

MOST_SHAKING = 64
BREATH_SECONDS = 0.05
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HARMLESS = (
    errno.ECONNABORTED,
    errno.EAGAIN,
    errno.EINTR,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
)

Hear = Callable[["Listener", Session | None, str], None]
"""Told of each stream that is over, and with None of what befell the listener itself."""


class Listener:
    """Serves one stream's socket; `close` ends it and everything it started."""

    def __init__(
        self,
        sock: socket.socket,
        request: Request,
        stream: Stream,
        means: Means,
        *,
        most: int,
        rate: Rate | None,
        hear: Hear,
    ) -> None:
        self.request, self.stream = request, stream
        self.alive = True
        self.streams = 0
        self.moved = (0, 0)
        self._socket = sock
        self._port = 0 if request.side is Side.SOURCE else int(sock.getsockname()[1])
        self._means, self._most, self._rate, self._hear = means, most, rate, hear
        self._lock = threading.Lock()
        self._sessions: dict[Session, threading.Thread] = {}
        self._stopped = threading.Event()
        self._order = Order()
        self._short = False
        self._wake, self._waker = wake_pair()
        self._thread = threading.Thread(target=self._run, name="accept", daemon=True)

    @property
    def port(self) -> int:
        """The TCP port; 0 on the source, and of a listener that died."""
        return self._port if self.alive else 0

    def start(self) -> None:
        """Begin to accept. Raises RuntimeError when there may be no more threads."""
        self._thread.start()

    def sessions(self) -> tuple[Session, ...]:
        """The streams there are now."""
        with self._lock:
            return tuple(self._sessions)

    def totals(self) -> tuple[int, int]:
        """Bytes for the peer and from it, of all streams that there were and are."""
        with self._lock:
            each = [session.moved for session in self._sessions]
            out, back = self.moved
        return out + sum(one for one, _ in each), back + sum(one for _, one in each)

    def stop(self) -> None:
        """Make everything end; the socket is closed by `close`."""
        self._stopped.set()
        self._order.close()
        with suppress(OSError):
            os.close(self._waker)
        self._waker = -1
        self._means.lanes.rouse()
        for session in self.sessions():
            if session.phase is not Phase.MOVING:
                session.abort()

    def close(self, deadline: float) -> bool:
        """Stop and wait; False when something outlasts the deadline, in seconds."""
        end = time.monotonic() + deadline
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(deadline)
        self._socket.close()
        with self._lock:
            threads = tuple(self._sessions.items())
        for session, thread in threads:
            while thread.is_alive() and time.monotonic() < end:
                if session.phase is not Phase.MOVING:  # else the peer would see an orderly end
                    session.abort()  # it may just have opened another socket
                thread.join(min(BREATH_SECONDS, max(0.0, end - time.monotonic())))
        left = any(thread.is_alive() for _, thread in threads) or self._thread.is_alive()
        if not left:
            os.close(self._wake)
        return not left

    def _run(self) -> None:
        """Nobody may connect to a listener that has no thread, and wait for ever."""
        try:
            self._accept()
        except Exception as error:  # whatever it is
            self._give_up(repr(error))

    def _accept(self) -> None:
        self._socket.setblocking(False)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopped.is_set():
            poll.poll()
            if self._stopped.is_set():
                return
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                if not self._survives(error):
                    return
                continue
            self._short = False
            accepted.setblocking(True)
            # A local program is one party, a peer's address another; unix has no addresses.
            self._admit(accepted, str(address[0]) if address else "")

    def _survives(self, error: OSError) -> bool:
        """Whether to go on after a failed accept."""
        if error.errno in _HARMLESS:
            return True
        if error.errno in _SHORT_OF:
            if not self._short:
                self._hear(self, None, f"accept: {error.strerror}: streams have to wait")
            self._short = True
            self._make_way()
            self._stopped.wait(BREATH_SECONDS)
            return True
        self._give_up(error.strerror or str(error))
        return False

    def _give_up(self, reason: str) -> None:
        self.alive = False
        self._socket.close()
        self._hear(self, None, f"accept: {reason}: the listener is closed")

    def _admit(self, accepted: socket.socket, party: str) -> None:
        """Give a connection its thread, if there is room."""
        session = Session(
            self.request,
            self.stream,
            accepted,
            self._means,
            self._stopped,
            self._order,
            party,
            self._rate,
        )
        if self.request.side is Side.TARGET and self.request.tls:
            session.phase = Phase.SHAKING
        there = self.sessions()
        shaking = _shaking(there)
        if len(there) - len(shaking) >= self._most:
            accepted.close()
            session.leave()
            self._hear(self, None, f"{self._most} streams are open: one more is refused")
            return
        if len(shaking) >= MOST_SHAKING:
            self._make_way()
        thread = threading.Thread(
            target=self._serve, args=(session,), name=f"stream-{self.stream.logical}", daemon=True
        )
        with self._lock:
            self._sessions[session] = thread
            self.streams += 1
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            with self._lock:
                del self._sessions[session]
            accepted.close()
            session.leave()
            self._hear(self, None, f"stream refused: {error}")

    def _make_way(self) -> None:
        """End a stream that has not proved itself, if there is one; each time another one."""
        if shaking := _shaking(self.sessions()):
            least = most_burdensome(shaking)
            least.phase = Phase.OVER
            least.abort()

    def _serve(self, session: Session) -> None:
        try:
            session.run()
        finally:
            with self._lock:
                del self._sessions[session]
                out, back = session.moved
                self.moved = self.moved[0] + out, self.moved[1] + back
            self._hear(self, session, "")


def _shaking(sessions: Sequence[Session]) -> list[Session]:
    """Those that the peer has yet to be let in for."""
    return [each for each in sessions if each.phase is Phase.SHAKING]


def most_burdensome(shaking: Sequence[Session]) -> Session:
    """Who makes way: the oldest of the party with the most streams; they are in order of age."""
    parties = Counter(each.party for each in shaking)
    return max(shaking, key=lambda each: parties[each.party])
