"""One stream of a migration, from the accepted connection to its end: a thread's body.

On the target the peer is let in (address, then TLS and its names) before the local socket is
dialled; on the source the peer is dialled when a local program connects. Whatever fails ends this
stream alone, with one line that says why.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from libtortie.errors import InvalidInput, TortieError, Unavailable, first_line
from migration_proxy import tcp_sockets, unix_sockets
from migration_proxy.certificate import Peer
from migration_proxy.config import IPNetwork, may_come
from migration_proxy.flows import Flow, OpenFlow, SealFlow, splice_both
from migration_proxy.handshake import HandshakeFailed, Tls, await_verdict, shake
from migration_proxy.lanes import Lanes
from migration_proxy.model import Request, Side, Stream
from migration_proxy.order import Order, Place
from migration_proxy.rate import Rate
from migration_proxy.relay import STOPPED, Relay, reset
from migration_proxy.tcp_sockets import Patience
from migration_proxy.tls_files import TlsFiles

DIAL_LOCAL_SECONDS = 10.0
VERDICT_SECONDS = 1.0


class Phase(StrEnum):
    """How far a stream has come."""

    SHAKING = "handshake"
    DIALLING = "dialling"
    MOVING = "moving"
    OVER = "over"


class Trouble(StrEnum):
    """What a stream ended by."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    HANDSHAKE = "handshake"
    LOCAL = "local"
    BROKEN = "broken"
    STOPPED = "stopped"
    GONE = "gone"

    @property
    def blames_nobody(self) -> bool:
        """Whether such an end is no failure of the stream's."""
        return self in (Trouble.STOPPED, Trouble.GONE)


@dataclass(frozen=True, slots=True)
class Means:
    """What all streams of a proxy share."""

    server: TlsFiles | None
    client: TlsFiles | None
    allowed: tuple[IPNetwork, ...]
    patience: Patience
    handshake_seconds: float
    lanes: Lanes


