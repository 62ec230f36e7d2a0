"""One stream of a migration, from the accepted connection to its end: a thread's body.

On the target the peer is let in (address, then TLS and its names) before the local socket is
dialled; on the source the peer is dialled when a local program connects. Whatever fails ends this
stream alone, with one line that says why.
"""

from __future__ import annotations

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
from migration_proxy.flows import Flow, OpenFlow, SealFlow, SpliceFlow
from migration_proxy.handshake import HandshakeFailed, Tls, await_verdict, shake
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


@dataclass(frozen=True, slots=True)
class Means:
    """What all streams of a proxy share."""

    server: TlsFiles | None
    client: TlsFiles | None
    allowed: tuple[IPNetwork, ...]
    patience: Patience
    handshake_seconds: float


class Ended(TortieError):
    """A stream's end that is somebody's concern."""

    def __init__(self, trouble: Trouble, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.trouble = trouble
        self.kind = kind


@dataclass(slots=True, eq=False)
class Session:
    """`run` never raises. `wake` is readable once `stopped` is set. `came` is of the wall clock.

    It has a place in `order` from its beginning, or with TLS at the target from the moment at
    which the peer is let in: strangers hold up nobody. It leaves it when both sides are open.
    """

    request: Request
    stream: Stream
    accepted: socket.socket
    means: Means
    wake: int
    stopped: threading.Event
    order: Order
    party: str = ""
    rate: Rate | None = None
    came: float = field(default_factory=time.time)
    phase: Phase = Phase.DIALLING
    remote_at: str = ""
    peer: Peer | None = None
    ended: Ended | None = None
    _relay: Relay | None = None
    _place: Place | None = None
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.request.side is Side.SOURCE or not self.request.tls:
            self._queue()

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes taken for the peer, and from it."""
        relay = self._relay
        return (relay.outward.moved, relay.inward.moved) if relay else (0, 0)

    def run(self) -> None:
        """Open both sides and move the bytes."""
        self._sockets.append(self.accepted)
        try:
            local, remote, tls = self._open()
            self.leave()
            self.phase = Phase.MOVING
            self._move(local, remote, tls)
        except Ended as error:
            self.ended = error
        except (OSError, ssl.SSLError) as error:  # a side went while its options were set
            self.ended = Ended(Trouble.BROKEN, first_line(error))
        except Exception as error:  # a fault of ours: it ends this stream, and is told
            self.ended = Ended(Trouble.BROKEN, repr(error))
        finally:
            self.leave()
            self.phase = Phase.OVER
            for sock in self._sockets:
                sock.close()
        if self.ended is not None and self.stopped.is_set():
            self.ended = Ended(Trouble.STOPPED, STOPPED)

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
            return self._dial_local(remote), remote, tls
        self._wait_for_others()
        remote = self._dial_peer()
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
            return unix_sockets.dial(self.stream.path, DIAL_LOCAL_SECONDS, self._sockets.append)
        except (Unavailable, InvalidInput) as error:
            reset(remote)
            raise Ended(Trouble.LOCAL, first_line(error)) from error

    def _dial_peer(self) -> socket.socket:
        assert self.request.peer is not None  # `source_request` has one
        self.remote_at = tcp_sockets.endpoint(self.request.peer, self.stream.port)
        try:
            return tcp_sockets.dial(
                self.request.peer, self.stream.port, self.means.patience, self._sockets.append
            )
        except Unavailable as error:
            raise Ended(Trouble.UNREACHABLE, first_line(error)) from error

    def _move(self, local: socket.socket, remote: socket.socket, tls: Tls | None) -> None:
        outward: Flow
        inward: Flow
        if tls is None:
            outward, inward = SpliceFlow(local, remote), SpliceFlow(remote, local)
        else:
            outward, inward = SealFlow(local, remote, tls), OpenFlow(remote, local, tls)
        self._relay = Relay(
            local,
            remote,
            outward,
            inward,
            self.wake,
            self.stopped.is_set,
            rate=self.rate,
            plain=tls is None,
        )
        if trouble := self._relay.run():
            kind = Trouble.STOPPED if trouble == STOPPED else Trouble.BROKEN
            raise Ended(kind, trouble)
