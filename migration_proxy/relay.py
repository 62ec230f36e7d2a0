"""Moves one stream's bytes both ways until both directions have ended; it never blocks.

Either side may end first: the other direction goes on. A side that is gone altogether ends the
stream: what it sent is delivered, what is meant for it is dropped, and the peer is told by a reset
after `LINGER_SECONDS` at the latest. Nothing is read that cannot be passed on.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from migration_proxy.flows import CHUNK_BYTES, PIPE_BYTES, Flow, SinkGone, failure_text
from migration_proxy.handshake import MODE_ALERT, TLS_PEER, UNHEARD_PEER, is_tls
from migration_proxy.rate import Rate

LINGER_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_PEEK_BYTES = 16
_PASSES = 2
"""Of both directions in a row: what one of them waits for, the other one may have done."""
_TURNS = 8
"""Of a direction in a row, until the other one and other streams have theirs."""
_TCP_CLOSE = 7
"""The kernel's number of the state of a connection that is over."""
STOPPED = "stopped"
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Way:
    """A flow and how far it has come: `done` when its end was passed on, or its sink is gone."""

    flow: Flow
    rate: Rate | None = None
    done: bool = False
    broken: bool = False
    dropped: int = 0


@dataclass(slots=True, eq=False)
class Relay:
    """`local` is the unix socket, `remote` the TCP one; a lane's `Load`.

    `plain`: the first bytes from the peer are looked at, whether they are TLS's after all.
    """

    local: socket.socket
    remote: socket.socket
    outward: Flow
    inward: Flow
    stopped: Callable[[], bool]
    rate: Rate | None = None
    plain: bool = False
    due: float | None = None
    _ways: tuple[Way, Way] = field(init=False)
    _deadline: float | None = None
    _paused: bool = False
    _resume: float = 0.0
    _masks: dict[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.local.setblocking(False)
        self.remote.setblocking(False)
        self._ways = Way(self.outward, self.rate), Way(self.inward)

    def turn(self) -> str | None:
        """Move what can be moved now; None while there is more to come.

        Else why it is over, empty for an orderly end, and both sockets are closed.
        """
        trouble: str | None = "failed"
        try:
            trouble = self._move()
        except ConnectionError as error:
            trouble = self._gone(failure_text(error))
        except (OSError, ssl.SSLError) as error:
            trouble = failure_text(error)
        finally:
            if trouble is not None:
                self.close(trouble)
        return trouble

    def descriptors(self) -> tuple[int, ...]:
        """Both sockets'."""
        return self.local.fileno(), self.remote.fileno()

    def arm(self, poll: select.poll) -> None:
        """Ask for what matters now."""
        outward, inward = self._ways
        self._look(poll, self.local.fileno(), outward, inward)
        self._look(poll, self.remote.fileno(), inward, outward)

    def hear(self, descriptor: int, event: int) -> None:
        """Note what a socket is ready for, and that its other side is gone."""
        outward, inward = self._ways
        ours = descriptor == self.local.fileno()
        reads, writes = (outward, inward) if ours else (inward, outward)
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
            reads.flow.readable = True
        if event & select.POLLOUT:
            writes.flow.writable = True
        if event & (select.POLLHUP | select.POLLERR) and not writes.done:
            writes.broken = writes.done = True  # it takes nothing more; what it sent is read

    def close(self, trouble: str) -> None:
        """Give back everything; with trouble the peer gets a reset."""
        if trouble:
            reset(self.remote)
        for way in self._ways:
            way.flow.close()
        self.local.close()
        self.remote.close()

    def _move(self) -> str | None:
        outward, inward = self._ways
        for _ in range(_PASSES):
            if outward.done and inward.done and not (outward.broken or inward.broken):
                return ""
            if self.stopped():
                return STOPPED
            if self.plain and self.inward.readable and self._inward_is_tls():
                return TLS_PEER
            self._paused = False
            moved = self._turn(outward)
            if not (self._turn(inward) or moved):
                if self._lingered():
                    return self._after_break()
                self.due = self._due()
                return None
        self.due = 0.0  # a side that is gone is seen in between
        return None

    def _turn(self, way: Way) -> bool:
        """Whether anything moved."""
        flow = way.flow
        if way.done:
            if way is self._ways[1] and way.broken and not flow.ended:
                way.dropped += flow.discard()
            return False
        moved = False
        try:
            for _ in range(_TURNS):
                count = self._fill(way) if flow.readable and not flow.ended else 0
                if flow.writable and flow.held:
                    count += flow.drain()
                if not count:
                    break
                moved = True
            if flow.ended and not flow.held and flow.finish():
                way.done = True
                return True
        except SinkGone:
            way.broken = way.done = True
            return True
        return moved

    def _fill(self, way: Way) -> int:
        most = PIPE_BYTES
        if way.rate is not None:
            if time.monotonic() < self._resume:
                self._paused = True
                return 0
            most = min(CHUNK_BYTES, way.rate.piece)
        try:
            count = way.flow.fill(most)
        except ConnectionResetError:
            if way.flow.source is not self.local:
                raise
            way.flow.ended = True  # it closed without reading all: the stream's protocol judges
            count = 0
        if way.rate is not None and count:
            self._resume = time.monotonic() + way.rate.spend(count)
        return count

    def _lingered(self) -> bool:
        """Whether a stream with one side gone has waited enough for the other one."""
        outward, inward = self._ways
        if not (outward.broken or inward.broken):
            return False
        if outward.broken and inward.done:
            return True
        if not outward.done or (not outward.broken and _unsent(self.remote)):
            self._deadline = None  # the peer still has to get what was sent before
            return False
        if outward.broken and inward.flow.held:
            return False  # the local program is slow, not gone
        if inward.broken and inward.flow.ended:
            return True
        if self._deadline is None:
            self._deadline = time.monotonic() + LINGER_SECONDS
        return time.monotonic() >= self._deadline

    def _after_break(self) -> str:
        """What to say of a stream of which one side went first."""
        outward, inward = self._ways
        if outward.broken:
            return self._gone("the peer is gone")
        if inward.dropped or inward.flow.held or not inward.flow.ended:
            return "the local program is gone"
        return ""  # it closed after its last word, and the peer had nothing more to say

    def _gone(self, trouble: str) -> str:
        """A peer of a plain stream that went without a word may have awaited TLS."""
        return f"{trouble} and said nothing: {UNHEARD_PEER}" if self.plain else trouble

    def _look(self, poll: select.poll, fd: int, reads: Way, writes: Way) -> None:
        """Ask for what matters of a socket now."""
        mask = select.POLLIN if self._wants(reads) else 0
        if writes.flow.held and not writes.done:
            mask |= select.POLLOUT
        wanted = mask if mask or not writes.done else None
        if self._masks.get(fd) == wanted:
            return
        if wanted is None:
            poll.unregister(fd)
        else:
            poll.register(fd, wanted)
        self._masks[fd] = wanted

    def _wants(self, way: Way) -> bool:
        """Whether to wait for a way's source: there is room, or what comes is to be dropped."""
        if way.flow.ended or (way.rate is not None and self._paused):
            return False
        if way.broken:
            return way is self._ways[1]
        return not way.flow.held

    def _due(self) -> float | None:
        if self._paused:
            return self._resume
        if self._ways[0].broken or self._ways[1].broken:
            return time.monotonic() + _LOOK_SECONDS
        return None

    def _inward_is_tls(self) -> bool:
        """Whether a peer of a plain stream speaks TLS; it is told so."""
        try:
            first = self.remote.recv(_PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            self.inward.readable = False
            return False
        if not first:  # its end, before a word: `_gone` says so
            return False
        self.plain = False
        if not is_tls(first):
            return False
        if first[0] != MODE_ALERT[0]:
            with suppress(OSError):  # full, or gone: our own log has the reason all the same
                self.remote.send(MODE_ALERT)
        return True


def reset(sock: socket.socket) -> None:
    """Make closing a TCP connection an abortion, which the peer tells from an end."""
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _unsent(sock: socket.socket) -> bool:
    """Whether the peer's kernel has not yet got all that we sent, and still may (SIOCOUTQ).

    A connection that was reset counts for ever what it can no longer send.
    """
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
        return False
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    return bool(struct.unpack("i", answer)[0])


def wake_pair() -> tuple[int, int]:
    """A pipe that wakes threads by its other end's closing."""
    return os.pipe2(os.O_CLOEXEC)