class Ended(TortieError):
    """A stream's end that is somebody's concern."""

    def __init__(self, trouble: Trouble, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.trouble = trouble
        self.kind = kind


@dataclass(slots=True, eq=False)
class Session:
    """`run` never raises. `came` is of the wall clock.

    `age` is in seconds, of a clock that never jumps.

    It has a place in `order` from its beginning, or with TLS at the target from the moment at
    which the peer is let in: strangers hold up nobody. It leaves it when both sides are open.
    """

    request: Request
    stream: Stream
    accepted: socket.socket
    means: Means
    stopped: threading.Event
    order: Order
    party: str = ""
    rate: Rate | None = None
    came: float = field(default_factory=time.time)
    phase: Phase = Phase.DIALLING
    remote_at: str = ""
    peer: Peer | None = None
    ended: Ended | None = None
    _began: float = field(default_factory=time.monotonic)
    _relay: Relay | None = None
    _place: Place | None = None
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sockets.append(self.accepted)
        if self.request.side is Side.SOURCE or not self.request.tls:
            self._queue()

    @property
    def age(self) -> float:
        """How long it is there."""
        return time.monotonic() - self._began

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes taken for the peer, and from it."""
        relay = self._relay
        return (relay.outward.moved, relay.inward.moved) if relay else (0, 0)

    def run(self) -> None:
        """Open both sides and move the bytes."""
        try:
            local, remote, tls = self._open()
            self.leave()
            self.phase = Phase.MOVING
            self._move(local, remote, tls)
        except Ended as error:
            self.ended = error
        except (OSError, ssl.SSLError) as error:  # a side went, or we have no more descriptors
            self._fail(first_line(error))
        except Exception as error:  # a fault of ours: it ends this stream, and is told
            self._fail(repr(error))
        finally:
            self.leave()
            self.phase = Phase.OVER
            for sock in self._sockets:
                sock.close()
        if self.ended is not None and self.stopped.is_set():
            self.ended = Ended(Trouble.STOPPED, STOPPED)

    def _fail(self, message: str) -> None:
        """The peer must not take it for an orderly end, and wait for ours of the other half."""
        self.ended = Ended(Trouble.BROKEN, message)
        for sock in self._sockets:
            if sock.family != socket.AF_UNIX:
                with suppress(OSError):
                    reset(sock)

    def leave(self) -> None:
        """Let the next stream go."""
        if self._place is not None:
            self._place.leave()

    def abort(self) -> None:
        """End the stream from another thread, whatever it waits for."""
        for sock in tuple(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _open(self) -> tuple[socket.socket, socket.socket, Tls | None]:
        """(local, remote, TLS). Raises `Ended`."""
        if self.request.side is Side.TARGET:
            remote = self.accepted
            tls = self._let_in(remote)
            self.phase = Phase.DIALLING
            self._wait_for_others()
            local = self._dial_local(remote)
            self._refuse_stopped()
            return local, remote, tls
        self._wait_for_others()
        if _is_gone(self.accepted):
            raise Ended(Trouble.GONE, "the local program went before the peer was dialled")
        remote = self._dial_peer()
        self._refuse_stopped()
        tls = self._shake(remote, self.means.client)
        if tls is not None:
            await_verdict(remote, tls, VERDICT_SECONDS)  # the next one must not overtake us there
        return self.accepted, remote, tls

    def _queue(self) -> None:
        if self._place is None:
            self._place = self.order.join(self.party)

    def _wait_for_others(self) -> None:
        if self._place is not None and not self._place.wait():
            raise Ended(Trouble.STOPPED, STOPPED)

    def _refuse_stopped(self) -> None:
        """A socket that was just made or connected cannot have been aborted before."""
        if self.stopped.is_set():
            raise Ended(Trouble.STOPPED, STOPPED)

    def _note(self, sock: socket.socket) -> None:
        self._sockets.append(sock)
        self._refuse_stopped()

    def _let_in(self, remote: socket.socket) -> Tls | None:
        address, port = tcp_sockets.peer_address(remote)
        self.remote_at = tcp_sockets.endpoint(address, port)
        if not may_come(address, self.means.allowed, self.request.peer):
            reset(remote)
            who = self.request.peer or "one of allowed_peers"
            raise Ended(Trouble.REFUSED, f"{address} may not connect: this migration's is {who}")
        tcp_sockets.prepare(remote, self.means.patience)
        return self._shake(remote, self.means.server)

    def _shake(self, remote: socket.socket, files: TlsFiles | None) -> Tls | None:
        if not self.request.tls or files is None:
            return None
        self.phase = Phase.SHAKING
        try:
            tls = shake(
                remote,
                files,
                server=self.request.side is Side.TARGET,
                expected=self.request.peer_name,
                seconds=self.means.handshake_seconds,
                agreed=self._queue,
            )
        except HandshakeFailed as error:
            raise Ended(Trouble.HANDSHAKE, first_line(error), error.kind) from error
        except InvalidInput as error:
            raise Ended(Trouble.HANDSHAKE, first_line(error), "files") from error
        self.peer = tls.peer
        return tls

    def _dial_local(self, remote: socket.socket) -> socket.socket:
        try:
            return unix_sockets.dial(
                self.stream.path, DIAL_LOCAL_SECONDS, self._note, self.stopped.wait
            )
        except (Unavailable, InvalidInput) as error:
            reset(remote)
            raise Ended(Trouble.LOCAL, first_line(error)) from error

    def _dial_peer(self) -> socket.socket:
        assert self.request.peer is not None  # `source_request` has one
        self.remote_at = tcp_sockets.endpoint(self.request.peer, self.stream.port)
        try:
            return tcp_sockets.dial(
                self.request.peer, self.stream.port, self.means.patience, self._note
            )
        except Unavailable as error:
            raise Ended(Trouble.UNREACHABLE, first_line(error)) from error

    def _move(self, local: socket.socket, remote: socket.socket, tls: Tls | None) -> None:
        outward: Flow
        inward: Flow
        if tls is None:
            outward, inward = splice_both(local, remote)
        else:
            outward, inward = SealFlow(local, remote, tls), OpenFlow(remote, local, tls)
        self._relay = Relay(
            local,
            remote,
            outward,
            inward,
            self.stopped.is_set,
            rate=self.rate,
            plain=tls is None,
        )
        if trouble := self.means.lanes.carry(self._relay):
            kind = Trouble.STOPPED if trouble == STOPPED else Trouble.BROKEN
            raise Ended(kind, trouble)


def _is_gone(program: socket.socket) -> bool:
    """Whether a local program closed its end and had said nothing."""
    poll = select.poll()
    poll.register(program, 0)
    if not poll.poll(0):  # POLLHUP, POLLERR: both directions are over
        return False
    try:
        return not program.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True
